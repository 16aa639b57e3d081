// SPDX-License-Identifier: Apache-2.0
// The timelines of SageMaker Debugger's profiler (framework/pevents) and of Horovod: lists of
// events of Chrome's form, whose "processes" are phases (smdebug) or tensors (Horovod).
// docs/formats/imports.md.
//
// Thread safety: none. Memory: a block of slices, and names.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "store/slice_segment.h"

namespace telltale::interchange {

struct TimelineStep {
  std::int64_t step = 0, begin_ns = 0, end_ns = 0, pid = 0;
  std::string_view mode;  ///< TRAIN, EVAL, PREDICT.
};
struct TimelineWait {
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// What came of a file beside its slices.
struct Timeline {
  std::vector<TimelineStep> steps;
  std::vector<TimelineWait> waits;  ///< Of the training's process for batches.
  std::uint64_t slices = 0;
  std::uint64_t damaged = 0;
  std::uint64_t unclosed = 0;  ///< Began and did not end.
  std::uint64_t left_out = 0;  ///< Counters and arrows.
};

struct TimelineOptions {
  std::int32_t rank = 0;       ///< The same for all files of a reader.
  std::string_view window;     ///< Owned elsewhere.
  bool communication = false;  ///< Horovod's or SageMaker's: all of it is between ranks.
};

/// The steps alone, of files that have an event a line.
std::vector<TimelineStep> ReadTimelineSteps(std::string_view text);
/// Reads files of one rank into common blocks: a segment each would cost more than their reading.
class TimelineReader {
 public:
  using Put = std::function<void(store::SliceBlock*)>;
  /// `put` gets a block that is full, and what is left at Flush; column step is -1 where the event
  /// does not say. The rows are taken out of the block after; its words and lanes stay.
  explicit TimelineReader(Put put);
  ~TimelineReader();
  TimelineReader(TimelineReader&&) noexcept;
  TimelineReader& operator=(TimelineReader&&) = delete;

  Timeline Read(std::string_view text, const TimelineOptions& options);
  void Flush();
  /// What Flush would put.
  std::uint64_t rows() const;
  /// Words and lanes that are held, which grow from file to file.
  std::size_t words() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// A file by itself.
Timeline ReadTimeline(std::string_view text, const TimelineOptions& options,
                      const std::function<void(store::SliceBlock*)>& put);

}  // namespace telltale::interchange
