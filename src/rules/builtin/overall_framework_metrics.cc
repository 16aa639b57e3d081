// SPDX-License-Identifier: Apache-2.0
// OverallFrameworkMetrics: never fires; where the steps' time went, by mode, phase and operation,
// for the report.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/own_time.h"
#include "rules/registry.h"

namespace telltale::rules::overall_framework_metrics {
namespace {

constexpr std::size_t kPhaseCount = 6;
constexpr std::array<std::string_view, kPhaseCount> kPhases = {"data wait", "comm wait", "forward",
                                                               "backward",  "optimizer", "other"};
constexpr std::size_t kOperationsSaid = 12;
/// Operations below this share of their category are put together.
constexpr double kLeastShare = 0.02;

class OverallFrameworkMetrics final : public Rule {
 public:
  explicit OverallFrameworkMetrics(const Parameters& parameters) { static_cast<void>(parameters); }

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kSpans) return false;
    // A phase span is in the steps' own account already; those of modules are there of some steps.
    if (series.collection == "phase" || series.collection == "module") return false;
    if (operation_.size() <= series.id) operation_.resize(series.id + 1, kNone);
    std::pair<std::string, std::string> key(series.collection, series.name);
    auto known = known_.find(key);
    if (known == known_.end()) {
      if (operations_.size() >= kMaxOperations) return false;
      known = known_.emplace(std::move(key), static_cast<std::uint32_t>(operations_.size())).first;
      operations_.push_back({series.collection, series.name, 0, 0});
    }
    operation_[series.id] = known->second;
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    static_cast<void>(reporter);
    if (const auto* step = record.As<format::StepRow>()) {
      OnStep(*step);
    } else if (const auto* span = record.As<format::SpanRow>()) {
      if (record.series >= operation_.size() || operation_[record.series] == kNone) return;
      Operation& operation = operations_[operation_[record.series]];
      operation.ns += static_cast<double>(std::max<std::int64_t>(0, span->duration_ns));
      ++operation.count;
    }
  }

  void OnEnd(Reporter* reporter) override { static_cast<void>(reporter); }

  bool has_data() const override { return !modes_.empty(); }

  std::string Summary() const override {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    if (modes_.empty()) return {};
    // Over the life of each process from its first step's begin to its last one's end.
    double lived = 0;
    for (const auto& [key, life] : lives_) lived += static_cast<double>(life.second - life.first);
    double in_steps = 0;
    for (const auto& [name, mode] : modes_) in_steps += mode.ns;
    // Steps of two modes may overlap (an evaluation inside a training step): never below zero.
    const double all = std::max(lived, in_steps);
    for (const auto& [name, mode] : modes_) {
      out["modes"].push_back({{"mode", name},
                              {"steps", mode.steps},
                              {"seconds", Rounded(mode.ns / 1e9)},
                              {"share", Rounded(all > 0 ? mode.ns / all : 0)}});
      nlohmann::ordered_json& phases = out["phases"][name];
      for (std::size_t i = 0; i < kPhaseCount; ++i) {
        phases[std::string(kPhases[i])] = Rounded(mode.ns > 0 ? mode.phase_ns[i] / mode.ns : 0);
      }
    }
    out["between_steps_share"] = Rounded(all > 0 ? (all - in_steps) / all : 0);
    Operations(&out);
    return JsonText(out);
  }

 private:
  static constexpr std::uint32_t kNone = ~0U;
  static constexpr std::size_t kMaxOperations = 4096;
  static constexpr std::size_t kMaxLives = 65536;

  struct Mode {
    std::uint64_t steps = 0;
    double ns = 0;
    std::array<double, kPhaseCount> phase_ns{};
  };
  struct Operation {
    std::string category, name;
    double ns = 0;
    std::uint64_t count = 0;
  };

  void OnStep(const format::StepRow& row) {
    if (row.duration_ns <= 0) return;
    auto found = modes_.find(row.mode);
    if (found == modes_.end()) {
      if (modes_.size() >= 16) return;
      found = modes_.emplace(std::string(row.mode), Mode()).first;
    }
    Mode& mode = found->second;
    ++mode.steps;
    const format::StepRow own = WithoutProbe(row);
    mode.ns += static_cast<double>(own.duration_ns);
    const std::array<std::int64_t, kPhaseCount> ns = {own.data_wait_ns, own.comm_wait_ns,
                                                      own.forward_ns,   own.backward_ns,
                                                      own.optimizer_ns, own.other_ns};
    for (std::size_t i = 0; i < kPhaseCount; ++i) mode.phase_ns[i] += static_cast<double>(ns[i]);
    const std::int64_t end_ns = row.time_ns + row.duration_ns;
    const std::array<std::int64_t, 3> who = {row.rank, row.pid, row.attempt};
    if (lives_.size() >= kMaxLives && !lives_.contains(who)) return;
    const auto life = lives_.try_emplace(who, row.time_ns, end_ns).first;
    life->second.first = std::min(life->second.first, row.time_ns);
    life->second.second = std::max(life->second.second, end_ns);
  }

  /// A category's name comes with its own operations, so that no two can be taken for each other.
  void Operations(nlohmann::ordered_json* out) const {
    std::map<std::string, std::vector<const Operation*>> by_category;
    for (const Operation& operation : operations_) {
      if (operation.count > 0) by_category[operation.category].push_back(&operation);
    }
    for (auto& [category, operations] : by_category) {
      std::stable_sort(operations.begin(), operations.end(),
                       [](const Operation* a, const Operation* b) { return a->ns > b->ns; });
      double total = 0;
      for (const Operation* operation : operations) total += operation->ns;
      nlohmann::ordered_json list = nlohmann::ordered_json::array();
      double said = 0;
      for (const Operation* operation : operations) {
        if (list.size() >= kOperationsSaid || operation->ns < kLeastShare * total) break;
        said += operation->ns;
        list.push_back({{"name", operation->name},
                        {"count", operation->count},
                        {"seconds", Rounded(operation->ns / 1e9)},
                        {"share", Rounded(total > 0 ? operation->ns / total : 0)}});
      }
      nlohmann::ordered_json& of = (*out)["operations"][category];
      of["seconds"] = Rounded(total / 1e9);
      of["list"] = std::move(list);
      of["others_share"] = Rounded(total > 0 ? (total - said) / total : 0);
    }
  }

  std::map<std::string, Mode, std::less<>> modes_;
  /// By rank, pid and attempt: begin of the first step, end of the last.
  std::map<std::array<std::int64_t, 3>, std::pair<std::int64_t, std::int64_t>> lives_;
  std::vector<std::uint32_t> operation_;  ///< By series.
  std::vector<Operation> operations_;
  std::map<std::pair<std::string, std::string>, std::uint32_t> known_;  ///< Index of operations_.
};

}  // namespace

const RuleDesc kOverallFrameworkMetricsDesc{
    .name = "OverallFrameworkMetrics",
    .summary = "Never fires: where the time of the steps went, for the report.",
    .formula =
        "Shares of the time from the first step to the last of each process: steps of each mode, "
        "and what lies between steps; of the steps of a mode, the six phases; of the spans of a "
        "category, each name (those below 2 %, and beyond the first 12, together). Sums over all "
        "ranks.",
    .how_to_fix = "Nothing to fix: sections 3 and 4 of the report read it.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans),
    .wrong_result = false,
    .parameters = {},
    .captures = {},
    .family = Family::kProfiler,
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeOverallFrameworkMetrics(const Parameters& parameters) {
  return std::make_unique<OverallFrameworkMetrics>(parameters);
}

}  // namespace telltale::rules::overall_framework_metrics
