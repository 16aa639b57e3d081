// SPDX-License-Identifier: Apache-2.0
#include "report/verdict.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/given_name.h"
#include "base/printable.h"
#include "report/causes.h"
#include "report/text.h"

namespace telltale::report {
namespace {

constexpr int kMaxLines = 24;
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
  const auto width = static_cast<std::size_t>(std::max(40, options.width));
  const rules::Replay& replay = data.replay;
  std::vector<std::string> head;
  std::vector<std::string> foot;
  std::string rule_line;
  for (std::size_t i = 0; i < width; ++i) rule_line += "─";

  std::string title = fmt::format(
      " {}   {}   {}   {} steps", Printable(data.title()), StateWords(replay.state),
      Printable(Duration(data.elapsed_seconds())), Thousands(data.summary.train_steps()));
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
  for (const std::string& line : Wrap(Printable(Verdict(data)), width - 2, 2)) {
    head.push_back(" " + line);
  }
  if (const std::string stopped = StoppedWords(data); !stopped.empty()) {
    for (const std::string& line : Wrap(Printable(stopped), width - 2, 2)) {
      head.push_back(" " + line);
    }
  }
  head.emplace_back();

  std::size_t unknown_lines = 0;
  for (const std::string& unknown : Unknowns(data)) {
    if (++unknown_lines > 4) break;
    foot.push_back(" " + Cut(Printable(unknown), width - 2));
  }
  if (!foot.empty()) foot.emplace_back();
  if (const std::string phases = WhereTheRunGoes(data); !phases.empty()) {
    foot.push_back(" " + Cut(Printable(phases), width - 2));
  }
  for (const std::string& line : Wrap(Printable(OwnCost(data)), width - 2, 2)) {
    foot.push_back(" " + line);
  }
  // Never thinned without a word.
  if (const std::string capture = CaptureWords(data); !capture.empty()) {
    for (const std::string& line : Wrap(Printable(capture), width - 2, 2))
      foot.push_back(" " + line);
  }
  std::error_code error;
  const std::filesystem::path html = data.path / "report.html";
  foot.push_back(" " + (std::filesystem::exists(html, error)
                            ? fmt::format("report  {}", Printable(html.string()))
                            : fmt::format("report  telltale report {}",
                                          Printable(AsGiven(data.path.string())))));
  foot.push_back(fmt::format(" page    telltale serve {}", Printable(AsGiven(data.path.string()))));
  foot.push_back(rule_line);

  // What is left belongs to the findings: three lines each, those of one cause together; the rest
  // is counted.
  std::vector<std::string> body;
  std::size_t shown = 0;
  for (const Explanation& explanation : Explain(data)) {
    const rules::Finding& finding = replay.findings[explanation.findings.front()];
    const rules::Incident& i = finding.incident;
    std::vector<std::string> lines;
    const Mark mark = MarkOf(explanation.severity);
    const std::string subject = SubjectOf(data, finding);
    const std::string cost = Printable(Duration(explanation.lost_seconds));
    std::string heading = Printable(i.message) + (subject.empty() ? "" : ": " + Printable(subject));
    if (!finding.open && !finding.until_end) heading += " (closed)";
    heading = Cut(heading, width - 12 - Width(cost) - 2);
    const std::string pad(width - 12 - Width(heading) - Width(cost) - 1, ' ');
    const std::string word(rules::Name(explanation.severity));
    lines.push_back(fmt::format(" {}{} {:<7}{} {}{}{}", options.color ? mark.color : "", mark.shape,
                                word, options.color && !mark.color.empty() ? kReset : "", heading,
                                pad, cost));
    // Where no cause was found, the candidates.
    const std::string cause = explanation.cause_found || explanation.difference.empty()
                                  ? explanation.cause
                                  : explanation.cause + ": " + explanation.difference;
    for (const std::string& line : Wrap(Printable(cause), width - 12, 2)) {
      lines.push_back(std::string(11, ' ') + line);
    }
    const std::vector<std::string> advice = Wrap("→ " + Printable(i.advice), width - 14, 2);
    for (std::size_t n = 0; n < advice.size(); ++n) {
      lines.push_back(std::string(n == 0 ? 11 : 13, ' ') + advice[n]);
    }
    if (const std::string beneath = BeneathWords(data, explanation); !beneath.empty()) {
      lines.push_back(std::string(11, ' ') + Cut(Printable(beneath), width - 12));
    }
    if (const std::string did = ActionWords(data, explanation.findings); !did.empty()) {
      lines.push_back(std::string(11, ' ') + Cut(Printable(did), width - 12));
    }
    const std::size_t more = replay.findings.size() - shown > explanation.findings.size() ? 1 : 0;
    if (head.size() + body.size() + lines.size() + foot.size() + more + 1 > kMaxLines) break;
    body.insert(body.end(), lines.begin(), lines.end());
    shown += explanation.findings.size();
  }
  if (shown < replay.findings.size()) {
    body.push_back(fmt::format(" and {} more: telltale check {} --json",
                               replay.findings.size() - shown,
                               Printable(AsGiven(data.path.string()))));
  }
  if (!body.empty()) body.emplace_back();

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
