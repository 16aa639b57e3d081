// SPDX-License-Identifier: Apache-2.0
#include "server/run_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/run_files.h"
#include "server/isolated.h"

namespace telltale::server {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxDepth = 4;  ///< Deep enough for PATH/project/day/run; never into a run itself.

/// A name that needs no escaping in an address; else one that is made of the path.
std::string IdOf(const fs::path& path) {
  const std::string name = path.filename().string();
  const bool plain = !name.empty() && name.size() <= 128 && name.front() != '.' &&
                     std::all_of(name.begin(), name.end(), [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
                     });
  if (plain) return name;
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char c : path.string())
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return fmt::format("run-{:016x}", hash);
}

/// The run itself where it is followed, as somebody looks at it, and all of it was read.
const LiveRun* Known(const RunList::Loaded& loaded, const std::string& id, const fs::path& path) {
  const auto found = loaded.find(id);
  if (found == loaded.end()) return nullptr;
  const LiveRun& run = *found->second;
  if (run.path() != path || !run.followed(Clock::System().MonotonicNs())) return nullptr;
  return run.data().path.empty() || run.loading() ? nullptr : &run;
}

}  // namespace

void RunList::Begin() {
  phase_ = Phase::kWalk;
  look_calls_ = read_calls_ = 0;
  root_ = 0;
  beyond_ = 0;
  folders_.clear();
  found_.clear();
  due_.clear();
}

void RunList::Enter(const fs::path& folder, int depth) {
  if (run_files::Exists({folder, "run.json"})) {
    if (found_.size() < max_runs_) {
      found_.push_back(folder);
    } else {
      ++beyond_;
    }
    return;
  }
  if (depth == 0) return;
  std::error_code error;
  fs::directory_iterator at(folder, fs::directory_options::skip_permission_denied, error);
  if (!error) folders_.push_back({std::move(at), depth});
}

/// One entry of one folder; false where all were walked.
bool RunList::Walk() {
  if (folders_.empty()) {
    if (root_ == roots_.size()) return false;
    std::error_code error;
    const fs::path whole = fs::weakly_canonical(roots_[root_], error);
    Enter(error ? roots_[root_] : whole, kMaxDepth);
    ++root_;
    return true;
  }
  Folder& folder = folders_.back();
  if (folder.at == fs::directory_iterator()) {
    folders_.pop_back();
    return true;
  }
  std::error_code error;
  const fs::directory_entry entry = *folder.at;
  const int depth = folder.depth - 1;
  folder.at.increment(error);
  if (error) folder.at = fs::directory_iterator();
  if (entry.is_directory(error) && !entry.is_symlink(error)) Enter(entry.path(), depth);
  return true;
}

void RunList::TakeFound() {
  std::sort(found_.begin(), found_.end());
  found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
  // What is still there keeps its id.
  const Paths before = std::exchange(paths_, {});
  std::set<fs::path> named;
  for (const auto& [id, path] : before) {
    if (!std::binary_search(found_.begin(), found_.end(), path)) continue;
    paths_.emplace(id, path);
    named.insert(path);
  }
  for (const fs::path& path : found_) {
    if (named.contains(path)) continue;
    std::string id = IdOf(path);
    for (int n = 2; paths_.contains(id); ++n) id = fmt::format("{}~{}", IdOf(path), n);
    paths_.emplace(std::move(id), path);
  }
  found_.clear();
  left_out_ = beyond_;
  std::erase_if(cards_, [&](const auto& card) {
    const auto found = paths_.find(card.first);
    return found == paths_.end() || found->second != card.second.path();
  });
  for (const auto& [id, path] : paths_) cards_.try_emplace(id, id, path);
}

RunList::Progress RunList::Advance(Deadline deadline, const Loaded& loaded) {
  Progress progress;
  if (phase_ != Phase::kIdle) ++(phase_ == Phase::kRead ? read_calls_ : look_calls_);
  const auto all_due = [this] {
    due_.clear();
    for (const auto& [id, path] : paths_) due_.push_back(id);
  };
  do {
    if (phase_ == Phase::kWalk) {
      if (Walk()) continue;
      TakeFound();
      all_due();
      phase_ = Phase::kLook;
      progress.found = true;
    } else if (phase_ == Phase::kLook) {
      if (!due_.empty()) {
        cards_.at(due_.front()).Look();
        due_.pop_front();
        continue;
      }
      all_due();
      phase_ = Phase::kRead;
      progress.looked = true;
    } else if (phase_ == Phase::kRead) {
      if (due_.empty()) {
        phase_ = Phase::kIdle;
        continue;
      }
      RunCard& card = cards_.at(due_.front());
      if (Known(loaded, due_.front(), card.path()) != nullptr || !card.Advance(deadline)) {
        due_.pop_front();
      }
    }
  } while (phase_ != Phase::kIdle && std::chrono::steady_clock::now() < deadline);
  progress.more = phase_ != Phase::kIdle;
  return progress;
}

RunList::Rendered RunList::Render(const Loaded& loaded) const {
  struct Line {
    std::int64_t created_ns;
    std::string json;
  };
  Rendered out;
  std::vector<Line> lines;
  for (const auto& [id, card] : cards_) {
    const LiveRun* const run = Known(loaded, id, card.path());
    if (run == nullptr && !card.whole()) ++out.unread;
    std::string json = card.json();
    // What its card says stands where the newest cannot be said.
    if (run != nullptr) {
      static_cast<void>(Isolated(card.path(), [&, &id = id] { json = CardJson(id, run->data()); }));
    }
    lines.push_back({card.created_ns(), std::move(json)});
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.created_ns > b.created_ns; });
  out.json = "{\"runs\":[";
  for (const Line& line : lines) {
    if (out.json.back() == '}') out.json += ',';
    out.json += line.json;
  }
  out.json += fmt::format("],\"unread\":{},\"left_out\":{}}}", out.unread, left_out_);
  return out;
}

}  // namespace telltale::server
