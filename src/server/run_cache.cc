// SPDX-License-Identifier: Apache-2.0
#include "server/run_cache.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/units.h"

namespace telltale::server {
namespace {

namespace fs = std::filesystem;

/// Kept though nobody looks at them any more.
constexpr std::size_t kMaxLoaded = 8;
constexpr std::chrono::milliseconds kPeriod(100);
constexpr std::chrono::milliseconds kSlice(50);
/// Before the first word on a run: somebody looks at an empty page.
constexpr std::chrono::milliseconds kFirstSlice(5);
/// After it, where a long run is still to be read: the page draws its first charts, and where there
/// are two cores reading on at once would take one from browser and server. A page has so long to
/// begin and to ask for them, and after each answer to draw it; others have their first answers.
constexpr std::chrono::milliseconds kFirstPaint(1500);
constexpr std::chrono::milliseconds kDrawing(500);
constexpr std::chrono::milliseconds kFirstAnswers(100);
/// How often it is looked whether charts were asked for.
constexpr std::chrono::milliseconds kPaintLook(20);
/// Wanted a moment ago: not forgotten even beyond kMaxLoaded.
constexpr std::int64_t kKeepNs = 60 * kSecond;
/// Not even where another run needs its place.
constexpr std::int64_t kInUseNs = 2 * kSecond;
/// While runs are read, the listing is made known this often.
constexpr std::int64_t kListEveryNs = kSecond / 2;

std::int64_t LoaderNow() { return Clock::System().MonotonicNs(); }

/// The run that was wanted least recently and has no stream; the end where all have.
RunList::Loaded::iterator Oldest(RunList::Loaded* runs) {
  auto oldest = runs->end();
  for (auto at = runs->begin(); at != runs->end(); ++at) {
    if (at->second->held()) continue;
    if (oldest == runs->end() || at->second->wanted_ns() < oldest->second->wanted_ns()) oldest = at;
  }
  return oldest;
}

}  // namespace

RunCache::RunCache(std::vector<fs::path> roots, std::size_t max_loaded,
                   std::function<void()> published)
    : max_loaded_(max_loaded), published_(std::move(published)), list_(std::move(roots)) {
  asked_ns_ = LoaderNow();
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

RunCache::Found RunCache::Want(const std::string& id) {
  const std::int64_t now = LoaderNow();
  const std::scoped_lock lock(mutex_);
  const auto path = paths_.find(id);
  if (const auto found = runs_.find(id); found != runs_.end()) {
    const bool other = path != paths_.end() && path->second != found->second->path();
    if (!other) {
      const bool asleep = !found->second->followed(now);
      found->second->Want(now);
      if (asleep) {
        nudged_ = true;
        wake_.notify_all();
      }
      return {found->second};
    }
    found->second->Retire();
    gone_.push_back(std::move(found->second));
    runs_.erase(found);
  }
  if (path == paths_.end()) return {};
  if (runs_.size() >= max_loaded_) {
    const auto oldest = Oldest(&runs_);
    if (oldest == runs_.end() || now - oldest->second->wanted_ns() < kInUseNs) {
      return {.run = nullptr, .full = true};
    }
    gone_.push_back(std::move(oldest->second));
    runs_.erase(oldest);
  }
  return {TakeUp(id, path->second)};
}

std::shared_ptr<LiveRun> RunCache::TakeUp(const std::string& id, const fs::path& path) {
  auto run = std::make_shared<LiveRun>(id, path);
  run->Want(LoaderNow());
  runs_.emplace(id, run);
  nudged_ = true;
  wake_.notify_all();
  return run;
}

void RunCache::Prepare(const std::string& id) {
  const std::scoped_lock lock(mutex_);
  prepared_ = id;
  TakeUpPrepared();
}

void RunCache::TakeUpPrepared() {
  const auto path = paths_.find(prepared_);
  if (path == paths_.end()) return;
  if (!runs_.contains(prepared_) && runs_.size() < std::min(kMaxLoaded, max_loaded_)) {
    TakeUp(prepared_, path->second)->ExpectPage();
  }
  prepared_.clear();
}

std::shared_ptr<const RunCache::Listing> RunCache::listing() const {
  const std::scoped_lock lock(mutex_);
  return listing_;
}

void RunCache::Refresh() {
  const std::scoped_lock lock(mutex_);
  asked_ns_ = LoaderNow();
  refresh_ = true;
  wake_.notify_all();
}

void RunCache::WantListing() {
  const std::scoped_lock lock(mutex_);
  listing_asked_ns_ = LoaderNow();
  nudged_ = true;
  wake_.notify_all();
}

void RunCache::Flush() {
  const std::scoped_lock lock(mutex_);
  flush_ = true;
  wake_.notify_all();
}

void RunCache::Nudge() {
  const std::scoped_lock lock(mutex_);
  nudged_ = true;
  wake_.notify_all();
}

std::vector<std::shared_ptr<LiveRun>> RunCache::Wanted() {
  const std::int64_t now = LoaderNow();
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<LiveRun>> out;
  for (const auto& [id, run] : runs_) {
    if (run->followed(now)) out.push_back(run);
  }
  return out;
}

void RunCache::Forget() {
  const std::int64_t now = LoaderNow();
  std::vector<std::shared_ptr<LiveRun>> gone;  // Freed outside of the lock.
  const std::scoped_lock lock(mutex_);
  gone.swap(gone_);
  while (runs_.size() > kMaxLoaded) {
    const auto oldest = Oldest(&runs_);
    if (oldest == runs_.end() || now - oldest->second->wanted_ns() <= kKeepNs) return;
    gone.push_back(std::move(oldest->second));
    runs_.erase(oldest);
  }
}

bool RunCache::List(const RunList::Loaded& loaded) {
  const RunList::Progress progress =
      list_.Advance(std::chrono::steady_clock::now() + kSlice, loaded);
  const std::int64_t now = LoaderNow();
  if (progress.found) {
    const std::scoped_lock lock(mutex_);
    paths_ = list_.paths();
    TakeUpPrepared();
  }
  const bool due =
      progress.looked || !progress.more || (list_.looked() && now - listed_ns_ >= kListEveryNs);
  if (due) {
    listed_ns_ = now;
    RunList::Rendered rendered = list_.Render(loaded);
    auto listing = std::make_shared<Listing>();
    listing->made_ns = list_began_ns_;
    listing->json = std::move(rendered.json);
    listing->unread = rendered.unread;
    const std::scoped_lock lock(mutex_);
    listing_ = std::move(listing);
  }
  if (due || progress.found) published_();
  return progress.more;
}

void RunCache::LetPaint(const LiveRun& run) {
  using std::chrono::steady_clock;
  const auto begin = steady_clock::now();
  std::unique_lock lock(mutex_);
  while (true) {
    const bool page = run.held() || run.page_expected();
    auto until = begin + (page ? kFirstPaint : kFirstAnswers);
    if (const auto answered = run.answered(); page && answered > begin) {
      until = std::min(until, answered + kDrawing);
    }
    const auto left = until - steady_clock::now();
    if (left <= left.zero()) return;
    const auto woken = [this] { return stop_ || refresh_ || flush_ || nudged_; };
    if (wake_.wait_for(lock, std::min<steady_clock::duration>(left, kPaintLook), woken)) return;
  }
}

void RunCache::Load() {
  bool list = false;  // Asked for and not begun.
  const auto woken = [this] { return stop_ || refresh_ || flush_ || nudged_; };
  while (true) {
    bool flush = false;
    std::int64_t looked_for_ns = 0;
    std::int64_t read_for_ns = 0;
    RunList::Loaded loaded;
    {
      const std::scoped_lock lock(mutex_);
      if (stop_) return;
      list = std::exchange(refresh_, false) || list;
      flush = std::exchange(flush_, false);
      nudged_ = false;
      looked_for_ns = asked_ns_;
      read_for_ns = listing_asked_ns_;
      loaded = runs_;
    }
    const bool reads = LoaderNow() - read_for_ns <= LiveRun::kWantedNs;
    const auto may_begin = [&] { return list && (!reads || list_.rested()); };
    if (may_begin()) {
      list = false;
      list_began_ns_ = LoaderNow();
      list_.Begin();
    }
    auto wanted = Wanted();
    const bool idle = wanted.empty();
    // Runs are read for the listing only where somebody looks at it, and not while somebody waits
    // for the first word on a run.
    const bool awaited = std::any_of(wanted.begin(), wanted.end(),
                                     [](const auto& run) { return run->snapshot() == nullptr; });
    const bool due = list_.busy() &&
                     (list_.looked() ? reads : LoaderNow() - looked_for_ns <= LiveRun::kWantedNs);
    const bool later = due && awaited && list_.looked();
    bool more = later || (due && List(loaded));
    bool any = false;
    const std::size_t points =
        RunView::kMaxPoints * kMaxLoaded / std::max(kMaxLoaded, loaded.size());
    for (const auto& [id, run] : loaded) run->LimitPoints(points);
    const LiveRun* first_word = nullptr;
    for (const std::shared_ptr<LiveRun>& run : wanted) {
      const bool first = run->snapshot() == nullptr;
      const bool unread = run->Advance(first ? kFirstSlice : kSlice);
      const bool published = run->Publish(flush);
      more = unread || more;
      any = published || any;
      if (first && unread && published) first_word = run.get();
      any = run->MakeReport() || any;
    }
    if (any) published_();
    if (first_word != nullptr) LetPaint(*first_word);
    loaded.clear();
    wanted.clear();
    Forget();
    // One that was asked for while the last went on.
    if (more || may_begin()) continue;
    std::unique_lock lock(mutex_);
    // Where nobody looks, nothing is done at all.
    if (idle) {
      wake_.wait(lock, woken);
    } else {
      wake_.wait_for(lock, kPeriod, woken);
    }
  }
}

}  // namespace telltale::server
