// SPDX-License-Identifier: Apache-2.0
// A finished run through all rules: statistics of 20 tensors at each of a million steps, written by
// the store's own writer. Judges statistics rows a second on one core, the time on two and the
// memory, beside reading the same rows and giving them to nobody. Exit code 1 beyond a limit.
// usage: replay_bench [STEPS]
#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/heap.h"
#include "format/batch.h"
#include "must.h"
#include "rules/registry.h"
#include "rules/replay.h"
#include "rules/rule_set.h"
#include "store/reader.h"
#include "store/run_info.h"
#include "store/writer.h"

namespace {

namespace fs = std::filesystem;
namespace format = telltale::format;
namespace rules = telltale::rules;
namespace store = telltale::store;
using telltale::bench::Must;

constexpr double kLeastRowsASecond = 2e6;  // On one core.
constexpr double kMostSeconds = 15;        // On two.
constexpr double kMostMebibytes = 256;

constexpr std::int64_t kSteps = 1'000'000;
constexpr int kLayers = 10;  // A weight and its gradient each: 20 tensors.
constexpr std::int64_t kStepNs = 10'000'000;
constexpr std::int64_t kSampleNs = 500'000'000;
constexpr std::int64_t kStart = 1'760'000'000'000'000'000;
constexpr std::int64_t kStepsABatch = 100;
constexpr std::int32_t kPid = 4711;

/// A healthy training: what rules say of an ill one costs more, and seldom.
class Run {
 public:
  explicit Run(fs::path run) : run_(std::move(run)) {
    fs::create_directories(run_);
    // The journals of what is sealed would fill the disk.
    store::WriterOptions options;
    options.delete_delay_ns = 0;
    writer_ = Must(store::Writer::Open(run_ / "agent-bench", "agent-bench", options));
    for (int layer = 0; layer < kLayers; ++layer) {
      weights_.push_back(fmt::format("layers.{}.weight", layer));
      gradients_.push_back("gradient/" + weights_.back());
    }
  }

  void Write(std::int64_t steps) {
    for (std::int64_t step = 0; step < steps; ++step) {
      if (step % kStepsABatch == 0) Flush();
      Add(step);
    }
    Flush();
    Must(writer_->Close(true));
    store::RunInfo info{.id = run_.filename().string(), .name = "bench", .command = {"bench"}};
    info.created_ns = kStart;
    info.attempts.push_back(
        {.number = 1, .start_ns = kStart, .end_ns = kStart + steps * kStepNs, .exit_code = 0});
    info.finished = true;
    Must(store::WriteRunInfo(run_, info));
  }

 private:
  /// From -1 to 1; the same in every run.
  double Noise() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state_ >> 11U) / static_cast<double>(1ULL << 52U) - 1;
  }

  void Add(std::int64_t step) {
    const std::int64_t begin = kStart + step * kStepNs;
    now_ = begin + kStepNs / 2;
    for (const std::string& name : weights_) AddStatistic(step, name, "weights", 0.05);
    for (const std::string& name : gradients_) AddStatistic(step, name, "gradients", 1e-3);

    format::ScalarRow loss;
    loss.time_ns = loss.ord_ns = now_;
    loss.name = "loss";
    loss.value = 0.3 + 2 * std::exp(-static_cast<double>(step) / 1e5) + 0.02 * Noise();
    loss.step = step;
    loss.mode = "TRAIN";
    loss.pid = kPid;
    loss.attempt = 1;
    batch_.rows.scalars.push_back(loss);

    now_ = begin + kStepNs;
    format::StepRow row;
    row.time_ns = begin;
    row.ord_ns = now_;
    row.duration_ns = kStepNs;
    row.forward_ns = 3 * kStepNs / 10;
    row.backward_ns = 5 * kStepNs / 10;
    row.optimizer_ns = kStepNs / 10;
    row.other_ns = kStepNs / 10;
    row.step = step;
    row.mode = "TRAIN";
    row.pid = kPid;
    row.attempt = 1;
    batch_.rows.steps.push_back(row);

    if (now_ / kSampleNs == begin / kSampleNs) return;
    for (const char* subject : {"cpu:0", "cpu:1"}) {
      format::MetricRow metric;
      metric.time_ns = metric.ord_ns = now_;
      metric.node = "bench";
      metric.subject = subject;
      metric.name = "cpu.user";
      metric.value = 60 + 5 * Noise();
      metric.unit = "percent";
      batch_.rows.metrics.push_back(metric);
    }
  }

  void AddStatistic(std::int64_t step, const std::string& name, const char* collection,
                    double size) {
    constexpr double kElements = 4096;
    format::StatisticRow row;
    row.time_ns = row.ord_ns = now_;
    row.name = name;
    row.collection = collection;
    row.dtype = "float32";
    row.step = step;
    row.mode = "TRAIN";
    row.pid = kPid;
    row.attempt = 1;
    row.count = static_cast<std::uint64_t>(kElements);
    row.std = size * (1 + 0.1 * Noise());
    row.mean = size * 0.01 * Noise();
    row.min = -3 * row.std;
    row.max = 3 * row.std;
    row.l1 = 0.8 * row.std * kElements;
    row.l2 = row.std * std::sqrt(kElements);
    batch_.rows.statistics.push_back(row);
  }

  void Flush() {
    batch_.watermark_ns = now_;
    Must(writer_->Append(std::exchange(batch_, {})));
    Must(writer_->Tick());
  }

  const fs::path run_;
  std::unique_ptr<store::Writer> writer_;
  std::vector<std::string> weights_, gradients_;  ///< Rows point into them.
  std::uint64_t state_ = 1;
  std::int64_t now_ = kStart;
  format::Batch batch_;
};

