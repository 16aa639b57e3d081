// SPDX-License-Identifier: Apache-2.0
#include "interchange/step_marks.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace telltale::interchange {

std::optional<std::int64_t> StepNumberOf(std::string_view name) {
  std::size_t digits = name.size();
  while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1])) != 0) --digits;
  if (digits == name.size() || name.size() - digits > 18) return std::nullopt;
  std::string_view word = name.substr(0, digits);
  while (!word.empty() && std::isalpha(static_cast<unsigned char>(word.back())) == 0) {
    word.remove_suffix(1);
  }
  if (digits - word.size() > 2) return std::nullopt;
  constexpr std::string_view kWords[] = {"step", "iteration", "iter"};
  const bool marks = std::any_of(std::begin(kWords), std::end(kWords), [&](std::string_view end) {
    if (word.size() < end.size() || word.size() > end.size() + 9) return false;
    return std::equal(end.begin(), end.end(), word.end() - static_cast<std::ptrdiff_t>(end.size()),
                      [](char a, char b) {
                        return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
                      });
  });
  if (!marks) return std::nullopt;
  std::int64_t number = 0;
  std::from_chars(name.data() + digits, name.data() + name.size(), number);
  return number;
}

void StepMarks::Add(std::int64_t step, std::int64_t begin_ns, std::int64_t end_ns, std::int64_t pid,
                    std::int64_t tid, std::string_view mode) {
  if (marks_.size() >= kMaxSteps || step < 0 || end_ns < begin_ns) return;
  if (marks_.empty() || marks_.back().mode != mode) {
    mode = modes_.Intern(mode);
  } else {
    mode = marks_.back().mode;
  }
  marks_.push_back({step, begin_ns, end_ns, pid, tid, mode});
}

void StepMarks::AddDataWait(std::int64_t tid, std::int64_t begin_ns, std::int64_t end_ns) {
  if (waits_.size() < kMaxSteps && end_ns > begin_ns) waits_.push_back({tid, begin_ns, end_ns});
}

void StepMarks::Finish() {
  std::unordered_map<Key, std::size_t, HashKey> first;
  std::vector<Mark> merged;
  for (const Mark& mark : marks_) {
    const auto [at, is_new] = first.try_emplace({mark.mode.data(), mark.step}, merged.size());
    if (is_new) {
      merged.push_back(mark);
    } else {
      Mark& same = merged[at->second];
      same.begin_ns = std::min(same.begin_ns, mark.begin_ns);
      same.end_ns = std::max(same.end_ns, mark.end_ns);
    }
  }
  marks_ = std::move(merged);
  std::sort(marks_.begin(), marks_.end(), [](const Mark& a, const Mark& b) {
    return std::tie(a.begin_ns, a.mode, a.step) < std::tie(b.begin_ns, b.mode, b.step);
  });
  std::sort(waits_.begin(), waits_.end(), [](const Wait& a, const Wait& b) {
    return std::tie(a.begin_ns, a.end_ns) < std::tie(b.begin_ns, b.end_ns);
  });
}

std::int64_t StepMarks::StepAt(std::int64_t time_ns) const {
  const auto after =
      std::upper_bound(marks_.begin(), marks_.end(), time_ns,
                       [](std::int64_t time, const Mark& mark) { return time < mark.begin_ns; });
  if (after == marks_.begin()) return -1;
  const Mark& mark = *std::prev(after);
  return time_ns < mark.end_ns || time_ns == mark.begin_ns ? mark.step : -1;
}

void StepMarks::Emit(TraceSource* source) const {
  std::size_t wait = 0;
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    const Mark& mark = marks_[i];
    std::int64_t end_ns = mark.end_ns;
    if (i + 1 < marks_.size()) {
      const Mark& next = marks_[i + 1];
      if (next.mode == mark.mode && next.step == mark.step + 1) end_ns = next.begin_ns;
    }
    format::StepRow row;
    row.time_ns = mark.begin_ns;
    row.duration_ns = std::max<std::int64_t>(0, end_ns - mark.begin_ns);
    row.step = mark.step;
    row.mode = mark.mode;
    row.pid = static_cast<std::int32_t>(mark.pid >= 0 && mark.pid <= INT32_MAX ? mark.pid : 0);
    row.attempt = 1;
    row.micro_steps = 1;
    // Waits of its thread that overlap count once.
    std::int64_t covered_ns = mark.begin_ns;
    while (wait < waits_.size() && waits_[wait].begin_ns < mark.begin_ns) ++wait;
    for (std::size_t w = wait; w < waits_.size() && waits_[w].begin_ns < end_ns; ++w) {
      if (waits_[w].tid != mark.tid) continue;
      const std::int64_t from_ns = std::max(covered_ns, waits_[w].begin_ns);
      const std::int64_t to_ns = std::min(end_ns, waits_[w].end_ns);
      if (to_ns <= from_ns) continue;
      row.data_wait_ns += to_ns - from_ns;
      covered_ns = to_ns;
    }
    row.other_ns = row.duration_ns - row.data_wait_ns;
    source->Step(row);
  }
}

}  // namespace telltale::interchange
