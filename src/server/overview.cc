// SPDX-License-Identifier: Apache-2.0
#include "server/overview.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/saturate.h"
#include "report/causes.h"
#include "report/text.h"
#include "rules/builtin/numbers.h"
#include "rules/finding_json.h"

namespace telltale::server {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(double value, bool known = true) {
  return known && std::isfinite(value) ? Json(value) : Json(nullptr);
}

class Overview {
 public:
  Overview(const RunView& view, const Moment& moment)
      : view_(view), moment_(moment), data_(view.data), s_(view.data.summary) {}

  Json Render() const {
    const store::RunInfo& info = data_.replay.info;
    Json out;
    out["id"] = moment_.id;
    out["name"] = data_.title();
    out["command"] = info.command;
    out["host"] = info.host;
    out["state"] = data_.replay.state.state;
    out["state_words"] = report::StateWords(data_.replay.state);
    out["exit"] = Exit();
    // Whose steps and scalars these are, of how many.
    out["rank"] = s_.ranks.empty() ? Json(nullptr) : Json(s_.shown_rank());
    out["ranks"] = s_.ranks.size();
    out["attempts"] = Attempts();
    out["start_unix_ms"] = view_.begin_ns / 1'000'000;
    out["now_ns"] = moment_.now_ns;
    out["watermark_ns"] = moment_.watermark_ns;
    out["loading"] = moment_.loading;
    out["verdict"] = Verdict();
    out["findings"] = Findings();
    out["groups"] = Groups();
    out["rules"] = Json::array();
    for (const rules::RuleState& rule : data_.replay.rules) {
      out["rules"].push_back(rules::ToJson(rule));
    }
    out["rules_words"] = report::RulesWords(data_);
    out["order_words"] = report::kOrderWords;
    out["throughput"] = Throughput();
    const analysis::RankScalars& scalars = s_.scalars();
    const double last = scalars.last_loss.value_or(0);
    out["loss"] = {{"last", scalars.last_loss ? OrNull(last) : Json(nullptr)},
                   {"last_words", std::isfinite(last) ? Json(nullptr) : Json(rules::Figure(last))},
                   {"first", scalars.first_loss ? OrNull(*scalars.first_loss) : Json(nullptr)},
                   {"not_finite", scalars.loss_not_finite}};
    out["step_phases"] = StepPhases();
    out["step_phases_since"] = report::SlowSince(data_);
    out["run_phases"] = RunPhases();
    out["operations"] = Operations();
    out["last_steps"] = LastSteps();
    out["gaps"] = Gaps();
    out["own_cost"] = OwnCost();
    out["capture"] = Capture();
    out["ledger"] = Json::array();
    for (const auto& [name, total] : s_.ledger) {
      out["ledger"].push_back(
          {{"name", name}, {"value", total.value}, {"unit", total.unit}, {"loss", total.loss}});
    }
    out["metrics"] = Json::array();
    for (const MetricEntry& metric : view_.metrics()) {
      Json labels = Json::object();
      for (const auto& [subject, label] : metric.labels) labels[subject] = label;
      out["metrics"].push_back({{"name", metric.name},
                                {"unit", metric.unit},
                                {"subjects", metric.subjects},
                                {"labels", std::move(labels)}});
    }
    out["scalars"] = Json::array();
    for (const auto& [name, mode] : view_.scalars()) {
      out["scalars"].push_back({{"name", name}, {"mode", mode}});
    }
    // Half a run must not look whole.
    const std::string damaged =
        moment_.error.empty() ? report::Damage(data_.replay.salvage) : moment_.error;
    out["damaged"] = damaged.empty() ? Json(nullptr) : Json(damaged);
    return out;
  }

 private:
  std::int64_t Relative(std::int64_t run_ns) const { return SaturatingSub(run_ns, view_.begin_ns); }
  Json RelativeOrNull(std::int64_t run_ns) const {
    return run_ns == 0 ? Json(nullptr) : Json(Relative(run_ns));
  }