/// Every rule that there is.
rules::RuleSet AllRules() {
  rules::RuleSet set;
  for (const rules::RuleEntry& entry : rules::Registry()) {
    if (entry.desc->by_default) continue;
    rules::RuleSpec spec;
    spec.name = spec.rule = std::string(entry.desc->name);
    set.rules.push_back(std::move(spec));
  }
  return set;
}

void Replay(const fs::path& run, std::uint64_t rows) {
  rules::ReplayOptions options;
  options.rules = AllRules();
  const rules::Replay replay = Must(rules::ReplayRun(run, options));
  std::uint64_t most = 0;
  for (const rules::RuleState& state : replay.rules) {
    most = std::max(most, state.records.value_or(0));
    if (state.status == rules::RuleStatus::kError) {
      fmt::print(stderr, "replay_bench: {}: {}\n", state.name, state.error);
    }
  }
  // Else it was fast because it did nothing.
  if (replay.salvage.any() || most < rows || replay.rules.size() != rules::Registry().size()) {
    fmt::print(stderr, "replay_bench: no rule was given all {} rows\n", rows);
    std::exit(1);
  }
}

/// What any reader has to do.
void Read(const fs::path& run, std::uint64_t rows) {
  const auto reader = Must(store::RunReader::Open(run));
  store::Salvage salvage;
  std::uint64_t read = 0;
  const auto count = [&](const std::string&, const format::Rows& chunk) {
    read += chunk.statistics.size();
    return true;
  };
  Must(reader->Scan(store::MaskOf(format::TableId::kStatistics), count, &salvage));
  if (read != rows || salvage.any()) {
    fmt::print(stderr, "replay_bench: {} of {} rows were read\n", read, rows);
    std::exit(1);
  }
}

/// Of the cores that we may use, the first `count`.
void StayOn(int count) {
  cpu_set_t may;
  if (::sched_getaffinity(0, sizeof may, &may) != 0) return;
  cpu_set_t some;
  CPU_ZERO(&some);
  for (int core = 0; core < CPU_SETSIZE && count > 0; ++core) {
    if (!CPU_ISSET(core, &may)) continue;
    CPU_SET(core, &some);
    --count;
  }
  ::sched_setaffinity(0, sizeof some, &some);
}

struct Measured {
  double seconds = 0;
  double processor_seconds =
      0;  ///< Of all its threads: what others leave of the cores counts less.
  double mebibytes = 0;
};

/// Runs `body` in a process of its own, so that its memory is that of it alone.
template <class Body>
Measured Alone(int cores, Body&& body) {
  std::fflush(nullptr);
  const auto began = std::chrono::steady_clock::now();
  const pid_t pid = ::fork();
  if (pid == 0) {
    StayOn(cores);
    int code = 0;
    try {
      body();
    } catch (const std::exception& error) {
      fmt::print(stderr, "replay_bench: {}\n", error.what());
      code = 1;
    }
    std::fflush(nullptr);
    ::_exit(code);
  }
  int status = 0;
  rusage usage{};
  if (pid < 0 || ::wait4(pid, &status, 0, &usage) != pid || !WIFEXITED(status) ||
      WEXITSTATUS(status) != 0) {
    // Not an exit: the folder is to be removed.
    throw std::runtime_error("a part of it failed");
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return {took.count(), seconds(usage.ru_utime) + seconds(usage.ru_stime),
          static_cast<double>(usage.ru_maxrss) / 1024};
}

/// Removed with all that is in it.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "telltale-replay-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error(name + " cannot be made");
    path_ = name;
  }
  ~Folder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

int Measure(std::int64_t steps) {
  const Folder folder;
  const fs::path run = folder.path() / "run";
  const auto rows = static_cast<std::uint64_t>(steps) * 2 * kLayers;
  const Measured written = Alone(CPU_SETSIZE, [&] { Run(run).Write(steps); });
  const Measured read = Alone(1, [&] { Read(run, rows); });
  const Measured one = Alone(1, [&] { Replay(run, rows); });
  const Measured two = Alone(2, [&] { Replay(run, rows); });
  const auto rate = [&](const Measured& m) { return static_cast<double>(rows) / m.seconds; };
  fmt::print("  {} steps, {:.1f} M rows, written in {:.1f} s\n", steps,
             static_cast<double>(rows) / 1e6, written.seconds);
  fmt::print("  read alone, one core         {:8.2f} M rows/s                processor {:6.2f} s\n",
             rate(read) / 1e6, read.processor_seconds);
  fmt::print(
      "  {} rules, one core           {:8.2f} M rows/s   limit {:3.1f}    processor {:6.2f} s\n",
      rules::Registry().size(), rate(one) / 1e6, kLeastRowsASecond / 1e6, one.processor_seconds);
  fmt::print(
      "  {} rules, two cores          {:8.2f} s          limit {:3.0f}    processor {:6.2f} s\n",
      rules::Registry().size(), two.seconds, kMostSeconds, two.processor_seconds);
  const double memory = std::max(one.mebibytes, two.mebibytes);
  fmt::print("  memory                       {:8.0f} MiB        limit {:.0f}\n", memory,
             kMostMebibytes);
  const bool holds =
      rate(one) >= kLeastRowsASecond && two.seconds <= kMostSeconds && memory <= kMostMebibytes;
  if (!holds) fmt::print(stderr, "replay_bench: beyond a limit\n");
  return holds ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  telltale::KeepFreedMemoryOfReading();  // As `telltale check` does.
  const std::int64_t steps = argc > 1 ? std::atoll(argv[1]) : kSteps;
  if (steps <= 0) {
    fmt::print(stderr, "usage: replay_bench [STEPS]\n");
    return 2;
  }
  try {
    return Measure(steps);
  } catch (const std::exception& error) {
    fmt::print(stderr, "replay_bench: {}\n", error.what());
    return 1;
  }
}
