// SPDX-License-Identifier: Apache-2.0
// Fields as TensorFlow's tfprof_log.proto numbers them.
//
// Memory: texts of stacks by id, as views; one number a step.
#include "interchange/tfprof_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/units.h"
#include "interchange/args_writer.h"
#include "interchange/step_marks.h"
#include "interchange/tf_device.h"
#include "interchange/wire_reader.h"

namespace telltale::interchange {
namespace {

namespace profile_field {
constexpr std::uint32_t kNodes = 1;
constexpr std::uint32_t kTexts = 4;
constexpr std::uint32_t kMissesStream = 5;
}  // namespace profile_field
namespace graph_node_field {
constexpr std::uint32_t kName = 1;
constexpr std::uint32_t kShape = 4;
constexpr std::uint32_t kTypes = 5;
constexpr std::uint32_t kDevice = 6;
constexpr std::uint32_t kFlops = 8;
constexpr std::uint32_t kOp = 9;
constexpr std::uint32_t kTrace = 10;
constexpr std::uint32_t kExecs = 12;
constexpr std::uint32_t kOutputShapes = 15;
constexpr std::uint32_t kInputShapes = 16;
}  // namespace graph_node_field
namespace exec_field {
constexpr std::uint32_t kRuns = 1;
constexpr std::uint32_t kStartUs = 2;
constexpr std::uint32_t kEndUs = 3;
constexpr std::uint32_t kAccelerator = 4;
constexpr std::uint32_t kCpu = 5;
constexpr std::uint32_t kMemory = 7;
constexpr std::uint32_t kAllocations = 11;
}  // namespace exec_field
namespace exec_memory_field {
constexpr std::uint32_t kRequested = 6;
constexpr std::uint32_t kOutput = 9;
}  // namespace exec_memory_field
namespace code_field {
constexpr std::uint32_t kTraces = 1;
constexpr std::uint32_t kFile = 1;
constexpr std::uint32_t kLine = 2;
constexpr std::uint32_t kFunction = 3;
constexpr std::uint32_t kFileId = 6;
constexpr std::uint32_t kFunctionId = 7;
}  // namespace code_field
constexpr std::uint32_t kEntryKey = 1;
constexpr std::uint32_t kEntryValue = 2;
constexpr std::uint32_t kAllocationUs = 1;
constexpr std::uint32_t kAllocationSize = 2;

constexpr std::int64_t kMostMicros = INT64_MAX / kUs / 2;
constexpr std::size_t kMaxTexts = 4U << 20;
constexpr std::size_t kMaxSteps = 1U << 20;
constexpr std::size_t kMaxNumbers = 1U << 20;  ///< Of one list.

struct MapEntry {
  std::int64_t key = 0;
  std::string_view text_key;
  std::string_view value;
  bool damaged = false;
};
MapEntry ReadEntry(std::string_view bytes) {
  MapEntry out;
  WireReader entry(bytes);
  while (entry.Next()) {
    if (entry.Is(kEntryKey, Wire::kVarint)) out.key = entry.integer();
    if (entry.Is(kEntryKey, Wire::kBytes)) out.text_key = entry.bytes();
    if (entry.Is(kEntryValue, Wire::kBytes)) out.value = entry.bytes();
  }
  out.damaged = entry.damaged();
  return out;
}

/// Of a repeated field of integers, packed or one by one.
bool AppendNumbers(const WireReader& field, std::vector<std::int64_t>* out) {
  if (field.wire() == Wire::kVarint) {
    out->push_back(field.integer());
    return true;
  }
  if (field.wire() != Wire::kBytes) return false;
  std::string_view rest = field.bytes();
  while (!rest.empty() && out->size() < kMaxNumbers) {
    std::uint64_t value = 0;
    std::size_t i = 0;
    for (;; ++i) {
      if (i == rest.size() || i == 10) return false;
      const auto byte = static_cast<std::uint8_t>(rest[i]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << (7 * i);
      if ((byte & 0x80) == 0) break;
    }
    out->push_back(static_cast<std::int64_t>(value));
    rest.remove_prefix(i + 1);
  }
  return true;
}

/// The Tuple that `bytes` hold.
bool ReadTuple(std::string_view bytes, std::vector<std::int64_t>* out) {
  out->clear();
  WireReader tuple(bytes);
  while (tuple.Next()) {
    if (tuple.field() == 1 && !AppendNumbers(tuple, out)) return false;
  }
  return !tuple.damaged();
}

class TfprofImport {
 public:
  TfprofImport(std::string_view bytes, TraceSource* source) : bytes_(bytes), source_(source) {}

  Status Run() {
    ReadTexts();
    WireReader profile(bytes_);
    while (profile.Next()) {
      if (profile.Is(profile_field::kNodes, Wire::kBytes)) {
        const MapEntry entry = ReadEntry(profile.bytes());
        if (entry.damaged) source_->Damaged(1, "an operator is cut or damaged");
        TakeNode(entry.value);
      } else if (profile.Is(profile_field::kMissesStream, Wire::kVarint) && profile.number() != 0) {
        source_->Note("TensorFlow's tracer did not see the accelerator's streams");
      }
    }
    if (profile.damaged()) source_->Damaged(1, "the file is cut, or damaged between two operators");
    if (nodes_ == 0) return {Code::kUnusable, "no operator of a ProfileProto can be read"};
    EmitSteps();
    return {};
  }

 private:
  void ReadTexts() {
    WireReader profile(bytes_);
    while (profile.Next()) {
      if (!profile.Is(profile_field::kTexts, Wire::kBytes)) continue;
      if (texts_.size() >= kMaxTexts) return;
      const MapEntry entry = ReadEntry(profile.bytes());
      texts_[entry.key] = entry.value;
    }
  }

  void TakeNode(std::string_view bytes) {
    std::string_view device;
    std::vector<std::int64_t> numbers;
    std::string types;
    Shapes input_shapes;
    Shapes output_shapes;
    node_ = {};
    args_.Clear();
    WireReader node(bytes);
    while (node.Next()) {
      switch (node.field()) {
        case graph_node_field::kName:
          node_.name = node.bytes();
          break;
        case graph_node_field::kOp:
          node_.op = node.bytes();
          break;
        case graph_node_field::kDevice:
          device = node.bytes();
          break;
        case graph_node_field::kFlops:
          node_.flops = static_cast<double>(node.integer());
          break;
        case graph_node_field::kInputShapes:
          AddShape(node.bytes(), &input_shapes);
          break;
        case graph_node_field::kOutputShapes:
          AddShape(node.bytes(), &output_shapes);
          break;
        case graph_node_field::kShape:
          AppendNumbers(node, &numbers);
          break;
        case graph_node_field::kTypes:
          if (types.size() < kMaxArgTextBytes) {
            types += types.empty() ? "" : ",";
            types += node.bytes();
          }
          break;
        case graph_node_field::kTrace:
          node_.trace = node.bytes();
          break;
        default:
          break;
      }
    }
    if (node.damaged()) source_->Damaged(1, "an operator is cut or damaged");
    if (node_.name.empty()) return;
    ++nodes_;
    if (!types.empty()) args_.Add("op_types", types);
    if (!device.empty()) args_.Add("device", device);
    AddShapes("Input Dims", input_shapes);
    AddShapes("Output Dims", output_shapes);
    if (!numbers.empty()) {
      numbers.resize(std::min<std::size_t>(numbers.size(), 64));
      args_.AddRaw("shape", fmt::format("[{}]", fmt::join(numbers, ",")));
    }
    AddStack();
    const std::string common(args_.Finish());
    WireReader execs(bytes);
    while (execs.Next()) {
      if (!execs.Is(graph_node_field::kExecs, Wire::kBytes)) continue;
      const MapEntry entry = ReadEntry(execs.bytes());
      if (entry.damaged) source_->Damaged(1, "a run of an operator is cut or damaged");
      TakeExec(entry.key, entry.value, common);
    }
  }

  /// By number of the input or output.
  using Shapes = std::map<std::int64_t, std::vector<std::int64_t>>;

  static void AddShape(std::string_view bytes, Shapes* out) {
    constexpr std::size_t kMost = 64;
    const MapEntry entry = ReadEntry(bytes);
    std::vector<std::int64_t> numbers;
    if (entry.damaged || !ReadTuple(entry.value, &numbers)) return;
    numbers.resize(std::min(numbers.size(), kMost));
    if (out->size() < kMost) out->insert_or_assign(entry.key, std::move(numbers));
  }
  void AddShapes(std::string_view key, const Shapes& shapes) {
    if (shapes.empty()) return;
    std::string text;
    std::int64_t next = 0;
    for (const auto& [number, shape] : shapes) {
      // An input whose shape is not known keeps its place.
      for (; next < number && next < 64; ++next) text += text.empty() ? "[]" : ",[]";
      fmt::format_to(std::back_inserter(text), "{}[{}]", text.empty() ? "" : ",",
                     fmt::join(shape, ","));
      next = number + 1;
    }
    args_.AddRaw(key, "[" + text + "]");
  }

  /// As PyTorch's profiler writes a stack: the innermost frame first. TensorFlow has it last.
  void AddStack() {
    std::vector<std::string> frames;
    std::size_t bytes = 0;
    WireReader code(node_.trace);
    while (code.Next() && frames.size() < 64) {
      if (!code.Is(code_field::kTraces, Wire::kBytes)) continue;
      std::string_view file;
      std::string_view function;
      std::int64_t line = 0;
      WireReader trace(code.bytes());
      while (trace.Next()) {
        switch (trace.field()) {
          case code_field::kFile:
            file = trace.bytes();
            break;
          case code_field::kFunction:
            function = trace.bytes();
            break;
          case code_field::kFileId:
            file = TextOf(trace.integer());
            break;
          case code_field::kFunctionId:
            function = TextOf(trace.integer());
            break;
          case code_field::kLine:
            line = trace.integer();
            break;
          default:
            break;
        }
      }
      frames.push_back(
          fmt::format("{}({}): {}", file.substr(0, 256), line, function.substr(0, 256)));
    }
    std::string stack;
    for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
      bytes += frame->size() + 1;
      if (bytes > kMaxArgTextBytes) break;
      if (!stack.empty()) stack += ';';
      stack += *frame;
    }
    if (!stack.empty()) args_.Add("Call stack", stack);
  }
  std::string_view TextOf(std::int64_t id) const {
    const auto text = texts_.find(id);
    return text == texts_.end() ? std::string_view() : text->second;
  }

  void TakeExec(std::int64_t step, std::string_view bytes, const std::string& common) {
    std::int64_t start_us = 0;
    std::int64_t end_us = 0;
    std::int64_t runs = 0;
    std::int64_t memory[4] = {};
    WireReader exec(bytes);
    while (exec.Next()) {
      switch (exec.field()) {
        case exec_field::kRuns:
          runs = exec.integer();
          break;
        case exec_field::kStartUs:
          start_us = exec.integer();
          break;
        case exec_field::kEndUs:
          end_us = exec.integer();
          break;
        case exec_field::kMemory:
          AddMemory(exec.bytes(), &memory);
          break;
        default:
          break;
      }
    }
    if (exec.damaged()) source_->Damaged(1, "a run of an operator is cut or damaged");
    if (start_us > 0 && end_us >= start_us && end_us < kMostMicros && steps_.size() < kMaxSteps) {
      auto [at, is_new] = steps_.try_emplace(step, start_us, end_us);
      if (!is_new) {
        at->second.first = std::min(at->second.first, start_us);
        at->second.second = std::max(at->second.second, end_us);
      }
    }
    // Of the node, then of this run of it.
    std::string args = common.empty() ? "{" : common.substr(0, common.size() - 1);
    const auto add = [&](std::string_view key, std::int64_t value) {
      if (value == 0) return;
      fmt::format_to(std::back_inserter(args), "{}\"{}\":{}", args.size() > 1 ? "," : "", key,
                     value);
    };
    add("run_count", runs);
    add("requested_bytes", memory[0]);
    add("peak_bytes", memory[1]);
    add("residual_bytes", memory[2]);
    add("output_bytes", memory[3]);
    args += '}';
    WireReader times(bytes);
    while (times.Next()) {
      if (times.wire() != Wire::kBytes) continue;
      if (times.field() == exec_field::kAccelerator || times.field() == exec_field::kCpu) {
        TakeTimes(times.bytes(), step, times.field() == exec_field::kAccelerator, args);
      } else if (times.field() == exec_field::kAllocations) {
        TakeAllocation(times.bytes(), step);
      }
    }
  }

  static void AddMemory(std::string_view bytes, std::int64_t (*sums)[4]) {
    WireReader memory(bytes);
    while (memory.Next()) {
      if (memory.field() < exec_memory_field::kRequested ||
          memory.field() > exec_memory_field::kOutput) {
        continue;
      }
      std::int64_t& sum = (*sums)[memory.field() - exec_memory_field::kRequested];
      if (__builtin_add_overflow(sum, memory.integer(), &sum)) sum = INT64_MAX;
    }
  }

  /// A device's list of begins and lengths.
  void TakeTimes(std::string_view bytes, std::int64_t step, bool accelerator,
                 const std::string& args) {
    const MapEntry entry = ReadEntry(bytes);
    const TfDevice device = ParseTfDevice(entry.text_key);
    format::SliceRow row;
    row.name = node_.name;
    row.step = step;
    // What ran on the device goes back to its operator.
    row.external = static_cast<std::int64_t>(nodes_);
    row.flops = accelerator ? 0 : node_.flops;
    row.args = args == "{}" ? std::string_view() : std::string_view(args);
    row.lane = entry.text_key;
    row.kind = node_.op;
    row.device = accelerator ? std::max(device.device, 0) : -1;
    row.stream = accelerator ? std::max<std::int64_t>(device.stream, 0) : -1;
    row.category = !accelerator    ? TfOpCategory(node_.op, node_.name)
                   : device.copies ? std::string_view("memcpy")
                                   : std::string_view("kernel");
    WireReader list(entry.value);
    std::vector<std::int64_t> times;
    while (list.Next()) {
      if (!list.Is(1, Wire::kBytes)) continue;
      if (!ReadTuple(list.bytes(), &times) || times.size() != 2 || times[0] < 0 || times[1] < 0 ||
          times[0] > kMostMicros || times[1] > kMostMicros) {
        source_->Damaged(1, "a time of an operator");
        continue;
      }
      row.time_ns = times[0] * kUs;
      row.duration_ns = times[1] * kUs;
      source_->Slice(row);
      row.flops = 0;  // Stated once for all of the step's runs.
    }
    if (entry.damaged || list.damaged()) source_->Damaged(1, "the times of an operator");
  }

  void TakeAllocation(std::string_view bytes, std::int64_t step) {
    std::int64_t us = 0;
    std::int64_t size = 0;
    WireReader record(bytes);
    while (record.Next()) {
      if (record.Is(kAllocationUs, Wire::kVarint)) us = record.integer();
      if (record.Is(kAllocationSize, Wire::kVarint)) size = record.integer();
    }
    if (record.damaged() || us <= 0 || us > kMostMicros) {
      source_->Damaged(1, "an allocation");
      return;
    }
    format::SliceRow row;
    row.time_ns = us * kUs;
    row.name = node_.name;
    row.category = "memory";
    row.kind = "allocation";
    row.lane = "allocations";
    row.step = step;
    row.device = -1;
    row.stream = -1;
    row.bytes = size;
    source_->Slice(row);
  }

  /// tfprof marks no steps: one lasts from its first operator's begin to its last one's end.
  void EmitSteps() {
    for (const auto& [step, times] : steps_) {
      const std::string name = fmt::format("step {}", step);
      format::SliceRow row;
      row.name = name;
      row.category = "step";
      row.kind = "step";
      row.lane = "steps";
      row.step = step;
      row.device = -1;
      row.stream = -1;
      row.time_ns = times.first * kUs;
      row.duration_ns = (times.second - times.first) * kUs;
      source_->Slice(row);
      marks_.Add(step, row.time_ns, row.time_ns + row.duration_ns);
    }
    marks_.Finish();
    marks_.Emit(source_);
  }

  struct GraphNode {
    std::string_view name;
    std::string_view op;
    std::string_view trace;
    double flops = 0;
  };

  const std::string_view bytes_;
  TraceSource* const source_;
  std::unordered_map<std::int64_t, std::string_view> texts_;
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> steps_;
  std::uint64_t nodes_ = 0;
  GraphNode node_;
  ArgsWriter args_;
  StepMarks marks_;
};

}  // namespace

bool LooksLikeTfprof(std::string_view bytes) {
  // A map's entry whose value is a node: its name, then what it was given.
  WireReader profile(bytes);
  if (!profile.Next() || !profile.Is(profile_field::kNodes, Wire::kBytes)) return false;
  WireReader entry(profile.bytes());
  if (!entry.Next() || !entry.Is(kEntryKey, Wire::kVarint)) return false;
  if (!entry.Next() || !entry.Is(kEntryValue, Wire::kBytes)) return false;
  WireReader node(entry.bytes());
  return node.Next() && node.Is(graph_node_field::kName, Wire::kBytes) && !node.bytes().empty();
}

Status ImportTfprof(std::string_view bytes, TraceSource* source) {
  return TfprofImport(bytes, source).Run();
}

}  // namespace telltale::interchange
