// SPDX-License-Identifier: Apache-2.0
// Fields as Perfetto's trace_packet.proto and track_event.proto number them. A writer's packets
// form a sequence, which keeps numbers for names (interned data), defaults and clocks of its own
// until it says that they are cleared. Slices nest on tracks.
//
// Memory: names and tracks, and slices that are open: each with a limit.
#include "interchange/perfetto_import.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/units.h"
#include "interchange/args_writer.h"
#include "interchange/slice_category.h"
#include "interchange/step_marks.h"
#include "interchange/wire_reader.h"

namespace telltale::interchange {
namespace {

constexpr std::uint32_t kPacketOfTrace = 1;
namespace packet_field {
constexpr std::uint32_t kClocks = 6;
constexpr std::uint32_t kTimestamp = 8;
constexpr std::uint32_t kSequence = 10;
constexpr std::uint32_t kTrackEvent = 11;
constexpr std::uint32_t kInterned = 12;
constexpr std::uint32_t kFlags = 13;
constexpr std::uint32_t kDropped = 42;
constexpr std::uint32_t kProcess = 43;
constexpr std::uint32_t kThread = 44;
constexpr std::uint32_t kCompressed = 50;
constexpr std::uint32_t kClockId = 58;
constexpr std::uint32_t kDefaults = 59;
constexpr std::uint32_t kTrack = 60;
}  // namespace packet_field
constexpr std::uint64_t kSequenceCleared = 1;
namespace event_of_track_field {
constexpr std::uint32_t kDeltaUs = 1;
constexpr std::uint32_t kCategoryIds = 3;
constexpr std::uint32_t kAnnotations = 4;
constexpr std::uint32_t kLegacy = 6;
constexpr std::uint32_t kType = 9;
constexpr std::uint32_t kNameId = 10;
constexpr std::uint32_t kTrackId = 11;
constexpr std::uint32_t kAbsoluteUs = 16;
constexpr std::uint32_t kCategories = 22;
constexpr std::uint32_t kName = 23;
constexpr std::uint32_t kCounter = 30;
constexpr std::uint32_t kFlowIdsOld = 36;
constexpr std::uint32_t kRealCounter = 44;
constexpr std::uint32_t kFlowIds = 47;
}  // namespace event_of_track_field
namespace legacy_field {
constexpr std::uint32_t kNameId = 1;
constexpr std::uint32_t kPhase = 2;
constexpr std::uint32_t kDurationUs = 3;
}  // namespace legacy_field
namespace annotation_field {
constexpr std::uint32_t kNameId = 1;
constexpr std::uint32_t kBool = 2;
constexpr std::uint32_t kUint = 3;
constexpr std::uint32_t kInt = 4;
constexpr std::uint32_t kDouble = 5;
constexpr std::uint32_t kString = 6;
constexpr std::uint32_t kPointer = 7;
constexpr std::uint32_t kName = 10;
constexpr std::uint32_t kStringId = 17;
}  // namespace annotation_field
namespace interned_field {
constexpr std::uint32_t kCategories = 1;
constexpr std::uint32_t kNames = 2;
constexpr std::uint32_t kAnnotationNames = 3;
constexpr std::uint32_t kAnnotationTexts = 29;
}  // namespace interned_field
namespace track_field {
constexpr std::uint32_t kUuid = 1;
constexpr std::uint32_t kName = 2;
constexpr std::uint32_t kProcess = 3;
constexpr std::uint32_t kThread = 4;
constexpr std::uint32_t kParent = 5;
constexpr std::uint32_t kCounter = 8;
constexpr std::uint32_t kStaticName = 10;
}  // namespace track_field
namespace counter_field {
constexpr std::uint32_t kUnit = 3;
constexpr std::uint32_t kMultiplier = 4;
constexpr std::uint32_t kIncremental = 5;
constexpr std::uint32_t kUnitName = 6;
}  // namespace counter_field
constexpr std::uint32_t kPidOfProcess = 1;
constexpr std::uint32_t kNameOfProcess = 6;
constexpr std::uint32_t kPidOfThread = 1;
constexpr std::uint32_t kTidOfThread = 2;
constexpr std::uint32_t kNameOfThread = 5;
constexpr std::uint32_t kThreadReferenceUs = 6;

constexpr std::uint32_t kRealtime = 1;
constexpr std::uint32_t kBoottime = 6;
constexpr std::uint32_t kFirstOfSequence = 64;
constexpr std::uint32_t kLastOfSequence = 127;

constexpr std::size_t kMaxTracks = 1U << 20;
constexpr std::size_t kMaxSequences = 1U << 16;
constexpr std::size_t kMaxOpenSlices = 1U << 20;
constexpr std::size_t kMaxOpenBytes = 256U << 20;
constexpr std::size_t kMaxInterned = 4U << 20;
constexpr std::size_t kMaxInflated = 256U << 20;
constexpr int kMaxParents = 16;

enum class EventType : std::uint8_t { kNone, kBegin, kEnd, kInstantMark, kCounterValue, kComplete };

using Texts = std::unordered_map<std::uint64_t, std::string>;

/// A clock that one sequence set, in terms of one of all.
struct SequenceClock {
  std::int64_t value = 0;  ///< At the snapshot; of an incremental one, the newest.
  std::int64_t multiplier = 1;
  bool incremental = false;
  std::uint32_t other = 0;  ///< Clock of all.
  std::int64_t other_ns = 0;
};

struct Sequence {
  std::array<Texts, 4> texts;  ///< Categories, names, names and texts of annotations.
  std::uint64_t track = 0;
  std::uint32_t clock = 0;
  std::int64_t reference_us = 0;
  std::map<std::uint32_t, SequenceClock> clocks;
};

struct OpenSlice {
  std::int64_t begin_ns = 0;
  std::string name;
  std::string kind;
  std::string args;
  std::int64_t flow = 0;
};

struct Track {
  std::string name;
  std::uint64_t parent = 0;
  std::optional<std::int64_t> pid;
  std::optional<std::int64_t> tid;
  bool is_counter = false;
  bool incremental = false;
  double multiplier = 1;
  std::string unit;
  double value = 0;
  std::vector<OpenSlice> open;
};

struct TrackEvent {
  EventType type = EventType::kNone;
  std::string_view name;
  std::string_view kind;
  std::uint64_t track = 0;
  bool has_track = false;
  std::int64_t flow = 0;
  std::int64_t duration_ns = 0;
  double value = 0;
  bool has_value = false;
  bool legacy_other = false;
};

class PerfettoImport {
 public:
  PerfettoImport(std::string_view bytes, TraceSource* source) : bytes_(bytes), source_(source) {}

