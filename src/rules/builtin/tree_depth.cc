// SPDX-License-Identifier: Apache-2.0
// TreeDepth: the trees of a boosted model are deep.
//
// SageMaker Debugger's rule of this name takes the logarithm of the largest id of a node, which is
// the depth only where trees grow level by level and nothing is pruned: with grow_policy=lossguide
// a path of 40 nodes has the ids of a tree of depth 6. Here paths are followed.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/saturate.h"
#include "rules/builtin/event_data.h"
#include "rules/builtin/label_pairs.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::tree_depth {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"depth", 4, "splits", "A tree is deep from so many splits between its root and a leaf on."},
};

constexpr CaptureNeed kCaptures[] = {{"trees", "values", 10}};

/// Bytes of a dump that are read at most; they pass through numbers of eight bytes.
constexpr std::size_t kMostBytes = std::size_t{8} << 20U;
constexpr std::size_t kShown = 32;  ///< Depths of which the evidence has the counts.

/// Splits between the root and the deepest leaf; nothing where it is no tree.
std::optional<std::size_t> DepthOf(const nlohmann::json& tree) {
  if (!tree.is_object() || (!tree.contains("leaf") && !tree.contains("children"))) {
    return std::nullopt;
  }
  std::size_t deepest = 0;
  std::vector<std::pair<const nlohmann::json*, std::size_t>> open{{&tree, 0}};
  while (!open.empty()) {
    const auto [node, depth] = open.back();
    open.pop_back();
    deepest = std::max(deepest, depth);
    const auto children = node->find("children");
    if (children == node->end() || !children->is_array()) continue;
    for (const nlohmann::json& child : *children) {
      if (child.is_object()) open.emplace_back(&child, depth + 1);
    }
  }
  return deepest;
}

class TreeDepth final : public Rule {
 public:
  explicit TreeDepth(const Parameters& p)
      : depth_(static_cast<std::size_t>(std::max<std::int64_t>(1, p.GetInt("depth")))) {}

