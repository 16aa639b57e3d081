// SPDX-License-Identifier: Apache-2.0
#include "report/verdict.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <vector>

#include "base/given_name.h"
#include "base/printable.h"
#include "base/run_files.h"
#include "report/causes.h"
#include "report/text.h"

namespace telltale::report {
namespace {

/// Lines of one text: what is longer is cut.
constexpr std::size_t kMostLines = 12;
/// Lines about Telltale itself.
constexpr std::size_t kOwnLines = 3;
/// Lines of `telltale run` about what could not be judged.
constexpr std::size_t kUnknownLines = 4;
/// Column of a finding's text.
constexpr std::size_t kTextColumn = 10;
constexpr std::string_view kReset = "\x1b[0m";

/// Columns that a text takes: code points, as everything here is narrow.
std::size_t Width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::string Cut(const std::string& text, std::size_t width) {
  if (Width(text) <= width) return text;
  std::string out;
  std::size_t used = 0;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t next = i + 1;
    while (next < text.size() && (static_cast<unsigned char>(text[next]) & 0xC0U) == 0x80U) ++next;
    if (used + 2 > width) break;
    out.append(text, i, next - i);
    ++used;
    i = next;
  }
  return out + "…";
}

/// Breaks at spaces into at most `lines` lines; the last is cut.
std::vector<std::string> Wrap(const std::string& text, std::size_t width, std::size_t lines) {
  std::vector<std::string> out;
  std::string line;
  std::size_t at = 0;
  while (at < text.size()) {
    const auto space = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, space - at);
    if (!line.empty() && Width(line) + 1 + Width(word) > width) {
      if (out.size() + 1 == lines) {
        line += ' ' + text.substr(at);
        at = text.size();
        break;
      }
      out.push_back(std::exchange(line, word));
    } else {
      line += (line.empty() ? "" : " ") + word;
    }
    at = space + 1;
  }
  if (!line.empty()) out.push_back(Cut(line, width));
  return out;
}

struct Mark {
  std::string_view shape, color;
};
Mark MarkOf(rules::Severity severity) {
  switch (severity) {
    case rules::Severity::kHigh:
      return {"◆", "\x1b[31m"};
    case rules::Severity::kMedium:
      return {"▲", "\x1b[33m"};
    case rules::Severity::kLow:
      return {"○", "\x1b[36m"};
    case rules::Severity::kInfo:
      break;
  }
  return {"·", ""};
}

std::size_t Columns(const VerdictOptions& options) {
  return static_cast<std::size_t>(std::max(40, options.width));
}

void Add(std::vector<std::string> more, std::vector<std::string>* lines) {
  std::move(more.begin(), more.end(), std::back_inserter(*lines));
}

/// The text in lines that begin at `column`; after the first by `hang` columns more.
std::vector<std::string> Paragraph(const std::string& text, std::size_t column, std::size_t hang,
                                   std::size_t width) {
  std::vector<std::string> out;
  for (std::string& line : Wrap(Printable(text), width - column - hang - 1, kMostLines)) {
    out.push_back(std::string(column + (out.empty() ? 0 : hang), ' ') + line);
  }
  return out;
}

/// What was found, its `cost` and the rule; why; what to do. `indent`: columns to the right, of
/// what stands beneath another finding about the same thing.
std::vector<std::string> FindingLines(const RunData& data, const rules::Finding& finding,
                                      const std::string& cause, const std::string& cost,
                                      std::size_t indent, const VerdictOptions& options) {
  const rules::Incident& i = finding.incident;
  const std::size_t width = Columns(options);
  const std::size_t column = kTextColumn + indent;
  const Mark mark = MarkOf(i.severity);
  const bool color = options.color && !mark.color.empty();
  const std::string subject = SubjectOf(data, finding);
  std::string heading = i.message + (subject.empty() ? "" : ": " + subject);
  if (!finding.open && !finding.until_end) heading += " (closed)";
  heading += fmt::format(" [{}]", finding.rule);
  // The cost stands at the right of the first line.
  const std::size_t room = width - column - 1 - (cost.empty() ? 0 : Width(cost) + 1);
  std::vector<std::string> lines = Wrap(Printable(heading), room, kMostLines);
  if (!cost.empty()) {
    lines.front() += std::string(room - Width(lines.front()) + 1, ' ') + cost;
  }
  for (std::size_t n = 1; n < lines.size(); ++n) lines[n].insert(0, column, ' ');
  lines.front() =
      fmt::format(" {:{}}{}{} {:<6}{} {}", "", indent, color ? mark.color : "", mark.shape,
                  rules::Name(i.severity), color ? kReset : "", lines.front());
  if (!cause.empty()) Add(Paragraph(cause, column, 0, width), &lines);
  if (!i.advice.empty()) Add(Paragraph("→ " + i.advice, column, 2, width), &lines);
  return lines;
}

