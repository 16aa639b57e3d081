// SPDX-License-Identifier: Apache-2.0
// A plane (a device, or a host's threads) has lines (threads, streams, and what XProf derives of
// them), and these have events. Names stand once a plane, mostly behind the lines that use them, so
// planes and lines are gone through twice.
//
// Memory: the names of one plane; the file itself is the caller's, mapped.
#include "interchange/xspace_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/saturate.h"
#include "interchange/args_writer.h"
#include "interchange/step_marks.h"
#include "interchange/wire_reader.h"
#include "interchange/xspace_salvage.h"

namespace telltale::interchange {
namespace {

namespace xspace_field {
constexpr std::uint32_t kPlanes = 1;
constexpr std::uint32_t kErrors = 2;
constexpr std::uint32_t kWarnings = 3;
constexpr std::uint32_t kHostnames = 4;
}  // namespace xspace_field
namespace xplane_field {
constexpr std::uint32_t kName = 2;
constexpr std::uint32_t kLines = 3;
constexpr std::uint32_t kEventMetadata = 4;
constexpr std::uint32_t kStatMetadata = 5;
constexpr std::uint32_t kStats = 6;
}  // namespace xplane_field
namespace xline_field {
constexpr std::uint32_t kId = 1;
constexpr std::uint32_t kName = 2;
constexpr std::uint32_t kTimestampNs = 3;
constexpr std::uint32_t kEvents = 4;
constexpr std::uint32_t kDisplayId = 10;
constexpr std::uint32_t kDisplayName = 11;
}  // namespace xline_field
namespace xevent_field {
constexpr std::uint32_t kMetadataId = 1;
constexpr std::uint32_t kOffsetPs = 2;
constexpr std::uint32_t kDurationPs = 3;
constexpr std::uint32_t kStats = 4;
constexpr std::uint32_t kOccurrences = 5;
}  // namespace xevent_field
namespace xstat_field {
constexpr std::uint32_t kMetadataId = 1;
constexpr std::uint32_t kDouble = 2;
constexpr std::uint32_t kUint64 = 3;
constexpr std::uint32_t kInt64 = 4;
constexpr std::uint32_t kString = 5;
constexpr std::uint32_t kBytes = 6;
constexpr std::uint32_t kReference = 7;
}  // namespace xstat_field
namespace xmetadata_field {
constexpr std::uint32_t kName = 2;
constexpr std::uint32_t kDisplayName = 4;
constexpr std::uint32_t kStats = 5;
}  // namespace xmetadata_field
constexpr std::uint32_t kMapKey = 1;
constexpr std::uint32_t kMapValue = 2;

/// Names of a plane; a hostile file must not make more of them than memory holds.
constexpr std::size_t kMaxNamesOfPlane = 4U << 20;
/// A line's time above this is the wall clock's (the year 1973), below it the profile's own.
constexpr std::int64_t kLeastEpochNs = 100'000'000'000'000'000;
constexpr std::int64_t kPsOfNs = 1000;

struct XEventName {
  std::string_view name;
  std::string_view display_name;
  std::string_view stats;  ///< The metadata's message: its stats hold for each event.

  std::string_view shown() const { return display_name.empty() ? name : display_name; }
};

struct XStat {
  std::string_view name;
  bool is_signed = false;
  bool is_bytes = false;
  std::uint64_t number = 0;
  double real = 0;
  std::string_view text;
  bool is_real = false;
  bool is_text = false;

  std::int64_t integer() const {
    if (is_real) return 0;
    if (!is_text) return static_cast<std::int64_t>(number);
    std::int64_t out = 0;
    std::from_chars(text.data(), text.data() + text.size(), out);
    return out;
  }
};

enum class LineKind : std::uint8_t { kThread, kStream, kOps, kAsyncOps, kSteps, kDerived };

std::optional<std::int32_t> XDeviceOf(std::string_view plane) {
  // "/device:GPU:3", "/device:TPU:0 SparseCore 1".
  constexpr std::string_view kPrefix = "/device:";
  if (!plane.starts_with(kPrefix)) return std::nullopt;
  const std::size_t colon = plane.find(':', kPrefix.size());
  std::int32_t number = 0;
  if (colon != std::string_view::npos) {
    std::from_chars(plane.data() + colon + 1, plane.data() + plane.size(), number);
  }
  return std::max(0, number);
}

bool XContainsAny(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    return text.find(word) != std::string_view::npos;
  });
}
bool XBeginsWithAny(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.starts_with(word); });
}

