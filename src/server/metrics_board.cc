// SPDX-License-Identifier: Apache-2.0
#include "server/metrics_board.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string_view>
#include <system_error>
#include <tuple>

#include "base/clock.h"
#include "base/run_files.h"
#include "server/isolated.h"
#include "store/reader.h"
#include "telemetry/families.h"

namespace telltale::server {
namespace {

namespace fs = std::filesystem;

/// A scrape is given up after 10 s, by default: a long run is read over several of them.
constexpr std::chrono::milliseconds kReadLimit(3000);
/// Nobody scrapes any more.
constexpr std::chrono::minutes kForget(10);

}  // namespace

MetricsBoard::~MetricsBoard() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::uint64_t MetricsBoard::Ask() {
  const std::scoped_lock lock(mutex_);
  // A server that nobody scrapes has no such thread.
  if (!std::exchange(started_, true)) thread_ = std::thread([this] { Work(); });
  ++asked_;
  wake_.notify_all();
  return asked_;
}

std::shared_ptr<const std::string> MetricsBoard::Answer(std::uint64_t asked,
                                                        telemetry::TextFormat format) const {
  const std::scoped_lock lock(mutex_);
  if (made_ < asked) return nullptr;
  return format == telemetry::TextFormat::kOpenMetrics ? texts_.open_metrics : texts_.prometheus;
}

void MetricsBoard::Work() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (asked_ == made_) {
      const bool woken = wake_.wait_for(lock, kForget, [this] { return stop_ || asked_ != made_; });
      if (!woken) {
        lock.unlock();
        runs_.clear();
        lock.lock();
      }
      continue;
    }
    const std::uint64_t asked = asked_;
    lock.unlock();
    Texts texts;
    try {
      texts = Make();
    } catch (const std::exception&) {
      // Out of memory, most likely: who asked is told to ask again; the server goes on.
      runs_.clear();
    }
    lock.lock();
    texts_ = std::move(texts);
    made_ = asked;
    lock.unlock();
    published_();
    lock.lock();
  }
}

/// What run.json says, where it has changed. One that goes on may end without a word in it.
void MetricsBoard::Look(Known* run, std::int64_t now_ns) {
  const std::int64_t written = run_files::ChangedNs({run->path, "run.json"});
  if (written >= 0 && run->over && written == run->written) return;
  if (run->written != written) run->gave_up = false;
  run->written = written;
  const auto reader = store::RunReader::Open(run->path);
  if (!reader.ok()) {
    run->over = true;
    run->over_ns = 0;
    return;
  }
  const bool was_over = run->over;
  run->over = (*reader)->state().state != "running";
  const store::RunInfo& info = (*reader)->info();
  run->created_ns = info.created_ns;
  if (!run->over) return;
  const std::int64_t end = info.attempts.empty() ? 0 : info.attempts.back().end_ns;
  // One that was lost has no end: what was seen of it counts.
  run->over_ns = end > 0 ? end : (run->metrics && !was_over ? now_ns : 0);
}

void MetricsBoard::FindRuns(std::int64_t now_ns) {
  list_.Begin();
  // Folders alone: what is in the runs is not looked at here.
  while (!list_.Advance(RunList::Deadline::min(), {}).found) {
  }
  const RunList::Paths& paths = list_.paths();
  std::erase_if(runs_, [&](const auto& run) {
    const auto found = paths.find(run.first);
    return found == paths.end() || found->second != run.second.path;
  });
  for (const auto& [id, path] : paths) {
    Known& run = runs_[id];
    run.path = path;
    const Status looked = Isolated(path, [&run, now_ns] { Look(&run, now_ns); });
    if (looked.ok()) continue;
    run.over = true;
    run.over_ns = 0;
    // What there was no memory for is looked at again, also where run.json stays as it is.
    if (looked.code() == Code::kLimit) run.written = -1;
  }
}

void MetricsBoard::Take(const std::string& id, Known* run,
                        std::chrono::steady_clock::time_point deadline, std::int64_t now_ns,
                        telemetry::MetricSet* out) const {
  if (run->gave_up) return;
  const Status taken = Isolated(run->path, [&] {
    if (!run->metrics) run->metrics = read_(id, run->path);
    // What cannot be read any more has no metrics; the others have.
    if (run->metrics->Advance(deadline).ok()) run->metrics->AddTo(now_ns, out);
  });
  if (taken.ok()) return;
  run->metrics.reset();
  // There may be memory for it at the next scrape.
  run->gave_up = taken.code() != Code::kLimit;
}

MetricsBoard::Texts MetricsBoard::Make() {
  const std::int64_t now_ns = Clock::System().RealtimeNs();
  FindRuns(now_ns);
  std::vector<std::pair<std::string, Known*>> shown;
  for (auto& [id, run] : runs_) {
    if (!run.over || now_ns - run.over_ns <= kLingerNs) {
      shown.emplace_back(id, &run);
    } else {
      run.metrics.reset();
    }
  }
  // Those that go on before those that are over, then the newest.
  std::sort(shown.begin(), shown.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.second->over, -a.second->created_ns, std::string_view(a.first)) <
           std::tuple(b.second->over, -b.second->created_ns, std::string_view(b.first));
  });
  std::size_t left_out = 0;
  for (std::size_t i = kMaxRuns; i < shown.size(); ++i) {
    left_out += shown[i].second->over ? 0 : 1;
    shown[i].second->metrics.reset();
  }
  if (shown.size() > kMaxRuns) shown.resize(kMaxRuns);

  const auto deadline = std::chrono::steady_clock::now() + kReadLimit;
  telemetry::MetricSet metrics;
  for (auto& [id, run] : shown) Take(id, run, deadline, now_ns, &metrics);
  metrics.Begin("", 0, now_ns);
  metrics.Add(telemetry::kRuns, {}, static_cast<double>(shown.size()));
  metrics.Add(telemetry::kRunsLeftOut, {}, static_cast<double>(left_out));
  Texts texts;
  using telemetry::TextFormat;
  texts.prometheus = std::make_shared<const std::string>(ToText(metrics, TextFormat::kPrometheus));
  texts.open_metrics =
      std::make_shared<const std::string>(ToText(metrics, TextFormat::kOpenMetrics));
  return texts;
}

}  // namespace telltale::server
