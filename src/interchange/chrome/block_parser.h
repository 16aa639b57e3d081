// SPDX-License-Identifier: Apache-2.0
// The events of one block, by column, and what the run is made of besides: names, step marks,
// counters, intervals of the phases, events that need their partners. simdjson stays inside the .cc
// file.
//
// Thread safety: one parser a thread.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interchange/chrome/event_blocks.h"
#include "store/slice_segment.h"

namespace telltale::interchange {

/// A row of the trace as its events name it; texts without quotes.
struct ChromeTrack {
  std::string pid, tid;
  std::int64_t pid_number = 0;  ///< 0 where the text is no number.
  std::int64_t tid_number = 0;
};

struct ChromeInterval {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  friend auto operator<=>(const ChromeInterval&, const ChromeInterval&) = default;
};

/// What intervals are kept for, of the host's rows alone.
enum class ChromePhase : std::uint8_t { kOperator, kData, kOptimizer, kBackward, kComm, kAside };
inline constexpr std::size_t kChromePhases = 6;

struct ChromeStepMark {
  std::int64_t number = 0;
  std::int64_t begin_ns = 0;
  std::int64_t duration_ns = 0;
  std::uint32_t track = 0;
};

/// A name that a metadata event gives.
struct ChromeNaming {
  std::uint32_t track = 0;
  bool process = false;  ///< Of the process, not of the row.
  std::string name;
};

struct ChromeCounter {
  std::int64_t time_ns = 0;
  std::uint32_t track = 0;
  std::string name;
  double value = 0;
};

/// A begin, end or asynchronous event: a slice once its partner is found.
struct ChromeLoose {
  char phase = 0;
  std::int64_t time_ns = 0;
  std::uint32_t track = 0;
  std::string name, kind, id, args;
};

/// One end of a flow whose slice was not found in the block.
struct ChromeFlowEnd {
  std::int64_t id = 0;
  std::uint32_t track = 0;
  std::int64_t time_ns = 0;
};

/// What could not be taken as it is.
enum class ChromeCount : std::uint8_t {
  kDamagedEvents,     ///< No JSON, no object, or without time.
  kUnsupported,       ///< Of a kind that has no place in a run.
  kNegativeDuration,  ///< Placed as instants.
  kNotFinite,         ///< NaN, infinity and other words among the arguments, kept as texts.
  kDuplicateKeys,     ///< The last one counts.
  kReplacedBytes,     ///< No UTF-8, control characters, backslashes that escape nothing.
  kUnboundFlows,      ///< Their slice is not there.
  kCutArguments,      ///< Above 1 MiB, nested too deep, or no JSON.
};
inline constexpr std::size_t kChromeCounts = 8;

struct ChromeBlock {
  std::uint64_t number = 0;
  std::uint64_t events = 0;
  /// Lanes without names and ranks; no steps and windows. Flows, bytes and flops are there up to
  /// the last row that has some: FillColumns.
  store::SliceBlock slices;
  std::vector<std::uint32_t> lane_track;  ///< Of each of slices.lanes.
  std::deque<std::string> words;          ///< Own the texts of `slices`.
  std::vector<ChromeTrack> tracks;
  std::vector<ChromeStepMark> marks;
  std::vector<ChromeNaming> namings;
  std::vector<ChromeCounter> counters;
  std::vector<ChromeLoose> loose;
  std::vector<ChromeFlowEnd> flows;
  /// By phase: track and interval; what lies in one that comes before is left out.
  std::array<std::vector<std::pair<std::uint32_t, ChromeInterval>>, kChromePhases> intervals;
  /// Kernels of collectives: begin, end, and the code of the name.
  std::vector<std::pair<ChromeInterval, std::uint32_t>> collectives;
  std::array<std::uint64_t, kChromeCounts> counts{};
  std::int64_t own_loader_track = -1;  ///< Where a DataLoader without workers was seen last.
  std::int64_t first_ns = INT64_MAX;
  std::int64_t last_ns = INT64_MIN;

  std::size_t bytes() const;
};

/// Makes all columns of one length. Not before the block is written: until all of a trace is known
/// its blocks are held, and memory that is touched for the first time is most of what the kernel
/// has to do for an import.
void FillColumns(store::SliceBlock* slices);

class BlockParser {
 public:
  BlockParser();
  ~BlockParser();
  /// Reads the block; what was in it may be changed. Throws std::bad_alloc alone.
  std::unique_ptr<ChromeBlock> Parse(EventBlock* block, std::string_view window);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// What the text around the events says of the trace.
struct ChromeHeader {
  std::int64_t base_ns = 0;
  std::int64_t rank = -1;
  std::int64_t world_size = 0;
  std::string backend;
  std::string devices;  ///< JSON of deviceProperties; empty where not said.
  bool kineto = false;
  bool damaged = false;  ///< It is no JSON, or its clock is none.
  std::uint64_t duplicate_keys = 0;
};
ChromeHeader ReadChromeHeader(std::string_view json);

/// Binds the ends of flows that begin or end at slices of `block`; returns those left.
std::vector<ChromeFlowEnd> BindFlows(const std::vector<ChromeFlowEnd>& flows,
                                     const std::vector<ChromeTrack>& tracks, ChromeBlock* block);

}  // namespace telltale::interchange
