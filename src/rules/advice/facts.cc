// SPDX-License-Identifier: Apache-2.0
#include "rules/advice/facts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "analysis/trace/call_stack.h"
#include "analysis/trace/device_peaks.h"
#include "analysis/trace/gpu_metrics.h"
#include "analysis/trace/load.h"
#include "analysis/trace/registry.h"
#include "analysis/trace/roofline.h"
#include "base/json.h"
#include "base/saturate.h"
#include "store/column_scan.h"

namespace telltale::rules::advice {
namespace {

using trace::Category;
using trace::kNoRow;
using trace::Trace;

bool Holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Finds the sums of a name, made where there are none yet.
class Totals {
 public:
  explicit Totals(const Trace& trace, std::vector<NameTotal>* out) : trace_(trace), out_(out) {}

  NameTotal& Of(std::size_t row) {
    auto& places = places_[static_cast<std::size_t>(trace_.category[row])];
    if (places.empty()) places.assign(trace_.names.size(), kNoRow);
    std::uint32_t& at = places[trace_.name[row]];
    if (at == kNoRow) {
      at = static_cast<std::uint32_t>(out_->size());
      NameTotal& total = out_->emplace_back();
      total.name = trace_.NameOf(row);
      total.category = trace_.category[row];
      total.on_device = trace_.LaneOf(row).device >= 0;
    }
    return (*out_)[at];
  }

 private:
  const Trace& trace_;
  std::vector<NameTotal>* out_;
  std::array<std::vector<std::uint32_t>, trace::kCategories> places_;
};

bool OnHost(const Trace& trace, std::size_t row) {
  switch (trace.category[row]) {
    case Category::kStep:
    case Category::kMemory:
    case Category::kDeviceAnnotation:
      return false;
    default:
      return trace.LaneOf(row).device < 0 && !trace.OnDevice(row);
  }
}

/// The nearest slice of the category that holds each row, itself included; empty where the trace
/// has none of it. Whoever holds comes before what it holds.
std::vector<std::uint32_t> Nearest(const Trace& trace, const trace::CallStack& stack,
                                   const auto& is) {
  std::vector<std::uint32_t> out;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (out.empty()) {
      if (!is(i)) continue;
      out.assign(trace.size(), kNoRow);
    }
    if (is(i)) {
      out[i] = static_cast<std::uint32_t>(i);
    } else if (stack.parent[i] != kNoRow) {
      out[i] = out[stack.parent[i]];
    }
  }
  return out;
}

void TakeSteps(const trace::StepBreakdown& breakdown, RankFacts* out) {
  for (const trace::StepCost& step : breakdown.steps) {
    out->steps.push_back(step.step);
    out->wall_ns += step.span.length();
    for (std::size_t r = 0; r < out->role_ns.size(); ++r) out->role_ns[r] += step.role_ns[r];
    out->communication_ns += step.communication_ns;
    out->overlap_ns += step.overlap_ns;
  }
  if (breakdown.steps.empty()) return;
  out->begin_ns = breakdown.steps.front().span.begin;
  out->end_ns = breakdown.steps.back().span.end;
}

void TakeDevices(const Trace& trace, const trace::Spans& windows, RankFacts* out) {
  std::vector<bool> tensor(trace.names.size());
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    tensor[i] = trace::NamesTensorCoresWide(trace.names[i]);
  }
  std::map<std::int32_t, std::pair<DeviceFacts, trace::Spans>> devices;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!trace.OnDevice(i)) continue;
    auto& [facts, spans] = devices[trace.LaneOf(i).device];
    facts.device = trace.LaneOf(i).device;
    spans.push_back({trace.begin_ns[i], trace.end_ns(i)});
    if (trace.category[i] != Category::kKernel) continue;
    facts.kernel_ns += trace.duration_ns[i];
    if (tensor[trace.name[i]]) facts.tensor_ns += trace.duration_ns[i];
  }
  for (auto& [device, of] : devices) {
    of.first.busy_ns = Length(trace::Intersection(trace::Merged(std::move(of.second)), windows));
    out->devices.push_back(of.first);
  }
}

