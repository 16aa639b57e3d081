// SPDX-License-Identifier: Apache-2.0
// What an importer reads of a window's recording, as rows of the run: its rank and attempt, its
// clock, its window's name. Steps, spans and scalars the run has itself: those are left out.
//
// Thread safety: as TraceSink.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "interchange/trace_sink.h"
#include "interchange/windows/window_files.h"

namespace telltale::interchange {

class WindowSink final : public TraceSink {
 public:
  WindowSink(TraceSink* sink, const WindowRecording& recording);

  void SetShift(std::int64_t shift_ns) { shift_ns_ = shift_ns; }
  /// Of slices that do not say it; -1: they are of none.
  void SetStep(std::int64_t step) { step_ = step; }
  /// Of cProfile's functions: goes into their lane and args.
  void SetPhase(std::string_view phase, std::string_view timer);
  std::uint64_t slices() const { return slices_; }
  /// Where the newest slice that came by itself ends.
  std::int64_t end_ns() const { return end_ns_; }
  std::uint64_t losses() const { return losses_; }

  void Slice(const format::SliceRow& row) override;
  void Step(const format::StepRow& row) override { static_cast<void>(row); }
  void Span(const format::SpanRow& row) override { static_cast<void>(row); }
  void Scalar(const format::ScalarRow& row) override { static_cast<void>(row); }
  void Event(const format::EventRow& row) override;
  void Metric(std::int32_t rank, const format::MetricRow& row) override;
  void Count(std::string_view name, std::string_view subject, std::uint64_t n, bool loss) override;
  void Note(std::string text) override { sink_->Note(std::move(text)); }
  store::SlicePlace Place(std::int32_t rank, std::uint64_t rows) override;
  void Put(std::int32_t rank, const store::SlicePlace& place,
           const store::SliceBlock& block) override;
  store::SlicePlace PlaceMetrics(std::int32_t rank, std::uint64_t rows) override;
  void PutMetrics(std::int32_t rank, const store::SlicePlace& place,
                  const store::MetricBlock& block) override;
  bool ok() const override { return sink_->ok(); }

 private:
  std::int64_t Moved(std::int64_t time_ns) const;
  /// A session counts from a small number again: each has a range of its own.
  std::int64_t IdOf(std::int64_t id) const;

  TraceSink* const sink_;
  const WindowRecording& recording_;
  const std::int64_t first_id_;
  std::int64_t shift_ns_ = 0;
  std::int64_t step_ = -1;
  std::string phase_, lane_;
  std::int64_t end_ns_ = 0;
  std::uint64_t slices_ = 0;
  std::uint64_t losses_ = 0;
};

}  // namespace telltale::interchange
