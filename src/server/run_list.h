// SPDX-License-Identifier: Apache-2.0
// The listing of the runs below some folders, made in small pieces so that the runs on a screen do
// not wait for it: folders are walked, each run is looked at, and those that changed are read.
//
// Thread safety: none.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/live_run.h"
#include "server/run_card.h"

namespace telltale::server {

class RunList {
 public:
  static constexpr std::size_t kMaxRuns = 10'000;

  explicit RunList(std::vector<std::filesystem::path> roots, std::size_t max_runs = kMaxRuns)
      : roots_(std::move(roots)), max_runs_(max_runs) {}

  using Deadline = std::chrono::steady_clock::time_point;
  using Loaded = std::map<std::string, std::shared_ptr<LiveRun>>;
  using Paths = std::map<std::string, std::filesystem::path>;

  /// Begins a new look at everything; what is known of unchanged runs stays.
  void Begin();
  bool busy() const { return phase_ != Phase::kIdle; }
  /// The last look is done, though runs may still be to read.
  bool looked() const { return phase_ == Phase::kRead || phase_ == Phase::kIdle; }

  /// A new look may begin without that those before it keep all runs from being read: as many
  /// calls of Advance went into reading as into looking.
  bool rested() const {
    return phase_ == Phase::kIdle || (phase_ == Phase::kRead && read_calls_ >= look_calls_);
  }

  struct Progress {
    bool more = false;    ///< To do at once.
    bool found = false;   ///< The folders were walked: paths() are new.
    bool looked = false;  ///< Every run was looked at since Begin.
  };
  /// Goes on until the deadline, by a piece at least. Runs in `loaded` are known anyway.
  Progress Advance(Deadline deadline, const Loaded& loaded);

  /// By id.
  const Paths& paths() const { return paths_; }
  struct Rendered {
    std::string json;
    std::size_t unread = 0;  ///< Runs whose steps and findings are still being read.
  };
  Rendered Render(const Loaded& loaded) const;

 private:
  enum class Phase : std::uint8_t { kIdle, kWalk, kLook, kRead };
  struct Folder {
    std::filesystem::directory_iterator at;
    int depth;
  };

  bool Walk();
  void Enter(const std::filesystem::path& folder, int depth);
  void TakeFound();

  const std::vector<std::filesystem::path> roots_;
  const std::size_t max_runs_;
  Phase phase_ = Phase::kIdle;
  std::uint64_t look_calls_ = 0;  ///< Of Advance, since Begin.
  std::uint64_t read_calls_ = 0;
  std::size_t root_ = 0;  ///< The next to walk.
  std::vector<Folder> folders_;
  std::vector<std::filesystem::path> found_;
  std::size_t beyond_ = 0;  ///< Found beyond the bound.
  std::size_t left_out_ = 0;
  Paths paths_;
  std::map<std::string, RunCard> cards_;
  std::deque<std::string> due_;  ///< Ids to look at, then to read.
};

}  // namespace telltale::server