  /// Finds the steps alone, which is what the slices must know.
  void CollectSteps(StepMarks* steps) {
    collected_ = steps;
    FindRealtime(bytes_);
    TakePackets(bytes_, false);
  }

  Status Run(const StepMarks* steps) {
    steps_ = steps;
    FindRealtime(bytes_);
    TakePackets(bytes_, false);
    if (packets_ == 0) return {Code::kUnusable, "no packet of a Perfetto trace can be read"};
    CloseOpen();
    LeftOut(others_, "packets that are no track events");
    return {};
  }

 private:
  void Damaged(std::uint64_t n, std::string_view what) {
    if (collected_ == nullptr && n > 0) source_->Damaged(n, what);
  }
  void LeftOut(std::uint64_t n, std::string_view what) {
    if (collected_ == nullptr && n > 0) source_->LeftOut(n, what);
  }

  void TakePackets(std::string_view bytes, bool inflated) {
    WireReader trace(bytes);
    while (trace.Next()) {
      if (trace.Is(kPacketOfTrace, Wire::kBytes)) TakePacket(trace.bytes(), inflated);
    }
    if (trace.damaged()) Damaged(1, "the trace is cut, or damaged between two packets");
  }

  /// What the clocks showed at one moment: the first such packet that has the wall clock.
  void FindRealtime(std::string_view bytes) {
    WireReader trace(bytes);
    while (trace.Next() && !at_once_.contains(kRealtime)) {
      if (!trace.Is(kPacketOfTrace, Wire::kBytes)) continue;
      WireReader packet(trace.bytes());
      while (packet.Next()) {
        if (!packet.Is(packet_field::kClocks, Wire::kBytes)) continue;
        std::map<std::uint32_t, std::int64_t> seen;
        for (const auto& [id, clock] : ReadClocks(packet.bytes())) {
          if (id < kFirstOfSequence) seen[id] = clock.value;
        }
        if (seen.contains(kRealtime)) at_once_ = std::move(seen);
      }
    }
  }

