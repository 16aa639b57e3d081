// SPDX-License-Identifier: Apache-2.0
#include "server/run_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "report/text.h"

namespace telltale::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 4;  ///< Deep enough for PATH/project/day/run; never into a run itself.
constexpr std::size_t kMaxRuns = 10'000;
constexpr std::size_t kMaxLoaded = 8;
constexpr std::chrono::milliseconds kPeriod(100);
constexpr std::chrono::milliseconds kSlice(50);
constexpr std::int64_t kSecond = 1'000'000'000;
/// A run is followed for so long after somebody asked for it; a stream asks each second.
constexpr std::int64_t kWantedNs = 15 * kSecond;
/// Wanted a moment ago: not forgotten even beyond the bound.
constexpr std::int64_t kKeepNs = 60 * kSecond;

void FindRuns(const fs::path& path, int depth, std::vector<fs::path>* out) {
  std::error_code error;
  if (out->size() >= kMaxRuns) return;
  if (fs::exists(path / "run.json", error)) {
    out->push_back(path);
    return;
  }
  if (depth == 0) return;
  for (fs::directory_iterator at(path, fs::directory_options::skip_permission_denied, error), end;
       !error && at != end; at.increment(error)) {
    std::error_code kind;
    if (at->is_directory(kind) && !at->is_symlink(kind)) FindRuns(at->path(), depth - 1, out);
  }
}

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

/// What run.json alone tells; the rest is known of runs that are loaded.
Json Card(const std::string& id, const fs::path& path, const LiveRun* loaded) {
  Json findings = {{"high", 0}, {"medium", 0}, {"low", 0}, {"info", 0}};
  Json out = {{"id", id},
              {"name", id},
              {"state", nullptr},
              {"attempts", 0},
              {"steps", nullptr},
              {"start_unix_ms", nullptr},
              {"duration_ns", nullptr},
              {"verdict", nullptr},
              {"findings", findings}};
  if (loaded != nullptr && !loaded->data().path.empty()) {
    const report::RunData& data = loaded->data();
    out["name"] = data.title();
    out["state"] = data.replay.state.state;
    out["attempts"] = data.replay.info.attempts.size();
    out["steps"] = data.summary.train_steps();
    out["start_unix_ms"] = data.replay.info.created_ns / 1'000'000;
    out["duration_ns"] = static_cast<std::int64_t>(data.elapsed_seconds() * 1e9);
    out["verdict"] = report::Verdict(data);
    for (const rules::Finding& f : data.replay.findings) {
      const std::string severity(rules::Name(f.incident.severity));
      out["findings"][severity] = out["findings"][severity].get<int>() + 1;
    }
    return out;
  }
  const auto info = store::ReadRunInfo(path);
  if (!info.ok()) {
    out["state"] = "unreadable";
    out["verdict"] = info.status().message();
    return out;
  }
  out["name"] = info->name.empty() ? id : info->name;
  out["state"] = store::DeriveRunState(*info).state;
  out["attempts"] = info->attempts.size();
  out["start_unix_ms"] = info->created_ns / 1'000'000;
  std::int64_t end = 0;
  if (!info->attempts.empty()) end = info->attempts.back().end_ns;
  if (end == 0 && out["state"] == "running") end = Clock::System().RealtimeNs();
  if (end > info->created_ns) out["duration_ns"] = end - info->created_ns;
  // The watcher's folder is small: what it found needs no record of the training.
  StringPool pool;
  format::Rows rows;
  store::Salvage salvage;
  std::map<std::string, std::pair<std::uint32_t, const format::FindingRow*>> newest;
  for (const std::string& name : store::ListWriters(path)) {
    if (!name.starts_with("watch")) continue;
    store::WriterFollower follower(path / name, name, store::MaskOf(format::TableId::kFindings),
                                   false, &salvage);
    while (true) {
      std::unique_ptr<store::RowChunk> chunk;
      const Result<bool> progress = follower.Advance(&chunk);
      if (!progress.ok() || !*progress) break;
      if (chunk == nullptr) continue;
      for (format::FindingRow row : chunk->rows.findings) {
        row.incident = pool.Intern(row.incident);
        row.severity = pool.Intern(row.severity);
        row.message = pool.Intern(row.message);
        rows.findings.push_back(row);
      }
    }
  }
  for (const format::FindingRow& row : rows.findings) {
    auto& [revision, at] = newest[std::string(row.incident)];
    if (at != nullptr && row.revision < revision) continue;
    revision = row.revision;
    at = &row;
  }
  double worst = -1;
  for (const auto& [incident, entry] : newest) {
    const std::string severity(entry.second->severity);
    if (out["findings"].contains(severity)) {
      out["findings"][severity] = out["findings"][severity].get<int>() + 1;
    }
    if (entry.second->cost_seconds > worst) {
      worst = entry.second->cost_seconds;
      out["verdict"] = std::string(entry.second->message);
    }
  }
  return out;
}

}  // namespace