/// Sums by name, of slices that belong to the steps.
void TakeNames(const Trace& trace, const trace::Spans& windows, RankFacts* out) {
  const auto within = [&](std::size_t row) {
    const std::int64_t begin_ns = trace.begin_ns[row];
    const auto after = std::upper_bound(
        windows.begin(), windows.end(), begin_ns,
        [](std::int64_t time, const trace::Span& window) { return time < window.begin; });
    return after != windows.begin() && begin_ns < (after - 1)->end;
  };
  const trace::CallStack stack =
      trace::CallStackOf(trace, [&](std::size_t row) { return OnHost(trace, row); });
  std::vector<Sum> own(trace.duration_ns.begin(), trace.duration_ns.end());
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (stack.parent[i] == kNoRow) continue;
    // What reaches beyond its holder's end is the holder's only as far as it goes.
    const std::uint32_t parent = stack.parent[i];
    own[parent] -= std::min(trace.end_ns(i), trace.end_ns(parent)) - trace.begin_ns[i];
  }
  const auto python = Nearest(
      trace, stack, [&](std::size_t row) { return trace.category[row] == Category::kPython; });
  const auto module = Nearest(
      trace, stack, [&](std::size_t row) { return trace.category[row] == Category::kModule; });
  std::vector<bool> loader(trace.names.size());
  for (std::size_t i = 0; i < loader.size(); ++i) {
    loader[i] = trace::IsDataLoaderWait(trace.names[i]);
  }
  const auto data = Nearest(trace, stack, [&](std::size_t row) {
    return OnHost(trace, row) && (trace.category[row] == Category::kData ||
                                  trace.category[row] == Category::kIo || loader[trace.name[row]]);
  });

  // Of operators, for work whose launch the source does not name.
  // By recording: profilers count operators anew in each.
  std::vector<std::unordered_map<std::int64_t, std::uint32_t>> by_external(trace.recording_count());
  const auto recording_of = [&](std::size_t row) { return trace.RecordingAt(trace.begin_ns[row]); };
  bool any_external = false;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace.OnDevice(i) && trace.launch[i] == kNoRow && trace.external[i] != 0) {
      by_external[recording_of(i)].emplace(trace.external[i], kNoRow);
      any_external = true;
    }
  }
  if (any_external) {
    for (std::size_t i = 0; i < trace.size(); ++i) {
      if (trace.external[i] == 0 || !OnHost(trace, i) || trace.category[i] == Category::kRuntime) {
        continue;
      }
      // The innermost of them is the last one.
      auto& operators = by_external[recording_of(i)];
      if (const auto found = operators.find(trace.external[i]); found != operators.end()) {
        found->second = static_cast<std::uint32_t>(i);
      }
    }
  }

  Totals totals(trace, &out->names);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (OnHost(trace, i)) {
      if (!within(i)) continue;
      NameTotal& total = totals.Of(i);
      ++total.count;
      total.total_ns += trace.duration_ns[i];
      const Sum self = std::max<Sum>(0, own[i]);
      total.self_ns += self;
      if (!trace.bytes.empty()) total.bytes += std::max<std::int64_t>(0, trace.bytes[i]);
      if (!python.empty() && python[i] != kNoRow) totals.Of(python[i]).host_ns += self;
      if (!module.empty() && module[i] != kNoRow) totals.Of(module[i]).host_ns += self;
      if (!data.empty() && data[i] != kNoRow) {
        const bool is_op =
            trace.category[i] == Category::kOp || trace.category[i] == Category::kRuntime;
        if (is_op && data[i] != i) {
          out->input_ops_ns += self;
          out->input_ns[static_cast<std::size_t>(InputStage::kPreprocessing)] += self;
        } else {
          const InputStage stage = StageOf(trace.NameOf(i), trace.category[i]);
          out->input_ns[static_cast<std::size_t>(stage)] += self;
        }
      }
      continue;
    }
    if (trace.LaneOf(i).device < 0 || trace.category[i] == Category::kStep) continue;
    const std::uint32_t launch = trace.launch[i];
    if (!(launch != kNoRow ? within(launch) : within(i))) continue;
    NameTotal& total = totals.Of(i);
    ++total.count;
    total.total_ns += trace.duration_ns[i];
    total.self_ns += trace.duration_ns[i];
    if (!trace.bytes.empty()) total.bytes += std::max<std::int64_t>(0, trace.bytes[i]);
    if (!trace.OnDevice(i)) continue;
    std::uint32_t by = launch;
    if (by == kNoRow) {
      const auto& operators = by_external[recording_of(i)];
      if (const auto found = operators.find(trace.external[i]); found != operators.end()) {
        by = found->second;
      }
    }
    if (by == kNoRow) continue;
    if (!python.empty() && python[by] != kNoRow) {
      totals.Of(python[by]).device_ns += trace.duration_ns[i];
    }
    if (!module.empty() && module[by] != kNoRow) {
      totals.Of(module[by]).device_ns += trace.duration_ns[i];
    }
    while (by != kNoRow && trace.category[by] == Category::kRuntime) by = stack.parent[by];
    if (by == kNoRow) continue;
    const Category of = trace.category[by];
    if (of != Category::kPython && of != Category::kModule) {
      totals.Of(by).device_ns += trace.duration_ns[i];
    }
  }
}

