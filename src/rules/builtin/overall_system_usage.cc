// SPDX-License-Identifier: Apache-2.0
// OverallSystemUsage: never fires; what each node used of its cores, GPUs, memories, disks and
// network, for the report.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/quantiles.h"
#include "base/json.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::overall_system_usage {
namespace {

/// A line of the summary: which metric it is of. Those of several devices are a line each.
struct LineDesc {
  std::string_view metric, subject, name, unit;
};
constexpr LineDesc kLines[] = {
    {"cpu.busy", "node", "CPU", "percent"},
    {"cpu.iowait", "node", "I/O wait", "percent"},
    {"mem.used_percent", "node", "CPU memory", "percent"},
    {"gpu.utilization", "gpu:", "GPU", "percent"},
    {"gpu.memory_percent", "gpu:", "GPU memory", "percent"},
    {"net.recv_bytes_rate", "net:", "Network received", "bytes/s"},
    {"net.send_bytes_rate", "net:", "Network sent", "bytes/s"},
    {"disk.read_bytes_rate", "disk:", "Disk read", "bytes/s"},
    {"disk.write_bytes_rate", "disk:", "Disk written", "bytes/s"},
};
/// Of two metrics: used and total bytes.
constexpr std::string_view kMemory = "CPU memory";
constexpr std::string_view kGpuMemory = "GPU memory";
constexpr std::size_t kMaxLines = 2048;

class OverallSystemUsage final : public Rule {
 public:
  explicit OverallSystemUsage(const Parameters& parameters) { static_cast<void>(parameters); }

  bool Wants(const Series& series) override {
    Target target;
    if (series.collection == "node" && series.name == "mem.used") {
      target = {LineOf(series.mode, kMemory, "", "percent"), Part::kUsed};
    } else if (series.collection == "node" && series.name == "mem.total") {
      target = {LineOf(series.mode, kMemory, "", "percent"), Part::kTotal};
    } else if (series.collection.starts_with("gpu:") && series.name == "gpu.memory_used") {
      target = {LineOf(series.mode, kGpuMemory, series.collection, "percent"), Part::kUsed};
    } else if (series.collection.starts_with("gpu:") && series.name == "gpu.memory_total") {
      target = {LineOf(series.mode, kGpuMemory, series.collection, "percent"), Part::kTotal};
    } else {
      for (const LineDesc& desc : kLines) {
        if (series.name != desc.metric || !series.collection.starts_with(desc.subject)) continue;
        const std::string device = desc.subject.ends_with(':') ? series.collection : std::string();
        target = {LineOf(series.mode, desc.name, device, desc.unit), Part::kValue};
      }
    }
    if (target.line < 0) return false;
    if (targets_.size() <= series.id) targets_.resize(series.id + 1);
    targets_[series.id] = target;
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    static_cast<void>(reporter);
    const auto* metric = record.As<format::MetricRow>();
    if (metric == nullptr || record.series >= targets_.size() || !std::isfinite(metric->value)) {
      return;
    }
    const Target target = targets_[record.series];
    if (target.line < 0) return;
    Line& line = lines_[static_cast<std::size_t>(target.line)];
    switch (target.part) {
      case Part::kValue:
        // Where bytes are known, percent comes from them.
        if (line.total <= 0) line.values.Add(metric->value);
        break;
      case Part::kUsed:
        line.used = metric->value;
        line.fresh = true;
        if (line.total > 0) AddShare(&line);
        break;
      case Part::kTotal:
        line.total = metric->value;
        if (line.total > 0 && line.fresh) AddShare(&line);
        break;
    }
  }

  void OnEnd(Reporter* reporter) override { static_cast<void>(reporter); }

  bool has_data() const override {
    return std::any_of(lines_.begin(), lines_.end(),
                       [](const Line& line) { return line.values.count() > 0; });
  }

  std::string Summary() const override {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    for (const Line& line : lines_) {
      if (line.values.count() == 0) continue;
      nlohmann::ordered_json said;
      said["metric"] = line.name;
      if (!line.device.empty()) said["device"] = line.device;
      said["unit"] = line.unit;
      said["samples"] = line.values.count();
      said["max"] = Rounded(line.values.max());
      said["p99"] = Rounded(line.values.At(0.99));
      said["p95"] = Rounded(line.values.At(0.95));
      said["p50"] = Rounded(line.values.At(0.5));
      said["min"] = Rounded(line.values.min());
      out["nodes"][line.node].push_back(std::move(said));
    }
    return out.empty() ? std::string() : JsonText(out);
  }

 private:
  enum class Part : std::uint8_t { kValue, kUsed, kTotal };
  struct Target {
    std::ptrdiff_t line = -1;
    Part part = Part::kValue;
  };
  struct Line {
    std::string node;
    std::string_view name;
    std::string device;
    std::string_view unit;
    analysis::Quantiles values;
    double used = 0, total = 0;
    bool fresh = false;  ///< `used` has not been added yet.
  };

  static void AddShare(Line* line) {
    line->fresh = false;
    line->values.Add(100 * line->used / line->total);
  }

  /// -1 where there are too many.
  std::ptrdiff_t LineOf(const std::string& node, std::string_view name, const std::string& device,
                        std::string_view unit) {
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (lines_[i].node == node && lines_[i].name == name && lines_[i].device == device) {
        return static_cast<std::ptrdiff_t>(i);
      }
    }
    if (lines_.size() >= kMaxLines) return -1;
    Line& line = lines_.emplace_back();
    line.node = node;
    line.name = name;
    line.device = device;
    line.unit = unit;
    return static_cast<std::ptrdiff_t>(lines_.size()) - 1;
  }

  std::vector<Target> targets_;  ///< By series.
  std::vector<Line> lines_;
};

}  // namespace

const RuleDesc kOverallSystemUsageDesc{
    .name = "OverallSystemUsage",
    .summary = "Never fires: how much of the machine the run used, for the report.",
    .formula =
        "Of every node and device: max, p99, p95, p50 and min over all samples of the run, of the "
        "load of all cores, I/O wait, memory (used / total), each GPU's utilization and memory "
        "(used / total), network and disks. Quantiles are within 1 % of a value that occurred; min "
        "and max are exact.",
    .how_to_fix = "Nothing to fix: section 2 of the report reads it.",
    .table_mask = store::MaskOf(format::TableId::kMetrics),
    .wrong_result = false,
    .parameters = {},
    .captures = {},
    .family = Family::kProfiler,
    .data_mask = DataMask(Datum::kSamples),
};

std::unique_ptr<Rule> MakeOverallSystemUsage(const Parameters& parameters) {
  return std::make_unique<OverallSystemUsage>(parameters);
}

}  // namespace telltale::rules::overall_system_usage
