// SPDX-License-Identifier: Apache-2.0
#include "interchange/perfetto_export.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <protozero/pbf_writer.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"
#include "interchange/nested_lanes.h"

namespace telltale::interchange {
namespace {

using format::SliceRow;
using protozero::pbf_writer;

// Numbers of fields and values of Perfetto's trace_packet.proto, track_event.proto,
// track_descriptor.proto, interned_data.proto.
constexpr std::uint32_t kTracePacket = 1;
namespace packet_field {
constexpr std::uint32_t kTimestamp = 8;
constexpr std::uint32_t kSequence = 10;
constexpr std::uint32_t kTrackEvent = 11;
constexpr std::uint32_t kInternedData = 12;
constexpr std::uint32_t kSequenceFlags = 13;
constexpr std::uint32_t kTrackDescriptor = 60;
}  // namespace packet_field
constexpr std::uint32_t kStateCleared = 1;
constexpr std::uint32_t kNeedsState = 2;
namespace track_event_field {
constexpr std::uint32_t kCategoryId = 3;
constexpr std::uint32_t kAnnotation = 4;
constexpr std::uint32_t kType = 9;
constexpr std::uint32_t kNameId = 10;
constexpr std::uint32_t kTrack = 11;
constexpr std::uint32_t kDoubleCounter = 44;
constexpr std::uint32_t kFlow = 47;
}  // namespace track_event_field
constexpr std::int32_t kSliceBegin = 1;
constexpr std::int32_t kSliceEnd = 2;
constexpr std::int32_t kInstant = 3;
constexpr std::int32_t kCounter = 4;
namespace track_field {
constexpr std::uint32_t kUuid = 1;
constexpr std::uint32_t kName = 2;
constexpr std::uint32_t kProcess = 3;
constexpr std::uint32_t kThread = 4;
constexpr std::uint32_t kParent = 5;
constexpr std::uint32_t kCounterOf = 8;
}  // namespace track_field
constexpr std::uint32_t kProcessPid = 1;
constexpr std::uint32_t kProcessName = 6;
constexpr std::uint32_t kThreadPid = 1;
constexpr std::uint32_t kThreadTid = 2;
constexpr std::uint32_t kThreadName = 5;
constexpr std::uint32_t kCounterUnitName = 6;
namespace interned_field {
constexpr std::uint32_t kCategory = 1;
constexpr std::uint32_t kName = 2;
constexpr std::uint32_t kAnnotationName = 3;
}  // namespace interned_field
constexpr std::uint32_t kInternedId = 1;
constexpr std::uint32_t kInternedText = 2;
namespace annotation_field {
constexpr std::uint32_t kNameId = 1;
constexpr std::uint32_t kBool = 2;
constexpr std::uint32_t kInt = 4;
constexpr std::uint32_t kDouble = 5;
constexpr std::uint32_t kText = 6;
}  // namespace annotation_field

constexpr std::uint32_t kSequenceId = 1;
/// Of a reader's dictionary; then it begins a new one.
constexpr std::size_t kMostInterned = 1 << 16;
constexpr std::size_t kPerfettoPieceBytes = 64 << 10;

std::uint64_t Mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a + 0x9E3779B97F4A7C15ULL) ^ (b * 0xBF58476D1CE4E5B9ULL);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

void AddText(pbf_writer* out, std::uint32_t field, std::string_view text) {
  std::string scratch;
  text = ToValidUtf8(text, &scratch);
  out->add_bytes(field, text.data(), text.size());
}

bool FitsPid(std::int64_t id) { return id > 0 && id <= std::numeric_limits<std::int32_t>::max(); }

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};

class PerfettoWriter {
 public:
  PerfettoWriter(ExportFile* file, const TraceExportOptions& options)
      : file_(file), options_(options) {}

  Result<TraceExportReport> Run(const std::filesystem::path& run) {
    TELLTALE_ASSIGN_OR_RETURN(
        const auto order, query::SliceOrder::Load(run, {.memory_bytes = options_.memory_bytes}));
    report_.salvage = order->salvage();
    for (const query::Lane& lane : order->lanes()) {
      TELLTALE_RETURN_IF_ERROR(OneLane(order.get(), lane));
    }
    if (options_.counters) TELLTALE_RETURN_IF_ERROR(Counters(run));
    TELLTALE_RETURN_IF_ERROR(file_->Append(out_));
    TELLTALE_RETURN_IF_ERROR(file_->Commit());
    return std::move(report_);
  }

 private:
  Status Flush() {
    if (out_.size() < kPerfettoPieceBytes) return {};
    Status status = file_->Append(out_);
    out_.clear();
    return status;
  }

  /// A packet: `fill` writes what it holds besides the sequence.
  template <class Fill>
  void Packet(Fill&& fill) {
    packet_.clear();
    {
      pbf_writer packet(packet_);
      packet.add_uint32(packet_field::kSequence, kSequenceId);
      fill(&packet);
    }
    pbf_writer(out_).add_message(kTracePacket, packet_);
  }