/// Of an event on a thread of the host, by the names that TensorFlow's, JAX's and XLA's TraceMe
/// annotations have.
std::string_view HostCategory(std::string_view name, bool launches, bool marks_step) {
  if (marks_step) return "step";
  if (name.starts_with('$')) return "python";
  if (launches || XBeginsWithAny(name, {"cuda", "cu", "hip"})) {
    if (XContainsAny(name, {"Synchronize"})) return "sync";
    if (launches || XContainsAny(name, {"Launch", "Memcpy", "Malloc", "Memset", "Event"})) {
      return "runtime";
    }
  }
  if (name == "MemoryAllocation" || name == "MemoryDeallocation") return "memory";
  if (XBeginsWithAny(name, {"Iterator::", "IteratorGetNext", "tf_data", "TfData", "InputPipeline",
                            "BufferPool", "Prefetch"})) {
    return "data";
  }
  if (XContainsAny(name, {"RecvTensor", "SendTensor", "AllReduce", "AllGather", "ReduceScatter",
                          "AllToAll", "CollectiveReduce", "CollectiveGather", "CollectivePermute",
                          "Rendezvous", "Barrier"})) {
    return "comm";
  }
  if (XContainsAny(name, {"Compile", "Lowering", "HloPass", "BuildExecutable"})) return "compile";
  if (XContainsAny(name, {"CollectGarbage", "GarbageCollection"})) return "gc";
  // TensorFlow's executor: "name of the node:type of the operator".
  const std::size_t colon = name.rfind(':');
  if (colon != std::string_view::npos && colon > 0 && colon + 1 < name.size() &&
      name[colon - 1] != ':' && name.find(' ') == std::string_view::npos) {
    return "op";
  }
  return "annotation";
}

std::string_view DeviceCategory(LineKind kind, std::string_view name, bool copies) {
  switch (kind) {
    case LineKind::kSteps:
      return "step";
    case LineKind::kDerived:
    case LineKind::kThread:
      return "device_annotation";
    case LineKind::kStream:
    case LineKind::kOps:
    case LineKind::kAsyncOps:
      break;
  }
  if (XContainsAny(name, {"Memset", "memset"})) return "memset";
  if (copies || XBeginsWithAny(name, {"Memcpy", "MemcpyH2D", "memcpy", "copy-start", "copy-done",
                                      "infeed", "outfeed"})) {
    return "memcpy";
  }
  return "kernel";
}

/// "kind_src:host kind_dst:device size:4096 ..." of the GPU tracer.
std::int64_t BytesOfDetails(std::string_view details) {
  for (const std::string_view key : {"num_bytes:", "size:", "bytes:"}) {
    const std::size_t at = details.find(key);
    if (at == std::string_view::npos) continue;
    std::int64_t bytes = 0;
    std::from_chars(details.data() + at + key.size(), details.data() + details.size(), bytes);
    if (bytes > 0) return bytes;
  }
  return 0;
}

class XSpaceImport {
 public:
  XSpaceImport(std::string_view bytes, TraceSource* source) : bytes_(bytes), source_(source) {}

  Status Run() {
    collecting_ = true;
    FindStart();
    TakePlanes();
    collecting_ = false;
    host_steps_.Finish();
    device_steps_.Finish();
    planes_ = 0;
    TakePlanes();
    if (planes_ == 0) return {Code::kUnusable, "no plane of an XSpace can be read"};
    Steps().Emit(source_);
    return {};
  }

 private:
  /// Steps of the host, where it marks any: those of a device are what its compiler made of them.
  const StepMarks& Steps() const { return host_steps_.empty() ? device_steps_ : host_steps_; }

  void Damaged(std::string_view what) {
    if (!collecting_) source_->Damaged(1, what);
  }

