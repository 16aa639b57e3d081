// SPDX-License-Identifier: Apache-2.0
// The runs below the folders that are served, and the one thread that reads them. Runs that nobody
// asks for are not read; the least recently wanted are forgotten.
//
// Thread safety: all functions may be called from any thread and none of them waits for the disk.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/live_run.h"

namespace telltale::server {

class RunCache {
 public:
  /// `published` is called from the loader's thread whenever there is something new to see.
  RunCache(std::vector<std::filesystem::path> roots, std::function<void()> published);
  ~RunCache();
  RunCache(const RunCache&) = delete;
  RunCache& operator=(const RunCache&) = delete;

  /// The run with this id, wanted from now on; null where there is none (as of the last listing).
  std::shared_ptr<LiveRun> Want(const std::string& id);

  /// The listing of all runs as JSON, and when it was made (monotonic ns); null before the first.
  struct Listing {
    std::int64_t made_ns = 0;
    std::string json;
  };
  std::shared_ptr<const Listing> listing() const;
  /// Asks for a new listing.
  void Refresh();
  /// Reads everything that is wanted once more and makes it known at once.
  void Flush();

 private:
  void Load();
  void List();
  std::vector<std::shared_ptr<LiveRun>> Wanted();
  void Forget();

  const std::vector<std::filesystem::path> roots_;
  const std::function<void()> published_;
  mutable std::mutex mutex_;  ///< Guards what follows, the thread apart.
  std::condition_variable wake_;
  std::map<std::string, std::filesystem::path> paths_;  ///< By id.
  std::map<std::string, std::shared_ptr<LiveRun>> runs_;
  std::shared_ptr<const Listing> listing_;
  bool refresh_ = true;
  bool flush_ = false;
  bool nudged_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace telltale::server