void TakeLaunches(const Trace& trace, RankFacts* out) {
  const trace::Scope scope(trace, {});
  const std::vector<trace::Launch> launches = trace::LaunchesOf(trace, scope);
  out->launches = trace::SummaryOf(launches, 50'000, 100'000);
  for (const trace::Launch& launch : launches) {
    out->launch_call_ns += launch.call_ns;
    out->launched_ns += launch.work_ns;
  }
  const trace::Roofline roof = trace::RooflineOf(trace, scope);
  out->flops = roof.flops;
  out->flops_wall_ns = roof.wall_ns;
}

void TakeCompilation(const Trace& trace, std::int64_t first_step_end, RankFacts* out) {
  std::int64_t until = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace.category[i] != Category::kCompile || trace.LaneOf(i).device >= 0) continue;
    if (out->first_compile_ns < 0) out->first_compile_ns = trace.begin_ns[i];
    if (trace.begin_ns[i] < first_step_end || trace.begin_ns[i] >= out->end_ns) continue;
    // One within another, or beside it, takes the time once.
    if (trace.begin_ns[i] >= until) ++out->late_compiles;
    const std::int64_t from = std::max(until, trace.begin_ns[i]);
    if (trace.end_ns(i) > from) out->late_compile_ns += trace.end_ns(i) - from;
    until = std::max(until, trace.end_ns(i));
  }
}