  void TakePlanes() {
    WireReader space(bytes_);
    while (space.Next()) {
      if (space.wire() != Wire::kBytes) continue;
      switch (space.field()) {
        case xspace_field::kPlanes:
          ++planes_;
          TakePlane(space.bytes());
          break;
        case xspace_field::kErrors:
        case xspace_field::kWarnings:
          if (!collecting_)
            source_->Note(fmt::format("the profiler said: {}", space.bytes().substr(0, 512)));
          break;
        case xspace_field::kHostnames:
          source_->Host(space.bytes());
          break;
        default:
          break;
      }
    }
    if (space.damaged()) Damaged("the file is cut, or damaged between two planes");
  }

  /// Newer profilers count a line's time from the begin of the profile, which stands in a plane of
  /// its own.
  void FindStart() {
    WireReader space(bytes_);
    while (space.Next()) {
      if (!space.Is(xspace_field::kPlanes, Wire::kBytes)) continue;
      if (PlaneName(space.bytes()) != "Task Environment") continue;
      stat_names_.clear();
      ReadNames(space.bytes());
      WireReader plane(space.bytes());
      while (plane.Next()) {
        if (!plane.Is(xplane_field::kStats, Wire::kBytes)) continue;
        const XStat stat = ReadStat(plane.bytes());
        if (stat.name == "profile_start_time") start_ns_ = stat.integer();
      }
    }
  }

  static std::string_view PlaneName(std::string_view bytes) {
    WireReader plane(bytes);
    while (plane.Next()) {
      if (plane.Is(xplane_field::kName, Wire::kBytes)) return plane.bytes();
    }
    return {};
  }

  void ReadNames(std::string_view bytes) {
    WireReader plane(bytes);
    while (plane.Next()) {
      if (plane.wire() != Wire::kBytes) continue;
      if (plane.field() != xplane_field::kEventMetadata &&
          plane.field() != xplane_field::kStatMetadata) {
        continue;
      }
      if (event_names_.size() + stat_names_.size() >= kMaxNamesOfPlane) {
        Damaged("a plane has more names than can be held");
        return;
      }
      WireReader entry(plane.bytes());
      std::int64_t key = 0;
      std::string_view value;
      while (entry.Next()) {
        if (entry.Is(kMapKey, Wire::kVarint)) key = entry.integer();
        if (entry.Is(kMapValue, Wire::kBytes)) value = entry.bytes();
      }
      WireReader metadata(value);
      XEventName name;
      name.stats = value;
      while (metadata.Next()) {
        if (metadata.Is(xmetadata_field::kName, Wire::kBytes)) name.name = metadata.bytes();
        if (metadata.Is(xmetadata_field::kDisplayName, Wire::kBytes)) {
          name.display_name = metadata.bytes();
        }
      }
      if (entry.damaged() || metadata.damaged()) {
        Damaged("a name of an event");
        continue;
      }
      if (plane.field() == xplane_field::kStatMetadata) {
        stat_names_[key] = name.name;
      } else {
        event_names_[key] = name;
      }
    }
  }

  void TakePlane(std::string_view bytes) {
    plane_name_ = PlaneName(bytes);
    device_ = XDeviceOf(plane_name_);
    event_names_.clear();
    stat_names_.clear();
    ReadNames(bytes);
    WireReader plane(bytes);
    while (plane.Next()) {
      if (plane.Is(xplane_field::kLines, Wire::kBytes)) TakeLine(plane.bytes());
    }
    if (plane.damaged()) {
      Damaged(fmt::format("the plane {} is cut or damaged", plane_name_.substr(0, 256)));
    }
  }

  LineKind KindOf(std::string_view line) const {
    if (!device_) return LineKind::kThread;
    if (line == "Steps") return LineKind::kSteps;
    if (line.starts_with("Stream #")) return LineKind::kStream;
    if (line == "XLA Ops") return LineKind::kOps;
    if (line == "Async XLA Ops") return LineKind::kAsyncOps;
    return LineKind::kDerived;
  }

