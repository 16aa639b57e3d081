// SPDX-License-Identifier: Apache-2.0
// Reads one trace on several threads: one inflates and cuts, some parse, the caller's takes the
// parsed blocks in the order of the file. The same workers do what the caller has to do with blocks
// later.
//
// Memory: at most workers + 2 blocks. Errors and exhausted memory end it early.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "interchange/chrome/block_parser.h"
#include "interchange/input_file.h"

namespace telltale::interchange {

/// Threads that run what is posted, in its order. An exception of a task ends all work: Failure().
class ImportWorkers {
 public:
  explicit ImportWorkers(std::size_t threads);
  ~ImportWorkers();
  ImportWorkers(const ImportWorkers&) = delete;
  ImportWorkers& operator=(const ImportWorkers&) = delete;

  using Task = std::function<void(BlockParser&)>;
  void Post(Task task);
  /// Until no more than `most` tasks wait or run.
  void WaitFor(std::size_t most);
  Status failure();
  std::size_t threads() const { return threads_.size(); }

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::size_t running_ = 0;
  bool stop_ = false;
  Status failure_;
  std::vector<std::thread> threads_;
};

/// What a trace's text was like.
struct ParsedText {
  ChromeHeader header;
  std::uint64_t inflated_bytes = 0;
  std::uint64_t damaged = 0;  ///< Pieces that are no event.
  std::uint64_t damage_offset = 0;
  bool complete = false;
  std::string gzip_damage;
  std::string trailing;  ///< What follows the gzip stream; empty: nothing.
};

/// `take` gets the blocks in order, on the caller's thread; false ends it.
Result<ParsedText> ParseTrace(const InputFile& file, std::string_view window,
                              std::uint64_t most_bytes, ImportWorkers* workers,
                              const std::function<bool(std::unique_ptr<ChromeBlock>)>& take);

}  // namespace telltale::interchange