  static std::map<std::uint32_t, SequenceClock> ReadClocks(std::string_view bytes) {
    std::map<std::uint32_t, SequenceClock> out;
    WireReader snapshot(bytes);
    while (snapshot.Next() && out.size() < 256) {
      if (!snapshot.Is(1, Wire::kBytes)) continue;
      SequenceClock clock;
      std::uint32_t id = 0;
      WireReader reader(snapshot.bytes());
      while (reader.Next()) {
        switch (reader.field()) {
          case 1:
            id = static_cast<std::uint32_t>(reader.number());
            break;
          case 2:
            clock.value = reader.integer();
            break;
          case 3:
            clock.incremental = reader.number() != 0;
            break;
          case 4:
            clock.multiplier = std::clamp<std::int64_t>(reader.integer(), 1, 1'000'000'000);
            break;
          default:
            break;
        }
      }
      out[id] = clock;
    }
    return out;
  }

  void TakePacket(std::string_view bytes, bool inflated) {
    std::int64_t timestamp = 0;
    bool has_timestamp = false;
    std::uint32_t clock = 0;
    std::uint64_t sequence_id = 0;
    std::uint64_t flags = 0;
    bool dropped = false;
    std::string_view event;
    std::string_view interned;
    std::string_view defaults;
    std::string_view clocks;
    std::string_view process;
    std::string_view thread;
    std::string_view track;
    bool known = false;
    WireReader packet(bytes);
    while (packet.Next()) {
      const auto take = [&](std::string_view* into) {
        *into = packet.bytes();
        known = true;
      };
      switch (packet.field()) {
        case packet_field::kTimestamp:
          timestamp = packet.integer();
          has_timestamp = true;
          break;
        case packet_field::kClockId:
          clock = static_cast<std::uint32_t>(packet.number());
          break;
        case packet_field::kSequence:
          sequence_id = packet.number();
          break;
        case packet_field::kFlags:
          flags = packet.number();
          break;
        case packet_field::kDropped:
          dropped = packet.number() != 0;
          break;
        case packet_field::kTrackEvent:
          take(&event);
          break;
        case packet_field::kInterned:
          take(&interned);
          break;
        case packet_field::kDefaults:
          take(&defaults);
          break;
        case packet_field::kClocks:
          take(&clocks);
          break;
        case packet_field::kProcess:
          take(&process);
          break;
        case packet_field::kThread:
          take(&thread);
          break;
        case packet_field::kTrack:
          take(&track);
          break;
        case packet_field::kCompressed:
          known = true;
          if (!inflated) Inflate(packet.bytes());
          break;
        default:
          break;
      }
    }
    if (packet.damaged()) {
      Damaged(1, "a packet is cut or damaged");
      return;
    }
    ++packets_;
    if (!known) ++others_;
    if (dropped && collected_ == nullptr)
      source_->Lost(1, "packets that the tracer dropped before this one");
    Sequence* const sequence = SequenceOf(sequence_id);
    if (sequence == nullptr) return;
    if ((flags & kSequenceCleared) != 0) {
      interned_ -= std::min(interned_, Interned(*sequence));
      const auto clocks_kept = std::move(sequence->clocks);
      *sequence = Sequence();
      sequence->clocks = clocks_kept;
    }
    if (!defaults.empty()) TakeDefaults(defaults, sequence);
    std::optional<std::int64_t> time_ns;
    if (!clocks.empty()) {
      TakeClocks(clocks, sequence);
    } else if (has_timestamp) {
      // Of each packet, since times may count from one to the next.
      time_ns = ToNs(timestamp, clock, sequence);
    }
    if (!interned.empty()) TakeInterned(interned, sequence);
    if (!track.empty()) TakeTrack(track);
    if (!process.empty()) TakeProcess(process, TrackOf(sequence_id | kOwnTrack));
    if (!thread.empty()) TakeThread(thread, TrackOf(sequence_id | kOwnTrack), sequence);
    if (!event.empty()) TakeEvent(event, sequence_id, sequence, time_ns);
  }

  void Inflate(std::string_view bytes) {
    z_stream stream{};
    if (inflateInit(&stream) != Z_OK) {
      Damaged(1, "packets cannot be unpacked");
      return;
    }
    std::string out;
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream.avail_in = static_cast<uInt>(std::min<std::size_t>(bytes.size(), UINT32_MAX));
    int state = Z_OK;
    while (state == Z_OK && out.size() < kMaxInflated) {
      const std::size_t at = out.size();
      out.resize(std::min(kMaxInflated, at + (1U << 20)));
      stream.next_out = reinterpret_cast<Bytef*>(out.data() + at);
      stream.avail_out = static_cast<uInt>(out.size() - at);
      state = inflate(&stream, Z_NO_FLUSH);
      out.resize(out.size() - stream.avail_out);
      if (out.size() == at && state == Z_OK) break;
    }
    inflateEnd(&stream);
    if (state != Z_STREAM_END) Damaged(1, "packed packets end in the middle");
    TakePackets(out, true);
  }

  Sequence* SequenceOf(std::uint64_t id) {
    const auto found = sequences_.find(id);
    if (found != sequences_.end()) return &found->second;
    if (sequences_.size() >= kMaxSequences) {
      Damaged(1, "there are more sequences than can be held");
      return nullptr;
    }
    return &sequences_[id];
  }
  static std::size_t Interned(const Sequence& sequence) {
    std::size_t sum = 0;
    for (const Texts& texts : sequence.texts) sum += texts.size();
    return sum;
  }

  /// By the wall clock where the trace says how its clocks stand to it.
  std::optional<std::int64_t> ToNs(std::int64_t time, std::uint32_t clock, Sequence* sequence) {
    if (clock == 0) clock = sequence->clock == 0 ? kBoottime : sequence->clock;
    if (clock >= kFirstOfSequence && clock <= kLastOfSequence) {
      const auto found = sequence->clocks.find(clock);
      if (found == sequence->clocks.end()) return std::nullopt;
      SequenceClock& own = found->second;
      std::int64_t since = 0;
      if (own.incremental) {
        if (__builtin_add_overflow(own.value, time, &own.value)) return std::nullopt;
        since = own.value;
      } else if (__builtin_sub_overflow(time, own.value, &since)) {
        return std::nullopt;
      }
      if (__builtin_mul_overflow(since, own.multiplier, &since) ||
          __builtin_add_overflow(since, own.other_ns, &time)) {
        return std::nullopt;
      }
      clock = own.other;
    }
    const auto wall = at_once_.find(kRealtime);
    const auto here = at_once_.find(clock);
    if (wall == at_once_.end() || here == at_once_.end()) return time;
    std::int64_t offset = 0;
    if (__builtin_sub_overflow(wall->second, here->second, &offset) ||
        __builtin_add_overflow(time, offset, &time)) {
      return std::nullopt;
    }
    return time;
  }

  void TakeClocks(std::string_view bytes, Sequence* sequence) {
    const auto clocks = ReadClocks(bytes);
    auto other = clocks.find(kBoottime);
    if (other == clocks.end()) {
      other = std::find_if(clocks.begin(), clocks.end(),
                           [](const auto& clock) { return clock.first < kFirstOfSequence; });
    }
    if (other == clocks.end()) return;
    for (const auto& [id, clock] : clocks) {
      if (id < kFirstOfSequence || id > kLastOfSequence) continue;
      SequenceClock own = clock;
      own.other = other->first;
      own.other_ns = other->second.value;
      // What is added up counts from here.
      if (own.incremental) own.value = 0;
      sequence->clocks[id] = own;
    }
  }

  static void TakeDefaults(std::string_view bytes, Sequence* sequence) {
    WireReader defaults(bytes);
    while (defaults.Next()) {
      if (defaults.Is(packet_field::kClockId, Wire::kVarint)) {
        sequence->clock = static_cast<std::uint32_t>(defaults.number());
      } else if (defaults.Is(packet_field::kTrackEvent, Wire::kBytes)) {
        WireReader event(defaults.bytes());
        while (event.Next()) {
          if (event.Is(event_of_track_field::kTrackId, Wire::kVarint)) {
            sequence->track = event.number();
          }
        }
      }
    }
  }

  void TakeInterned(std::string_view bytes, Sequence* sequence) {
    WireReader interned(bytes);
    while (interned.Next()) {
      std::size_t into = 0;
      switch (interned.field()) {
        case interned_field::kCategories:
          into = 0;
          break;
        case interned_field::kNames:
          into = 1;
          break;
        case interned_field::kAnnotationNames:
          into = 2;
          break;
        case interned_field::kAnnotationTexts:
          into = 3;
          break;
        default:
          continue;
      }
      if (interned.wire() != Wire::kBytes) continue;
      std::uint64_t id = 0;
      std::string_view text;
      WireReader entry(interned.bytes());
      while (entry.Next()) {
        if (entry.Is(1, Wire::kVarint)) id = entry.number();
        if (entry.Is(2, Wire::kBytes)) text = entry.bytes();
      }
      if (interned_ >= kMaxInterned) {
        Damaged(1, "there are more names than can be held");
        return;
      }
      const auto [at, is_new] =
          sequence->texts[into].insert_or_assign(id, std::string(text.substr(0, 4096)));
      interned_ += is_new ? 1 : 0;
    }
  }

  Track* TrackOf(std::uint64_t uuid) {
    const auto found = tracks_.find(uuid);
    if (found != tracks_.end()) return &found->second;
    if (tracks_.size() >= kMaxTracks) return &overflow_;
    return &tracks_[uuid];
  }

  void TakeTrack(std::string_view bytes) {
    std::uint64_t uuid = 0;
    WireReader reader(bytes);
    while (reader.Next()) {
      if (reader.Is(track_field::kUuid, Wire::kVarint)) uuid = reader.number();
    }
    Track* const track = TrackOf(uuid);
    WireReader again(bytes);
    while (again.Next()) {
      switch (again.field()) {
        case track_field::kName:
        case track_field::kStaticName:
          track->name = std::string(again.bytes().substr(0, 1024));
          break;
        case track_field::kParent:
          track->parent = again.number();
          break;
        case track_field::kProcess:
          TakeProcess(again.bytes(), track);
          break;
        case track_field::kThread:
          TakeThread(again.bytes(), track, nullptr);
          break;
        case track_field::kCounter:
          TakeCounter(again.bytes(), track);
          break;
        default:
          break;
      }
    }
  }

  static void TakeProcess(std::string_view bytes, Track* track) {
    WireReader process(bytes);
    while (process.Next()) {
      if (process.Is(kPidOfProcess, Wire::kVarint)) track->pid = process.integer();
      if (process.Is(kNameOfProcess, Wire::kBytes) && track->name.empty()) {
        track->name = std::string(process.bytes().substr(0, 1024));
      }
    }
  }
  static void TakeThread(std::string_view bytes, Track* track, Sequence* sequence) {
    std::string_view name;
    WireReader thread(bytes);
    while (thread.Next()) {
      if (thread.Is(kPidOfThread, Wire::kVarint)) track->pid = thread.integer();
      if (thread.Is(kTidOfThread, Wire::kVarint)) track->tid = thread.integer();
      if (thread.Is(kNameOfThread, Wire::kBytes)) name = thread.bytes();
      if (thread.Is(kThreadReferenceUs, Wire::kVarint) && sequence != nullptr) {
        sequence->reference_us = thread.integer();
      }
    }
    if (!track->tid) return;
    track->name = name.empty() ? fmt::format("thread {}", *track->tid)
                               : fmt::format("thread {} ({})", *track->tid, name.substr(0, 1024));
  }
  static void TakeCounter(std::string_view bytes, Track* track) {
    track->is_counter = true;
    WireReader counter(bytes);
    while (counter.Next()) {
      switch (counter.field()) {
        case counter_field::kUnit:
          track->unit = counter.number() == 1 ? "ns" : counter.number() == 3 ? "bytes" : "1";
          break;
        case counter_field::kMultiplier:
          track->multiplier = static_cast<double>(counter.integer());
          break;
        case counter_field::kIncremental:
          track->incremental = counter.number() != 0;
          break;
        case counter_field::kUnitName:
          track->unit = std::string(counter.bytes().substr(0, 256));
          break;
        default:
          break;
      }
    }
  }

  void TakeEvent(std::string_view bytes, std::uint64_t sequence_id, Sequence* sequence,
                 std::optional<std::int64_t> time_ns) {
    TrackEvent event;
    args_.Clear();
    if (!ReadEvent(bytes, sequence, &event, &time_ns)) {
      Damaged(1, "an event is cut or damaged");
      return;
    }
    if (event.legacy_other) {
      LeftOut(1, "asynchronous events of the older form");
      return;
    }
    if (!time_ns) {
      Damaged(1, "an event has no time that can be known");
      return;
    }
    std::uint64_t uuid = event.has_track ? event.track : sequence->track;
    if (uuid == 0) uuid = sequence_id | kOwnTrack;
    Track* const track = TrackOf(uuid);
    switch (event.type) {
      case EventType::kBegin:
        Begin(event, *time_ns, track);
        break;
      case EventType::kEnd:
        End(*time_ns, track);
        break;
      case EventType::kInstantMark:
      case EventType::kComplete:
        Emit({*time_ns, std::string(event.name), std::string(event.kind),
              std::string(args_.Finish()), event.flow},
             event.duration_ns, *track);
        break;
      case EventType::kCounterValue:
        Count(event, *time_ns, track);
        break;
      case EventType::kNone:
        LeftOut(1, "events without a type");
        break;
    }
  }

  std::string_view Known(const Sequence& sequence, std::size_t which, std::uint64_t id) {
    const auto found = sequence.texts[which].find(id);
    return found == sequence.texts[which].end() ? std::string_view()
                                                : std::string_view(found->second);
  }

  bool ReadEvent(std::string_view bytes, Sequence* sequence, TrackEvent* out,
                 std::optional<std::int64_t>* time_ns) {
    WireReader event(bytes);
    while (event.Next()) {
      switch (event.field()) {
        case event_of_track_field::kType:
          out->type =
              event.number() <= 4 ? static_cast<EventType>(event.number()) : EventType::kNone;
          break;
        case event_of_track_field::kNameId:
          out->name = Known(*sequence, 1, event.number());
          break;
        case event_of_track_field::kName:
          out->name = event.bytes();
          break;
        case event_of_track_field::kCategoryIds:
          if (event.wire() == Wire::kVarint && out->kind.empty()) {
            out->kind = Known(*sequence, 0, event.number());
          } else if (event.wire() == Wire::kBytes && event.bytes().size() == 1) {
            out->kind = Known(*sequence, 0, static_cast<std::uint8_t>(event.bytes()[0]));
          }
          break;
        case event_of_track_field::kCategories:
          if (out->kind.empty()) out->kind = event.bytes();
          break;
        case event_of_track_field::kTrackId:
          out->track = event.number();
          out->has_track = true;
          break;
        case event_of_track_field::kCounter:
          out->value = static_cast<double>(event.integer());
          out->has_value = true;
          break;
        case event_of_track_field::kRealCounter:
          out->value = event.real();
          out->has_value = true;
          break;
        case event_of_track_field::kFlowIds:
        case event_of_track_field::kFlowIdsOld:
          TakeFlow(event, out);
          break;
        case event_of_track_field::kAnnotations:
          AddAnnotation(event.bytes(), *sequence);
          break;
        case event_of_track_field::kLegacy:
          TakeLegacy(event.bytes(), *sequence, out);
          break;
        case event_of_track_field::kAbsoluteUs:
          if (!__builtin_mul_overflow(event.integer(), kUs, &scratch_ns_)) {
            *time_ns = scratch_ns_;
          }
          break;
        case event_of_track_field::kDeltaUs:
          if (!__builtin_add_overflow(sequence->reference_us, event.integer(),
                                      &sequence->reference_us) &&
              !__builtin_mul_overflow(sequence->reference_us, kUs, &scratch_ns_)) {
            *time_ns = scratch_ns_;
          }
          break;
        default:
          break;
      }
    }
    return !event.damaged();
  }

  static void TakeFlow(const WireReader& event, TrackEvent* out) {
    if (event.wire() != Wire::kBytes) {
      if (out->flow == 0) out->flow = event.integer();
    } else if (event.bytes().size() >= 8 && out->flow == 0) {
      WireReader::Fixed64(event.bytes(), &out->flow);
    }
  }

  void TakeLegacy(std::string_view bytes, const Sequence& sequence, TrackEvent* out) {
    WireReader legacy(bytes);
    while (legacy.Next()) {
      switch (legacy.field()) {
        case legacy_field::kNameId:
          if (out->name.empty()) out->name = Known(sequence, 1, legacy.number());
          break;
        case legacy_field::kPhase:
          switch (static_cast<char>(legacy.number() & 0x7F)) {
            case 'B':
              out->type = EventType::kBegin;
              break;
            case 'E':
              out->type = EventType::kEnd;
              break;
            case 'X':
              out->type = EventType::kComplete;
              break;
            case 'I':
            case 'i':
            case 'R':
              out->type = EventType::kInstantMark;
              break;
            default:
              out->legacy_other = true;
          }
          break;
        case legacy_field::kDurationUs:
          if (legacy.integer() >= 0) {
            static_cast<void>(__builtin_mul_overflow(legacy.integer(), kUs, &out->duration_ns));
          }
          break;
        default:
          break;
      }
    }
  }

  void AddAnnotation(std::string_view bytes, const Sequence& sequence) {
    std::string_view name;
    WireReader reader(bytes);
    while (reader.Next()) {
      if (reader.Is(annotation_field::kName, Wire::kBytes)) name = reader.bytes();
      if (reader.Is(annotation_field::kNameId, Wire::kVarint)) {
        name = Known(sequence, 2, reader.number());
      }
    }
    if (name.empty()) return;
    WireReader value(bytes);
    while (value.Next()) {
      switch (value.field()) {
        case annotation_field::kBool:
          args_.Add(name, value.number() != 0);
          return;
        case annotation_field::kUint:
        case annotation_field::kPointer:
          args_.Add(name, value.number());
          return;
        case annotation_field::kInt:
          args_.Add(name, value.integer());
          return;
        case annotation_field::kDouble:
          args_.Add(name, value.real());
          return;
        case annotation_field::kString:
          args_.Add(name, value.bytes());
          return;
        case annotation_field::kStringId:
          args_.Add(name, Known(sequence, 3, value.number()));
          return;
        default:
          break;  // Dictionaries and lists are left out.
      }
    }
  }

  void Begin(const TrackEvent& event, std::int64_t time_ns, Track* track) {
    const std::string_view args = args_.Finish();
    if (open_ >= kMaxOpenSlices || open_bytes_ + args.size() > kMaxOpenBytes) {
      Damaged(1, "there are more open slices than can be held");
      return;
    }
    ++open_;
    open_bytes_ += args.size();
    track->open.push_back({time_ns, std::string(event.name.substr(0, 4096)),
                           std::string(event.kind.substr(0, 256)), std::string(args), event.flow});
  }

  void End(std::int64_t time_ns, Track* track) {
    if (track->open.empty()) {
      Damaged(1, "a slice ends that did not begin");
      return;
    }
    const OpenSlice slice = std::move(track->open.back());
    track->open.pop_back();
    --open_;
    open_bytes_ -= slice.args.size();
    std::int64_t duration_ns = 0;
    if (__builtin_sub_overflow(time_ns, slice.begin_ns, &duration_ns) || duration_ns < 0) {
      Damaged(1, "a slice ends before it begins");
      return;
    }
    Emit(slice, duration_ns, *track);
  }

  void Emit(const OpenSlice& slice, std::int64_t duration_ns, const Track& track) {
    format::SliceRow row;
    row.time_ns = slice.begin_ns;
    row.duration_ns = std::max<std::int64_t>(0, duration_ns);
    std::int64_t end_ns = 0;
    if (__builtin_add_overflow(row.time_ns, row.duration_ns, &end_ns)) {
      Damaged(1, "a slice lies beyond all time");
      return;
    }
    row.name = slice.name;
    row.kind = slice.kind;
    row.category = SliceCategoryOf(slice.kind);
    row.args = slice.args;
    row.flow = slice.flow;
    row.step = -1;
    row.device = -1;
    row.stream = -1;
    row.lane = track.name;
    const Track* at = &track;
    for (int i = 0; i < kMaxParents; ++i) {
      if (row.pid == 0 && at->pid) row.pid = *at->pid;
      if (row.tid == 0 && at->tid) row.tid = *at->tid;
      if (row.lane.empty()) row.lane = at->name;
      const auto parent = tracks_.find(at->parent);
      if (at->parent == 0 || parent == tracks_.end()) break;
      at = &parent->second;
    }
    const auto step = row.category == "step" ? StepNumberOf(slice.name) : std::nullopt;
    if (collected_ != nullptr) {
      if (step) collected_->Add(*step, row.time_ns, end_ns, row.pid, row.tid);
      if (row.category == "data") {
        collected_->AddDataWait(row.tid, row.time_ns, end_ns);
      }
      return;
    }
    row.step = step ? *step : steps_->StepAt(row.time_ns);
    source_->Slice(row);
  }

  void Count(const TrackEvent& event, std::int64_t time_ns, Track* track) {
    if (!event.has_value || !track->is_counter) {
      Damaged(1, "a counter without a value or a track");
      return;
    }
    track->value = (track->incremental ? track->value : 0) + event.value * track->multiplier;
    format::MetricRow row;
    row.time_ns = time_ns;
    row.name = track->name;
    row.value = track->value;
    row.unit = track->unit;
    if (collected_ != nullptr) return;
    row.subject = "node";
    const auto parent = tracks_.find(track->parent);
    if (track->parent != 0 && parent != tracks_.end() && !parent->second.name.empty()) {
      row.subject = parent->second.name;
    }
    source_->Metric(row);
  }

  /// What was open when the trace ended has no end.
  void CloseOpen() {
    std::uint64_t left = 0;
    for (const auto& [uuid, track] : tracks_) left += track.open.size();
    left += overflow_.open.size();
    Damaged(left, "slices that were open when the trace ended");
  }

  /// Tracks of sequences that name none; uuids are random and have all bits.
  static constexpr std::uint64_t kOwnTrack = 0xA5A5'5A5A'0000'0000;

  const std::string_view bytes_;
  TraceSource* const source_;
  std::uint64_t packets_ = 0;
  std::uint64_t others_ = 0;
  std::map<std::uint32_t, std::int64_t> at_once_;  ///< Clocks at one moment.
  std::unordered_map<std::uint64_t, Sequence> sequences_;
  std::unordered_map<std::uint64_t, Track> tracks_;
  Track overflow_;
  std::size_t open_ = 0;
  std::size_t open_bytes_ = 0;  ///< Of their args.
  std::size_t interned_ = 0;
  std::int64_t scratch_ns_ = 0;
  ArgsWriter args_;
  StepMarks* collected_ = nullptr;  ///< Where steps alone are looked for.
  const StepMarks* steps_ = nullptr;
};

}  // namespace

bool LooksLikePerfetto(std::string_view bytes) {
  WireReader trace(bytes);
  if (!trace.Next() || !trace.Is(kPacketOfTrace, Wire::kBytes)) return false;
  // The first packets have a time, a sequence or a snapshot of the clocks.
  WireReader packet(trace.bytes());
  bool known = false;
  int fields = 0;
  while (packet.Next() && fields < 16) {
    ++fields;
    const std::uint32_t field = packet.field();
    if (field < 3) return false;  // ftrace's and the scheduler's come never first.
    known = known || packet.Is(packet_field::kTimestamp, Wire::kVarint) ||
            packet.Is(packet_field::kSequence, Wire::kVarint) ||
            packet.Is(packet_field::kClocks, Wire::kBytes) ||
            packet.Is(packet_field::kTrack, Wire::kBytes);
  }
  return known && (!packet.damaged() || trace.damaged());
}

Status ImportPerfetto(std::string_view bytes, TraceSource* source) {
  StepMarks steps;
  PerfettoImport(bytes, source).CollectSteps(&steps);
  steps.Finish();
  TELLTALE_RETURN_IF_ERROR(PerfettoImport(bytes, source).Run(&steps));
  steps.Emit(source);
  return {};
}

}  // namespace telltale::interchange
