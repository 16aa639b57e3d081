// SPDX-License-Identifier: Apache-2.0
#include "interchange/timeline_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/json.h"
#include "interchange/export_file.h"
#include "interchange/json_out.h"
#include "query/slice_order.h"

namespace telltale::interchange {
namespace {

using format::SliceRow;

constexpr std::int64_t kAllocators = 0;
constexpr std::size_t kTimelinePieceBytes = 64 << 10;

bool Computes(const SliceRow& slice) {
  if (slice.device >= 0) {
    return slice.category == "kernel" || slice.category == "memcpy" || slice.category == "memset" ||
           slice.category == "op";
  }
  // What is recorded live has no operators, but ranges that the training or the user named.
  return slice.category == "op" || slice.category == "comm" || slice.category == "data" ||
         (slice.window.empty() && slice.category == "annotation");
}

/// What a memory slice says of itself.
struct Allocation {
  std::string allocator;
  std::int32_t device = -1;
  std::optional<std::int64_t> total;
  std::string address;
};

Allocation AllocationOf(const SliceRow& slice) {
  Allocation out;
  const auto args = ParseJson(slice.args);
  const auto number = [&](const char* name) -> std::optional<std::int64_t> {
    if (!args.is_object()) return std::nullopt;
    const auto at = args.find(name);
    if (at == args.end() || !at->is_number()) return std::nullopt;
    return at->get<std::int64_t>();
  };
  // PyTorch counts the CPU as type 0.
  if (number("Device Type").value_or(0) != 0) {
    out.device = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(number("Device Id").value_or(0), 0, 1 << 16));
  }
  if (slice.device >= 0) out.device = slice.device;
  out.total = number("Total Allocated");
  if (args.is_object() && args.contains("Addr")) out.address = JsonText(args["Addr"]);
  if (args.is_object() && args.contains("allocator") && args["allocator"].is_string()) {
    out.allocator = args["allocator"].get<std::string>();
  } else {
    out.allocator = out.device < 0 ? "cpu" : fmt::format("GPU_{}", out.device);
  }
  return out;
}

/// The file of one step.
class StepTimeline {
 public:
  StepTimeline(std::unique_ptr<ExportFile> file, std::int64_t step)
      : file_(std::move(file)), step_(step) {
    out_ = "{\"traceEvents\":[";
    Name(kAllocators, "Allocators");
  }

  std::int64_t step() const { return step_; }

  Status Add(const SliceRow& slice, const TimelineOptions& options) {
    if (slice.category == "memory") {
      Memory(slice);
    } else if (slice.correlation != 0 && slice.device < 0 && slice.category == "runtime") {
      const Pids pids = PidsOf(slice.rank, -1);
      launches_[{slice.rank, slice.correlation}] = {
          pids.compute, InnermostRow(pids.compute, slice.time_ns), slice.time_ns};
    } else if (Computes(slice) && (!options.keeps || options.keeps(slice))) {
      Compute(slice);
    }
    if (out_.size() < kTimelinePieceBytes) return {};
    Status status = file_->Append(out_);
    out_.clear();
    return status;
  }

  Status Close() {
    out_ += "\n]}\n";
    TELLTALE_RETURN_IF_ERROR(file_->Append(out_));
    return file_->Commit();
  }

 private:
  struct Pids {
    std::int64_t compute;
    std::int64_t tensors;
  };
  struct Launch {
    std::int64_t pid;
    std::size_t lane;
    std::int64_t time_ns;
  };
  struct Tensor {
    std::uint64_t id;
    std::int64_t pid;
  };

