// SPDX-License-Identifier: Apache-2.0
#include "interchange/windows/window_sink.h"

#include <fmt/core.h>

#include <utility>

#include "base/crc32c.h"

namespace telltale::interchange {
namespace {

/// Ids of one session lie below.
constexpr int kSessionIdBits = 40;
constexpr std::uint32_t kMostSessions = (1U << 22) - 1;

}  // namespace

WindowSink::WindowSink(TraceSink* sink, const WindowRecording& recording)
    : sink_(sink),
      recording_(recording),
      first_id_(static_cast<std::int64_t>(Crc32c(recording.stem.data(), recording.stem.size()) &
                                          kMostSessions)
                << kSessionIdBits) {}

void WindowSink::SetPhase(std::string_view phase, std::string_view timer) {
  phase_ = fmt::format(R"("phase":"{}","timer":"{}",)", phase, timer);
  lane_ = fmt::format("cProfile ({})", timer);
}

std::int64_t WindowSink::Moved(std::int64_t time_ns) const {
  std::int64_t moved = 0;
  // What overflows is damaged, and stays as wrong as it is.
  return __builtin_add_overflow(time_ns, shift_ns_, &moved) ? time_ns : moved;
}

std::int64_t WindowSink::IdOf(std::int64_t id) const {
  return id <= 0 || id >= (1LL << kSessionIdBits) ? id : first_id_ + id;
}

void WindowSink::Slice(const format::SliceRow& row) {
  format::SliceRow mine = row;
  mine.time_ns = Moved(row.time_ns);
  mine.rank = recording_.rank;
  mine.attempt = recording_.attempt;
  mine.window = recording_.window;
  mine.correlation = IdOf(row.correlation);
  mine.external = IdOf(row.external);
  mine.flow = IdOf(row.flow);
  if (mine.step < 0) mine.step = step_;
  std::string args;
  if (!phase_.empty()) {
    mine.lane = lane_;
    mine.pid = mine.tid = recording_.pid;
    if (row.args.starts_with("{\"")) {
      args = fmt::format("{{{}{}", phase_, row.args.substr(1));
      mine.args = args;
    }
  }
  ++slices_;
  if (__builtin_add_overflow(mine.time_ns, mine.duration_ns, &end_ns_)) end_ns_ = mine.time_ns;
  sink_->Slice(mine);
}

void WindowSink::Event(const format::EventRow& row) {
  // What the adapters say the run knows from themselves.
  if (row.kind != "trace.source") return;
  format::EventRow mine = row;
  mine.time_ns = Moved(row.time_ns);
  mine.rank = recording_.rank;
  mine.pid = recording_.pid;
  mine.attempt = recording_.attempt;
  sink_->Event(mine);
}

void WindowSink::Metric(std::int32_t, const format::MetricRow& row) {
  format::MetricRow mine = row;
  mine.time_ns = Moved(row.time_ns);
  mine.node = recording_.node;
  sink_->Metric(recording_.rank, mine);
}

void WindowSink::Count(std::string_view name, std::string_view subject, std::uint64_t n,
                       bool loss) {
  if (loss) losses_ += n;
  sink_->Count(name, subject, n, loss);
}

store::SlicePlace WindowSink::Place(std::int32_t, std::uint64_t rows) {
  slices_ += rows;
  return sink_->Place(recording_.rank, rows);
}

void WindowSink::Put(std::int32_t, const store::SlicePlace& place, const store::SliceBlock& block) {
  store::SliceBlock mine = block;
  for (std::size_t i = 0; i < mine.rows(); ++i) {
    mine.time_ns[i] = Moved(mine.time_ns[i]);
    mine.correlation[i] = IdOf(mine.correlation[i]);
    mine.external[i] = IdOf(mine.external[i]);
    mine.flow[i] = IdOf(mine.flow[i]);
    if (mine.step[i] < 0) mine.step[i] = step_;
  }
  for (store::SliceLane& lane : mine.lanes) lane.rank = recording_.rank;
  mine.windows = {recording_.window};
  mine.window.assign(mine.rows(), 0);
  mine.attempt = recording_.attempt;
  sink_->Put(recording_.rank, place, mine);
}

store::SlicePlace WindowSink::PlaceMetrics(std::int32_t, std::uint64_t rows) {
  return sink_->PlaceMetrics(recording_.rank, rows);
}

void WindowSink::PutMetrics(std::int32_t, const store::SlicePlace& place,
                            const store::MetricBlock& block) {
  store::MetricBlock mine = block;
  for (std::int64_t& time_ns : mine.time_ns) time_ns = Moved(time_ns);
  sink_->PutMetrics(recording_.rank, place, mine);
}

}  // namespace telltale::interchange