  /// {"code": 0} or {"signal": 9}; null while the run goes on, and where nobody saw its end.
  Json Exit() const {
    const store::RunState& state = data_.replay.state;
    if (!state.signal && !state.exit_code) return nullptr;
    Json out = Json::object();
    if (state.signal) {
      out["signal"] = *state.signal;
    } else {
      out["code"] = *state.exit_code;
    }
    return out;
  }

  Json Attempts() const {
    Json out = Json::array();
    for (const store::Attempt& attempt : data_.replay.info.attempts) {
      out.push_back({{"number", attempt.number},
                     {"start_ns", RelativeOrNull(attempt.start_ns)},
                     {"end_ns", RelativeOrNull(attempt.end_ns)}});
    }
    return out;
  }

  Json Verdict() const {
    const auto& findings = data_.replay.findings;
    const bool judged = moment_.judged && s_.train_rank() >= 0;
    const bool unread = moment_.loading && findings.empty() && !judged;
    Json out = {{"title", unread ? "The recording is being read." : report::Verdict(data_)},
                {"severity", nullptr}};
    // The worst of those that last, else of all.
    const bool any_open = std::any_of(findings.begin(), findings.end(),
                                      [](const auto& f) { return f.open || f.until_end; });
    const rules::Finding* worst = nullptr;
    for (const rules::Finding& f : findings) {
      if (any_open && !f.open && !f.until_end) continue;
      if (worst == nullptr || f.incident.severity > worst->incident.severity) worst = &f;
    }
    if (worst != nullptr) out["severity"] = rules::Name(worst->incident.severity);
    out["sentences"] = Json::array();
    if (std::string stopped = report::StoppedWords(data_); !stopped.empty()) {
      out["sentences"].push_back(std::move(stopped));
    }
    out["sentences"].push_back(report::LostTime(data_));
    for (std::string& sentence : report::ResourceWords(data_)) {
      out["sentences"].push_back(std::move(sentence));
    }
    out["sentences"].push_back(report::OwnCost(data_));
    for (std::string& sentence : report::Unknowns(data_)) {
      out["sentences"].push_back(std::move(sentence));
    }
    return out;
  }

  /// In the order of the groups, as the page has them.
  Json Findings() const {
    Json out = Json::array();
    for (const std::vector<std::size_t>& group : report::GroupFindings(data_)) {
      for (const std::size_t index : group) out.push_back(OneFinding(data_.replay.findings[index]));
    }
    return out;
  }

  Json OneFinding(const rules::Finding& finding) const {
    Json one = rules::ToJson(finding);
    one["start_ns"] = Relative(finding.incident.start_ns);
    one["end_ns"] = Relative(finding.incident.end_ns);
    one["start_unix_ms"] = finding.incident.start_ns / 1'000'000;
    one["end_unix_ms"] = finding.incident.end_ns / 1'000'000;
    one["since"] = report::SinceWords(finding);
    // What to show of the subject: nothing where there is only one rank.
    one["about"] = report::SubjectOf(data_, finding);
    return one;
  }

  /// Findings that speak of one thing, with what explains them, and the words for people.
  Json Groups() const {
    Json out = Json::array();
    for (const report::Explanation& e : report::Explain(data_)) {
      Json one = report::ToJson(data_, e);
      one["gain_words"] = report::GainWords(data_, e);
      one["beneath_words"] = report::BeneathWords(data_, e);
      one["action_words"] = report::ActionWords(data_, e.findings);
      out.push_back(std::move(one));
    }
    return out;
  }

  Json Throughput() const {
    Json out = {{"steps", s_.train_steps()},
                {"steps_per_s", nullptr},
                {"samples_per_s", nullptr},
                {"step_ms", nullptr}};
    const analysis::StepGroup* group = s_.Train(s_.train_rank());
    if (group == nullptr || group->steady_ns.count() == 0) return out;
    const analysis::Quantiles& ns = group->steady_ns;
    const double seconds = ns.sum() / 1e9;
    if (seconds > 0) {
      out["steps_per_s"] = static_cast<double>(ns.count()) / seconds;
      if (group->steady_samples > 0) {
        out["samples_per_s"] = static_cast<double>(group->steady_samples) / seconds;
      }
    }
    out["step_ms"] = {{"min", ns.min() / 1e6},
                      {"p50", ns.At(0.5) / 1e6},
                      {"p95", ns.At(0.95) / 1e6},
                      {"p99", ns.At(0.99) / 1e6},
                      {"max", ns.max() / 1e6}};
    return out;
  }

