// SPDX-License-Identifier: Apache-2.0
// Work that a file system may never let end, done in a child. A process that waits in the kernel
// for a disk (a frozen file system, a hard NFS mount) cannot be waited for, and SIGKILL does not
// end it; nor does a process end one of whose threads waits so. A child can be left behind: it
// holds nothing of ours, no stream of the user's among it, so nobody waits for it.
//
// Thread safety: none.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace telltale::run {

class Errand {
 public:
  /// What the child does, and its exit code. `link`: its end of a pair of sockets that keep the
  /// borders of messages; it ends when we are gone.
  using Work = std::function<int(int link)>;
  /// Forks: the child knows all that we know. It has a session of its own, /dev/null for its three
  /// streams, of other descriptors `link` and those of `keep` alone, no signal blocked; it ignores
  /// those that somebody sends to all of ours, as its end is that of its link. `name`: of the
  /// process, at most 15 letters. kLimit: no process or descriptor is to be had. REQUIRES: we are
  /// one thread.
  static Result<Errand> Start(const char* name, const Work& work,
                              std::initializer_list<int> keep = {});

  Errand() = default;
  Errand(Errand&& other) noexcept { Swap(&other); }
  Errand& operator=(Errand&& other) noexcept {
    Swap(&other);
    return *this;
  }
  Errand(const Errand&) = delete;
  Errand& operator=(const Errand&) = delete;
  /// Leaves it behind.
  ~Errand() { Leave(); }

  /// Ours of the two; its reads and writes wait for nothing.
  int link() const { return link_.get(); }
  bool started() const { return pid_ > 0; }
  /// Looks, without waiting: how it has ended, none while it has not.
  std::optional<ProcessExit> Exit();
  /// Waits for its end, so long.
  std::optional<ProcessExit> Await(std::int64_t patience_ns);
  /// Sends it a signal, where it has not ended.
  void Signal(int signal);
  /// Ends the link: it hears of that.
  void EndLink() { link_.reset(); }
  /// Its link ends. Who has ended is reaped, who has not goes on without us.
  void Leave();

 private:
  void Swap(Errand* other);

  pid_t pid_ = -1;
  UniqueFd link_;
  std::optional<ProcessExit> exit_;
};

/// Writes to a stream of the user's, which nobody need read and whose disk need not answer: what it
/// does not take at once is dropped, and counted where it was lines. A file may lie on the disk
/// that does not answer: there a child writes, for which it is waited a moment, and as long as that
/// has not ended the stream takes nothing.
class StreamWriter {
 public:
  explicit StreamWriter(int fd);
  /// For tests: whether a child is to write.
  StreamWriter(int fd, bool is_file) : fd_(fd), is_file_(is_file) {}
  StreamWriter(StreamWriter&& other) noexcept { Swap(&other); }
  StreamWriter& operator=(StreamWriter&& other) noexcept {
    Swap(&other);
    return *this;
  }
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  /// Whether it takes something now. Of a file: what was written before is in it.
  bool Ready();
  /// False: it was not Ready, and nothing was written. Needs no memory.
  bool Write(std::string_view bytes);
  /// Writes one line or several without the end of the last, behind LeftOut().
  void Print(std::string_view lines);
  /// The line that says how many lines were dropped since it was asked last; empty: none.
  std::string LeftOut();
  bool is_file() const { return is_file_; }
  int fd() const { return fd_; }

 private:
  void Swap(StreamWriter* other);

  int fd_ = -1;
  bool is_file_ = false;
  pid_t writer_ = -1;  ///< That has not ended yet.
  std::uint64_t left_out_ = 0;
};

/// Whether `touch`, which asks a disk for something, comes to an end in that time, however it ends:
/// it runs in a process of its own. One that does not end is left behind, and never a child of
/// ours. REQUIRES: we are one thread.
bool EndsWithin(const std::function<void()>& touch, std::int64_t patience_ns);

/// Closes every descriptor from `first` on. For a child that is to hold nothing of ours; as are all
/// calls between fork and exec it is safe there.
void CloseFrom(int first);

/// Waits for the end of a child, so long. False: it has not ended.
bool ReapWithin(pid_t pid, std::int64_t patience_ns);

/// Removes a file and then the folder that held it alone, in a child: the folder's disk may not
/// answer either. Waits for it a moment. Needs no memory, and other threads may be there.
void RemoveWithFolder(const char* file, const char* folder);

}  // namespace telltale::run
