// SPDX-License-Identifier: Apache-2.0
// What the threads of a training process wait for when nothing has come of it for long: read from
// /proc, so that it is neither stopped nor signalled, and needs no lock of its own. Lines of Python
// are not to be had so.
// Thread safety: none; the agent's thread.
#pragma once
#include <cstdint>
#include <string>

namespace telltale::agent {

/// When to look at a process that is quiet. Its own longest silence is the measure: one with long
/// steps is not looked at in each of them.
class QuietWatch {
 public:
  static constexpr std::int64_t kLeastNs = 10'000'000'000;
  static constexpr std::int64_t kMostNs = 600'000'000'000;

  /// Records of it were drained.
  void See(std::int64_t now_ns);
  /// True once where it has been quiet for four times its longest silence, within the bounds above;
  /// again each time the silence has doubled.
  bool Due(std::int64_t now_ns);
  /// Nanoseconds since the newest records; 0 where there were none.
  std::int64_t QuietNs(std::int64_t now_ns) const { return last_ns_ == 0 ? 0 : now_ns - last_ns_; }

 private:
  std::int64_t last_ns_ = 0;
  std::int64_t longest_ns_ = 0;  ///< Silence that ended.
  std::int64_t due_ns_ = 0;      ///< Silence at which to look next.
};

/// The data of the event process.stacks: quiet_ns and of at most 32 threads, the first of the
/// process first, tid, name, state as /proc says it, processor time, and where it may be read the
/// kernel function and the system call in which it waits. "" where there is no such process.
/// `proc`: "/proc", or a test's.
std::string ThreadsOf(const std::string& proc, std::int32_t pid, std::int64_t quiet_ns);

}  // namespace telltale::agent
