// SPDX-License-Identifier: Apache-2.0
// One file of an import on its way into the sink: whose its rows are, and what of it was damaged or
// left out, by cause.
//
// Thread safety: none. Memory: a few texts a cause, at most kMaxCauses of them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "interchange/trace_sink.h"

namespace telltale::interchange {

class TraceSource {
 public:
  /// `file`: its name, the window of its slices.
  TraceSource(TraceSink* sink, std::string file, std::int32_t rank)
      : sink_(sink), file_(std::move(file)), rank_(rank) {}
  TraceSource(const TraceSource&) = delete;
  TraceSource& operator=(const TraceSource&) = delete;
  ~TraceSource() { Flush(); }

  void Slice(format::SliceRow row) {
    row.rank = rank_;
    row.window = file_;
    sink_->Slice(row);
    ++slices_;
  }
  void Step(format::StepRow row) {
    row.rank = rank_;
    sink_->Step(row);
  }
  void Metric(format::MetricRow row) {
    if (row.node.empty()) row.node = host_;
    sink_->Metric(rank_, row);
  }
  void Note(std::string text) { sink_->Note(file_ + ": " + std::move(text)); }
  /// The machine that was recorded; the first one counts.
  void Host(std::string_view name) {
    if (host_.empty()) host_ = std::string(name.substr(0, 256));
  }

  /// Could not be read. `what`: "an event is cut".
  void Damaged(std::uint64_t n, std::string_view what) { Add(&damaged_, n, what); }
  /// Is not for a run: "sums over many events".
  void LeftOut(std::uint64_t n, std::string_view what) { Add(&left_out_, n, what); }
  /// Was not in the file, as it says itself.
  void Lost(std::uint64_t n, std::string_view what) { Add(&lost_, n, what); }

  /// Tells the sink of what was counted since.
  void Flush();

  TraceSink* sink() const { return sink_; }
  std::int32_t rank() const { return rank_; }
  std::uint64_t slices() const { return slices_; }

 private:
  using Causes = std::map<std::string, std::uint64_t, std::less<>>;
  static void Add(Causes* causes, std::uint64_t n, std::string_view what);
  void Tell(Causes* causes, std::string_view counter, std::string_view word, bool loss);

  TraceSink* const sink_;
  const std::string file_;
  const std::int32_t rank_;
  std::string host_;
  std::uint64_t slices_ = 0;
  Causes damaged_;
  Causes left_out_;
  Causes lost_;
};

}  // namespace telltale::interchange