  /// Shares since the newest slow finding began, and before it: as the report's section 3.
  Json StepPhases() const {
    constexpr std::int64_t kFirst = std::numeric_limits<std::int64_t>::min();
    constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
    Json out = Json::array();
    auto shown = s_.phases.Mean(kFirst, kLast);
    if (!shown) return out;
    const std::int64_t since = report::SlowSince(data_);
    auto before = s_.phases.Mean(kFirst, since);
    const auto after = s_.phases.Mean(since, kLast);
    if (since > 0 && before && after) {
      shown = after;
    } else {
      before.reset();
    }
    const auto sum = [](const std::array<double, 6>& ns) {
      double all = 0;
      for (const double one : ns) all += one;
      return all;
    };
    const double all = sum(*shown);
    const double all_before = before ? sum(*before) : 0;
    for (std::size_t i = 0; i < shown->size(); ++i) {
      out.push_back(
          {{"name", analysis::kPhases[i]},
           {"share", all > 0 ? (*shown)[i] / all : 0},
           {"ns", std::llround((*shown)[i])},
           {"before_share", before && all_before > 0 ? Json((*before)[i] / all_before) : Json()}});
    }
    return out;
  }

  Json Operations() const {
    Json out = Json::array();
    for (const auto& [category, name, total] : report::LongestOperations(s_)) {
      out.push_back({{"name", *name},
                     {"category", *category},
                     {"count", total->count},
                     {"p50_ns", std::llround(total->duration_ns.At(0.5))},
                     {"max_ns", std::llround(total->duration_ns.max())},
                     {"total_ns", static_cast<std::int64_t>(total->total_ns)}});
    }
    return out;
  }

  Json RunPhases() const {
    std::vector<analysis::RunInterval> parts = s_.run_intervals();
    // What goes on reaches until now.
    if (!data_.replay.ended && !parts.empty()) {
      parts.back().end_ns = std::max(parts.back().end_ns, view_.begin_ns + moment_.now_ns);
    }
    Sum all = 0;
    for (const analysis::RunInterval& part : parts) all += part.end_ns - part.start_ns;
    Json out = Json::array();
    for (const analysis::RunInterval& part : parts) {
      const auto length = static_cast<double>(part.end_ns - part.start_ns);
      out.push_back({{"name", analysis::Name(part.phase)},
                     {"start_ns", Relative(part.start_ns)},
                     {"end_ns", Relative(part.end_ns)},
                     {"share", all > 0 ? length / static_cast<double>(all) : 0}});
    }
    return out;
  }

  Json LastSteps() const {
    Json out = Json::array();
    for (const format::StepRow& row : s_.last_steps) {
      Json phases = Json::object();
      const analysis::PhaseTimes times = analysis::PhasesOf(row);
      for (std::size_t i = 0; i < times.size(); ++i) {
        phases[std::string(analysis::kPhases[i])] = times[i];
      }
      out.push_back({{"step", row.step},
                     {"start_ns", Relative(row.time_ns)},
                     {"duration_ns", row.duration_ns},
                     {"phases", std::move(phases)}});
    }
    return out;
  }

  Json Gaps() const {
    Json out = Json::array();
    for (const analysis::Gap& gap : s_.gaps) {
      out.push_back({{"from_ns", Relative(gap.from_ns)},
                     {"to_ns", Relative(gap.to_ns)},
                     {"cause", gap.cause},
                     {"kind", "gap"},
                     {"count", nullptr}});
    }
    for (const Dropped& one : view_.dropped) {
      out.push_back({{"from_ns", Relative(one.from_ns)},
                     {"to_ns", Relative(one.to_ns)},
                     {"cause", one.name},
                     {"kind", "dropped"},
                     {"count", one.count}});
    }
    return out;
  }

