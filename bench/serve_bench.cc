// SPDX-License-Identifier: Apache-2.0
// The server over a run of 1 million steps and 5 million samples: how long a cold server takes to
// its first answer with the verdict, to all of the run, and to any window of a chart then. Limits:
// 1 s to the first answer, 200 ms for a window (a page's own drawing: page_bench.py); exit code 1
// beyond one of them.
// usage: serve_bench
//        serve_bench --write RUN   only writes the run
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "must.h"
#include "serve/client.h"
#include "store/writer.h"
#include "support/sample_run.h"

namespace {

namespace fs = std::filesystem;
namespace format = telltale::format;
using telltale::bench::Must;
using Clk = std::chrono::steady_clock;

constexpr int kSeconds = 10'000;
constexpr int kStepsASecond = 100;
constexpr int kSamplesASecond = 2;
constexpr std::int64_t kSecond = 1'000'000'000;
constexpr double kFirstLimitMs = 1000;
constexpr double kWindowLimitMs = 200;

struct Sampled {
  std::string subject;
  std::string_view name, unit;
};

/// 250 series: 240 cores, and one of each that the page has a chart for.
std::vector<Sampled> AllSampled() {
  std::vector<Sampled> all = {
      {"node", "mem.used", "bytes"},
      {"node", "cpu.iowait", "percent"},
      {"proc:tree", "proc.cpu", "percent"},
      {"proc:tree", "proc.rss", "bytes"},
      {"disk:vda", "disk.read_bytes_rate", "bytes/s"},
      {"disk:vda", "disk.write_bytes_rate", "bytes/s"},
      {"net:eth0", "net.recv_bytes_rate", "bytes/s"},
      {"net:eth0", "net.send_bytes_rate", "bytes/s"},
      {"psi", "psi.cpu.some10", "percent"},
      {"psi", "psi.io.some10", "percent"},
  };
  for (int i = 0; i < 240; ++i) all.push_back({fmt::format("cpu:{}", i), "cpu.idle", "percent"});
  return all;
}

double MsSince(Clk::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clk::now() - begin).count();
}

format::Batch Second(const telltale::testing::SampleRun& sample, int second,
                     const std::vector<Sampled>& sampled) {
  format::Batch batch;
  const std::int64_t begin = sample.start_ns + second * kSecond;
  for (int i = 0; i < kStepsASecond; ++i) {
    format::StepRow step;
    step.duration_ns = kSecond / kStepsASecond;
    step.time_ns = begin + i * step.duration_ns;
    step.ord_ns = step.time_ns + step.duration_ns - 1;
    step.step = second * kStepsASecond + i;
    step.mode = "TRAIN";
    step.attempt = 1;
    step.data_wait_ns = step.duration_ns / 2 + i * 1000;
    step.forward_ns = step.duration_ns - step.data_wait_ns;
    step.batch_size = 32;
    batch.rows.steps.push_back(step);
    if (i % 10 != 0) continue;
    format::ScalarRow loss;
    loss.time_ns = loss.ord_ns = step.ord_ns;
    loss.name = "loss";
    loss.mode = "TRAIN";
    loss.attempt = 1;
    loss.step = step.step;
    loss.value = 2 / (1 + static_cast<double>(step.step) * 1e-5) + 1e-3 * i;
    batch.rows.scalars.push_back(loss);
  }
  for (int s = 0; s < kSamplesASecond; ++s) {
    for (std::size_t i = 0; i < sampled.size(); ++i) {
      format::MetricRow row;
      row.time_ns = row.ord_ns = begin + s * kSecond / kSamplesASecond;
      row.node = "bench";
      row.subject = sampled[i].subject;
      row.name = sampled[i].name;
      row.unit = sampled[i].unit;
      row.value = static_cast<double>((second * 7 + static_cast<int>(i) * 13 + s) % 101);
      batch.rows.metrics.push_back(row);
    }
  }
  batch.watermark_ns = begin + kSecond;
  return batch;
}

void WriteBenchRun(const fs::path& run, const telltale::testing::SampleRun& sample) {
  fs::create_directories(run);
  Must(telltale::store::WriteRunInfo(run, telltale::testing::MakeInfo(sample, true)));
  // The run's own time, so that journals are sealed as often as in a run of that length.
  telltale::FakeClock clock;
  clock.realtime_ns = sample.start_ns;
  telltale::store::WriterOptions options;
  options.clock = &clock;
  options.sync_interval_ns = kSeconds * kSecond;
  auto agent = telltale::store::Writer::Open(run / "agent-bench", "agent-bench", options);
  auto watch = telltale::store::Writer::Open(run / "watch", "watch");
  Must(agent.ok() ? watch.status() : agent.status());
  const std::vector<Sampled> sampled = AllSampled();
  for (int second = 0; second < kSeconds; ++second) {
    Must((*agent)->Append(Second(sample, second, sampled)));
    clock.Advance(kSecond);
    Must((*agent)->Tick());
  }
  Must((*agent)->Close(true));
  format::Batch findings;
  format::FindingRow finding;
  finding.time_ns = finding.ord_ns = finding.start_ns = finding.end_ns = sample.start_ns + kSecond;
  finding.incident = "bench";
  finding.revision = 1;
  finding.rule = "InputBound";
  finding.severity = "high";
  finding.state = "closed";
  finding.message = "Data loading takes 50 % of step time";
  findings.rows.findings.push_back(finding);
  findings.watermark_ns = sample.start_ns + 2 * kSecond;
  Must((*watch)->Append(std::move(findings)));
  Must((*watch)->Close(true));
}

}  // namespace

