// SPDX-License-Identifier: Apache-2.0
#include "analysis/profile/print.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "base/printable.h"

namespace telltale::analysis::profile {
namespace {

using StatValue = double (*)(const Stats&);

/// A column of numbers: what tfprof's legend calls it, what a number looks like.
struct NumberColumn {
  Column column;
  std::string_view legend;
  StatValue value;
  std::string (*text)(double);
  std::string_view unit;
};

double HostAndDevice(const Stats& stats) { return stats.micros(); }
double OfDevice(const Stats& stats) { return stats.accelerator_micros(); }
double OfHost(const Stats& stats) { return stats.cpu_micros(); }

constexpr NumberColumn kNumbers[] = {
    {Column::kParams, "# parameters", [](const Stats& stats) { return stats.params; }, NumberText,
     " params"},
    {Column::kFloatOps, "# float_ops", [](const Stats& stats) { return stats.float_ops; },
     NumberText, " flops"},
    {Column::kBytes, "requested bytes", [](const Stats& stats) { return stats.requested_bytes; },
     BytesText, ""},
    {Column::kPeakBytes, "peak bytes", [](const Stats& stats) { return stats.peak_bytes; },
     BytesText, ""},
    {Column::kResidualBytes, "residual bytes",
     [](const Stats& stats) { return stats.residual_bytes; }, BytesText, ""},
    {Column::kOutputBytes, "output bytes", [](const Stats& stats) { return stats.output_bytes; },
     BytesText, ""},
    {Column::kMicros, "total execution time", HostAndDevice, MicrosText, ""},
    {Column::kMicros, "accelerator execution time", OfDevice, MicrosText, ""},
    {Column::kMicros, "cpu execution time", OfHost, MicrosText, ""},
    {Column::kAcceleratorMicros, "accelerator execution time", OfDevice, MicrosText, ""},
    {Column::kCpuMicros, "cpu execution time", OfHost, MicrosText, ""},
};

bool Prints(const Options& options, const NumberColumn& number) {
  const bool part =
      number.column == Column::kAcceleratorMicros || number.column == Column::kCpuMicros;
  return options.Selects(number.column) && !(part && options.Selects(Column::kMicros));
}

std::string JoinedTypes(const Tree& tree, NodeId id, bool devices) {
  std::vector<std::string_view> types;
  for (const std::uint32_t type : tree.node(id).types) {
    const std::string_view name = tree.type(type);
    if ((name.find("/device:") != std::string_view::npos) == devices) types.push_back(name);
  }
  std::sort(types.begin(), types.end());
  std::string out;
  for (const std::string_view type : types) out += (out.empty() ? "" : "|") + std::string(type);
  return Printable(out);
}

/// Those of most runs first.
std::vector<std::pair<std::string_view, ShapeUse>> ShapesByUse(const Tree& tree, NodeId id) {
  std::vector<std::pair<std::string_view, ShapeUse>> out;
  if (const auto* const shapes = tree.shapes(id)) out.assign(shapes->begin(), shapes->end());
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.second.occurrence > b.second.occurrence;
  });
  return out;
}

class TextPrinter {
 public:
  TextPrinter(const Profile& profile, const View& view, const Options& options)
      : tree_(profile.tree), view_(view), options_(options) {}

  std::string Print(const Shown& root) {
    Legend();
    if (view_.list) {
      for (const Shown& line : root.children) Line(line, root);
    } else {
      Branch(root, 0);
    }
    return std::move(out_);
  }

 private:
  void Legend() {
    std::vector<std::string_view> words;
    for (const NumberColumn& number : kNumbers) {
      if (Prints(options_, number)) words.push_back(number.legend);
    }
    if (view_.list && options_.Selects(Column::kMicros)) {
      words.push_back(view_.kernels_only ? "average" : "with what it called");
    }
    if (options_.Selects(Column::kDevice)) words.push_back("assigned devices");
    if (options_.Selects(Column::kOpTypes)) words.push_back("op types");
    if (options_.Selects(Column::kOccurrence)) words.push_back("op occurrence (run|defined)");
    if (options_.Selects(Column::kInputShapes)) words.push_back("input shapes");
    out_ += "node name";
    for (const std::string_view word : words) out_ += fmt::format(" | {}", word);
    out_ += '\n';
  }

