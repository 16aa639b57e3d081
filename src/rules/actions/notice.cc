// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/notice.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/printable.h"
#include "rules/finding_json.h"

namespace telltale::rules {
namespace {

using nlohmann::ordered_json;

/// More than anybody reads in a message; the run has them all.
constexpr std::size_t kMaxFindings = 20;
constexpr std::size_t kMaxLineBytes = 500;

/// Slack's three characters with a meaning.
std::string ForSlack(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string Steps(const Incident& incident) {
  if (incident.first_step < 0) return "";
  if (incident.last_step <= incident.first_step) return fmt::format("step {}", incident.first_step);
  return fmt::format("steps {} to {}", incident.first_step, incident.last_step);
}

std::string Headline(const Finding& finding) {
  return fmt::format("[{}] {}: {}", Name(finding.incident.severity), finding.rule,
                     finding.incident.message);
}

}  // namespace

std::string OneLine(std::string_view text, std::size_t limit) {
  std::string out = Printable(text);
  if (out.size() <= limit) return out;
  std::size_t end = limit > 3 ? limit - 3 : 0;
  // Not inside a character.
  while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xc0U) == 0x80U) --end;
  out.resize(end);
  return out + "...";
}

std::string SubjectLine(const Notice& notice) {
  std::string text = notice.test ? "A test of Telltale" : Headline(notice.findings.front());
  const std::size_t more = notice.findings.size() - 1 + notice.held;
  if (more > 0) text += fmt::format(" and {} more", more);
  return OneLine(fmt::format("{} ({})", text, notice.name.empty() ? notice.run : notice.name), 200);
}

std::string ShortText(const Notice& notice) {
  std::string text = "Telltale: " + SubjectLine(notice);
  if (!notice.test) text += ". " + notice.findings.front().incident.advice;
  return OneLine(text, 300);
}

std::string PlainText(const Notice& notice) {
  std::string out;
  const auto line = [&](std::string_view what, std::string_view text) {
    if (!text.empty()) out += fmt::format("{}{}\n", what, OneLine(text, kMaxLineBytes));
  };
  if (notice.test) out += "Somebody tries whether this message arrives. Nothing is wrong.\n\n";
  const std::size_t shown = std::min(notice.findings.size(), kMaxFindings);
  for (std::size_t i = 0; i < shown; ++i) {
    const Finding& finding = notice.findings[i];
    line("", Headline(finding));
    line("  what: ", finding.incident.subject);
    line("  when: ", Steps(finding.incident));
    line("  cause: ", finding.incident.cause);
    line("  to do: ", finding.incident.advice);
    if (finding.incident.cost_seconds > 0) {
      line("  cost so far: ", fmt::format("{:.1f} s", finding.incident.cost_seconds));
    }
    out += '\n';
  }
  if (shown < notice.findings.size()) {
    out += fmt::format("... and {} more\n\n", notice.findings.size() - shown);
  }
  if (notice.held > 0) {
    out += fmt::format("{} more of the same since the message before\n\n", notice.held);
  }
  line("run: ", notice.name.empty() ? notice.run : notice.name + " (" + notice.run + ")");
  line("machine: ", notice.host);
  line("folder: ", notice.path);
  return out;
}

std::string NoticeJson(const Notice& notice) {
  ordered_json findings = ordered_json::array();
  for (std::size_t i = 0; i < std::min(notice.findings.size(), kMaxFindings); ++i) {
    findings.push_back(ToJson(notice.findings[i]));
  }
  return JsonText(ordered_json{{"version", 1},
                               {"key", notice.key},
                               {"test", notice.test},
                               {"run", notice.run},
                               {"name", notice.name},
                               {"host", notice.host},
                               {"path", notice.path},
                               {"text", SubjectLine(notice)},
                               {"count", notice.findings.size()},
                               {"held", notice.held},
                               {"findings", std::move(findings)}});
}

std::string SlackJson(const Notice& notice) {
  const std::string text = ForSlack(SubjectLine(notice));
  // A section takes 3000 characters.
  std::string body = ForSlack(PlainText(notice));
  if (body.size() > 2900) {
    body.resize(2900);
    // Neither inside a character nor inside one of ForSlack's.
    while (!body.empty() && (static_cast<unsigned char>(body.back()) & 0x80U) != 0) body.pop_back();
    const auto amp = body.rfind('&');
    if (amp != std::string::npos && body.find(';', amp) == std::string::npos) body.resize(amp);
  }
  return JsonText(ordered_json{
      {"text", text},
      {"blocks",
       ordered_json::array(
           {{{"type", "section"}, {"text", {{"type", "mrkdwn"}, {"text", "*" + text + "*"}}}},
            {{"type", "section"},
             {"text", {{"type", "plain_text"}, {"text", body}, {"emoji", false}}}}})}});
}

}  // namespace telltale::rules
