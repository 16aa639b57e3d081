// SPDX-License-Identifier: Apache-2.0
// ProfilerReport: all other profiler rules of SageMaker Debugger under one name, with their
// parameters as <Rule>_<parameter>, and one word at the end.
//
// SageMaker Debugger's rule of this name counts how often a scan found an issue, so one issue
// counts anew each minute. Here an incident counts once, however long it lasts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::profiler_report {
namespace {

/// A rule of the report.
struct Part {
  const RuleDesc* desc;
  std::unique_ptr<Rule> (*make)(const Parameters& parameters);
};
constexpr std::array<Part, 11> kParts = {{
    {&batch_size::kBatchSizeDesc, batch_size::MakeBatchSize},
    {&cpu_bottleneck::kCPUBottleneckDesc, cpu_bottleneck::MakeCPUBottleneck},
    {&dataloader::kDataloaderDesc, dataloader::MakeDataloader},
    {&gpu_memory_increase::kGPUMemoryIncreaseDesc, gpu_memory_increase::MakeGPUMemoryIncrease},
    {&io_bottleneck::kIOBottleneckDesc, io_bottleneck::MakeIOBottleneck},
    {&load_balancing::kLoadBalancingDesc, load_balancing::MakeLoadBalancing},
    {&low_gpu_utilization::kLowGPUUtilizationDesc, low_gpu_utilization::MakeLowGPUUtilization},
    {&max_initialization_time::kMaxInitializationTimeDesc,
     max_initialization_time::MakeMaxInitializationTime},
    {&overall_framework_metrics::kOverallFrameworkMetricsDesc,
     overall_framework_metrics::MakeOverallFrameworkMetrics},
    {&overall_system_usage::kOverallSystemUsageDesc, overall_system_usage::MakeOverallSystemUsage},
    {&step_outlier::kStepOutlierDesc, step_outlier::MakeStepOutlier},
}};

/// The parameters of all parts, each with its own default, as <Rule>_<parameter>. The parts'
/// descriptions are constants that the compiler computes, so they are there before this is.
std::span<const ParameterDesc> AllParameters() {
  static const std::deque<std::string> names = [] {
    std::deque<std::string> out;
    for (const Part& part : kParts) {
      for (const ParameterDesc& p : part.desc->parameters) {
        out.push_back(fmt::format("{}_{}", part.desc->name, p.name));
      }
    }
    return out;
  }();
  static const std::vector<ParameterDesc> parameters = [] {
    std::vector<ParameterDesc> out = {
        {"opt_out_telemetry", 0, "", "Taken for SageMaker Debugger's sake: nothing is ever sent."}};
    std::size_t at = 0;
    for (const Part& part : kParts) {
      for (const ParameterDesc& p : part.desc->parameters) {
        ParameterDesc& added = out.emplace_back(p);
        added.name = names[at++];
      }
    }
    return out;
  }();
  return parameters;
}

class ProfilerReport final : public Rule {
 public:
  explicit ProfilerReport(const Parameters& p) {
    parts_.reserve(kParts.size());
    for (const Part& part : kParts) {
      Parameters own(*part.desc);
      for (const ParameterDesc& desc : part.desc->parameters) {
        const std::string name = fmt::format("{}_{}", part.desc->name, desc.name);
        // It is declared there, as a number or a text as here: nothing can go wrong.
        static_cast<void>(desc.text != nullptr ? own.SetText(desc.name, p.Text(name))
                                               : own.Set(desc.name, p.Get(name)));
      }
      Running& running = parts_.emplace_back();
      running.desc = part.desc;
      running.rule = part.make(own);
    }
  }

  void Bind(const RuleContext& context) override {
    for (Running& part : parts_) part.rule->Bind(context);
  }

  bool Wants(const Series& series) override {
    std::uint16_t wanted = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const bool reads = (parts_[i].desc->table_mask & store::MaskOf(series.table)) != 0;
      if (reads && parts_[i].rule->Wants(series)) wanted |= static_cast<std::uint16_t>(1U << i);
    }
    if (wanted_.size() <= series.id) wanted_.resize(series.id + 1, 0);
    wanted_[series.id] = wanted;
    return wanted != 0;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    static_cast<void>(reporter);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      Running& part = parts_[i];
      const bool wants =
          record.series == kNoSeries
              ? (part.desc->table_mask & store::MaskOf(record.table)) != 0
              : record.series < wanted_.size() && (wanted_[record.series] & (1U << i)) != 0;
      if (wants) part.rule->OnRecord(record, &part.incidents);
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (Running& part : parts_) part.rule->OnEnd(&part.incidents);
    Say(reporter);
  }

  bool has_data() const override {
    return std::any_of(parts_.begin(), parts_.end(),
                       [](const Running& part) { return part.rule->has_data(); });
  }

