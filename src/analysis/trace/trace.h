// SPDX-License-Identifier: Apache-2.0
// The slices of one rank by column, as every analysis of a trace reads them: sorted by begin, at
// equal begins the longer first (so that what encloses comes before what it holds), then as
// recorded. Names, lanes and kinds are small integers.
//
// Memory: 58 bytes a slice, and what Needs asks for besides; texts once each. Thread safety: as a
// standard container.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "analysis/trace/intervals.h"
#include "format/records.gen.h"

namespace telltale::analysis::trace {

/// The words of the column `category` (docs/formats/records.md).
enum class Category : std::uint8_t {
  kOp,
  kPython,
  kModule,
  kRuntime,
  kKernel,
  kMemcpy,
  kMemset,
  kSync,
  kComm,
  kAnnotation,
  kDeviceAnnotation,
  kStep,
  kData,
  kCompile,
  kGc,
  kMemory,
  kIo,
  kOther,
};
inline constexpr std::size_t kCategories = static_cast<std::size_t>(Category::kOther) + 1;
std::string_view Name(Category category);
/// kOther for a word that is none of them.
Category CategoryOf(std::string_view word);

/// Work of a device: kernel, copy, set.
constexpr bool IsDeviceWork(Category c) {
  return c == Category::kKernel || c == Category::kMemcpy || c == Category::kMemset;
}

inline constexpr std::uint32_t kNoRow = UINT32_MAX;

/// A row of the timeline: a thread of the host or a stream of a device.
struct Lane {
  std::int64_t pid = 0;
  std::int64_t tid = 0;
  std::int64_t stream = -1;
  std::int32_t device = -1;
  std::string name;
};

/// What an analysis reads besides times, names, lanes and links.
struct Needs {
  bool bytes = false;  ///< Column `bytes`.
  bool flops = false;  ///< Column `flops`, and estimates from shapes where it is 0.
  bool facts = false;  ///< Of kernels and copies, from `args`: blocks per SM, occupancy, bandwidth.
  bool events = false;  ///< Of `sync` slices, from `args`: the event that they wait for.

  bool args() const { return flops || facts || events; }
  Needs operator|(const Needs& other) const {
    return {bytes || other.bytes, flops || other.flops, facts || other.facts,
            events || other.events};
  }
};

/// A `sync` slice that waits for an event: correlation of the call that recorded it, and on which
/// stream.
struct EventWait {
  std::uint32_t row = kNoRow;
  std::int64_t record_correlation = 0;
  std::int64_t record_stream = -1;
};

struct Trace {
  std::int32_t rank = 0;

  std::vector<std::int64_t> begin_ns;
  std::vector<std::int64_t> duration_ns;  ///< Never negative.
  std::vector<std::uint32_t> name;        ///< Into names.
  std::vector<std::uint32_t> lane;        ///< Into lanes.
  std::vector<Category> category;
  std::vector<std::uint8_t> kind;         ///< Into kinds.
  std::vector<std::int64_t> correlation;  ///< 0 where none.
  std::vector<std::int64_t> external;     ///< 0 where none.
  std::vector<std::uint32_t> launch;      ///< Of device rows: the runtime row that launched it.

  // As asked for, else empty.
  std::vector<std::int64_t> bytes;
  std::vector<double> flops;         ///< As stated, else by shapes where they tell; else 0.
  std::vector<double> moved_bytes;   ///< At least, by shapes; 0 where they do not tell.
  std::vector<float> blocks_per_sm;  ///< NaN where the source does not say.
  std::vector<float> occupancy;      ///< Percent; NaN where the source does not say.
  std::vector<float> gbps;           ///< GB/s (10^9) of a copy or set; NaN where not said.
  std::vector<EventWait> event_waits;

  std::vector<std::string> names;
  std::vector<Lane> lanes;
  std::vector<std::string> kinds;

  /// Where it is of several recordings (windows of detail, traces of several times), when each was
  /// made, merged: what lies between them nobody has seen. Else empty.
  Spans recordings;
  /// Which of them holds what begins at `time_ns`; 0 where there is one.
  std::size_t RecordingAt(std::int64_t time_ns) const;
  std::size_t recording_count() const { return recordings.empty() ? 1 : recordings.size(); }

  std::size_t size() const { return begin_ns.size(); }
  bool empty() const { return begin_ns.empty(); }
  std::int64_t end_ns(std::size_t row) const { return begin_ns[row] + duration_ns[row]; }
  const std::string& NameOf(std::size_t row) const { return names[name[row]]; }
  const std::string& KindOf(std::size_t row) const { return kinds[kind[row]]; }
  const Lane& LaneOf(std::size_t row) const { return lanes[lane[row]]; }
  bool OnDevice(std::size_t row) const { return IsDeviceWork(category[row]); }
};

/// Takes rows in any order; Finish() sorts them and links what was launched with its launch.
/// A profiler's frame around everything (kind "Trace") and its marks without a kind are no slices
/// of the training and left out.
class TraceBuilder {
 public:
  explicit TraceBuilder(std::int32_t rank, Needs needs = {});

  /// One slice: what the column-wise way below does for many.
  void Add(const format::SliceRow& row);

  // Column-wise: texts to ids first, then the rows by them.
  std::uint32_t NameId(std::string_view text);
  std::uint32_t LaneId(std::int64_t pid, std::int64_t tid, std::int32_t device, std::int64_t stream,
                       std::string_view name);
  std::uint8_t KindId(std::string_view text);
  struct Row {
    std::int64_t begin_ns = 0;
    std::int64_t duration_ns = 0;
    std::uint32_t name = 0;
    std::uint32_t lane = 0;
    Category category = Category::kOther;
    std::uint8_t kind = 0;
    std::int64_t correlation = 0;
    std::int64_t external = 0;
    std::int64_t bytes = 0;
    double flops = 0;
    std::string_view args;
  };
  void Add(const Row& row);
  void Reserve(std::size_t rows);
  /// A recording of its own went on for so long.
  void AddRecording(Span when);
  bool IsMark(Category category, std::uint8_t kind) const;

  Trace Finish();

 private:
  using Ids = std::unordered_map<std::string_view, std::uint32_t>;
  struct LaneKey {
    std::int64_t pid, tid, stream;
    std::int32_t device;
    bool operator==(const LaneKey&) const = default;
  };
  struct LaneHash {
    std::size_t operator()(const LaneKey& key) const;
  };

  void Sort();
  void Link();

  Needs needs_;
  Trace trace_;
  std::unordered_map<std::string, std::uint32_t> name_ids_;
  std::unordered_map<std::string, std::uint8_t> kind_ids_;
  std::unordered_map<LaneKey, std::uint32_t, LaneHash> lane_ids_;
  LaneKey last_key_{};
  std::uint32_t last_lane_ = kNoRow;
};

/// The number after `"key":` in a JSON object, NaN where it is not there or no number. A look for
/// the words alone: a key of that name in an object within the object counts too.
double NumberIn(std::string_view json, std::string_view key);

}  // namespace telltale::analysis::trace
