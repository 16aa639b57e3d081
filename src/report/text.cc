// SPDX-License-Identifier: Apache-2.0
#include "report/text.h"

#include <fmt/format.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/json.h"
#include "base/saturate.h"
#include "format/ledger_names.h"
#include "report/causes.h"

namespace telltale::report {
namespace {

/// A finding that began this early began with the run.
constexpr std::int64_t kStartSteps = 3;
constexpr std::size_t kMaxOperations = 12;

/// Different outcomes of actions that are told of one finding.
constexpr std::size_t kMostPhrases = 6;
/// Nodes that are told of what they hold the run with.
constexpr std::size_t kMostNodes = 4;
/// A start is told in parts from this time, or from this share of the run on.
constexpr double kLongStartSeconds = 60;
constexpr double kLongStartShare = 0.1;
/// Reasons that the line of what was skipped names.
constexpr std::size_t kNamedReasons = 4;

/// By rules::RuleStatus.
constexpr std::array<std::string_view, 9> kStatusWords = {
    "quiet",          "fired",     "watching", "without data", "partial",
    "not applicable", "suspended", "stopped",  "failed"};

/// What an action does, in words.
struct ActionPhrase {
  std::string_view kind, infinitive, past;
};
constexpr std::array<ActionPhrase, 7> kActionPhrases = {{
    {"stop", "stop the training", "asked the training to stop"},
    {"webhook", "post to a webhook", "posted to a webhook"},
    {"email", "send a mail", "sent a mail"},
    {"sms", "send a text message", "sent a text message"},
    {"program", "run a program", "ran a program"},
    {"capture", "keep whole tensors", "asked for whole tensors"},
    {"profile", "start a profiler window", "asked for a profiler window"},
}};

/// "asked the training to stop", without the full stop.
std::string Phrase(const rules::ActionTaken& taken) {
  ActionPhrase phrase{taken.action, taken.action, taken.action};
  for (const ActionPhrase& known : kActionPhrases) {
    if (known.kind == taken.action) phrase = known;
  }
  const std::string detail = taken.detail.empty() ? std::string() : ": " + taken.detail;
  if (taken.outcome == "done") return std::string(phrase.past);
  if (taken.outcome == "pending") return fmt::format("is about to {}", phrase.infinitive);
  if (taken.outcome == "failed") return fmt::format("could not {}{}", phrase.infinitive, detail);
  if (taken.outcome == "unknown") {
    return fmt::format("it is not known whether it did {}{}", phrase.infinitive, detail);
  }
  if (taken.outcome == "dry run") return fmt::format("would {} (dry run)", phrase.infinitive);
  return fmt::format("did not {} ({})", phrase.infinitive, taken.outcome);
}

/// What is over after a step or two is told as of that step, though the run ended soon after.
bool IsMoment(const rules::Finding& f) {
  const std::int64_t steps = f.incident.last_step - f.incident.first_step;
  return !f.open && steps >= 0 && steps <= 1;
}

/// "Loss does not decrease since step 12."
std::string Since(const rules::Finding& f) {
  const auto& i = f.incident;
  if (i.first_step <= 10 || i.message.find("since") != std::string::npos) return i.message;
  // "… stood still for 45 s in step 300" says it.
  if (i.message.ends_with(fmt::format(" in step {}", i.first_step))) return i.message;
  // An end has its step in its message, and does not last.
  if (f.standing.theme == rules::Theme::kEnd) return i.message;
  if (IsMoment(f)) return fmt::format("{} in step {}", i.message, Thousands(i.first_step));
  if (f.open || f.until_end) {
    return fmt::format("{} since step {}", i.message, Thousands(i.first_step));
  }
  return fmt::format("{} from step {} to {}", i.message, Thousands(i.first_step),
                     Thousands(i.last_step));
}

/// What a rule that only reports has seen; null: nothing, or it did not run.
nlohmann::ordered_json SummaryOfRule(const RunData& data, std::string_view rule) {
  for (const rules::RuleState& state : data.replay.rules) {
    const std::string& is = state.rule.empty() ? state.name : state.rule;
    if (is == rule && !state.summary.empty()) return ParseOrderedJson(state.summary);
  }
  return {};
}

std::string TextIn(const nlohmann::ordered_json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// "A, B and C".
std::string Enumerated(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    out += fmt::format("{}{}", i == 0 ? "" : i + 1 == names.size() ? " and " : ", ", names[i]);
  }
  return out;
}

/// The rules of one status by why they are in it; those that most are in first. One sentence each:
/// "No data for A and B: no gradients were captured."
std::vector<std::string> ByWhatWasMissing(const RunData& data, rules::RuleStatus status,
                                          std::string_view what) {
  std::vector<std::pair<std::string_view, std::vector<std::string>>> groups;
  for (const rules::RuleState& rule : data.replay.rules) {
    if (rule.status != status) continue;
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const auto& group) { return group.first == rule.missing; });
    if (same == groups.end()) {
      groups.push_back({rule.missing, {rule.name}});
    } else {
      same->second.push_back(rule.name);
    }
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  std::vector<std::string> out;
  for (const auto& [missing, names] : groups) {
    out.push_back(
        fmt::format("{} {}{}{}.", what, Enumerated(names), missing.empty() ? "" : ": ", missing));
  }
  return out;
}

/// What happened to the records or tensors of a loss in the ledger.
std::string_view HowLost(std::string_view name) {
  if (name == "probe.unanswered") {
    return "were due before it was known whether they are wanted, and were not recorded";
  }
  if (name.ends_with("_dropped")) return "found no room and were dropped";
  return "lost";
}

/// " (capture.subclass 40, log.not_a_number 2)", of what was skipped.
std::string ReasonsInBrackets(const analysis::Summary& summary) {
  const std::vector<SkippedReason> reasons = SkippedReasons(summary);
  if (reasons.empty()) return {};
  std::string out;
  for (std::size_t i = 0; i < std::min(reasons.size(), kNamedReasons); ++i) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", reasons[i].name,
                       Thousands(static_cast<std::int64_t>(reasons[i].count)));
  }
  if (reasons.size() > kNamedReasons) {
    out += fmt::format(" and {} more", reasons.size() - kNamedReasons);
  }
  return fmt::format(" ({})", out);
}

}  // namespace