  std::string Summary() const override {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    for (const Running& part : parts_) {
      nlohmann::ordered_json& of = out[std::string(part.desc->name)];
      of["incidents"] = part.incidents.count();
      of["has_data"] = part.rule->has_data();
      const auto summary = ParseOrderedJson(part.rule->Summary());
      if (summary.is_object()) of["summary"] = summary;
    }
    return JsonText(out);
  }

 private:
  /// Keeps what a part reports; nobody else is told, since the part may run by its own name too.
  class Incidents final : public Reporter {
   public:
    void Report(const Incident& incident) override {
      const auto [known, fresh] = open_.try_emplace(incident.subject, incidents_.size());
      if (fresh) {
        if (incidents_.size() >= kMost) {
          ++more_;
          open_.erase(known);
          return;
        }
        incidents_.push_back(incident);
      } else {
        incidents_[known->second] = incident;
      }
    }
    void Close(const Incident& incident) override { End(incident); }
    void Recover(const Incident& incident) override { End(incident); }

    std::size_t count() const { return incidents_.size() + more_; }
    const std::deque<Incident>& all() const { return incidents_; }

   private:
    static constexpr std::size_t kMost = 10'000;

    void End(const Incident& incident) {
      const auto found = open_.find(incident.subject);
      if (found == open_.end()) return;
      incidents_[found->second] = incident;
      open_.erase(found);
    }

    std::deque<Incident> incidents_;
    std::map<std::string, std::size_t> open_;  ///< By subject: index of incidents_.
    std::size_t more_ = 0;
  };

  struct Running {
    const RuleDesc* desc = nullptr;
    std::unique_ptr<Rule> rule;
    Incidents incidents;
  };

  void Say(Reporter* reporter) const {
    const Incident* worst = nullptr;
    std::string_view worst_rule;
    std::size_t fired = 0;
    Incident said;
    nlohmann::ordered_json counts = nlohmann::ordered_json::object();
    for (const Running& part : parts_) {
      if (part.incidents.all().empty()) continue;
      ++fired;
      counts[std::string(part.desc->name)] = part.incidents.count();
      for (const Incident& incident : part.incidents.all()) {
        if (said.start_ns == 0 || incident.start_ns < said.start_ns) {
          said.start_ns = incident.start_ns;
          said.first_step = incident.first_step;
        }
        said.end_ns = std::max(said.end_ns, incident.end_ns);
        said.last_step = std::max(said.last_step, incident.last_step);
        if (worst != nullptr && std::pair(incident.severity, incident.cost_seconds) <=
                                    std::pair(worst->severity, worst->cost_seconds)) {
          continue;
        }
        worst = &incident;
        worst_rule = part.desc->name;
      }
    }
    if (worst == nullptr) return;
    said.subject = "profiler rules";
    said.severity = Severity::kInfo;
    said.message = fmt::format("{} of {} profiler rules fired", fired, parts_.size());
    said.cause = fmt::format("Worst is {} ({}): {}", worst_rule, worst->subject, worst->cause);
    said.advice = worst->advice;
    said.confidence = worst->confidence;
    nlohmann::ordered_json evidence;
    evidence["rules_fired"] = fired;
    evidence["incidents"] = std::move(counts);
    said.evidence = JsonText(evidence);
    reporter->Report(said);
    // A summary of what was is nothing that lasts.
    reporter->Recover(said);
  }

  std::vector<Running> parts_;
  std::vector<std::uint16_t> wanted_;  ///< By series: a bit a part.
};

}  // namespace

const RuleDesc kProfilerReportDesc{
    .name = "ProfilerReport",
    .summary = "Runs SageMaker Debugger's other profiler rules, and says at the end which fired.",
    .formula =
        "BatchSize, CPUBottleneck, Dataloader, GPUMemoryIncrease, IOBottleneck, LoadBalancing, "
        "LowGPUUtilization, MaxInitializationTime, OverallFrameworkMetrics, OverallSystemUsage and "
        "StepOutlier see every record, with parameters <Rule>_<parameter>. At the end, where any "
        "of them had an incident: one finding, info, with the number of incidents of each rule (an "
        "incident counts once, however long it lasted), and cause and advice of the worst: highest "
        "severity, then highest cost. Cost 0. What each rule saw is in the report, whose sections "
        "are those of `telltale report`. Run a rule by its own name to be told while the training "
        "runs.",
    .how_to_fix = "Begin with the worst: its advice is the finding's.",
    .table_mask = store::MaskOf(format::TableId::kMetrics) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans) |
                  store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = AllParameters(),
    .captures = {},
    .family = Family::kProfiler,
    .by_default = false,
    .example = "ProfilerReport(LowGPUUtilization_threshold_p95=50) in a SageMaker script.",
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeProfilerReport(const Parameters& parameters) {
  return std::make_unique<ProfilerReport>(parameters);
}

}  // namespace telltale::rules::profiler_report
