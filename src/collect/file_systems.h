// SPDX-License-Identifier: Apache-2.0
// How full the file systems are, each asked by a thread of its own: the server of one may be dead.
// One that does not answer for 5 s is said to be silent, by a metric and an event, until it does.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collect/asked_thread.h"
#include "collect/source.h"

namespace telltale::collect {

/// What a file system says of itself.
struct FileSystemRoom {
  double size_bytes = 0;
  double available_bytes = 0;  ///< To a program without privileges.
  double used_percent = 0;     ///< Of what such a program could ever write, as df counts.
  std::optional<double> inodes_used_percent;
};

class FileSystemSource final : public Source {
 public:
  /// None where there is nothing to be said of it. Called from threads; may hang.
  using Question = std::function<std::optional<FileSystemRoom>(const std::string& path)>;

  /// Asks by statvfs().
  explicit FileSystemSource(SourceContext* context);
  FileSystemSource(SourceContext* context, Question question);

  void Ask() override;
  void Sample(RowSink* sink) override;

 private:
  struct Answer {
    std::optional<FileSystemRoom> room;
  };
  struct Watched {
    std::string path;
    std::string subject;
    std::shared_ptr<Answer> answer;
    std::unique_ptr<AskedThread> thread;
    std::int64_t asked_ns = 0;
    bool open = false;    ///< Asked, and not yet told.
    bool late = false;    ///< It was waited for in vain: not once more.
    bool silent = false;  ///< That was said.
    bool mounted = true;
  };

  void FindMounts();
  void Tell(Watched* watched, RowSink* sink);
  void Say(const Watched& watched, std::int64_t now_ns);

  SourceContext* context_;
  const Question question_;
  KeptFile mountinfo_;
  std::int64_t due_ns_ = INT64_MIN;
  std::map<std::string, Watched, std::less<>> watched_;  ///< By device and path.
};

}  // namespace telltale::collect