RunCache::RunCache(std::vector<fs::path> roots, std::function<void()> published)
    : roots_(std::move(roots)), published_(std::move(published)) {
  thread_ = std::thread([this] { Load(); });
}

RunCache::~RunCache() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::shared_ptr<LiveRun> RunCache::Want(const std::string& id) {
  const std::int64_t now = Clock::System().MonotonicNs();
  const std::scoped_lock lock(mutex_);
  if (const auto found = runs_.find(id); found != runs_.end()) {
    const bool asleep = now - found->second->wanted_ns() > kWantedNs;
    found->second->Want(now);
    if (asleep) {
      nudged_ = true;
      wake_.notify_all();
    }
    return found->second;
  }
  const auto path = paths_.find(id);
  if (path == paths_.end()) return nullptr;
  auto run = std::make_shared<LiveRun>(id, path->second);
  run->Want(now);
  runs_.emplace(id, run);
  nudged_ = true;
  wake_.notify_all();
  return run;
}

std::shared_ptr<const RunCache::Listing> RunCache::listing() const {
  const std::scoped_lock lock(mutex_);
  return listing_;
}

void RunCache::Refresh() {
  const std::scoped_lock lock(mutex_);
  refresh_ = true;
  wake_.notify_all();
}

void RunCache::Flush() {
  const std::scoped_lock lock(mutex_);
  flush_ = true;
  wake_.notify_all();
}

std::vector<std::shared_ptr<LiveRun>> RunCache::Wanted() {
  const std::int64_t now = Clock::System().MonotonicNs();
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<LiveRun>> out;
  for (const auto& [id, run] : runs_) {
    if (now - run->wanted_ns() <= kWantedNs) out.push_back(run);
  }
  return out;
}

void RunCache::Forget() {
  const std::int64_t now = Clock::System().MonotonicNs();
  std::vector<std::shared_ptr<LiveRun>> gone;  // Freed outside of the lock.
  const std::scoped_lock lock(mutex_);
  while (runs_.size() > kMaxLoaded) {
    const auto oldest = std::min_element(
        runs_.begin(), runs_.end(),
        [](const auto& a, const auto& b) { return a.second->wanted_ns() < b.second->wanted_ns(); });
    if (now - oldest->second->wanted_ns() <= kKeepNs) return;
    gone.push_back(std::move(oldest->second));
    runs_.erase(oldest);
  }
}

void RunCache::List() {
  std::map<std::string, fs::path> paths;
  for (const fs::path& root : roots_) {
    std::vector<fs::path> found;
    FindRuns(root, kMaxDepth, &found);
    std::sort(found.begin(), found.end());
    for (const fs::path& path : found) {
      std::error_code error;
      const fs::path whole = fs::weakly_canonical(path, error);
      const fs::path& real = error ? path : whole;
      std::string id = IdOf(real);
      for (int n = 2; paths.contains(id) && paths[id] != real; ++n) {
        id = fmt::format("{}~{}", IdOf(real), n);
      }
      paths.emplace(std::move(id), real);
    }
  }
  std::map<std::string, std::shared_ptr<LiveRun>> loaded;
  {
    const std::scoped_lock lock(mutex_);
    paths_ = paths;
    loaded = runs_;
  }
  std::vector<Json> cards;
  for (const auto& [id, path] : paths) {
    const auto found = loaded.find(id);
    cards.push_back(Card(id, path, found == loaded.end() ? nullptr : found->second.get()));
  }
  std::stable_sort(cards.begin(), cards.end(), [](const Json& a, const Json& b) {
    const auto start = [](const Json& card) {
      return card["start_unix_ms"].is_null() ? 0 : card["start_unix_ms"].get<std::int64_t>();
    };
    return start(a) > start(b);
  });
  auto listing = std::make_shared<Listing>();
  listing->made_ns = Clock::System().MonotonicNs();
  listing->json = Json({{"runs", std::move(cards)}})
                      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const std::scoped_lock lock(mutex_);
  listing_ = std::move(listing);
}

void RunCache::Load() {
  while (true) {
    bool refresh = false;
    bool flush = false;
    {
      const std::scoped_lock lock(mutex_);
      if (stop_) return;
      refresh = std::exchange(refresh_, false);
      flush = std::exchange(flush_, false);
      nudged_ = false;
    }
    if (refresh) {
      List();
      published_();
    }
    bool more = false;
    bool any = false;
    const auto wanted = Wanted();
    for (const std::shared_ptr<LiveRun>& run : wanted) {
      more = run->Advance(kSlice) || more;
      any = run->Publish(flush) || any;
    }
    if (any) published_();
    Forget();
    if (more) continue;
    std::unique_lock lock(mutex_);
    const auto due = [this] { return stop_ || refresh_ || flush_ || nudged_; };
    // Where nobody looks, nothing is done at all.
    if (wanted.empty()) {
      wake_.wait(lock, due);
    } else {
      wake_.wait_for(lock, kPeriod, due);
    }
  }
}

}  // namespace telltale::server