  void Bind(const RuleContext& context) override { values_ = context.values; }

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kTensors) return false;
    // Ours, also of a fold of cross-validation; and SageMaker's column of the ids of nodes.
    const bool dump = series.name.ends_with("trees/json");
    if (!dump && !series.name.ends_with("trees/Node")) return false;
    if (dumps_.size() <= series.id) dumps_.resize(series.id + 1);
    dumps_[series.id] = dump ? 1 : 0;
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* tensor = record.As<format::TensorRow>()) {
      OnTensor(record, *tensor, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        processes_.End(*event, writer_, [&](Process* process) { Close(process, reporter); });
      } else if (event->kind == "boosting.start") {
        Process* process =
            processes_.Find(*event, writer_, [&](Process* former) { Close(former, reporter); });
        if (process == nullptr) return;
        // Another training of the same process has other trees.
        Close(process, reporter);
        process->trees.clear();
        process->deep = process->all = 0;
        process->deepest = 0;
        process->deepest_tree = -1;
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) Close(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  struct Process : TrainingProcess {
    std::vector<std::uint64_t> trees;  ///< By depth.
    std::uint64_t deep = 0;
    std::uint64_t all = 0;
    std::size_t deepest = 0;
    std::int64_t deepest_tree = -1;  ///< Its index; -1: not said.
  };

  void OnTensor(const Record& record, const format::TensorRow& row, Reporter* reporter) {
    if (record.series >= dumps_.size() || values_ == nullptr) return;
    Process* process =
        processes_.Find(row, writer_, [&](Process* former) { Close(former, reporter); });
    if (process == nullptr) return;
    process->last_step = std::max(process->last_step, row.step);
    const std::uint64_t deep = process->deep;
    if (dumps_[record.series] != 0) {
      const auto shape = ShapeOf(row.shape);
      if (!shape || ElementsOf(*shape) == 0 || ElementsOf(*shape) > kMostBytes) return;
      const auto bytes = values_->Read(record, kMostBytes);
      if (!bytes.ok()) return;
      std::string text;
      text.reserve(bytes->size());
      for (const double byte : *bytes) {
        text += static_cast<char>(static_cast<unsigned char>(std::clamp(byte, 0.0, 255.0)));
      }
      OnDump(process, text);
    } else {
      const auto nodes = ReadSamples(record, row, values_, kMostBytes / 8);
      if (!nodes) return;
      OnNodes(process, nodes->elements);
    }
    if (process->deep == deep) return;
    if (!process->open) {
      processes_.Open(process, std::max<std::int64_t>(0, row.step), row.time_ns);
    }
    Describe(process, row.time_ns);
    reporter->Report(process->incident);
  }

  void OnDump(Process* process, const std::string& text) {
    const auto dump = ParseJson(text);
    if (!dump.is_object()) return;
    const auto trees = dump.find("trees");
    if (trees == dump.end() || !trees->is_array()) return;
    std::int64_t index = IntegerIn(dump, "first_tree");
    for (const nlohmann::json& tree : *trees) {
      if (const auto depth = DepthOf(tree)) AddTree(process, *depth, index);
      ++index;
    }
  }

  /// The ids of the nodes of one tree or of several, each from 0 on.
  void OnNodes(Process* process, const std::vector<double>& ids) {
    double largest = -1;
    for (const double id : ids) {
      if (!std::isfinite(id) || id < 0 || id > 1e15) return;
      if (id == 0 && largest >= 0) {
        AddTree(process, DepthOfIds(largest), -1);
        largest = 0;
      }
      largest = std::max(largest, id);
    }
    if (largest >= 0) AddTree(process, DepthOfIds(largest), -1);
  }

  /// Of a tree that grew level by level: level d has the ids from 2^d - 1 on.
  static std::size_t DepthOfIds(double largest) {
    return static_cast<std::size_t>(
               std::bit_width(static_cast<std::uint64_t>(SaturatingCast(largest)) + 1)) -
           1;
  }

  void AddTree(Process* process, std::size_t depth, std::int64_t index) {
    has_data_ = true;
    ++process->all;
    const std::size_t at = std::min(depth, kShown - 1);
    if (process->trees.size() <= at) process->trees.resize(at + 1);
    ++process->trees[at];
    if (depth >= depth_) ++process->deep;
    if (depth <= process->deepest && process->all > 1) return;
    process->deepest = depth;
    process->deepest_tree = index;
  }

  void Close(Process* process, Reporter* reporter) {
    if (!process->open) return;
    reporter->Close(process->incident);
    process->open = false;
  }

  void Describe(Process* process, std::int64_t ns) const {
    Incident& incident = process->incident;
    incident.last_step = std::max(incident.first_step, process->last_step);
    incident.end_ns = std::max(incident.start_ns, ns);
    incident.severity = Severity::kLow;
    incident.message = fmt::format("{} of {} trees are deep", process->deep, process->all);
    incident.cause = fmt::format(
        "{} has {} splits between its root and its deepest leaf, {} of {} trees have {} or more.",
        process->deepest_tree < 0 ? std::string("One tree")
                                  : fmt::format("Tree {}", process->deepest_tree),
        process->deepest, process->deep, process->all, depth_);
    incident.advice = fmt::format(
        "Compare with max_depth={} on new data: deep trees learn single samples by heart; set "
        "depth "
        "of this rule to what you mean to allow.",
        depth_ - 1);
    // That they are deep is certain; that it does harm is not.
    incident.confidence = 0.5;
    nlohmann::ordered_json evidence;
    evidence["trees"] = process->all;
    evidence["deep"] = process->deep;
    evidence["deepest"] = process->deepest;
    if (process->deepest_tree >= 0) evidence["deepest_tree"] = process->deepest_tree;
    evidence["trees_by_depth"] = process->trees;
    incident.evidence = JsonText(evidence);
  }

  const std::size_t depth_;

  TensorValues* values_ = nullptr;
  std::vector<char> dumps_;  ///< By series: 1: a dump as JSON, 0: ids of nodes.
  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kTreeDepthDesc{
    .name = "TreeDepth",
    .summary = "Trees of a boosted model are deep.",
    .formula =
        "Depth of a tree = splits between its root and its deepest leaf, found by following the "
        "tree (trees/json). Of an imported SageMaker run, which has the ids of nodes alone: "
        "⌊log2(largest id + 1)⌋, which holds for trees that grew level by level. Low where a tree "
        "has depth ≥ depth; until the process ends, since trees stay in the model. A dump of more "
        "than 8 MiB is not read: a shorter interval makes dumps smaller. Costs no time.",
    .how_to_fix =
        "Lower max_depth (or max_leaves with grow_policy=lossguide), raise min_child_weight or "
        "gamma; compare the loss on new data.",
    .table_mask =
        store::MaskOf(format::TableId::kTensors) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kTree,
    // XGBoost's own default is max_depth=6.
    .by_default = false,
    .example = "`xgboost.train({\"max_depth\": 12}, dtrain)` on 500 rows."};

std::unique_ptr<Rule> MakeTreeDepth(const Parameters& parameters) {
  return std::make_unique<TreeDepth>(parameters);
}

}  // namespace telltale::rules::tree_depth