std::string Significant(double value, int digits) {
  if (!std::isfinite(value)) return "—";
  if (value == 0) return "0";
  const double magnitude = std::abs(value);
  // What no training measures, in few signs: 1e308 has 309 digits.
  if (magnitude < 1e-9 || magnitude >= 1e15) {
    return fmt::format("{}{:.{}e}", value < 0 ? "−" : "", magnitude, digits - 1);
  }
  // Rounding may carry into the next power: 9.996 is 10.0, not 10.00.
  const double scale =
      std::pow(10, digits - 1 - static_cast<int>(std::floor(std::log10(magnitude))));
  const double rounded = std::round(magnitude * scale) / scale;
  const int power = static_cast<int>(std::floor(std::log10(rounded)));
  std::string text = power >= digits - 1
                         ? Thousands(static_cast<std::int64_t>(std::llround(rounded)))
                         : fmt::format("{:.{}f}", rounded, std::min(9, digits - 1 - power));
  return value < 0 ? "−" + text : text;
}

std::string Thousands(std::int64_t value) {
  // Without its sign; the smallest of all has no positive.
  std::string digits = std::to_string(value);
  if (value < 0) digits.erase(0, 1);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return value < 0 ? "−" + digits : digits;
}

std::string Duration(double seconds) {
  if (!std::isfinite(seconds)) return "—";
  if (seconds < 0) return "−" + Duration(-seconds);
  const auto unit = [](double value, std::string_view name) {
    return fmt::format("{}{}{}", Significant(value), kSpace, name);
  };
  if (seconds == 0) return fmt::format("0{}s", kSpace);
  if (seconds < 0.9995e-3) return unit(seconds * 1e6, "µs");
  if (seconds < 0.9995) return unit(seconds * 1e3, "ms");
  if (seconds < 59.95) return unit(seconds, "s");
  // Hours of what no training takes are no whole number of 64 bits.
  if (seconds >= 1e15) return unit(seconds, "s");
  const std::int64_t whole = SaturatingRound(seconds);
  if (whole < 3600) {
    return fmt::format("{}{}m{}{:02}{}s", whole / 60, kSpace, kSpace, whole % 60, kSpace);
  }
  const std::int64_t minutes = (whole + 30) / 60;
  if (minutes < 48 * 60) {
    return fmt::format("{}{}h{}{:02}{}m", minutes / 60, kSpace, kSpace, minutes % 60, kSpace);
  }
  return fmt::format("{}{}d{}{}{}h", minutes / 1440, kSpace, kSpace, minutes % 1440 / 60, kSpace);
}

