// SPDX-License-Identifier: Apache-2.0
// The runs below the folders that are served, and the one thread that reads them. Runs that nobody
// asks for are not read; the least recently wanted are forgotten.
//
// Thread safety: all functions may be called from any thread and none of them waits for the disk.
// Memory: at most `max_loaded` runs at any moment, all together no more points than
// kMaxLoaded runs alone would have.
#pragma once
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
#include "server/run_list.h"

namespace telltale::server {

class RunCache {
 public:
  /// `published` is called from the loader's thread whenever there is something new to see.
  RunCache(std::vector<std::filesystem::path> roots, std::size_t max_loaded,
           std::function<void()> published);
  ~RunCache();
  RunCache(const RunCache&) = delete;
  RunCache& operator=(const RunCache&) = delete;

  struct Found {
    std::shared_ptr<LiveRun> run;  ///< Null where there is none (as of the last listing).
    bool full = false;             ///< There is one, but as many as may be are being looked at.
  };
  /// The run with this id, wanted from now on.
  Found Want(const std::string& id);
  /// Somebody is about to ask for it: it is opened where that needs no other run's place, also
  /// where the folders are still being looked through.
  void Prepare(const std::string& id);

  /// The listing of all runs as JSON, as of `made_ns` (monotonic); null before the first.
  struct Listing {
    std::int64_t made_ns = 0;
    std::string json;
    std::size_t unread = 0;  ///< Runs whose steps and findings are still being read.
  };
  std::shared_ptr<const Listing> listing() const;
  /// Asks for a new listing; of runs that were not read yet it knows what run.json says.
  void Refresh();
  /// Somebody looks at the listing: the runs in it are read.
  void WantListing();
  /// Reads everything that is wanted once more and makes it known at once.
  void Flush();
  /// Somebody waits for what the loader alone can make: it looks now, not in its next period.
  void Nudge();

 private:
  void Load();
  /// True where there is more to do at once.
  bool List(const RunList::Loaded& loaded);
  std::vector<std::shared_ptr<LiveRun>> Wanted();
  void Forget();
  /// With the lock. Takes up the run at this path, wanted as of now.
  std::shared_ptr<LiveRun> TakeUp(const std::string& id, const std::filesystem::path& path);
  /// With the lock.
  void TakeUpPrepared();
  /// Leaves browser and server to themselves until the first charts of the run are drawn.
  void LetPaint(const LiveRun& run);

  const std::size_t max_loaded_;
  const std::function<void()> published_;
  mutable std::mutex mutex_;  ///< Guards what follows, up to the loader's own.
  std::condition_variable wake_;
  RunList::Paths paths_;
  RunList::Loaded runs_;
  std::vector<std::shared_ptr<LiveRun>> gone_;  ///< To be freed by the loader.
  std::string prepared_;                        ///< An id that was not known (yet).
  std::shared_ptr<const Listing> listing_;
  std::int64_t asked_ns_ = 0;          ///< For a look at the folders.
  std::int64_t listing_asked_ns_ = 0;  ///< For the steps and findings of every run.
  bool refresh_ = true;
  bool flush_ = false;
  bool nudged_ = false;
  bool stop_ = false;

  // The loader's.
  RunList list_;
  std::int64_t list_began_ns_ = 0;
  std::int64_t listed_ns_ = 0;
  std::thread thread_;
};

}  // namespace telltale::server