std::string TextAt(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::int64_t NumberAt(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return 0;
  const double value = found->get<double>();
  return value >= 0 && value < 9e15 ? static_cast<std::int64_t>(value) : 0;
}

/// What imports said of the machines.
Status TakeSources(const std::filesystem::path& run, std::vector<RankFacts>* ranks) {
  const auto visit = [&](store::ScanPiece& piece) -> Status {
    for (std::size_t i = 0; i < piece.rows; ++i) {
      if (piece.columns[0].Text(i) != "trace.source") continue;
      const auto rank = static_cast<std::int32_t>(piece.columns[1].Int(i));
      const auto found = std::find_if(ranks->begin(), ranks->end(),
                                      [&](const RankFacts& one) { return one.rank == rank; });
      if (found == ranks->end()) continue;
      const nlohmann::json data = ParseJson(piece.columns[2].Text(i));
      if (!data.is_object()) continue;
      found->backend = TextAt(data, "backend");
      const auto devices = data.find("devices");
      if (devices == data.end() || !devices->is_array() || devices->empty()) continue;
      const nlohmann::json& first = devices->front();
      if (!first.is_object()) continue;
      found->device_name = TextAt(first, "name");
      found->compute_major = static_cast<std::int32_t>(
          std::clamp<std::int64_t>(NumberAt(first, "computeMajor"), 0, 1000));
      found->device_memory = NumberAt(first, "totalGlobalMem");
      if (const trace::DevicePeak* peak = trace::FindPeak(found->device_name)) {
        found->peak_flops = trace::PeakOf(*peak, "tf32") * 1e12;
      }
    }
    return {};
  };
  store::Salvage ignored;  // The rows of slices say what is damaged.
  return store::ScanColumns(
      run, {.table = format::EventRow::kTable, .columns = {"kind", "rank", "data"}}, visit,
      &ignored);
}

/// What allocators of devices held at most, by the traces' memory events.
Status TakeMemory(const std::filesystem::path& run, std::string_view name,
                  std::vector<RankFacts>* ranks, store::Salvage* salvage) {
  const auto visit = [&](store::ScanPiece& piece) -> Status {
    for (std::size_t i = 0; i < piece.rows; ++i) {
      const auto rank = static_cast<std::int32_t>(piece.columns[0].Int(i));
      const std::string_view args = piece.columns[1].Text(i);
      const double type = trace::NumberIn(args, "Device Type");
      if (type == 0) continue;  // The host's.
      double held = trace::NumberIn(args, "Total Reserved");
      if (!(held > 0)) held = trace::NumberIn(args, "Total Allocated");
      if (!(held > 0)) held = trace::NumberIn(args, "peak_bytes_in_use");
      if (!(held > 0) || held > 9e15) continue;
      for (RankFacts& one : *ranks) {
        if (one.rank != rank) continue;
        one.peak_memory = std::max(one.peak_memory, static_cast<std::int64_t>(held));
      }
    }
    return {};
  };
  return store::ScanColumns(
      run,
      {.table = format::SliceRow::kTable, .columns = {"rank", "args"}, .name = std::string(name)},
      visit, salvage);
}

Status TakeJobs(const std::filesystem::path& run, std::vector<JobFacts>* jobs) {
  struct Node {
    double idle = 0, available = kNotKnown, total = kNotKnown;
    std::uint64_t samples = 0;
  };
  std::map<std::string, Node, std::less<>> nodes;
  store::Salvage ignored;  // As above.
  for (const char* name : {"cpu.idle", "mem.available", "mem.total"}) {
    const auto visit = [&](store::ScanPiece& piece) -> Status {
      for (std::size_t i = 0; i < piece.rows; ++i) {
        const double value = piece.columns[2].Real(i);
        if (!std::isfinite(value)) continue;
        if (name == std::string_view("cpu.idle") && piece.columns[1].Text(i) != "node") continue;
        const std::string_view of = piece.columns[0].Text(i);
        auto found = nodes.find(of);
        if (found == nodes.end()) found = nodes.emplace(std::string(of), Node()).first;
        Node& node = found->second;
        if (name == std::string_view("cpu.idle")) {
          node.idle += value;
          ++node.samples;
        } else if (name == std::string_view("mem.total")) {
          node.total = value;
        } else {
          node.available = std::isnan(node.available) ? value : std::min(node.available, value);
        }
      }
      return {};
    };
    TELLTALE_RETURN_IF_ERROR(store::ScanColumns(
        run,
        {.table = format::MetricRow::kTable, .columns = {"node", "subject", "value"}, .name = name},
        visit, &ignored));
  }
  for (const auto& [name, node] : nodes) {
    if (node.samples == 0) continue;
    JobFacts& job = jobs->emplace_back();
    job.node = name;
    job.samples = node.samples;
    job.cpu_share = 1 - node.idle / static_cast<double>(node.samples) / 100;
    if (node.total > 0 && std::isfinite(node.available)) {
      job.memory_share = 1 - node.available / node.total;
    }
  }
  return {};
}

}  // namespace