std::string Bytes(double bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1023.5 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{}{}{}", Significant(bytes), kSpace, kUnits[unit]);
}

std::string Rate(double bytes_per_second) {
  constexpr std::array kUnits = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
  std::size_t unit = 0;
  while (std::abs(bytes_per_second) >= 999.5 && unit + 1 < kUnits.size()) {
    bytes_per_second /= 1000;
    ++unit;
  }
  return fmt::format("{}{}{}", Significant(bytes_per_second), kSpace, kUnits[unit]);
}

std::string Percent(double share) {
  const double percent = share * 100;
  std::string text = std::abs(percent) >= 0.005 || percent == 0
                         ? fmt::format("{:.{}f}", percent,
                                       std::abs(percent) >= 99.95  ? 0
                                       : std::abs(percent) >= 9.95 ? 1
                                                                   : 2)
                         : std::string("< 0.01");
  if (text.find('.') != std::string::npos && text.front() != '<') {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return fmt::format("{}{}%", text, kSpace);
}

std::string Utc(std::int64_t ns) {
  const time_t seconds = ns / 1'000'000'000;
  tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string UnrecordedWords(const RunData& data) {
  const auto& unrecorded = data.replay.state.unrecorded;
  if (!unrecorded) return {};
  if (unrecorded->writer.empty()) {
    return "Nothing was recorded of the newest attempt: its agent wrote nothing.";
  }
  return fmt::format(
      "What {} after {} {} not recorded: the agent, which records the run, was killed or could not "
      "write its last records, and no other agent took over. How many records are missing is not "
      "known.",
      data.replay.ended ? "happened" : "happens", Utc(unrecorded->since_ns),
      data.replay.ended ? "was" : "is");
}

std::string ElapsedWords(const RunData& data) {
  return (data.end_unknown() ? std::string("≥") + std::string(kSpace) : std::string()) +
         Duration(data.elapsed_seconds());
}

std::string StateWords(const store::RunState& state) {
  if (state.unrecorded) {
    store::RunState known = state;
    known.unrecorded.reset();
    return state.state == "running" ? "running, not recorded"
                                    : StateWords(known) + ", end not recorded";
  }
  if (state.state == "failed" && state.exit_code) {
    return fmt::format("failed, exit {}", *state.exit_code);
  }
  if (state.state == "killed" && state.signal) {
    const char* name = sigabbrev_np(*state.signal);
    return name == nullptr ? fmt::format("killed, signal {}", *state.signal)
                           : fmt::format("killed, signal {} ({})", *state.signal, name);
  }
  if (state.state == "running") return "still running";
  return state.state;
}

std::string SinceWords(const rules::Finding& finding) {
  const rules::Incident& i = finding.incident;
  if (i.first_step < 0) return {};
  if (finding.until_end && IsMoment(finding)) {
    return fmt::format("in step {}", Thousands(i.first_step));
  }
  if (!finding.open && !finding.until_end) {
    return fmt::format("steps {} to {}, closed", Thousands(i.first_step), Thousands(i.last_step));
  }
  return i.first_step <= kStartSteps ? "from the start"
                                     : fmt::format("since step {}", Thousands(i.first_step));
}

std::string RulesWords(const RunData& data) {
  std::set<std::string_view> fired;
  for (const rules::Finding& f : data.replay.findings) fired.insert(f.rule);
  std::array<std::size_t, kStatusWords.size()> count{};
  std::size_t all = 0;
  for (const rules::RuleState& rule : data.replay.rules) {
    if (fired.contains(rule.name)) continue;
    ++count[static_cast<std::size_t>(rule.status)];
    ++all;
  }
  if (all == 0) return {};
  std::string out =
      fmt::format("{} {}{}:", all, fired.empty() ? "" : "other ", all == 1 ? "rule" : "rules");
  for (std::size_t i = 0; i < count.size(); ++i) {
    if (count[i] == 0) continue;
    out += fmt::format("{} {} {}", out.back() == ':' ? "" : ",", count[i], kStatusWords[i]);
  }
  return out + ".";
}

std::int64_t SlowSince(const RunData& data) {
  std::int64_t since = 0;
  for (const rules::Finding& f : data.replay.findings) {
    if (!f.wrong_result) since = std::max(since, f.incident.first_step);
  }
  return since > data.summary.train_steps() / 20 ? since : 0;
}

std::vector<Operation> LongestOperations(const analysis::Summary& summary) {
  std::vector<Operation> out;
  for (const auto& [key, total] : summary.spans) out.push_back({&key.first, &key.second, &total});
  std::stable_sort(out.begin(), out.end(), [](const Operation& a, const Operation& b) {
    return a.total->total_ns > b.total->total_ns;
  });
  if (out.size() > kMaxOperations) out.resize(kMaxOperations);
  return out;
}

std::string ProcessLabel(const analysis::Summary& summary, std::string_view node,
                         std::string_view subject) {
  constexpr std::string_view kProcess = "proc:";
  if (!subject.starts_with(kProcess)) return {};
  const std::string_view digits = subject.substr(kProcess.size());
  std::int32_t pid = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), pid);
  if (error != std::errc() || end != digits.data() + digits.size()) return {};
  const analysis::ProcessFacts* const found = summary.ProcessAt(node, pid);
  if (found == nullptr) return {};
  const analysis::ProcessFacts& process = *found;
  if (process.worker_id >= 0) return fmt::format("worker {} ({})", process.worker_id, pid);
  if (process.kind == "trainer" && summary.ranks.size() > 1) {
    return fmt::format("trainer, rank {} ({})", process.rank, pid);
  }
  if (process.kind != "trainer" && process.kind != "worker") return {};
  return fmt::format("{} ({})", process.kind, pid);
}