  Json OwnCost() const {
    const double beside =
        static_cast<double>(s_.ledger_value("agent.cpu_ns") + s_.ledger_value("stacks.cpu_ns") +
                            data_.replay.watch_cpu_ns);
    const double recorded = static_cast<double>(s_.last_ns - s_.first_ns);
    return {{"probe_share", OrNull(s_.cost_share(), s_.train_rank() >= 0)},
            {"agent_cpu_share", OrNull(beside / recorded, beside > 0 && recorded > 0)},
            {"written_bytes",
             s_.ledger_value("agent.journal_bytes") + s_.ledger_value("agent.segment_bytes")},
            {"budget", data_.replay.info.overhead_budget},
            {"sentence", report::OwnCost(data_)}};
  }

  /// What the governors take less of than the plan asks for, and on what account: of several nodes
  /// the most of each, and all that any of them leaves out.
  Json Capture() const {
    std::map<std::string_view, double> most = {{"stretch", 1}, {"sampling_stretch", 1}};
    std::vector<std::string> shed;
    for (const auto& [writer, said] : s_.governors) {
      const auto now = ParseJson(said.data);
      if (!now.is_object()) continue;
      for (const char* const key : {"share", "own_share", "stretch", "sampling_stretch"}) {
        const auto found = now.find(key);
        if (found == now.end() || !found->is_number()) continue;
        const auto value = found->get<double>();
        const auto [at, first] = most.emplace(key, value);
        if (!first) at->second = std::max(at->second, value);
      }
      if (!now.contains("shed") || !now["shed"].is_array()) continue;
      for (const auto& one : now["shed"]) {
        if (!one.is_string()) continue;
        const auto name = one.get<std::string>();
        if (std::find(shed.begin(), shed.end(), name) == shed.end()) shed.push_back(name);
      }
    }
    const auto number = [&](std::string_view key) {
      const auto found = most.find(key);
      return found == most.end() ? Json(nullptr) : OrNull(found->second);
    };
    Json changes = Json::array();
    const auto words = [&](const analysis::CaptureChange& change) {
      const std::string_view node = s_.NodeOf(change.writer);
      return node.empty() ? change.message : fmt::format("{}: {}", node, change.message);
    };
    const auto add = [&](const char* by, const analysis::CaptureChange& change) {
      changes.push_back(
          {{"at_ns", Relative(change.time_ns)}, {"by", by}, {"message", words(change)}});
    };
    Json windows = Json::array();
    for (const analysis::CaptureChange& window : s_.windows) {
      windows.push_back({{"at_ns", Relative(window.time_ns)}, {"message", words(window)}});
    }
    // Both are in the order of time.
    auto plan = s_.plans.begin();
    for (const analysis::CaptureChange& thinned : s_.thinned) {
      for (; plan != s_.plans.end() && plan->time_ns <= thinned.time_ns; ++plan) add("plan", *plan);
      add("governor", thinned);
    }
    for (; plan != s_.plans.end(); ++plan) add("plan", *plan);
    return {{"words", report::CaptureWords(data_)},
            {"budget", data_.replay.info.overhead_budget},
            {"share", number("share")},
            {"own_share", number("own_share")},
            {"stretch", number("stretch")},
            {"sampling_stretch", number("sampling_stretch")},
            {"shed", shed},
            {"decisions", s_.thinned_count},
            {"changes", std::move(changes)},
            {"windows", std::move(windows)}};
  }

  const RunView& view_;
  const Moment& moment_;
  const report::RunData& data_;
  const analysis::Summary& s_;
};

}  // namespace

std::string OverviewJson(const RunView& view, const Moment& moment) {
  // Text from a training may hold any bytes.
  return JsonText(Overview(view, moment).Render());
}

}  // namespace telltale::server