/// A group: the finding that explains the others, then those. `least`: less severe ones are counted
/// in `left`.
std::vector<std::string> GroupLines(const RunData& data, const Explanation& explanation,
                                    rules::Severity least, const VerdictOptions& options,
                                    std::size_t* left) {
  const std::vector<rules::Finding>& findings = data.replay.findings;
  std::vector<std::string> lines;
  // Where no cause was found, the candidates.
  std::string cause = explanation.cause_found || explanation.difference.empty()
                          ? explanation.cause
                          : explanation.cause + ": " + explanation.difference;
  const auto words = [](double seconds, std::string_view together = {}) {
    return seconds > 0 ? Printable(Duration(seconds)) + std::string(together) : std::string();
  };
  for (std::size_t n = 0; n < explanation.findings.size(); ++n) {
    const rules::Finding& finding = findings[explanation.findings[n]];
    // The first is why the others are there: it is shown with them, however severe it is.
    if (finding.incident.severity < least && (n > 0 || explanation.severity < least)) {
      ++*left;
      continue;
    }
    Add(FindingLines(data, finding, n == 0 ? cause : finding.incident.cause,
                     n == 0
                         ? words(explanation.lost_seconds,
                                 TogetherWord(data, explanation.findings, explanation.lost_seconds))
                         : words(finding.incident.cost_seconds),
                     n == 0 ? 0 : 2, options),
        &lines);
  }
  if (lines.empty()) return lines;
  if (const std::string did = ActionWords(data, explanation.findings); !did.empty()) {
    Add(Paragraph(did, kTextColumn, 0, Columns(options)), &lines);
  }
  return lines;
}

}  // namespace

VerdictOptions VerdictOptions::For(std::FILE* stream) {
  VerdictOptions options;
  const int fd = fileno(stream);
  if (isatty(fd) != 1) return options;
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  options.color = (no_color == nullptr || *no_color == '\0') &&
                  (term == nullptr || std::string_view(term) != "dumb");
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    options.width = std::clamp<int>(size.ws_col, 40, 98);
  }
  return options;
}

std::string FormatVerdict(const RunData& data, const VerdictOptions& options) {
  const std::size_t width = Columns(options);
  const rules::Replay& replay = data.replay;
  std::vector<std::string> head;
  std::vector<std::string> foot;
  std::string rule_line;
  for (std::size_t i = 0; i < width; ++i) rule_line += "─";

  std::string title =
      fmt::format(" {}   {}   {}   {} steps", Printable(data.title()), StateWords(replay.state),
                  Printable(ElapsedWords(data)), Thousands(data.summary.train_steps()));
  if (replay.info.attempts.size() > 1) {
    title += fmt::format("   {} attempts", replay.info.attempts.size());
  }
  const double lost = data.lost_seconds();
  if (lost > 0 && data.elapsed_seconds() > 0) {
    title += fmt::format("   lost {} ({:.0f} %)", Printable(Duration(lost)),
                         100 * lost / data.elapsed_seconds());
    if (const auto money = MoneyOf(data, lost)) {
      title += fmt::format(", {}", Printable(Money(*money, replay.rule_set.currency)));
    }
  }
  head.push_back(rule_line);
  head.push_back(Cut(title, width));
  head.emplace_back();
  Add(Paragraph(Verdict(data), 1, 0, width), &head);
  if (const std::string stopped = StoppedWords(data); !stopped.empty()) {
    Add(Paragraph(stopped, 1, 0, width), &head);
  }
  head.emplace_back();

  const rules::Severity least = options.all ? rules::Severity::kInfo : rules::Severity::kMedium;
  std::vector<std::string> body;
  std::size_t left = 0;
  for (const Explanation& explanation : Explain(data)) {
    Add(GroupLines(data, explanation, least, options, &left), &body);
  }
  if (left > 0) {
    Add(Paragraph(
            fmt::format("and {} of low severity: telltale check {}",
                        left == 1 ? std::string("1 finding") : fmt::format("{} findings", left),
                        AsGiven(data.path.string())),
            1, 2, width),
        &body);
  }
  if (!body.empty()) body.emplace_back();

  const std::vector<std::string> unknowns = Unknowns(data);
  for (std::size_t n = 0; n < unknowns.size(); ++n) {
    if (!options.all && n + 1 == kUnknownLines && unknowns.size() > kUnknownLines) {
      foot.push_back(fmt::format(" and {} more that could not be judged: telltale check {}",
                                 unknowns.size() - n, Printable(AsGiven(data.path.string()))));
      break;
    }
    Add(Paragraph(unknowns[n], 1, 2, width), &foot);
  }
  if (options.all) {
    for (const std::string& words : NotApplicableWords(data)) {
      Add(Paragraph(words, 1, 2, width), &foot);
    }
  }
  if (!foot.empty()) foot.emplace_back();
  if (const std::string phases = WhereTheRunGoes(data); !phases.empty()) {
    Add(Paragraph(phases, 1, 2, width), &foot);
  }
  for (const std::string& words : ResourceWords(data)) Add(Paragraph(words, 1, 2, width), &foot);
  // What was captured less often is never left unsaid.
  const std::string capture = CaptureWords(data);
  for (std::string& line :
       Wrap(Printable(OwnCost(data)), width - 2, kOwnLines - (capture.empty() ? 0 : 1))) {
    foot.push_back(" " + line);
  }
  if (!capture.empty() && options.all) {
    Add(Paragraph(capture, 1, 2, width), &foot);
  } else if (!capture.empty()) {
    foot.push_back(" " + Cut(Printable(capture), width - 2));
  }
  const std::filesystem::path html = data.path / "report.html";
  foot.push_back(" " + (run_files::IsFile(run_files::OfRun(html))
                            ? fmt::format("report  {}", Printable(html.string()))
                            : fmt::format("report  telltale report {}",
                                          Printable(AsGiven(data.path.string())))));
  foot.push_back(fmt::format(" page    telltale serve {}", Printable(AsGiven(data.path.string()))));
  foot.push_back(rule_line);

  std::string out;
  for (const auto* part : {&head, &body, &foot}) {
    for (const std::string& line : *part) out += line + "\n";
  }
  // It kept number and unit on one line; terminals differ in its width.
  for (auto at = out.find(kSpace); at != std::string::npos; at = out.find(kSpace, at)) {
    out.replace(at, kSpace.size(), " ");
  }
  return out;
}

}  // namespace telltale::report
