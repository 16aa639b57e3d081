// SPDX-License-Identifier: Apache-2.0
// What one trace is known to hold once all of it was read: names of its rows, its step marks and
// the steps they make, how its clock stands to those of other ranks. docs/formats/chrome-trace.md.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/records.gen.h"
#include "interchange/chrome/block_parser.h"

namespace telltale::interchange {

class TraceFacts {
 public:
  /// Takes what is needed of the block, in the order of blocks.
  void Take(ChromeBlock* block);

  /// Name of the row, empty where none was given.
  std::string_view ThreadName(const ChromeTrack& track) const;
  std::string_view ProcessName(const ChromeTrack& track) const;

  /// To be called once, when everything was taken: before it no step is known.
  void Settle();
  /// Before a clock is fitted by them; after Settle.
  void SettleCollectives();

  /// Step that is open at this time of the trace, -1 where none.
  std::int64_t StepAt(std::int64_t time_ns) const;
  /// The same of many times, which mostly follow each other: `near` is kept from call to call.
  std::int64_t StepAt(std::int64_t time_ns, std::size_t* near) const;
  /// Rows with the trace's own times; mode TRAIN. After Settle; may run beside StepAt and the
  /// names.
  std::vector<format::StepRow> Steps();

  /// A collective's kernel: which of its step (-1: of the trace), and when it ended.
  struct Collective {
    std::int64_t step = -1;
    std::int64_t end_ns = 0;
    std::string name;
  };
  const std::vector<Collective>& collectives() const { return collectives_; }

  /// The process whose DataLoader has no workers; -1: none was seen.
  std::int64_t own_loader_pid() const { return own_loader_pid_; }

  std::int64_t first_ns() const { return first_ns_; }
  std::int64_t last_ns() const { return last_ns_; }
  std::uint64_t events() const { return events_; }

 private:
  struct Mark {
    ChromeStepMark mark;
    std::int64_t end_ns = 0;
  };
  using Key = std::pair<std::string, std::string>;  ///< pid and tid.
  struct Of {
    std::string pid;
    std::int64_t pid_number = 0;
    std::array<std::vector<ChromeInterval>, kChromePhases> intervals;
    std::vector<Mark> marks;
  };

  format::StepRow StepOf(const Of& track, const Mark& mark,
                         const std::vector<ChromeInterval>& backward) const;

  std::map<Key, Of> tracks_;
  std::map<Key, std::string> thread_names_;
  std::map<std::string, std::string> process_names_;
  std::vector<Mark> steps_;  ///< Of the row that has most, by begin.
  std::vector<Collective> collectives_;
  std::int64_t own_loader_pid_ = -1;
  std::int64_t first_ns_ = INT64_MAX;
  std::int64_t last_ns_ = INT64_MIN;
  std::uint64_t events_ = 0;
};

/// How the clock of a trace stands to that of the first.
struct ClockFit {
  std::int64_t shift_ns = 0;  ///< Added to its times.
  /// Of its times, as far as the ends of collectives tell; -1: nothing to tell it by.
  std::int64_t uncertainty_ns = -1;
  std::uint64_t matched = 0;
};
/// Collectives end on all ranks at once. `a` is the one that stays; base times are those of the
/// files.
ClockFit FitClock(const TraceFacts& a, std::int64_t a_base_ns, const TraceFacts& b,
                  std::int64_t b_base_ns);

}  // namespace telltale::interchange