  void Branch(const Shown& node, std::size_t indent) {
    const Stats& self = tree_.node(node.id).self;
    std::vector<std::string> info;
    for (const NumberColumn& number : kNumbers) {
      if (!Prints(options_, number)) continue;
      info.push_back(fmt::format("{}/{}{}", node.account ? number.text(number.value(self)) : "--",
                                 number.text(number.value(node.total)), number.unit));
    }
    Words(node, &info);
    if (options_.Selects(Column::kOccurrence)) {
      const auto pair = [&](double own, double total) {
        return (node.account ? NumberText(own) : "--") + "/" + NumberText(total);
      };
      info.push_back(pair(self.occurrence, node.total.occurrence) + "|" +
                     pair(self.definitions, node.total.definitions));
    }
    if (options_.Selects(Column::kInputShapes)) {
      const auto shapes = ShapesByUse(tree_, node.id);
      if (!shapes.empty()) info.push_back(Printable(shapes.front().first));
    }
    out_ += fmt::format("{:{}}{} (", "", indent, Printable(tree_.node(node.id).name));
    for (std::size_t i = 0; i < info.size(); ++i) out_ += (i == 0 ? "" : ", ") + info[i];
    out_ += ")\n";
    if (const std::string* const value = tree_.value(node.id);
        value != nullptr && options_.Selects(Column::kTensorValue)) {
      out_ += fmt::format("{:{}}{}\n", "", indent + 2, *value);
    }
    for (const Shown& child : node.children) Branch(child, indent + 2);
  }

  void Line(const Shown& node, const Shown& root) {
    const Node& one = tree_.node(node.id);
    std::vector<std::string> info;
    const auto percent = [](double part, double whole) {
      return whole > 0 ? 100 * part / whole : 0.0;
    };
    for (const NumberColumn& number : kNumbers) {
      if (!Prints(options_, number)) continue;
      const double whole = number.value(root.total);
      const double own = number.value(one.self);
      info.push_back(fmt::format(
          "{:>30}", fmt::format("{}{} ({:.2f}%, {:.2f}%)", number.text(own), number.unit,
                                percent(number.value(node.total), whole), percent(own, whole))));
    }
    if (options_.Selects(Column::kMicros)) {
      const double runs = std::max(one.self.occurrence, 1e-9);
      info.push_back(fmt::format(
          "{:>10}",
          MicrosText(view_.kernels_only
                         ? one.self.accelerator_micros() / runs
                         : (one.host_with_callees_ns + one.device_with_callees_ns) / 1000)));
    }
    Words(node, &info);
    if (options_.Selects(Column::kOccurrence)) {
      info.push_back(fmt::format(
          "{:>10}", NumberText(one.self.occurrence) + "|" + NumberText(one.self.definitions)));
    }
    out_ += fmt::format("{:<25}", Printable(one.name));
    for (std::size_t i = 0; i < info.size(); ++i) out_ += (i == 0 ? "" : ", ") + info[i];
    out_ += '\n';
    if (!options_.Selects(Column::kInputShapes)) return;
    for (const auto& [shape, use] : ShapesByUse(tree_, node.id)) {
      out_ += fmt::format("input_type: {}\t(run*{})\texec_time: {}\n", Printable(shape),
                          use.occurrence, MicrosText(use.host_ns / 1000));
    }
  }

  void Words(const Shown& node, std::vector<std::string>* info) const {
    if (options_.Selects(Column::kDevice)) {
      std::string devices = JoinedTypes(tree_, node.id, true);
      if (!devices.empty()) info->push_back(std::move(devices));
    }
    if (options_.Selects(Column::kOpTypes)) info->push_back(JoinedTypes(tree_, node.id, false));
  }