  void Begin(char phase, std::string_view category, std::string_view name, std::int64_t pid,
             std::size_t tid) {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
    fmt::format_to(std::back_inserter(out_), "{{\"ph\":\"{}\",", phase);
    if (!category.empty()) fmt::format_to(std::back_inserter(out_), "\"cat\":\"{}\",", category);
    out_ += "\"name\":";
    AppendQuoted(name, &out_);
    fmt::format_to(std::back_inserter(out_), ",\"pid\":{},\"tid\":{}", pid, tid);
  }
  void At(std::int64_t time_ns) {
    out_ += ",\"ts\":";
    AppendMicros(time_ns, &out_);
  }
  void Name(std::int64_t pid, std::string_view name) {
    Begin('M', {}, "process_name", pid, 0);
    out_ += ",\"args\":{\"name\":";
    AppendQuoted(name, &out_);
    out_ += "}}";
  }

  Pids PidsOf(std::int32_t rank, std::int32_t device) {
    const auto [at, made] = pids_.try_emplace({rank, device});
    if (made) {
      at->second = {next_pid_, next_pid_ + 1};
      next_pid_ += 2;
      const std::string name = query::DeviceName(rank, device);
      Name(at->second.compute, name + " Compute");
      Name(at->second.tensors, name + " Tensors");
    }
    return at->second;
  }

  void Compute(const SliceRow& slice) {
    const std::int64_t pid = PidsOf(slice.rank, slice.device).compute;
    const std::int64_t end_ns = query::EndOf(slice);
    // As TensorFlow packs them: no threads, but the first row that is free.
    std::vector<std::int64_t>& ends = lanes_[pid];
    const auto free = std::find_if(ends.begin(), ends.end(),
                                   [&](std::int64_t end) { return end <= slice.time_ns; });
    const auto lane = static_cast<std::size_t>(free - ends.begin());
    if (free == ends.end()) {
      ends.push_back(end_ns);
    } else {
      *free = end_ns;
    }
    Begin('X', "Op", slice.name, pid, lane);
    At(slice.time_ns);
    out_ += ",\"dur\":";
    AppendMicros(end_ns - slice.time_ns, &out_);
    out_ += ",\"args\":";
    ObjectOut args(slice.args, &out_);
    args.Add("name", slice.name);
    args.Add("op", slice.name);
    args.Close();
    out_ += '}';
    if (slice.device >= 0 && slice.correlation != 0) {
      const auto launch = launches_.find({slice.rank, slice.correlation});
      if (launch != launches_.end()) {
        Edge(launch->second, {pid, lane, slice.time_ns});
      }
    }
    if (slice.flow == 0 || slice.device >= 0) return;
    const auto [forward, made] =
        forwards_.try_emplace({slice.rank, slice.flow}, Launch{pid, lane, slice.time_ns});
    if (!made) Edge(forward->second, {pid, lane, slice.time_ns});
  }

  /// Row of what began last and still goes on: an inner operator lies below its outer one.
  std::size_t InnermostRow(std::int64_t pid, std::int64_t time_ns) {
    const std::vector<std::int64_t>& ends = lanes_[pid];
    std::size_t row = ends.size();
    while (row > 0 && ends[row - 1] <= time_ns) --row;
    return row == 0 ? 0 : row - 1;
  }

  /// Where data flows to another row.
  void Edge(const Launch& from, const Launch& to) {
    if (from.pid == to.pid && from.lane == to.lane) return;
    ++edges_;
    for (const auto& [phase, end] : {std::pair('s', &from), std::pair('t', &to)}) {
      Begin(phase, "DataFlow", "dataflow", end->pid, end->lane);
      At(end->time_ns);
      fmt::format_to(std::back_inserter(out_), ",\"id\":{}}}", edges_);
    }
  }

