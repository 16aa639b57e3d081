// SPDX-License-Identifier: Apache-2.0
#include "stacks/sampled_slices.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "query/slice_order.h"

namespace telltale::stacks {
namespace {

constexpr std::string_view kThreadKind = "thread";
constexpr std::string_view kPhaseKind = "phase";
constexpr std::string_view kFrameKind = "py-spy";
/// Threads that Telltale has in the training.
constexpr std::string_view kOurs = "telltale";
/// A thread's own moment and that of its round may differ so far.
constexpr std::int64_t kSameRoundNs = 2'000'000;

struct Place {
  std::int32_t rank = 0;
  std::string label;
};

/// Whose rank, and what its thread is called: threads of workers are merged under one name.
Place PlaceOf(const ThreadTimeline& thread, const Processes& processes) {
  const std::string_view name = thread.main() || thread.name.empty()
                                    ? std::string_view(thread.main() ? "main thread" : "thread")
                                    : std::string_view(thread.name);
  if (const auto own = processes.trainers.find(thread.pid); own != processes.trainers.end()) {
    return {own->second, std::string(name)};
  }
  for (auto above = thread.ancestors.rbegin(); above != thread.ancestors.rend(); ++above) {
    if (const auto found = processes.trainers.find(*above); found != processes.trainers.end()) {
      return {found->second, fmt::format("worker: {}", name)};
    }
  }
  return {0, fmt::format("other process: {}", name)};
}

class ThreadSlices {
 public:
  ThreadSlices(format::SliceRow row, std::vector<format::SliceRow>* out, const SliceSink& sink)
      : row_(row), out_(out), sink_(sink) {}

  /// Where the thread stands from `at_ns` on, by interned texts.
  void Stand(std::int64_t at_ns, const Moment& moment, const std::vector<std::string_view>& path) {
    std::size_t same = 0;
    while (same < open_.size() && same < path.size() &&
           (*out_)[open_[same]].name.data() == path[same].data()) {
      ++same;
      // The thread's own slice goes on through all steps.
      if (same == 1 && moment.step != step_) break;
    }
    Close(at_ns, same);
    if (out_->size() >= kSlicesAtOnce + 2 * open_.size()) GiveClosed();
    step_ = moment.step;
    for (std::size_t i = same; i < path.size(); ++i) {
      format::SliceRow row = row_;
      row.time_ns = at_ns;
      row.name = path[i];
      row.category = i < 2 ? "other" : "python";
      row.kind = i == 0 ? kThreadKind : i == 1 ? kPhaseKind : kFrameKind;
      row.step = i == 0 ? -1 : moment.step;
      open_.push_back(out_->size());
      out_->push_back(row);
    }
  }
  void Close(std::int64_t at_ns, std::size_t keep = 0) {
    for (; open_.size() > keep; open_.pop_back()) {
      format::SliceRow& row = (*out_)[open_.back()];
      row.duration_ns = at_ns - row.time_ns;
      row.ord_ns = at_ns;
    }
  }

 private:
  void GiveClosed() {
    std::vector<format::SliceRow> open;
    for (const std::size_t at : open_) open.push_back((*out_)[at]);
    std::size_t kept = 0;
    auto next = open_.begin();
    for (std::size_t i = 0; i < out_->size(); ++i) {
      if (next != open_.end() && *next == i) {
        ++next;
      } else {
        (*out_)[kept++] = (*out_)[i];
      }
    }
    out_->resize(kept);
    sink_(out_);
    *out_ = std::move(open);
    for (std::size_t i = 0; i < open_.size(); ++i) open_[i] = i;
  }

  const format::SliceRow row_;
  std::vector<format::SliceRow>* const out_;
  const SliceSink& sink_;
  std::vector<std::size_t> open_;  ///< Rows, outermost first.
  std::int64_t step_ = -1;
};

}  // namespace

std::uint64_t MakeSlices(const PySpyTrace& trace, const Piece& piece, const Processes& processes,
                         PhaseClock* clock, StringPool* pool, const SliceSink& sink) {
  std::vector<format::SliceRow> rows;
  std::uint64_t samples = 0;
  std::vector<std::string_view> names;
  names.reserve(trace.names.size());
  for (const std::string& name : trace.names) {
    names.push_back(pool->Intern(name.empty() ? std::string_view("?") : std::string_view(name)));
  }
  std::vector<std::string_view> path;
  for (const ThreadTimeline& thread : trace.threads) {
    if (thread.name.starts_with(kOurs)) continue;
    const Place place = PlaceOf(thread, processes);
    std::int64_t end_ns = piece.start_ns + trace.end_ns;
    const auto ended = processes.ended_ns.find(thread.pid);
    // An older process may have had the same pid.
    if (ended != processes.ended_ns.end() &&
        ended->second > piece.start_ns + thread.seen.front().at_ns) {
      end_ns = std::min(end_ns, ended->second);
    }
    format::SliceRow row;
    row.rank = place.rank;
    row.pid = thread.pid;
    row.tid = thread.tid;
    row.lane = pool->Intern(fmt::format("{} ({})", place.label, thread.tid));
    row.device = -1;
    row.stream = -1;
    row.attempt = piece.attempt;
    row.window = query::kSampledStacks;
    const std::string_view label = pool->Intern(place.label);
    ThreadSlices slices(row, &rows, sink);
    const bool trains = thread.main() && processes.trainers.contains(thread.pid);
    for (std::size_t i = 0; i < thread.seen.size(); ++i) {
      const std::int64_t begin = piece.start_ns + thread.seen[i].at_ns;
      const std::int64_t until = i + 1 < thread.seen.size()
                                     ? std::min(end_ns, piece.start_ns + thread.seen[i + 1].at_ns)
                                     : end_ns;
      std::string_view phase;
      const auto look = [&](std::int64_t at, bool sampled) {
        const Moment moment = clock->At(place.rank, at);
        if (!sampled && trains && moment.phase != phase) return;
        phase = moment.phase;
        samples += sampled;
        path.assign({label, pool->Intern(moment.phase)});
        for (const std::uint32_t frame : thread.seen[i].frames) path.push_back(names[frame]);
        slices.Stand(at, moment, path);
      };
      if (begin >= until) continue;
      look(begin, true);
      // Of a thread in the background one that stands still is one slice: else each step of the
      // training would make it anew.
      if (!thread.main()) continue;
      auto round = std::upper_bound(trace.rounds.begin(), trace.rounds.end(),
                                    thread.seen[i].at_ns + kSameRoundNs);
      std::int64_t at = begin;
      while (at < until) {
        const std::int64_t next =
            round == trace.rounds.end() ? until : std::min(until, piece.start_ns + *round);
        // Nothing had changed when nobody tells of a look; of what trains it is the phase that may
        // not be guessed: that it stood there does not say that it did so in all phases.
        for (at += piece.period_ns; at < next; at += piece.period_ns) look(at, false);
        at = next;
        if (at >= until) break;
        look(at, true);
        ++round;
      }
    }
    slices.Close(end_ns);
  }
  if (!rows.empty()) sink(&rows);
  return samples;
}

}  // namespace telltale::stacks