int main(int argc, char** argv) {
  telltale::testing::SampleRun sample;
  sample.steps = kSeconds * kStepsASecond;
  sample.step_ns = kSecond / kStepsASecond;
  if (argc == 3 && std::string_view(argv[1]) == "--write") {
    WriteBenchRun(argv[2], sample);
    return 0;
  }
  std::string pattern = (fs::temp_directory_path() / "telltale-serve-bench-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) return 1;
  const fs::path root = pattern;
  WriteBenchRun(root / "run", sample);
  int exit_code = 0;
  {
    const auto begin = Clk::now();
    const telltale::testing::RunningServer server({root});
    const auto first = server.Get("/api/runs/run/overview");
    const double first_ms = MsSince(begin);
    const bool verdict = first.body.find("Data loading takes 50 %") != std::string::npos;
    telltale::testing::Connection stream(server.port());
    stream.Send(fmt::format("GET /api/runs/run/stream HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n",
                            server.bearer()));
    if (!verdict || !stream.Await("\"loading\":false", std::chrono::minutes(5))) exit_code = 1;
    const double loaded_ms = MsSince(begin);
    std::mt19937_64 random(1);
    std::vector<double> window_ms;
    std::size_t bytes = 0;
    for (int i = 0; i < 400 && exit_code == 0; ++i) {
      // From the whole run down to a few steps.
      const double share = std::exp(-std::uniform_real_distribution<>(0, 12)(random));
      const auto span = static_cast<std::int64_t>(share * kSeconds * kSecond);
      const auto from = static_cast<std::int64_t>(std::uniform_real_distribution<>(0, 1)(random) *
                                                  static_cast<double>(kSeconds * kSecond - span));
      const std::string target =
          i % 4 == 3
              ? fmt::format("/api/runs/run/heatmap?columns=400&from={}&to={}", from, from + span)
              : fmt::format(
                    "/api/runs/run/series?kind=steps&name=data%20wait&points=1200&"
                    "from={}&to={}",
                    from, from + span);
      const auto asked = Clk::now();
      const auto reply = server.Get(target);
      window_ms.push_back(MsSince(asked));
      if (i % 4 != 3) bytes = std::max(bytes, reply.body.size());
      if (reply.status != 200) exit_code = 1;
    }
    std::sort(window_ms.begin(), window_ms.end());
    // What the page asks for at a zoom of most of the run: 5 million samples of all cores.
    std::vector<double> wide_ms;
    constexpr std::int64_t kWhole = kSeconds * kSecond;
    for (int i = 0; i < 40 && exit_code == 0; ++i) {
      const double share = std::uniform_real_distribution<>(0.3, 1)(random);
      const auto from = static_cast<std::int64_t>((1 - share) * static_cast<double>(kWhole));
      const auto asked = Clk::now();
      const auto reply = server.Get(
          fmt::format("/api/runs/run/heatmap?columns=600&as=bytes&from={}&to={}", from, kWhole));
      wide_ms.push_back(MsSince(asked));
      if (reply.status != 200) exit_code = 1;
    }
    std::sort(wide_ms.begin(), wide_ms.end());
    if (exit_code == 0) {
      const double p99 = window_ms[window_ms.size() * 99 / 100];
      fmt::print("  first answer, verdict in it {:8.0f} ms   limit {:.0f} ms\n", first_ms,
                 kFirstLimitMs);
      fmt::print("  all of the run read         {:8.0f} ms\n", loaded_ms);
      fmt::print("  any window, median          {:8.1f} ms\n", window_ms[window_ms.size() / 2]);
      fmt::print("  any window, p99             {:8.1f} ms   limit {:.0f} ms\n", p99,
                 kWindowLimitMs);
      fmt::print("  all cores, wide, as bytes   {:8.1f} ms, at most {:.1f}   limit {:.0f} ms\n",
                 wide_ms[wide_ms.size() / 2], wide_ms.back(), kWindowLimitMs);
      fmt::print("  largest series on the wire  {:8.0f} kB\n", static_cast<double>(bytes) / 1000);
      if (first_ms > kFirstLimitMs || p99 > kWindowLimitMs || wide_ms.back() > kWindowLimitMs) {
        exit_code = 1;
      }
    }
  }
  fs::remove_all(root);
  return exit_code;
}