  void Memory(const SliceRow& slice) {
    const Allocation one = AllocationOf(slice);
    std::string allocator = one.allocator;
    if (slice.rank != 0) allocator = fmt::format("task:{} {}", slice.rank, allocator);
    std::int64_t& total = totals_[allocator];
    std::int64_t sum = 0;
    if (!__builtin_add_overflow(total, slice.bytes, &sum)) total = sum;
    if (one.total) total = *one.total;
    Begin('C', "Memory", allocator, kAllocators, 0);
    At(slice.time_ns);
    out_ += ",\"args\":{";
    AppendQuoted(allocator, &out_);
    fmt::format_to(std::back_inserter(out_), ":{}}}}}", total);
    if (one.address.empty()) return;
    const std::string place = allocator + one.address;
    if (slice.bytes < 0) {
      const auto found = tensors_.find(place);
      if (found == tensors_.end()) return;  // Of a step before.
      Object('D', found->second, slice.time_ns);
      out_ += '}';
      tensors_.erase(found);
      return;
    }
    const Tensor tensor{++next_tensor_, PidsOf(slice.rank, one.device).tensors};
    tensors_[place] = tensor;
    Object('N', tensor, slice.time_ns);
    out_ += '}';
    Object('O', tensor, slice.time_ns);
    out_ += ",\"args\":{\"snapshot\":{\"tensor_description\":";
    AppendQuoted(fmt::format("{} bytes of {} at {}", slice.bytes, allocator, one.address), &out_);
    out_ += "}}}";
  }

  void Object(char phase, const Tensor& tensor, std::int64_t time_ns) {
    Begin(phase, "Tensor", fmt::format("tensor {}", tensor.id), tensor.pid, 0);
    At(time_ns);
    fmt::format_to(std::back_inserter(out_), ",\"id\":{}", tensor.id);
  }

  const std::unique_ptr<ExportFile> file_;
  const std::int64_t step_;
  std::string out_;
  bool first_ = true;
  std::map<std::pair<std::int32_t, std::int32_t>, Pids> pids_;
  std::int64_t next_pid_ = 1;
  std::map<std::int64_t, std::vector<std::int64_t>> lanes_;  ///< Ends of the rows, by pid.
  std::map<std::pair<std::int32_t, std::int64_t>, Launch> launches_;
  std::map<std::pair<std::int32_t, std::int64_t>, Launch> forwards_;
  std::uint64_t edges_ = 0;
  std::map<std::string, std::int64_t> totals_;
  std::unordered_map<std::string, Tensor> tensors_;
  std::uint64_t next_tensor_ = 0;
};

}  // namespace

Result<TimelineReport> ExportTimelines(const std::filesystem::path& run,
                                       const TimelineOptions& options) {
  TELLTALE_ASSIGN_OR_RETURN(
      const auto order,
      query::SliceOrder::Load(
          run, {.memory_bytes = options.memory_bytes, .by_step = true, .step = options.step}));
  TimelineReport report;
  report.salvage = order->salvage();
  std::unique_ptr<StepTimeline> timeline;
  const auto close = [&]() -> Status {
    if (timeline == nullptr) return {};
    report.files.push_back(options.path(timeline->step()));
    Status status = timeline->Close();
    timeline.reset();
    return status;
  };
  for (const query::Lane& lane : order->lanes()) {
    if (lane.step < 0) {
      report.outside += lane.slices;
      continue;
    }
    if (timeline == nullptr || timeline->step() != lane.step) {
      TELLTALE_RETURN_IF_ERROR(close());
      TELLTALE_ASSIGN_OR_RETURN(auto file, ExportFile::Create(options.path(lane.step), false));
      timeline = std::make_unique<StepTimeline>(std::move(file), lane.step);
    }
    report.slices += lane.slices;
    TELLTALE_RETURN_IF_ERROR(
        order->Visit(lane, [&](const SliceRow& slice) { return timeline->Add(slice, options); }));
  }
  TELLTALE_RETURN_IF_ERROR(close());
  if (!report.files.empty()) return report;
  if (options.step) {
    return {Code::kUsage, fmt::format("no step {} with slices in it", *options.step)};
  }
  return {Code::kUnusable,
          fmt::format("{} has no steps with slices in them: a timeline is that of a step",
                      run.string())};
}

}  // namespace telltale::interchange
