// SPDX-License-Identifier: Apache-2.0
// By how much the times of a window's recording are moved so that they are the run's, and how sure
// that is.
//
// Thread safety: none.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "interchange/trace_sink.h"
#include "interchange/windows/window_files.h"

namespace telltale::interchange {

struct WindowClock {
  /// steps: by borders of steps that both have; clock: by the clocks when the window began; anchor:
  /// by the agent's, which may be 50 ms behind a wall clock that is being set; none: left as it is.
  std::string_view by = "none";
  std::int64_t shift_ns = 0;
  std::int64_t uncertainty_ns = -1;  ///< -1: not known.
  std::uint64_t matched = 0;         ///< Borders of steps.
};

/// Steps as the recording marks them.
struct MarkedStep {
  std::int64_t step = 0, begin_ns = 0, end_ns = 0;
};

WindowClock FitWindowClock(const WindowRecording& recording, const std::vector<MarkedStep>& marks);

/// Takes the marks of steps alone: the first reading of a recording.
class MarkSink final : public TraceSink {
 public:
  explicit MarkSink(std::string_view mode) : mode_(mode) {}
  const std::vector<MarkedStep>& marks() const { return marks_; }

  void Slice(const format::SliceRow& row) override { static_cast<void>(row); }
  void Step(const format::StepRow& row) override;
  void Span(const format::SpanRow& row) override { static_cast<void>(row); }
  void Scalar(const format::ScalarRow& row) override { static_cast<void>(row); }
  void Event(const format::EventRow& row) override { static_cast<void>(row); }
  void Metric(std::int32_t, const format::MetricRow& row) override { static_cast<void>(row); }
  void Count(std::string_view, std::string_view, std::uint64_t, bool) override {}
  void Note(std::string) override {}
  store::SlicePlace Place(std::int32_t, std::uint64_t) override { return {}; }
  void Put(std::int32_t, const store::SlicePlace&, const store::SliceBlock&) override {}
  store::SlicePlace PlaceMetrics(std::int32_t, std::uint64_t) override { return {}; }
  void PutMetrics(std::int32_t, const store::SlicePlace&, const store::MetricBlock&) override {}
  bool ok() const override { return true; }

 private:
  const std::string_view mode_;
  std::vector<MarkedStep> marks_;
};

}  // namespace telltale::interchange