  const Tree& tree_;
  const View& view_;
  const Options& options_;
  std::string out_;
};

void PutStats(const Stats& stats, const char* prefix, nlohmann::ordered_json* out) {
  const auto put = [&](const char* name, double value) {
    (*out)[std::string(prefix) + name] = value;
  };
  put("exec_micros", stats.micros());
  put("accelerator_exec_micros", stats.accelerator_micros());
  put("cpu_exec_micros", stats.cpu_micros());
  put("run_count", stats.occurrence);
  put("definition_count", stats.definitions);
  put("requested_bytes", stats.requested_bytes);
  put("peak_bytes", stats.peak_bytes);
  put("residual_bytes", stats.residual_bytes);
  put("output_bytes", stats.output_bytes);
  put("float_ops", stats.float_ops);
  put("parameters", stats.params);
}

nlohmann::ordered_json NodeJson(const Tree& tree, const View& view, const Shown& node,
                                const Options& options) {
  const Node& one = tree.node(node.id);
  nlohmann::ordered_json out;
  out["name"] = std::string(one.name);
  out["account"] = node.account;
  if (node.account) PutStats(one.self, "", &out);
  PutStats(node.total, "total_", &out);
  if (view.list && !view.kernels_only && node.id != kRoot) {
    out["cpu_exec_micros_with_callees"] = one.host_with_callees_ns / 1000;
    out["accelerator_exec_micros_with_callees"] = one.device_with_callees_ns / 1000;
  }
  auto types = nlohmann::ordered_json::array();
  for (const std::uint32_t type : one.types) types.push_back(std::string(tree.type(type)));
  out["types"] = std::move(types);
  if (options.Selects(Column::kInputShapes)) {
    auto shapes = nlohmann::ordered_json::array();
    for (const auto& [shape, use] : ShapesByUse(tree, node.id)) {
      shapes.push_back({{"shapes", std::string(shape)},
                        {"run_count", use.occurrence},
                        {"cpu_exec_micros", use.host_ns / 1000}});
    }
    out["input_shapes"] = std::move(shapes);
  }
  if (const std::string* const value = tree.value(node.id)) out["tensor_value"] = *value;
  auto children = nlohmann::ordered_json::array();
  for (const Shown& child : node.children) {
    children.push_back(NodeJson(tree, view, child, options));
  }
  out["children"] = std::move(children);
  return out;
}

std::string Scaled(double value, const char* const (&units)[4], double factor) {
  const bool whole = std::abs(value - std::round(value)) < 0.005;
  if (std::abs(value) < factor) {
    return whole ? fmt::format("{:.0f}{}", value, units[0])
                 : fmt::format("{:.2f}{}", value, units[0]);
  }
  int unit = 0;
  while (std::abs(value) >= factor && unit < 3) {
    value /= factor;
    ++unit;
  }
  return fmt::format("{:.2f}{}", value, units[unit]);
}

}  // namespace

std::string NumberText(double value) { return Scaled(value, {"", "k", "m", "b"}, 1000); }

std::string BytesText(double bytes) { return Scaled(bytes, {"B", "KB", "MB", "GB"}, 1000); }

std::string MicrosText(double micros) {
  if (std::abs(micros) < 1000) return fmt::format("{:.0f}us", micros);
  if (std::abs(micros) < 1e6) return fmt::format("{:.2f}ms", micros / 1e3);
  return fmt::format("{:.2f}sec", micros / 1e6);
}

std::string ProfileText(const Profile& profile, const View& view, const Shown& root,
                        const Options& options) {
  return TextPrinter(profile, view, options).Print(root);
}

nlohmann::ordered_json ProfileJson(const Profile& profile, const View& view, const Shown& root,
                                   const Options& options) {
  return {{"view", std::string(view.name)}, {"steps", profile.steps},
          {"slices", profile.slices},       {"outside", profile.outside},
          {"unplaced", profile.unplaced},   {"root", NodeJson(profile.tree, view, root, options)}};
}

}  // namespace telltale::analysis::profile