  template <class Fill>
  std::uint64_t Track(std::uint64_t parent, std::string_view name, Fill&& fill) {
    const std::uint64_t uuid = ++next_track_;
    Packet([&](pbf_writer* packet) {
      pbf_writer track(*packet, packet_field::kTrackDescriptor);
      track.add_uint64(track_field::kUuid, uuid);
      if (parent != 0) track.add_uint64(track_field::kParent, parent);
      if (!name.empty()) AddText(&track, track_field::kName, name);
      fill(&track);
    });
    return uuid;
  }
  std::uint64_t Track(std::uint64_t parent, std::string_view name) {
    return Track(parent, name, [](pbf_writer*) {});
  }

  /// The tracks of a lane; their parent is the lane's process.
  std::uint64_t ParentOf(const query::Lane& lane, const TraceIds& ids) {
    if (!ids_.TakeNewProcess(lane)) return process_tracks_[ids.pid];
    const std::string name = TraceIdMap::ProcessName(lane);
    const bool process = lane.host() && FitsPid(ids.pid);
    const std::uint64_t uuid =
        Track(0, process ? std::string_view() : name, [&](pbf_writer* track) {
          if (!process) return;
          pbf_writer of_process(*track, track_field::kProcess);
          of_process.add_int32(kProcessPid, static_cast<std::int32_t>(ids.pid));
          AddText(&of_process, kProcessName, name);
        });
    process_tracks_[ids.pid] = uuid;
    return uuid;
  }

  Status OneLane(query::SliceOrder* order, const query::Lane& lane) {
    const TraceIds ids = ids_.Of(lane);
    const std::uint64_t parent = ParentOf(lane, ids);
    const std::string name = TraceIdMap::ThreadName(lane);
    std::vector<std::uint64_t> rows;
    const auto row_of = [&](std::size_t row) {
      while (rows.size() <= row) {
        // A thread is a row of its process; a second row of it cannot be.
        const bool thread = rows.empty() && lane.host() && FitsPid(ids.pid) && FitsPid(ids.tid);
        rows.push_back(Track(parent, thread ? std::string_view() : name, [&](pbf_writer* track) {
          if (!thread) return;
          pbf_writer of_thread(*track, track_field::kThread);
          of_thread.add_int32(kThreadPid, static_cast<std::int32_t>(ids.pid));
          of_thread.add_int32(kThreadTid, static_cast<std::int32_t>(ids.tid));
          AddText(&of_thread, kThreadName, name);
        }));
      }
      return rows[row];
    };
    NestedLanes nested;
    const auto ended = [&](std::size_t row, std::int64_t end_ns) {
      Event(end_ns, kSliceEnd, rows[row], [](pbf_writer*) {});
    };
    TELLTALE_RETURN_IF_ERROR(order->Visit(lane, [&](const SliceRow& slice) {
      ++report_.slices;
      const bool instant = slice.category == "memory" && slice.duration_ns <= 0;
      std::size_t row = 0;
      if (!instant) row = nested.Put(slice.time_ns, query::EndOf(slice), ended).row;
      Slice(slice, instant ? kInstant : kSliceBegin, row_of(row));
      return Flush();
    }));
    nested.Finish(ended);
    return Flush();
  }

  template <class Fill>
  void Event(std::int64_t time_ns, std::int32_t type, std::uint64_t track, Fill&& fill) {
    Packet([&](pbf_writer* packet) {
      packet->add_uint64(packet_field::kTimestamp, static_cast<std::uint64_t>(time_ns));
      {
        pbf_writer event(*packet, packet_field::kTrackEvent);
        event.add_int32(track_event_field::kType, type);
        event.add_uint64(track_event_field::kTrack, track);
        fill(&event);
      }
      Interned(packet);
    });
  }

  void Slice(const SliceRow& slice, std::int32_t type, std::uint64_t track) {
    Event(slice.time_ns, type, track, [&](pbf_writer* event) {
      event->add_uint64(track_event_field::kCategoryId,
                        Id(interned_field::kCategory, slice.category));
      event->add_uint64(track_event_field::kNameId, Id(interned_field::kName, slice.name));
      const auto rank = static_cast<std::uint64_t>(static_cast<std::uint32_t>(slice.rank));
      if (slice.correlation != 0 && (slice.device >= 0 || slice.category == "runtime")) {
        event->add_fixed64(track_event_field::kFlow,
                           Mix(rank * 2, static_cast<std::uint64_t>(slice.correlation)));
      }
      if (slice.flow != 0) {
        event->add_fixed64(track_event_field::kFlow,
                           Mix(rank * 2 + 1, static_cast<std::uint64_t>(slice.flow)));
      }
      Number(event, "step", slice.step, slice.step >= 0);
      Number(event, "correlation", slice.correlation, slice.correlation != 0);
      Number(event, "External id", slice.external, slice.external != 0);
      Number(event, "bytes", slice.bytes, slice.bytes != 0);
      if (slice.flops != 0) {
        pbf_writer annotation(*event, track_event_field::kAnnotation);
        annotation.add_uint64(annotation_field::kNameId,
                              Id(interned_field::kAnnotationName, "flops"));
        annotation.add_double(annotation_field::kDouble, slice.flops);
      }
      Annotations(event, slice.args);
    });
  }

