// SPDX-License-Identifier: Apache-2.0
// Whether open pages slow down a recording: a training that records at a fixed rate under the real
// `telltale run` (channel, agent, journal, watcher), in turn without a server and beside `telltale
// serve` with 500 event streams of that run, which this program reads. Rates, drops, the time from
// a record to the journal, CPU. Fails where the streams cost a record. usage: ingest_bench [ROUNDS
// [RECORDS_A_SECOND [SECONDS]]]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "child.h"
#include "fault/harness.h"
#include "serve/stream_crowd.h"
#include "support/recording.h"

namespace {

namespace bench = telltale::bench;
namespace fault = telltale::fault;
namespace support = telltale::testing;

constexpr std::size_t kStreams = 500;

struct Rounds {
  const char* name;
  std::vector<double> rate, lag_p50, lag_p99, agent, server, client;
  std::uint64_t records = 0;
  std::uint64_t lost = 0;
};

/// One recording; false where it did not come to its end.
bool Record(int number, bool streams, long rate, long seconds, Rounds* out) {
  const fault::Scratch scratch(fmt::format("ingest-{}-{}", number, streams));
  support::Recording recording(scratch / "", rate, seconds);
  if (!recording.AwaitReady()) return false;
  std::optional<bench::ServeProcess> server;
  std::optional<support::StreamCrowd> crowd;
  if (streams) {
    server.emplace(recording.root());
    crowd.emplace(server->port(), server->StreamRequest("live"), kStreams);
    if (!crowd->ok()) return false;
  }
  const double server_before = server ? server->CpuSeconds() : 0;
  recording.Go();
  support::Recorded recorded;
  if (!recording.Follow(&recorded) || recorded.values == 0) return false;
  const auto wall_s = static_cast<double>(recorded.last_ns - recorded.first_ns) / 1e9;
  std::sort(recorded.lag_ms.begin(), recorded.lag_ms.end());
  out->rate.push_back(static_cast<double>(recorded.values + recorded.spans) / wall_s);
  out->lag_p50.push_back(bench::Quantile(recorded.lag_ms, 0.5));
  out->lag_p99.push_back(bench::Quantile(recorded.lag_ms, 0.99));
  out->agent.push_back(recorded.agent_cpu_s / wall_s * 100);
  out->records += recorded.values + recorded.spans;
  const auto expected = static_cast<std::uint64_t>(rate / 2000 * 1000 * seconds);
  out->lost += 2 * expected - recorded.values - recorded.spans;
  if (!server) return true;
  out->server.push_back((server->CpuSeconds() - server_before) / wall_s * 100);
  out->client.push_back(crowd->cpu_seconds() / wall_s * 100);
  return crowd->ok();
}

std::string Spread(std::vector<double> values, const char* unit) {
  std::sort(values.begin(), values.end());
  return fmt::format("{:8.1f} {} [{:.1f}..{:.1f}]", bench::Quantile(values, 0.5), unit,
                     values.front(), values.back());
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 6;
  const long rate = argc > 2 ? std::atol(argv[2]) : 200'000;
  const long seconds = argc > 3 ? std::atol(argv[3]) : 6;
  if (!support::RaiseFileLimit(kStreams)) {
    fmt::print(stderr, "ingest_bench: the system allows too few open files\n");
    return 1;
  }
  Rounds without{"no server"};
  Rounds with{"500 streams"};
  for (int i = 0; i < rounds; ++i) {
    // Each order half of the time.
    for (const bool streams : {i % 2 == 1, i % 2 == 0}) {
      if (Record(i, streams, rate, seconds, streams ? &with : &without)) continue;
      fmt::print(stderr, "ingest_bench: a recording did not come to its end\n");
      return 1;
    }
  }
  std::vector<double> ratios;
  for (std::size_t i = 0; i < with.rate.size(); ++i) {
    ratios.push_back(with.rate[i] / without.rate[i]);
  }
  for (const Rounds* one : {&without, &with}) {
    fmt::print("  {:<12} recorded  {}, lost {} of {}\n", one->name, Spread(one->rate, "records/s"),
               one->lost, one->records + one->lost);
    fmt::print("  {:<12} to the journal, median {}\n", "", Spread(one->lag_p50, "ms"));
    fmt::print("  {:<12} to the journal, p99    {}\n", "", Spread(one->lag_p99, "ms"));
    fmt::print("  {:<12} agent's CPU  {} of a core\n", "", Spread(one->agent, "%"));
  }
  std::sort(ratios.begin(), ratios.end());
  fmt::print("  {:<12} server's CPU {} of a core; who reads the streams {}\n", "",
             Spread(with.server, "%"), Spread(with.client, "%"));
  fmt::print("  recorded with streams over without: {:.4f} [{:.4f}..{:.4f}], {} rounds each\n",
             bench::Quantile(ratios, 0.5), ratios.front(), ratios.back(), rounds);
  return with.lost > without.lost ? 1 : 0;
}
