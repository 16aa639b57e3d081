// SPDX-License-Identifier: Apache-2.0
// Fields as TensorFlow's step_stats.proto and config.proto number them.
#include "interchange/step_stats_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "base/units.h"
#include "interchange/args_writer.h"
#include "interchange/tf_device.h"
#include "interchange/wire_reader.h"

namespace telltale::interchange {
namespace {

constexpr std::uint32_t kRunStepStats = 1;
constexpr std::uint32_t kDeviceStats = 1;
namespace device_stats_field {
constexpr std::uint32_t kDevice = 1;
constexpr std::uint32_t kNodes = 2;
constexpr std::uint32_t kThreadNames = 3;
}  // namespace device_stats_field
namespace node_stats_field {
constexpr std::uint32_t kName = 1;
constexpr std::uint32_t kStartUs = 2;
constexpr std::uint32_t kOpStartUs = 3;
constexpr std::uint32_t kOpEndUs = 4;
constexpr std::uint32_t kEndUs = 5;
constexpr std::uint32_t kMemory = 6;
constexpr std::uint32_t kOutput = 7;
constexpr std::uint32_t kLabel = 8;
constexpr std::uint32_t kScheduledUs = 9;
constexpr std::uint32_t kThread = 10;
constexpr std::uint32_t kStartNs = 13;
constexpr std::uint32_t kOpStartNs = 14;
constexpr std::uint32_t kOpEndNs = 15;
constexpr std::uint32_t kEndNs = 16;
constexpr std::uint32_t kScheduledNs = 17;
}  // namespace node_stats_field
namespace allocator_field {
constexpr std::uint32_t kName = 1;
constexpr std::uint32_t kTotal = 2;
constexpr std::uint32_t kPeak = 3;
constexpr std::uint32_t kLive = 4;
constexpr std::uint32_t kRecords = 6;
}  // namespace allocator_field
constexpr std::uint32_t kRecordUs = 1;
constexpr std::uint32_t kRecordBytes = 2;
constexpr std::uint32_t kOutputTensor = 3;
constexpr std::uint32_t kTensorShape = 2;
constexpr std::uint32_t kTensorAllocation = 4;
constexpr std::uint32_t kAllocationBytes = 1;
constexpr std::uint32_t kShapeDimensionOfOutput = 2;
constexpr std::uint32_t kSizeOfDimension = 1;

/// Times beyond the year 2262 are none.
constexpr std::int64_t kMostUs = INT64_MAX / kUs / 2;

bool IsDeviceStats(std::string_view bytes) {
  WireReader device(bytes);
  if (!device.Next() || !device.Is(device_stats_field::kDevice, Wire::kBytes)) return false;
  const std::string_view name = device.bytes();
  return name.starts_with('/') && name.find(':') != std::string_view::npos &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

/// The dimensions, "[1,224,224,3]".
void AppendShape(std::string_view bytes, std::string* out) {
  *out += out->empty() ? "[" : ",[";
  bool first = true;
  WireReader shape(bytes);
  while (shape.Next()) {
    if (!shape.Is(kShapeDimensionOfOutput, Wire::kBytes)) continue;
    std::int64_t size = 0;
    WireReader dimension(shape.bytes());
    while (dimension.Next()) {
      if (dimension.Is(kSizeOfDimension, Wire::kVarint)) size = dimension.integer();
    }
    fmt::format_to(std::back_inserter(*out), "{}{}", first ? "" : ",", size);
    first = false;
  }
  *out += ']';
}

class StepStatsImport {
 public:
  explicit StepStatsImport(TraceSource* source) : source_(source) {}

  Status Run(std::string_view bytes) {
    WireReader outer(bytes);
    bool damaged = false;
    while (outer.Next()) {
      if (!outer.Is(kRunStepStats, Wire::kBytes)) continue;
      if (IsDeviceStats(outer.bytes())) {
        // The message is a StepStats by itself.
        if (devices_ == 0) FindStreams(bytes);
        TakeDevice(outer.bytes());
        continue;
      }
      FindStreams(outer.bytes());
      WireReader stats(outer.bytes());
      while (stats.Next()) {
        if (stats.Is(kDeviceStats, Wire::kBytes)) TakeDevice(stats.bytes());
      }
      damaged = damaged || stats.damaged();
    }
    if (outer.damaged() || damaged) source_->Damaged(1, "the file is cut, or damaged");
    if (devices_ == 0) return {Code::kUnusable, "no statistics of a device can be read"};
    return {};
  }

 private:
  /// Where a device's streams are there one by one, what is of "all" is left out.
  void FindStreams(std::string_view bytes) {
    WireReader stats(bytes);
    while (stats.Next()) {
      if (!stats.Is(kDeviceStats, Wire::kBytes)) continue;
      WireReader device(stats.bytes());
      while (device.Next()) {
        if (!device.Is(device_stats_field::kDevice, Wire::kBytes)) continue;
        const TfDevice parsed = ParseTfDevice(device.bytes());
        if (parsed.on_device && !parsed.all_streams && !parsed.copies)
          has_streams_.emplace(parsed.task, parsed.device);
        break;
      }
    }
  }

  void TakeDevice(std::string_view bytes) {
    WireReader header(bytes);
    std::string_view name;
    while (header.Next()) {
      if (header.Is(device_stats_field::kDevice, Wire::kBytes)) name = header.bytes();
    }
    ++devices_;
    if (header.damaged()) {
      source_->Damaged(1,
                       fmt::format("the statistics of {} are cut or damaged", name.substr(0, 256)));
    }
    device_ = ParseTfDevice(name);
    const bool twice = device_.all_streams && has_streams_.contains({device_.task, device_.device});
    lane_ = std::string(name.substr(0, 1024));
    WireReader device(bytes);
    while (device.Next()) {
      if (!device.Is(device_stats_field::kNodes, Wire::kBytes)) continue;
      if (twice) {
        source_->LeftOut(1, "kernels that the streams of their device have too");
      } else {
        TakeNode(device.bytes());
      }
    }
  }

  struct Node {
    std::string_view name;
    std::string_view label;
    std::int64_t thread = 0;
    std::int64_t us[5] = {};  ///< all start, op start, op end, all end (relative), scheduled.
    std::int64_t ns[5] = {};
  };

  void TakeNode(std::string_view bytes) {
    Node node;
    args_.Clear();
    std::string shapes;
    std::int64_t output_bytes = 0;
    WireReader reader(bytes);
    while (reader.Next()) {
      switch (reader.field()) {
        case node_stats_field::kName:
          node.name = reader.bytes();
          break;
        case node_stats_field::kLabel:
          node.label = reader.bytes();
          break;
        case node_stats_field::kThread:
          node.thread = reader.integer();
          break;
        case node_stats_field::kStartUs:
        case node_stats_field::kOpStartUs:
        case node_stats_field::kOpEndUs:
        case node_stats_field::kEndUs:
          node.us[reader.field() - node_stats_field::kStartUs] = reader.integer();
          break;
        case node_stats_field::kScheduledUs:
          node.us[4] = reader.integer();
          break;
        case node_stats_field::kStartNs:
        case node_stats_field::kOpStartNs:
        case node_stats_field::kOpEndNs:
        case node_stats_field::kEndNs:
        case node_stats_field::kScheduledNs:
          node.ns[reader.field() - node_stats_field::kStartNs] = reader.integer();
          break;
        case node_stats_field::kOutput:
          if (shapes.size() < kMaxArgTextBytes) TakeOutput(reader.bytes(), &shapes, &output_bytes);
          break;
        default:
          break;
      }
    }
    if (reader.damaged() || !Emit(node, shapes, output_bytes, bytes)) {
      source_->Damaged(1, "an operator is cut, damaged or of an impossible time");
    }
  }

  static bool Possible(const std::int64_t (&times)[5], std::int64_t most) {
    return std::all_of(std::begin(times), std::end(times),
                       [&](std::int64_t time) { return time >= 0 && time <= most; });
  }

  bool Emit(const Node& node, const std::string& shapes, std::int64_t output_bytes,
            std::string_view bytes) {
    if (!Possible(node.us, kMostUs) || !Possible(node.ns, INT64_MAX / 4)) return false;
    const bool fine = node.ns[0] > 0;
    const std::int64_t all_ns = fine ? node.ns[0] : node.us[0] * kUs;
    const std::int64_t begin_ns = fine ? node.ns[1] : node.us[1] * kUs;
    const std::int64_t end_ns = fine ? node.ns[2] : node.us[2] * kUs;
    if (end_ns < begin_ns) return false;
    format::SliceRow row;
    row.time_ns = all_ns + begin_ns;
    row.duration_ns = end_ns - begin_ns;
    row.name = node.name;
    row.step = -1;
    row.device = -1;
    row.stream = -1;
    row.lane = lane_;
    const std::string_view type = TypeOf(node);
    const std::int64_t scheduled_ns = fine ? node.ns[4] : node.us[4] * kUs;
    if (device_.on_device) {
      row.device = device_.device;
      row.stream = device_.stream;
      row.category = device_.copies || node.label.find("MEMCPY") != std::string_view::npos
                         ? "memcpy"
                         : "kernel";
      row.kind = "device";
    } else {
      row.tid = node.thread;
      row.category = TfOpCategory(type, node.name);
      row.kind = type;
    }
    if (!node.label.empty()) args_.Add("label", node.label);
    if (scheduled_ns > 0) args_.Add("scheduled_ns", scheduled_ns);
    const std::int64_t all_end_ns = fine ? node.ns[3] : node.us[3] * kUs;
    if (all_end_ns > 0) args_.Add("all_ns", all_end_ns);
    if (!shapes.empty()) args_.AddRaw("Output Dims", fmt::format("[{}]", shapes));
    row.external = IdOf(node.name);
    if (output_bytes > 0) args_.Add("output_bytes", output_bytes);
    TakeMemory(bytes, row.time_ns);
    row.args = args_.Finish();
    source_->Slice(row);
    return true;
  }

  /// A kernel and its operator share it: theirs is one node's name, with a type behind a colon on
  /// the device.
  static std::int64_t IdOf(std::string_view name) {
    name = name.substr(0, name.rfind(':'));
    constexpr std::size_t kPositive = INT64_MAX;
    return static_cast<std::int64_t>(std::hash<std::string_view>()(name) & kPositive) | 1;
  }

  /// "[CPU] conv1 = Conv2D(input, weights)" and "conv1:Conv2D" name the operator's type.
  static std::string_view TypeOf(const Node& node) {
    const std::string_view label = node.label;
    if (const std::size_t equals = label.find(" = "); equals != std::string_view::npos) {
      const std::string_view behind = label.substr(equals + 3);
      return behind.substr(0, behind.find_first_of("( "));
    }
    if (const std::size_t colon = node.name.rfind(':'); colon != std::string_view::npos) {
      const std::string_view behind = node.name.substr(colon + 1);
      if (!behind.empty() && std::isalpha(static_cast<unsigned char>(behind[0])) != 0) {
        return behind;
      }
    }
    return {};
  }

  static void TakeOutput(std::string_view bytes, std::string* shapes, std::int64_t* total) {
    WireReader output(bytes);
    while (output.Next()) {
      if (!output.Is(kOutputTensor, Wire::kBytes)) continue;
      WireReader tensor(output.bytes());
      while (tensor.Next()) {
        if (tensor.Is(kTensorShape, Wire::kBytes)) AppendShape(tensor.bytes(), shapes);
        if (!tensor.Is(kTensorAllocation, Wire::kBytes)) continue;
        WireReader allocation(tensor.bytes());
        while (allocation.Next()) {
          if (allocation.Is(kAllocationBytes, Wire::kVarint) && allocation.integer() > 0 &&
              __builtin_add_overflow(*total, allocation.integer(), total)) {
            *total = INT64_MAX;
          }
        }
      }
    }
  }

  /// Sums to the operator, and what was allocated and released when as instants.
  void TakeMemory(std::string_view bytes, std::int64_t begin_ns) {
    WireReader node(bytes);
    std::int64_t total = 0;
    std::int64_t peak = 0;
    std::int64_t live = 0;
    while (node.Next()) {
      if (!node.Is(node_stats_field::kMemory, Wire::kBytes)) continue;
      std::string_view allocator;
      WireReader memory(node.bytes());
      while (memory.Next()) {
        switch (memory.field()) {
          case allocator_field::kName:
            allocator = memory.bytes();
            break;
          case allocator_field::kTotal:
            Grow(&total, memory.integer());
            break;
          case allocator_field::kPeak:
            Grow(&peak, memory.integer());
            break;
          case allocator_field::kLive:
            Grow(&live, memory.integer());
            break;
          case allocator_field::kRecords:
            TakeRecord(memory.bytes(), allocator, begin_ns);
            break;
          default:
            break;
        }
      }
    }
    if (total != 0) args_.Add("requested_bytes", total);
    if (peak != 0) args_.Add("peak_bytes", peak);
    if (live != 0) args_.Add("residual_bytes", live);
  }
  static void Grow(std::int64_t* sum, std::int64_t by) {
    if (__builtin_add_overflow(*sum, by, sum)) *sum = INT64_MAX;
  }

  void TakeRecord(std::string_view bytes, std::string_view allocator, std::int64_t begin_ns) {
    std::int64_t us = 0;
    std::int64_t size = 0;
    WireReader record(bytes);
    while (record.Next()) {
      if (record.Is(kRecordUs, Wire::kVarint)) us = record.integer();
      if (record.Is(kRecordBytes, Wire::kVarint)) size = record.integer();
    }
    if (record.damaged() || us < 0 || us > kMostUs) {
      source_->Damaged(1, "an allocation");
      return;
    }
    format::SliceRow row;
    row.time_ns = us > 0 ? us * kUs : begin_ns;
    row.name = allocator;
    row.category = "memory";
    row.kind = "allocator";
    row.lane = allocator;
    row.step = -1;
    row.device = -1;
    row.stream = -1;
    row.bytes = size;
    source_->Slice(row);
  }

  TraceSource* const source_;
  std::set<std::pair<std::int32_t, std::int32_t>> has_streams_;  ///< Task and device.
  std::uint64_t devices_ = 0;
  TfDevice device_;
  std::string lane_;
  ArgsWriter args_;
};

}  // namespace

bool LooksLikeStepStats(std::string_view bytes) {
  WireReader stats(bytes);
  return stats.Next() && stats.Is(kDeviceStats, Wire::kBytes) && IsDeviceStats(stats.bytes());
}

bool LooksLikeRunMetadata(std::string_view bytes) {
  WireReader run(bytes);
  return run.Next() && run.Is(kRunStepStats, Wire::kBytes) && LooksLikeStepStats(run.bytes());
}

Status ImportStepStats(std::string_view bytes, TraceSource* source) {
  return StepStatsImport(source).Run(bytes);
}

}  // namespace telltale::interchange