std::string SubjectOf(const RunData& data, const rules::Finding& finding) {
  const std::string& subject = finding.incident.subject;
  if (finding.standing.theme == rules::Theme::kEnd && subject == "run") return {};
  if (data.summary.ranks.size() > 1 || !subject.starts_with("rank ")) return subject;
  const auto comma = subject.find(", ");
  if (comma == std::string::npos) return {};
  // What the message names already.
  const std::string part = subject.substr(comma + 2);
  const auto said = std::search(
      finding.incident.message.begin(), finding.incident.message.end(), part.begin(), part.end(),
      [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
  return said == finding.incident.message.end() ? subject : std::string();
}

namespace {

/// What the rules found in what was recorded.
std::string VerdictOfRecorded(const RunData& data) {
  const auto& findings = data.replay.findings;
  if (findings.empty()) {
    if (data.summary.train_rank() < 0) {
      return data.replay.ended ? "No training step was recorded."
                               : "No training step was recorded yet.";
    }
    // Those that had no data or gave up judged nothing; they are named among what cannot be said.
    std::size_t rules = 0;
    std::size_t others = 0;
    for (const rules::RuleState& rule : data.replay.rules) {
      switch (rule.status) {
        case rules::RuleStatus::kNoIssuesFound:
        case rules::RuleStatus::kIssuesFound:
        case rules::RuleStatus::kInProgress:
          ++rules;
          break;
        case rules::RuleStatus::kNotApplicable:
          break;
        default:
          ++others;
      }
    }
    const bool partial =
        std::any_of(data.replay.rules.begin(), data.replay.rules.end(),
                    [](const auto& rule) { return rule.status == rules::RuleStatus::kPartial; });
    if (rules == 0 && partial) return "No rule saw as much as it had planned.";
    if (rules == 0 && !data.replay.rules.empty()) return "No rule had anything to judge.";
    return fmt::format("{}: {} {} found no trouble{}.",
                       data.replay.state.unrecorded ? "In what was recorded" : "Nothing to report",
                       rules, rules == 1 ? "rule" : "rules",
                       others > 0 ? fmt::format("; {} could not judge", others) : "");
  }
  // The first of the list that every face shows, with the cost of its group.
  const std::vector<std::vector<std::size_t>> groups = GroupFindings(data);
  const std::vector<std::size_t>& group = groups.front();
  const double cost = group.size() == 1 ? findings.front().incident.cost_seconds
                                        : data.lost_seconds_of(group, groups);
  const std::string first = Since(findings.front());
  if (!(cost > 0)) return first + ".";
  return fmt::format("{}: {} of {} lost{}.", first, Duration(cost),
                     Duration(data.elapsed_seconds()), TogetherWord(data, group, cost));
}

}  // namespace

std::string Verdict(const RunData& data) {
  const std::string words = VerdictOfRecorded(data);
  const std::string unrecorded = UnrecordedWords(data);
  return unrecorded.empty() ? words : words + " " + unrecorded;
}

std::string StoppedWords(const RunData& data) {
  if (data.summary.attempts.empty()) return {};
  const auto& stopped = data.summary.attempts.rbegin()->second.stopped;
  if (!stopped) return {};
  std::string why = stopped->why;
  // A rule's reason begins with its name.
  const std::string named = stopped->rule + ": ";
  if (!stopped->rule.empty() && why.starts_with(named)) why = why.substr(named.size());
  const std::string by = !stopped->rule.empty()  ? "the rule " + stopped->rule
                         : !stopped->who.empty() ? stopped->who
                                                 : std::string("a request");
  const std::string_view stopped_by = stopped->perhaps ? "Perhaps stopped by" : "Stopped by";
  if (why.empty()) return fmt::format("{} {}.", stopped_by, by);
  return fmt::format("{} {}: {}{}", stopped_by, by, why, why.back() == '.' ? "" : ".");
}

std::string ActionWords(const RunData& data, const std::vector<std::size_t>& findings) {
  std::set<std::string_view> ids;
  for (const std::size_t index : findings) ids.insert(data.replay.findings[index].id);
  // Each phrase once, with how often, in the order in which they came first.
  std::vector<std::pair<std::string, std::size_t>> phrases;
  std::size_t more = 0;
  for (const rules::ActionTaken& taken : data.replay.actions) {
    if (!ids.contains(taken.incident)) continue;
    std::string phrase = Phrase(taken);
    const auto same = std::find_if(phrases.begin(), phrases.end(),
                                   [&](const auto& known) { return known.first == phrase; });
    if (same != phrases.end()) {
      ++same->second;
    } else if (phrases.size() < kMostPhrases) {
      phrases.emplace_back(std::move(phrase), 1);
    } else {
      ++more;
    }
  }
  std::string out;
  for (auto& [phrase, count] : phrases) {
    if (phrase.empty()) continue;
    phrase[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(phrase[0])));
    out += fmt::format("{}{}{}{}", out.empty() ? "" : " ", phrase,
                       count > 1 ? fmt::format(" ({} times)", count) : std::string(),
                       phrase.back() == '.' && count == 1 ? "" : ".");
  }
  return more > 0 ? out + fmt::format(" And {} more.", more) : out;
}

std::vector<SkippedReason> SkippedReasons(const analysis::Summary& summary) {
  std::vector<SkippedReason> out;
  for (const auto& [name, total] : summary.ledger) {
    if (total.value == 0 || !name.starts_with(format::kSkippedFor)) continue;
    out.push_back({std::string_view(name).substr(format::kSkippedFor.size()), total.value});
  }
  std::stable_sort(out.begin(), out.end(), [](const SkippedReason& a, const SkippedReason& b) {
    return a.count > b.count;
  });
  return out;
}

std::vector<std::string> Unknowns(const RunData& data) {
  std::vector<std::string> out;
  const analysis::Summary& s = data.summary;
  if (s.train_rank() < 0) {
    out.push_back(s.trainers > 0
                      ? "A training process was seen, but it made no step that Telltale knows."
                      : "No training process registered: nothing is known of steps or loss.");
  }
  for (const std::int64_t since_ns : data.lost_before_ns()) {
    out.push_back(
        fmt::format("What happened in an earlier attempt after {} was not recorded: its agent was "
                    "killed, could not write its last records or was never started, and no other "
                    "agent took over.",
                    Utc(since_ns)));
  }
  for (const std::string& step : s.clock_steps) {
    out.push_back(
        fmt::format("On the way {}: times of day before and after differ by that, durations "
                    "do not.",
                    step));
  }
  if (!data.replay.rules_trouble.empty()) out.push_back(data.replay.rules_trouble);
  if (!data.advice_trouble.empty()) {
    out.push_back(fmt::format("There is no advice from the trace: {}.", data.advice_trouble));
  }
  std::map<std::string_view, std::string> partial;
  for (const rules::RuleState& rule : data.replay.rules) {
    if (rule.status == rules::RuleStatus::kPartial) {
      std::string& names = partial[rule.partial];
      names += (names.empty() ? "" : ", ") + rule.name;
    }
    if (rule.status == rules::RuleStatus::kError) {
      out.push_back(fmt::format("The rule {} stopped: {}.", rule.name, rule.error));
    }
    if (rule.status == rules::RuleStatus::kSuspended) {
      out.push_back(fmt::format("The rule {} is suspended: {}.", rule.name, rule.error));
    }
  }
  for (const auto& [captures, names] : partial) {
    out.push_back(
        fmt::format("Partial: {} came for {}, and nothing was found in them.", captures, names));
  }
  for (const auto& [name, total] : s.ledger) {
    if (!total.loss || total.value == 0 || name == "run.agents_lost") continue;  // As said above.
    out.push_back(fmt::format("{}: {} {} {}{}.", name,
                              Thousands(static_cast<std::int64_t>(total.value)), total.unit,
                              HowLost(name), name == format::kSkipped ? ReasonsInBrackets(s) : ""));
  }
  if (data.replay.findings_left_out > 0) {
    out.push_back(
        fmt::format("{} more findings are left out of this list, which has the first of each rule: "
                    "`telltale query RUN findings` has all.",
                    Thousands(static_cast<std::int64_t>(data.replay.findings_left_out))));
  }
  double gap_seconds = 0;
  for (const analysis::Gap& gap : s.gaps) {
    gap_seconds += static_cast<double>(gap.to_ns - gap.from_ns) / 1e9;
  }
  if (!s.gaps.empty()) {
    out.push_back(fmt::format("Nothing was recorded for {} in {} {}: {}.", Duration(gap_seconds),
                              s.gaps.size(), s.gaps.size() == 1 ? "gap" : "gaps",
                              s.gaps.front().cause));
  }
  for (const std::string& reason : s.disabled) {
    out.push_back(fmt::format("The probe switched itself off: {}.", reason));
  }
  if (std::string damage = Damage(data.replay.salvage); !damage.empty()) {
    out.push_back(std::move(damage));
  }
  // What was lost stands before what there never was.
  for (std::string& words : ByWhatWasMissing(data, rules::RuleStatus::kNoData, "No data for")) {
    out.push_back(std::move(words));
  }
  if (s.folded > 0) {
    out.push_back(fmt::format("{} names or subjects beyond the bounds of a report were left out.",
                              Thousands(static_cast<std::int64_t>(s.folded))));
  }
  return out;
}

std::vector<std::string> NotApplicableWords(const RunData& data) {
  return ByWhatWasMissing(data, rules::RuleStatus::kNotApplicable, "Not for this run:");
}

std::string LostTime(const RunData& data) {
  const double elapsed = data.elapsed_seconds();
  const double lost = data.lost_seconds();
  if (lost <= 0 || elapsed <= 0) {
    return fmt::format("The run {} {}{}; no finding cost time.",
                       data.replay.ended ? "took" : "has taken",
                       data.end_unknown() ? "at least " : "", Duration(elapsed));
  }
  const auto money = MoneyOf(data, lost);
  return fmt::format("Of {}, {} ({}) were lost{}.", Duration(elapsed), Duration(lost),
                     Percent(lost / elapsed),
                     money ? ": " + Money(*money, data.replay.rule_set.currency) : "");
}

std::string Damage(const store::Salvage& v) {
  if (!v.any()) return {};
  std::string text = "Part of the recording is damaged; the rest was used:";
  const auto add = [&](std::uint64_t count, std::string_view one, std::string_view many) {
    if (count == 0) return;
    text += fmt::format("{} {} {}", text.back() == ':' ? "" : ",", count, count == 1 ? one : many);
  };
  add(v.damaged_blocks, "damaged block", "damaged blocks");
  add(v.torn_tails, "torn tail", "torn tails");
  add(v.unreadable_files, "unreadable file", "unreadable files");
  add(v.missing_rows, "missing row", "missing rows");
  add(v.impossible_rows, "row with an impossible number", "rows with impossible numbers");
  return text + ".";
}

std::string WhereTheRunGoes(const RunData& data) {
  using analysis::RunPhase;
  const analysis::RunShares shares = data.summary.run_shares();
  if (shares.total <= 0 || shares.seconds_of(RunPhase::kNoStep) >= shares.total) return {};
  std::string out;
  for (std::size_t i = 0; i < analysis::kRunPhaseCount; ++i) {
    const auto phase = static_cast<RunPhase>(i);
    const double seconds = shares.seconds_of(phase);
    // The three phases are always named; what a run seldom has only where it has it.
    if (seconds <= 0 && i > static_cast<std::size_t>(RunPhase::kFinalization)) continue;
    out += fmt::format("{}{} {} ({})", out.empty() ? "" : ", ", analysis::Name(phase),
                       Duration(seconds), Percent(shares.share_of(phase)));
  }
  out[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(out[0])));
  out += ".";
  if (shares.seconds_of(RunPhase::kInitialization) >= kLongStartSeconds ||
      shares.share_of(RunPhase::kInitialization) >= kLongStartShare) {
    const std::string held = TextIn(SummaryOfRule(data, "MaxInitializationTime"), "held");
    if (!held.empty()) out += fmt::format(" Before the first step {}.", held);
  }
  return out;
}

