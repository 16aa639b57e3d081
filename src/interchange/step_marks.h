// SPDX-License-Identifier: Apache-2.0
// Which intervals of a trace are its steps: for the column step of slices, and as rows of steps.
//
// Thread safety: none. Memory: some 100 bytes a step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/string_pool.h"
#include "interchange/trace_source.h"

namespace telltale::interchange {

/// 12 of "ProfilerStep#12", "step 12", "Iteration_12", "train_step:12"; nothing of other names.
std::optional<std::int64_t> StepNumberOf(std::string_view name);

class StepMarks {
 public:
  /// A limit, not a size: beyond it marks are not steps any more.
  static constexpr std::size_t kMaxSteps = 4U << 20;

  StepMarks() = default;
  StepMarks(StepMarks&&) = default;  // Marks point into the pool: no copies.
  StepMarks& operator=(StepMarks&&) = default;

  void Add(std::int64_t step, std::int64_t begin_ns, std::int64_t end_ns, std::int64_t pid = 0,
           std::int64_t tid = 0, std::string_view mode = "TRAIN");
  /// Time in which the thread `tid` waited for data.
  void AddDataWait(std::int64_t tid, std::int64_t begin_ns, std::int64_t end_ns);

  /// Sorts; a step that was marked twice is one, from the first begin to the last end. Call it
  /// before the two below.
  void Finish();
  bool empty() const { return marks_.empty(); }
  /// The step in which `time_ns` lies, -1 where in none.
  std::int64_t StepAt(std::int64_t time_ns) const;
  /// A step lasts until the next begins, where that has the next number and no other mode's step
  /// lies between.
  void Emit(TraceSource* source) const;

 private:
  struct Mark {
    std::int64_t step, begin_ns, end_ns, pid, tid;
    std::string_view mode;  ///< In the pool: the same text is at the same place.
  };
  struct Key {
    const char* mode;
    std::int64_t step;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct HashKey {
    std::size_t operator()(const Key& key) const {
      return std::hash<std::int64_t>()(key.step) ^ (std::hash<const char*>()(key.mode) << 1U);
    }
  };
  struct Wait {
    std::int64_t tid, begin_ns, end_ns;
  };
  StringPool modes_;
  std::vector<Mark> marks_;
  std::vector<Wait> waits_;
};

}  // namespace telltale::interchange
