// SPDX-License-Identifier: Apache-2.0
#include "cli/junit.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/printable.h"
#include "report/svg.h"
#include "report/text.h"
#include "store/folder.h"

namespace telltale::cli {
namespace {

/// Findings of one rule that the text of its case has in full.
constexpr std::size_t kMostTold = 20;

std::string Heading(const report::RunData& data, const rules::Finding& f) {
  const std::string subject = report::SubjectOf(data, f);
  return fmt::format("{}: {}{}", rules::Name(f.incident.severity), f.incident.message,
                     subject.empty() ? "" : ": " + subject);
}

std::string Told(const report::RunData& data, const rules::Finding& f) {
  const std::string since = report::SinceWords(f);
  return fmt::format("{}{}\n  {}\n  → {}\n  lost {}; confidence {}\n", Heading(data, f),
                     since.empty() ? "" : ", " + since, f.incident.cause, f.incident.advice,
                     report::Duration(f.incident.cost_seconds),
                     report::Percent(f.incident.confidence));
}

/// `incidents`: how many findings the rule has had; some may have been left out of the list.
JUnitCase CaseOf(const report::RunData& data, const std::string& rule, rules::Severity limit,
                 std::size_t incidents = 0) {
  JUnitCase out;
  out.name = rule;
  std::size_t failed = 0;
  std::size_t told = 0;
  for (const rules::Finding& f : data.replay.findings) {
    if (f.rule != rule) continue;
    if (f.incident.severity >= limit) {
      ++failed;
      // Ranked: the first is what people are told first.
      if (out.failure.empty()) out.failure = Heading(data, f);
    }
    if (told++ < kMostTold) out.text += Told(data, f);
  }
  if (failed > 1) out.failure += fmt::format(" and {} more", failed - 1);
  const std::size_t left_out =
      data.replay.findings_left_out > 0 && incidents > told ? incidents - told : 0;
  const std::size_t more = told - std::min(told, kMostTold) + left_out;
  if (more > 0) out.text += fmt::format("and {} more\n", more);
  return out;
}

std::string Skipped(std::string_view status, const std::string& missing) {
  return fmt::format("{}{}{}", status, missing.empty() ? "" : ": ", missing);
}

}  // namespace

std::string JUnitXml(std::string_view suite, const std::vector<JUnitCase>& cases) {
  const auto count = [&](std::string JUnitCase::*what) {
    return std::count_if(cases.begin(), cases.end(),
                         [&](const JUnitCase& one) { return !(one.*what).empty(); });
  };
  const std::string numbers = fmt::format(
      "tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"0\"", cases.size(),
      count(&JUnitCase::failure), count(&JUnitCase::error), count(&JUnitCase::skipped));
  const std::string name = report::Escape(suite);
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"telltale\" {}>\n"
      "  <testsuite name=\"{}\" {}>\n",
      numbers, name, numbers);
  for (const JUnitCase& one : cases) {
    out += fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"0\"", name,
                       report::Escape(one.name));
    const std::string text = report::Escape(one.text);
    if (!one.failure.empty()) {
      out += fmt::format("><failure message=\"{}\">{}</failure></testcase>\n",
                         report::Escape(one.failure), text);
    } else if (!one.error.empty()) {
      out += fmt::format("><error message=\"{}\">{}</error></testcase>\n",
                         report::Escape(one.error), text);
    } else if (!one.skipped.empty()) {
      out += fmt::format("><skipped message=\"{}\"/></testcase>\n", report::Escape(one.skipped));
    } else if (!text.empty()) {
      out += fmt::format("><system-out>{}</system-out></testcase>\n", text);
    } else {
      out += "/>\n";
    }
  }
  return out + "  </testsuite>\n</testsuites>\n";
}

std::vector<JUnitCase> CasesOf(const report::RunData& data, rules::Severity limit) {
  std::vector<JUnitCase> out;
  std::set<std::string> known;
  for (const rules::RuleState& state : data.replay.rules) {
    known.insert(state.name);
    JUnitCase one = CaseOf(data, state.name, limit, state.incidents);
    if (one.failure.empty()) {
      switch (state.status) {
        case rules::RuleStatus::kError:
        case rules::RuleStatus::kSuspended:
          one.error = state.error.empty() ? std::string("the rule was stopped") : state.error;
          break;
        case rules::RuleStatus::kNoData:
          one.skipped = Skipped("no data", state.missing);
          break;
        case rules::RuleStatus::kPartial:
          one.skipped = "partial: " + state.partial;
          break;
        case rules::RuleStatus::kNotApplicable:
          one.skipped = Skipped("not applicable", state.missing);
          break;
        case rules::RuleStatus::kStopped:
          one.skipped = "stopped";
          break;
        case rules::RuleStatus::kNoIssuesFound:
        case rules::RuleStatus::kIssuesFound:
        case rules::RuleStatus::kInProgress:
          break;
      }
    }
    out.push_back(std::move(one));
  }
  // Whatever fired is in the file.
  for (const rules::Finding& f : data.replay.findings) {
    if (known.insert(f.rule).second) out.push_back(CaseOf(data, f.rule, limit));
  }
  return out;
}

Status WriteJUnit(const std::string& file, const std::string& xml) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(file, error);
  const Status written = error ? Status(Code::kIo, error.message()) : store::ReplaceFile(path, xml);
  if (written.ok()) return {};
  return Status(Code::kIo, fmt::format("--junit {}: {}: name a file in a folder that can be "
                                       "written",
                                       Printable(file), written.message()));
}

}  // namespace telltale::cli
