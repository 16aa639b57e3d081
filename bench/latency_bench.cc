// SPDX-License-Identifier: Apache-2.0
// How soon what happens is seen. Real parts: three agents that publish every 200 ms, `telltale
// watch` and `telltale serve`. From the moment when a batch goes into the journal: until its step
// is in an open page's event stream, until the finding that it causes is in the watcher's journal,
// and until that is in the stream. Waiting for the slowest agent's watermark is part of it. Limit:
// 1 s for the p99 of 100. usage: latency_bench [SAMPLES]
//        latency_bench --feed RUN STEPS   only writes: a line a step, "STEP UNIX_MS", when it is in
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "agents.h"
#include "base/clock.h"
#include "child.h"
#include "fault/harness.h"
#include "serve/client.h"
#include "store/follower.h"

namespace {

using telltale::Clock;
namespace bench = telltale::bench;
namespace fault = telltale::fault;
namespace format = telltale::format;
namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr int kAgents = 3;
constexpr double kLimitMs = 1000;
constexpr std::int64_t kPatienceNs = 30'000'000'000;
constexpr std::int64_t kIdleNs = 10'000'000'000;

std::int64_t Now() { return Clock::System().MonotonicNs(); }

/// A step of rank 0, and a loss of another rank that is not a number: a finding of its own.
format::Rows Sample(int i) {
  format::Rows rows;
  format::StepRow step;
  step.duration_ns = 1'000'000;
  step.forward_ns = step.duration_ns;
  step.step = i;
  step.mode = "TRAIN";
  step.attempt = 1;
  step.pid = 1;
  rows.steps.push_back(step);
  format::ScalarRow loss;
  loss.name = "loss";
  loss.value = std::numeric_limits<double>::quiet_NaN();
  loss.step = i;
  loss.mode = "TRAIN";
  loss.rank = i + 1;
  loss.pid = 2 + i;
  loss.attempt = 1;
  rows.scalars.push_back(loss);
  return rows;
}

/// The findings in the watcher's journal.
class WatchJournal {
 public:
  explicit WatchJournal(const fs::path& run)
      : follower_(run / "watch", "watch", telltale::store::MaskOf(format::TableId::kFindings),
                  false, &salvage_) {}

  /// Whether there is one about `subject` among those that are new.
  bool Has(std::string_view subject) {
    bool found = false;
    std::unique_ptr<telltale::store::RowChunk> chunk;
    for (auto more = follower_.Advance(&chunk); more.ok() && *more;
         more = follower_.Advance(&chunk)) {
      if (chunk == nullptr) continue;
      for (const format::FindingRow& row : chunk->rows.findings) {
        found = found || row.subject == subject;
      }
    }
    return found;
  }

 private:
  telltale::store::Salvage salvage_;
  telltale::store::WriterFollower follower_;
};

struct Path {
  const char* name;
  std::vector<double> ms;
};

int Feed(const fs::path& run, int steps) {
  bench::Agents agents(run, kAgents);
  std::mt19937_64 random(3);
  for (int i = 0; i < steps; ++i) {
    std::this_thread::sleep_for(milliseconds(200 + random() % 500));
    format::Rows rows = Sample(i);
    rows.scalars.clear();
    agents.Put(std::move(rows));
    const std::int64_t written = agents.WrittenNs();
    const std::int64_t unix_ns = Clock::System().RealtimeNs() - (Now() - written);
    fmt::print("{} {:.1f}\n", i + 1, static_cast<double>(unix_ns) / 1e6);
    std::fflush(stdout);
  }
  // The last one has to be seen, too.
  std::this_thread::sleep_for(std::chrono::seconds(3));
  return 0;
}

int Measure(int samples) {
  const fault::Scratch scratch("latency");
  const fs::path run = scratch / "root/live";
  bench::Agents agents(run, kAgents);
  const bench::Child watch({fault::TelltalePath(), "watch", run});
  const bench::ServeProcess server(scratch / "root");
  telltale::testing::Connection stream(server.port());
  stream.Send(server.StreamRequest("live"));
  if (!stream.Await("event: overview") ||
      !fault::Await([&] { return fs::exists(run / "watch/lock"); })) {
    fmt::print(stderr, "latency_bench: the server or the watcher does not start\n");
    return 1;
  }
  WatchJournal journal(run);
  Path step{"to the page, a step", {}};
  Path finding{"to a finding", {}};
  Path shown{"to the page, a finding", {}};

  // What both cost where nothing but the machine's samples come in and one page is open.
  const std::int64_t idle_from = Now();
  const double watch_before = watch.CpuSeconds();
  const double serve_before = server.CpuSeconds();
  while (Now() - idle_from < kIdleNs) stream.Read(milliseconds(100));
  const double idle_s = static_cast<double>(Now() - idle_from) / 1e9;
  const double watch_share = (watch.CpuSeconds() - watch_before) / idle_s;
  const double serve_share = (server.CpuSeconds() - serve_before) / idle_s;

  std::mt19937_64 random(2);
  for (int i = 0; i < samples; ++i) {
    const std::int64_t pause_until = Now() + static_cast<std::int64_t>(random() % 500) * 1'000'000;
    while (Now() < pause_until) stream.Read(milliseconds(5));
    stream.received().clear();
    const std::string subject = fmt::format("rank {}", i + 1);
    const std::string step_text = fmt::format("\"steps\":{},", i + 1);
    const std::string finding_text = fmt::format("\"subject\":\"{}\"", subject);
    agents.Put(Sample(i));
    const std::int64_t written = agents.WrittenNs();
    std::size_t looked = 0;
    const auto see = [&](Path* path, bool there) {
      if (there && path->ms.size() == static_cast<std::size_t>(i)) {
        path->ms.push_back(static_cast<double>(Now() - written) / 1e6);
      }
    };
    const auto all = static_cast<std::size_t>(i) + 1;
    while (step.ms.size() < all || finding.ms.size() < all || shown.ms.size() < all) {
      if (Now() - written > kPatienceNs) {
        fmt::print(stderr, "latency_bench: record {} was not seen within 30 s\n", i + 1);
        return 1;
      }
      stream.Read(milliseconds(1));
      if (stream.received().size() != looked) {
        looked = stream.received().size();
        see(&step, stream.received().find(step_text) != std::string::npos);
        see(&shown, stream.received().find(finding_text) != std::string::npos);
      }
      see(&finding, journal.Has(subject));
    }
  }
  bool good = true;
  for (Path* path : {&step, &finding, &shown}) {
    std::sort(path->ms.begin(), path->ms.end());
    const double p99 = bench::Quantile(path->ms, 0.99);
    good = good && p99 <= kLimitMs;
    fmt::print("  journal {:<22} {:5.0f} ms [{:.0f}..{:.0f}], p99 of {} {:5.0f} ms   limit {} ms\n",
               path->name, bench::Quantile(path->ms, 0.5), path->ms.front(), path->ms.back(),
               samples, p99, kLimitMs);
  }
  fmt::print("  idle, a page open: watcher {:.2f} % of a core, server {:.2f} %\n",
             watch_share * 100, serve_share * 100);
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--feed") {
    return Feed(argv[2], std::atoi(argv[3]));
  }
  return Measure(argc > 1 ? std::atoi(argv[1]) : 100);
}