std::vector<std::string> ResourceWords(const RunData& data) {
  std::vector<std::string> out;
  const nlohmann::ordered_json summary = SummaryOfRule(data, "RightSize");
  if (!summary.is_object() || !summary.contains("nodes") || !summary["nodes"].is_array())
    return out;
  const nlohmann::ordered_json& nodes = summary["nodes"];
  for (const auto& node : nodes) {
    if (out.size() == kMostNodes) {
      out.push_back(fmt::format("{} more nodes are in the report.", nodes.size() - kMostNodes));
      break;
    }
    const std::string words = TextIn(node, "words");
    if (words.empty()) continue;
    const std::string name = nodes.size() > 1 ? TextIn(node, "node") : std::string();
    out.push_back(name.empty() ? words : fmt::format("{}: {}", name, words));
  }
  return out;
}

std::string UsageWords(const RunData& data) {
  const auto of = [](std::uint64_t part, std::uint64_t all) {
    return Percent(static_cast<double>(part) / static_cast<double>(all));
  };
  std::string out;
  const analysis::GpuTime time = data.usage.gpu_time();
  if (const std::uint64_t all = time.all(); all > 0) {
    out = fmt::format(
        "GPU time: {} above 90{}%, {} between 10 and 90, {} below, {} below while a core was busy, "
        "{} before the first step, {} after the last.",
        of(time.high, all), kSpace, of(time.suboptimal, all), of(time.low, all),
        of(time.cpu_bottleneck, all), of(time.initialization, all), of(time.finalization, all));
  }
  const auto idle = [&](std::string_view what, const analysis::UsageCounts& counts) {
    if (counts.samples == 0) return;
    out += fmt::format("{}{} in the training loop: idle in {} of the samples, below 50{}% in {}.",
                       out.empty() ? "" : " ", what, of(counts.zero, counts.samples), kSpace,
                       of(counts.below_half, counts.samples));
  };
  idle("GPUs", data.usage.gpus_in_loop());
  idle("Cores", data.usage.cores_in_loop());
  if (const auto pairs = data.usage.unequal(); !pairs.empty()) {
    out += fmt::format(" {} and {} are used unlike each other (distance {}).", pairs.front().a,
                       pairs.front().b, Significant(pairs.front().distance));
  }
  return out;
}