  void TakeLine(std::string_view bytes) {
    std::string_view name;
    std::string_view display_name;
    std::int64_t id = 0;
    std::int64_t start_ns = 0;
    WireReader header(bytes);
    while (header.Next()) {
      switch (header.field()) {
        case xline_field::kId:
          id = header.integer();
          break;
        case xline_field::kName:
          name = header.bytes();
          break;
        case xline_field::kTimestampNs:
          start_ns = header.integer();
          break;
        case xline_field::kDisplayName:
          display_name = header.bytes();
          break;
        default:
          break;
      }
    }
    if (header.damaged()) {
      Damaged(fmt::format("the line {} is cut or damaged", name.substr(0, 256)));
    }
    if (start_ns >= 0 && start_ns < kLeastEpochNs) {
      start_ns = SaturatingAdd(start_ns, start_ns_);
    }
    row_ = {};
    const LineKind kind = KindOf(name);
    const std::string_view shown = display_name.empty() ? name : display_name;
    if (device_) {
      row_.device = *device_;
      row_.stream = id;
      lane_ = fmt::format("{}", shown.substr(0, 1024));
    } else {
      row_.device = -1;
      row_.stream = -1;
      row_.tid = id;
      lane_ = fmt::format("thread {} ({})", id, shown.substr(0, 1024));
    }
    row_.lane = lane_;
    row_.kind = device_ ? name : plane_name_;
    WireReader line(bytes);
    while (line.Next()) {
      if (line.Is(xline_field::kEvents, Wire::kBytes)) TakeEvent(line.bytes(), start_ns, kind);
    }
  }

  /// What the columns need of an event's stats.
  struct Known {
    bool launches = false;
    bool copies = false;
    bool has_step = false;
    bool is_root = false;
    std::int64_t step = -1;
    std::int64_t bytes = 0;
  };

  void TakeEvent(std::string_view bytes, std::int64_t line_ns, LineKind kind) {
    std::int64_t metadata = 0;
    std::int64_t offset_ps = 0;
    std::int64_t duration_ps = 0;
    std::int64_t occurrences = 0;
    WireReader event(bytes);
    while (event.Next()) {
      switch (event.field()) {
        case xevent_field::kMetadataId:
          metadata = event.integer();
          break;
        case xevent_field::kOffsetPs:
          offset_ps = event.integer();
          break;
        case xevent_field::kDurationPs:
          duration_ps = event.integer();
          break;
        case xevent_field::kOccurrences:
          occurrences = event.integer();
          break;
        default:
          break;
      }
    }
    const auto name = event_names_.find(metadata);
    if (event.damaged() || name == event_names_.end() || duration_ps < 0) {
      Damaged("an event is cut, damaged or of no name");
      return;
    }
    if (occurrences > 0) {
      if (!collecting_)
        source_->LeftOut(1, "sums over many events, which have no time of their own");
      return;
    }
    format::SliceRow row = row_;
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
    if (__builtin_add_overflow(line_ns, offset_ps / kPsOfNs, &begin_ns) ||
        __builtin_add_overflow(begin_ns, duration_ps / kPsOfNs, &end_ns)) {
      Damaged("an event lies beyond all time");
      return;
    }
    row.time_ns = begin_ns;
    row.duration_ns = end_ns - begin_ns;
    row.name = name->second.shown();
    args_.Clear();
    Known known;
    TakeStats(name->second.stats, xmetadata_field::kStats, &row, &known);
    TakeStats(bytes, xevent_field::kStats, &row, &known);
    const bool marks_step = known.has_step && known.is_root;
    row.category = device_ ? DeviceCategory(kind, row.name, known.copies)
                           : HostCategory(row.name, known.launches, marks_step);
    if (name->second.shown() != name->second.name) args_.Add("name", name->second.name);
    row.bytes = row.name == "MemoryDeallocation" ? -known.bytes : known.bytes;
    if (row.category == "step" && known.step < 0) {
      // "12" on a device's line of steps.
      std::from_chars(row.name.data(), row.name.data() + row.name.size(), known.step);
    }
    if (collecting_) {
      if (row.category == "step") {
        (device_ ? device_steps_ : host_steps_).Add(known.step, begin_ns, end_ns, 0, row.tid);
      } else if (row.category == "data" && !device_) {
        host_steps_.AddDataWait(row.tid, begin_ns, end_ns);
      }
      return;
    }
    row.step = row.category == "step" ? known.step : Steps().StepAt(begin_ns);
    row.args = args_.Finish();
    source_->Slice(row);
  }