Sum RankFacts::kernel_ns() const {
  Sum sum = 0;
  for (const DeviceFacts& device : devices) sum += device.kernel_ns;
  return sum;
}

InputStage StageOf(std::string_view name, Category category) {
  if (Holds(name, "Enqueue") || Holds(name, "pin_memory")) return InputStage::kEnqueue;
  const bool reads = name.ends_with("::TFRecord") || name.ends_with("::TextLine") ||
                     name.ends_with("::FixedLengthRecord") || name.ends_with("::RecordIO") ||
                     name.ends_with("::SSTable") || Holds(name, "ReadFile") ||
                     Holds(name, "ReaderRead") || Holds(name, "TFRecordReader");
  if (reads) {
    for (const std::string_view ahead : {"::MemoryReader", "::MemoryWriter", "::Cache",
                                         "Interleave", "::Prefetch", "::ParallelMap"}) {
      if (Holds(name, ahead)) return InputStage::kAdvancedRead;
    }
    return InputStage::kDemandedRead;
  }
  if (category == Category::kIo) return InputStage::kDemandedRead;
  if (name.starts_with("Iterator::") || Holds(name, "Dataset") || Holds(name, "Decode") ||
      Holds(name, "collate")) {
    return InputStage::kPreprocessing;
  }
  return InputStage::kUnknown;
}

RankFacts RankFactsOf(const Trace& trace) {
  RankFacts out;
  out.rank = trace.rank;
  const trace::StepBreakdown breakdown = trace::StepBreakdownOf(trace);
  TakeSteps(breakdown, &out);
  trace::Spans windows = trace::Merged(trace::StepWindows(trace, breakdown));
  if (!out.has_steps()) {
    windows = {
        {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}};
  }
  TakeDevices(trace, windows, &out);
  TakeNames(trace, windows, &out);
  if (out.has_device()) out.eligible_share = trace::EligibleShareOf(trace);
  TakeLaunches(trace, &out);
  if (breakdown.steps.size() > 1) {
    TakeCompilation(trace, breakdown.steps.front().span.end, &out);
  }
  return out;
}

Result<RunFacts> RunFactsOf(const std::filesystem::path& run,
                            const std::vector<std::int32_t>& ranks) {
  RunFacts out;
  TELLTALE_RETURN_IF_ERROR(TakeJobs(run, &out.jobs));
  auto source = trace::TraceSource::Open(run, ranks);
  if (!source.ok()) {
    if (source.status().code() != Code::kUnusable || !ranks.empty()) return source.status();
    out.notes.push_back(source.status().message());
    return out;
  }
  out.has_trace = true;
  out.notes = source->notes();
  bool memory = false;
  bool allocations = false;
  std::vector<trace::RankCollectives> collectives;
  for (const std::int32_t rank : source->ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace loaded, source->Load(rank, kTraceNeeds));
    out.ranks.push_back(RankFactsOf(loaded));
    memory = memory ||
             std::find(loaded.names.begin(), loaded.names.end(), "[memory]") != loaded.names.end();
    allocations = allocations || std::find(loaded.names.begin(), loaded.names.end(),
                                           "MemoryAllocation") != loaded.names.end();
    if (source->ranks().size() > 1) {
      collectives.push_back(trace::CollectivesOf(loaded, trace::Scope(loaded, {}), {}));
    }
  }
  if (!collectives.empty()) out.stragglers = trace::StragglersOf(collectives, 1);
  out.salvage = source->salvage();
  TELLTALE_RETURN_IF_ERROR(TakeSources(run, &out.ranks));
  store::Salvage again;  // What is damaged was counted when the ranks were loaded.
  if (memory) TELLTALE_RETURN_IF_ERROR(TakeMemory(run, "[memory]", &out.ranks, &again));
  if (allocations) {
    TELLTALE_RETURN_IF_ERROR(TakeMemory(run, "MemoryAllocation", &out.ranks, &again));
  }
  return out;
}

}  // namespace telltale::rules::advice