  void Number(pbf_writer* event, std::string_view name, std::int64_t value, bool there) {
    if (!there) return;
    pbf_writer annotation(*event, track_event_field::kAnnotation);
    annotation.add_uint64(annotation_field::kNameId, Id(interned_field::kAnnotationName, name));
    annotation.add_int64(annotation_field::kInt, value);
  }

  /// The members of a JSON object; those that are no plain values as JSON.
  void Annotations(pbf_writer* event, std::string_view object) {
    if (object.empty()) return;
    const auto json = ParseJson(object);
    if (!json.is_object()) return;
    for (const auto& [name, value] : json.items()) {
      pbf_writer annotation(*event, track_event_field::kAnnotation);
      annotation.add_uint64(annotation_field::kNameId, Id(interned_field::kAnnotationName, name));
      if (value.is_boolean()) {
        annotation.add_bool(annotation_field::kBool, value.get<bool>());
      } else if (value.is_number_float()) {
        annotation.add_double(annotation_field::kDouble, value.get<double>());
      } else if (value.is_number()) {
        annotation.add_int64(annotation_field::kInt, value.get<std::int64_t>());
      } else if (value.is_string()) {
        AddText(&annotation, annotation_field::kText, value.get_ref<const std::string&>());
      } else {
        AddText(&annotation, annotation_field::kText, JsonText(value));
      }
    }
  }

  struct New {
    std::uint32_t kind;
    std::uint64_t id;
    std::string text;
  };

  std::uint64_t Id(std::uint32_t kind, std::string_view text) {
    auto& ids = interned_[kind];
    if (const auto found = ids.find(text); found != ids.end()) return found->second;
    const std::uint64_t id = ++next_id_;
    ids.emplace(text, id);
    new_.push_back({kind, id, std::string(text)});
    return id;
  }

  /// What the packet names for the first time, and whether it needs what was named before.
  void Interned(pbf_writer* packet) {
    if (!new_.empty()) {
      pbf_writer data(*packet, packet_field::kInternedData);
      for (const New& one : new_) {
        pbf_writer entry(data, one.kind);
        entry.add_uint64(kInternedId, one.id);
        AddText(&entry, kInternedText, one.text);
      }
      new_.clear();
    }
    packet->add_uint32(packet_field::kSequenceFlags,
                       cleared_ ? kNeedsState : kStateCleared | kNeedsState);
    cleared_ = true;
    if (next_id_ < kMostInterned) return;
    next_id_ = 0;
    interned_.clear();
    cleared_ = false;
  }

  Status Counters(const std::filesystem::path& run) {
    std::map<std::string, std::uint64_t> groups;
    std::map<std::pair<std::string, std::string>, std::uint64_t> tracks;
    const auto counter = [&](const CounterValue& value) {
      auto [group, new_group] = groups.try_emplace(value.group);
      if (new_group) group->second = Track(0, value.group);
      auto [track, made] = tracks.try_emplace({value.group, value.name});
      if (made) {
        track->second = Track(group->second, value.name, [&](pbf_writer* out) {
          pbf_writer of_counter(*out, track_field::kCounterOf);
          if (!value.unit.empty()) AddText(&of_counter, kCounterUnitName, value.unit);
        });
      }
      Event(value.time_ns, kCounter, track->second, [&](pbf_writer* event) {
        event->add_double(track_event_field::kDoubleCounter, value.value);
      });
      ++report_.counters;
      return Flush();
    };
    std::uint64_t events = 0;
    const auto event = [&](const format::EventRow& row) {
      if (events == 0) events = Track(0, "events");
      Event(row.time_ns, kInstant, events, [&](pbf_writer* out) {
        out->add_uint64(track_event_field::kNameId, Id(interned_field::kName, row.kind));
        pbf_writer annotation(*out, track_event_field::kAnnotation);
        annotation.add_uint64(annotation_field::kNameId,
                              Id(interned_field::kAnnotationName, "message"));
        AddText(&annotation, annotation_field::kText, row.message);
      });
      ++report_.events;
      return Flush();
    };
    return VisitCounters(run, counter, event, &report_.salvage);
  }

  ExportFile* const file_;
  const TraceExportOptions options_;
  TraceExportReport report_;
  TraceIdMap ids_;
  std::map<std::int64_t, std::uint64_t> process_tracks_;
  std::map<std::uint32_t, std::unordered_map<std::string, std::uint64_t, TextHash, std::equal_to<>>>
      interned_;
  std::vector<New> new_;
  std::uint64_t next_id_ = 0;
  std::uint64_t next_track_ = 0;
  bool cleared_ = false;
  std::string packet_;
  std::string out_;
};

}  // namespace

Result<TraceExportReport> ExportPerfetto(const std::filesystem::path& run, ExportFile* file,
                                         const TraceExportOptions& options) {
  return PerfettoWriter(file, options).Run(run);
}

}  // namespace telltale::interchange