  XStat ReadStat(std::string_view bytes) {
    XStat stat;
    WireReader reader(bytes);
    while (reader.Next()) {
      switch (reader.field()) {
        case xstat_field::kMetadataId: {
          const auto name = stat_names_.find(reader.integer());
          if (name != stat_names_.end()) stat.name = name->second;
          break;
        }
        case xstat_field::kDouble:
          stat.is_real = true;
          stat.real = reader.real();
          break;
        case xstat_field::kInt64:
          stat.is_signed = true;
          [[fallthrough]];
        case xstat_field::kUint64:
          stat.number = reader.number();
          break;
        case xstat_field::kString:
          stat.is_text = true;
          stat.text = reader.bytes();
          break;
        case xstat_field::kBytes:
          stat.is_bytes = true;
          break;
        case xstat_field::kReference: {
          stat.is_text = true;
          const auto text = stat_names_.find(reader.integer());
          if (text != stat_names_.end()) stat.text = text->second;
          break;
        }
        default:
          break;
      }
    }
    if (reader.damaged()) stat.name = {};
    return stat;
  }

  void TakeStats(std::string_view bytes, std::uint32_t field, format::SliceRow* row, Known* known) {
    WireReader reader(bytes);
    while (reader.Next()) {
      if (!reader.Is(field, Wire::kBytes)) continue;
      const XStat stat = ReadStat(reader.bytes());
      if (stat.name.empty()) continue;
      if (stat.name == "correlation_id") {
        row->correlation = stat.integer();
        known->launches = true;
      } else if (stat.name == "flops") {
        row->flops = stat.is_real ? stat.real : static_cast<double>(stat.integer());
      } else if (stat.name == "step_num") {
        known->has_step = true;
        known->step = stat.integer();
        args_.Add(stat.name, known->step);
      } else if (stat.name == "_r") {
        known->is_root = stat.integer() != 0;
      } else if (stat.is_bytes) {
        continue;  // A message of XLA's own.
      } else {
        if (stat.name == "memcpy_details" || stat.name == "memcopy_details") {
          known->copies = true;
          known->bytes = BytesOfDetails(stat.text);
        } else if (stat.name == "allocation_bytes" || stat.name == "requested_bytes") {
          if (known->bytes == 0) known->bytes = stat.integer();
        }
        AddArg(stat);
      }
    }
  }

  void AddArg(const XStat& stat) {
    if (stat.is_text) {
      args_.Add(stat.name, stat.text);
    } else if (stat.is_real) {
      args_.Add(stat.name, stat.real);
    } else if (stat.is_signed) {
      args_.Add(stat.name, static_cast<std::int64_t>(stat.number));
    } else {
      args_.Add(stat.name, stat.number);
    }
  }

  const std::string_view bytes_;
  TraceSource* const source_;
  std::int64_t start_ns_ = 0;
  std::uint64_t planes_ = 0;
  std::string_view plane_name_;
  std::optional<std::int32_t> device_;
  std::unordered_map<std::int64_t, XEventName> event_names_;
  std::unordered_map<std::int64_t, std::string_view> stat_names_;
  format::SliceRow row_;  ///< What all events of a line share.
  std::string lane_;
  ArgsWriter args_;
  bool collecting_ = false;  ///< Steps alone.
  StepMarks host_steps_;
  StepMarks device_steps_;
};

}  // namespace

bool LooksLikeXSpace(std::string_view bytes) {
  // A plane, whose first fields are its id and its name.
  WireReader space(bytes);
  if (!space.Next() || !space.Is(xspace_field::kPlanes, Wire::kBytes)) return false;
  WireReader plane(space.bytes());
  for (int i = 0; i < 2 && plane.Next(); ++i) {
    if (!plane.Is(xplane_field::kName, Wire::kBytes)) continue;
    const std::string_view name = plane.bytes();
    return name.starts_with('/') || name == "Task Environment";
  }
  return false;
}

Status ImportXSpace(std::string_view bytes, TraceSource* source) {
  if (WentThroughText(bytes)) return SalvageXSpace(bytes, source);
  return XSpaceImport(bytes, source).Run();
}

}  // namespace telltale::interchange