std::string CaptureWords(const RunData& data) {
  const analysis::Summary& s = data.summary;
  const auto acted = std::find_if(s.thinned.rbegin(), s.thinned.rend(),
                                  [](const auto& change) { return change.acted; });
  if (acted == s.thinned.rend()) {
    if (s.thinned.empty() || s.cost_share() <= data.replay.info.overhead_budget) return {};
    return "Capture: what Telltale does at each step costs more than the budget, and taking "
           "tensors less often would not change that.";
  }
  const std::string_view node = s.NodeOf(acted->writer);
  // What it has cost at that time is not what it has cost in all.
  const double into_s =
      static_cast<double>(std::max<std::int64_t>(0, acted->time_ns - s.first_ns)) / 1e9;
  const bool once = s.thinned_count == 1;
  return fmt::format(
      "Capture: Telltale acted on its budget {}, {}{} into the run{}: {}.",
      once ? std::string("once") : Thousands(static_cast<std::int64_t>(s.thinned_count)) + " times",
      once ? "" : "last ", Duration(into_s),
      node.empty() ? std::string() : fmt::format(" on {}", node), acted->message);
}

std::string OwnCost(const RunData& data) {
  const analysis::Summary& s = data.summary;
  std::string out;
  if (s.train_rank() >= 0) {
    // Not all that it costs: the dispatch of hooks, for one, is outside of what it can time.
    out = fmt::format("Telltale accounts for {} of step time (budget {})", Percent(s.cost_share()),
                      Percent(data.replay.info.overhead_budget));
  } else {
    out = "Telltale accounts for no step time";
  }
  const double beside = static_cast<double>(
      s.ledger_value("agent.cpu_ns") + s.ledger_value("stacks.cpu_ns") + data.replay.watch_cpu_ns);
  const double recorded = static_cast<double>(s.last_ns - s.first_ns);
  if (beside > 0 && recorded > 0) {
    out += fmt::format(", {} of a core beside it", Percent(beside / recorded));
  }
  const double stored = static_cast<double>(s.ledger_value("agent.journal_bytes") +
                                            s.ledger_value("agent.segment_bytes"));
  if (stored > 0) out += fmt::format(", stored {}", Bytes(stored));
  std::uint64_t lost = 0;
  for (const auto& [name, total] : s.ledger) {
    if (total.loss && total.unit == "records") lost += total.value;
  }
  const std::uint64_t produced = s.ledger_value("probe.records_produced");
  if (produced > 0 || lost > 0) {
    out += fmt::format(", dropped {} of {} records", Thousands(static_cast<std::int64_t>(lost)),
                       Thousands(static_cast<std::int64_t>(produced)));
  }
  return out + ".";
}

}  // namespace telltale::report
