// SPDX-License-Identifier: Apache-2.0
#include "support/sample_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/process.h"

namespace telltale::testing {
namespace {

class Random {
 public:
  explicit Random(std::uint32_t seed) : state_(seed * 2654435761ULL + 1) {}
  /// In [-1, 1].
  double Next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state_ >> 11U) / 9007199254740992.0 * 2 - 1;
  }

 private:
  std::uint64_t state_;
};

template <class Row>
void Sort(std::vector<Row>* rows) {
  std::stable_sort(rows->begin(), rows->end(),
                   [](const Row& a, const Row& b) { return a.ord_ns < b.ord_ns; });
}

}  // namespace

format::Rows MakeRows(const SampleRun& sample, StringPool* pool) {
  format::Rows rows;
  Random random(sample.seed);
  const std::int32_t pid = 4000 + sample.rank;
  const auto event = [&](std::int64_t at, std::string_view kind, std::string data) {
    format::EventRow row;
    row.time_ns = row.ord_ns = at;
    row.kind = kind;
    row.severity = "info";
    row.subject = pool->Intern(fmt::format("proc:{}", pid));
    row.data = pool->Intern(data);
    row.step = -1;
    row.rank = sample.rank;
    row.pid = pid;
    row.attempt = sample.attempt;
    rows.events.push_back(row);
  };
  std::int64_t now = sample.start_ns;
  event(now, "run.attempt_start", "{\"command\":[\"python\",\"train.py\"]}");
  event(now + 1'000'000, "process.start", "{\"pid\":4000,\"kind\":\"trainer\"}");
  event(now + 2'000'000, "framework",
        fmt::format("{{\"name\":\"torch\",\"version\":\"2.1.0\",\"threads\":1,\"cpus\":{},"
                    "\"cuda\":null}}",
                    sample.cores));
  now += 1'500'000'000;
  event(now, "model", "{\"class\":\"train.Network\",\"parameters\":139018,\"tensors\":8}");
  event(now, "run.first_forward", "{}");
  event(now, "dataloader",
        fmt::format("{{\"loader_id\":1,\"workers\":{},\"batch_size\":32,\"pin_memory\":false,"
                    "\"persistent_workers\":false,\"dataset\":\"Digits\",\"length\":1797}}",
                    sample.workers));
  event(now + 1, "optimizer", "{\"class\":\"SGD\",\"lr\":1.0,\"params\":8}");
  for (int i = 0; i < sample.steps; ++i) {
    const bool slow = i >= sample.slow_from;
    const double share = slow ? sample.wait_share : 0.01;
    const double compute = static_cast<double>(sample.step_ns) * (1 - sample.wait_share);
    auto duration = static_cast<std::int64_t>(compute / (1 - share) * (1 + 0.05 * random.Next()));
    if (i == 0) duration *= 8;
    if (i == sample.steps / 2) duration *= 6;
    format::StepRow step;
    step.time_ns = now;
    step.ord_ns = now + duration;
    step.duration_ns = duration;
    step.step = i;
    step.mode = "TRAIN";
    step.rank = sample.rank;
    step.pid = pid;
    step.attempt = sample.attempt;
    step.data_wait_ns = static_cast<std::int64_t>(static_cast<double>(duration) * share);
    const std::int64_t work = duration - step.data_wait_ns;
    step.forward_ns = work * 3 / 10;
    step.backward_ns = work * 5 / 10;
    step.optimizer_ns = work / 10;
    step.other_ns = work - step.forward_ns - step.backward_ns - step.optimizer_ns;
    step.micro_steps = 1;
    step.optimizer_calls = 1;
    step.batch_size = 32;
    step.probe_ns = duration / 400;
    rows.steps.push_back(step);
    format::SpanRow fetch;
    fetch.time_ns = now;
    fetch.duration_ns = step.data_wait_ns;
    fetch.ord_ns = now + fetch.duration_ns;
    fetch.name = "fetch";
    fetch.category = "data";
    fetch.step = i;
    fetch.mode = "TRAIN";
    fetch.rank = sample.rank;
    fetch.pid = pid;
    fetch.tid = pid;
    fetch.attempt = sample.attempt;
    rows.spans.push_back(fetch);
    const auto scalar = [&](std::string_view name, double value) {
      format::ScalarRow row;
      row.time_ns = row.ord_ns = now + duration * 9 / 10;
      row.name = name;
      row.value = value;
      row.step = i;
      row.mode = "TRAIN";
      row.rank = sample.rank;
      row.pid = pid;
      row.attempt = sample.attempt;
      rows.scalars.push_back(row);
    };
    const double loss = sample.learns ? 0.02 + 2.28 * std::exp(-i / 60.0) + 0.01 * random.Next()
                                      : 2.31 + 0.05 * random.Next();
    scalar("loss", i == sample.nan_at ? std::numeric_limits<double>::quiet_NaN() : loss);
    scalar("lr", sample.learns ? 0.05 : 1.0);
    now += duration;
  }
  event(now, "run.last_step", "{}");
  if (sample.exits) event(now + 100'000'000, "process.exit", "{\"exit_code\":0}");
  const std::int64_t end = now + 300'000'000;
  event(end, "run.attempt_end", "{\"exit_code\":0}");

  for (std::int64_t at = sample.start_ns; at < end; at += 500'000'000) {
    const auto metric = [&](std::string subject, std::string_view name, double value,
                            std::string_view unit) {
      format::MetricRow row;
      row.time_ns = row.ord_ns = at;
      row.node = "sample";
      row.subject = pool->Intern(subject);
      row.name = name;
      row.value = value;
      row.unit = unit;
      rows.metrics.push_back(row);
    };
    double idle = 0;
    for (int core = 0; core < sample.cores; ++core) {
      const double value = core == 0 ? 5 + 5 * random.Next() : 85 + 10 * random.Next();
      idle += value / sample.cores;
      metric(fmt::format("cpu:{}", core), "cpu.idle", value, "percent");
    }
    metric("node", "cpu.idle", idle, "percent");
    metric("node", "cpu.iowait", 1 + random.Next(), "percent");
    metric("node", "mem.used", 5.5e9 + 1e8 * random.Next(), "bytes");
    metric("disk:vda", "disk.read_bytes_rate", 2e6 * (1 + random.Next()), "bytes/s");
    metric("disk:vda", "disk.write_bytes_rate", 3e5 * (1 + random.Next()), "bytes/s");
    metric("net:eth0", "net.recv_bytes_rate", 4e4 * (1 + random.Next()), "bytes/s");
    metric("psi", "psi.cpu.some10", 3 * (1 + random.Next()), "percent");
    metric("proc:tree", "proc.cpu", 98 + random.Next(), "percent");
    metric("proc:tree", "proc.rss", 4e8, "bytes");
  }
  const auto ledger = [&](std::string_view name, std::string_view subject, std::uint64_t value,
                          std::string_view unit, bool loss) {
    format::LedgerRow row;
    row.time_ns = row.ord_ns = end;
    row.name = name;
    row.subject = subject;
    row.value = value;
    row.unit = unit;
    row.loss = loss;
    row.rank = sample.rank;
    row.pid = pid;
    row.attempt = sample.attempt;
    rows.ledger.push_back(row);
  };
  ledger("probe.records_produced", "proc:4000:uuid", static_cast<std::uint64_t>(sample.steps) * 4,
         "records", false);
  ledger("probe.records_dropped", "proc:4000:uuid", sample.seed == 7 ? 3 : 0, "records", true);
  ledger("agent.cpu_ns", "agent", static_cast<std::uint64_t>(end - sample.start_ns) / 200, "ns",
         false);
  ledger("agent.journal_bytes", "agent", 1 << 20, "bytes", false);
  format::ForEachTable(rows, [](auto& table) { Sort(&table); });
  return rows;
}

std::vector<format::Batch> Cut(const format::Rows& rows, std::int64_t batch_ns) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  format::ForEachTable(rows, [&](const auto& table) {
    if (table.empty()) return;
    first = std::min(first, table.front().ord_ns);
    last = std::max(last, table.back().ord_ns);
  });
  std::vector<format::Batch> batches;
  if (first > last) return batches;
  const auto count = static_cast<std::size_t>((last - first) / batch_ns + 1);
  batches.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    batches[i].watermark_ns = first + static_cast<std::int64_t>(i + 1) * batch_ns;
  }
  const auto index = [&](std::int64_t ord) {
    return static_cast<std::size_t>((ord - first) / batch_ns);
  };
  for (const auto& row : rows.metrics) batches[index(row.ord_ns)].rows.metrics.push_back(row);
  for (const auto& row : rows.spans) batches[index(row.ord_ns)].rows.spans.push_back(row);
  for (const auto& row : rows.steps) batches[index(row.ord_ns)].rows.steps.push_back(row);
  for (const auto& row : rows.scalars) batches[index(row.ord_ns)].rows.scalars.push_back(row);
  for (const auto& row : rows.events) batches[index(row.ord_ns)].rows.events.push_back(row);
  for (const auto& row : rows.ledger) batches[index(row.ord_ns)].rows.ledger.push_back(row);
  return batches;
}

store::RunInfo MakeInfo(const SampleRun& sample, bool finished) {
  store::RunInfo info;
  info.id = info.name = sample.name;
  info.command = {"python", "train.py"};
  info.host = HostName();
  info.boot_id = BootId();
  info.pid_namespace = PidNamespace();
  info.telltale_version = "0.1.0";
  info.created_ns = sample.start_ns;
  info.supervisor_pid = getpid();
  info.supervisor_start_ticks = ProcessStartTicks(getpid());
  store::Attempt attempt;
  attempt.number = sample.attempt;
  attempt.start_ns = sample.start_ns;
  if (finished) {
    attempt.end_ns = sample.start_ns + 2'000'000'000 + sample.steps * sample.step_ns;
    attempt.exit_code = 0;
    info.finished = true;
  }
  info.attempts.push_back(attempt);
  return info;
}

Status WriteRun(const std::filesystem::path& run, const SampleRun& sample) {
  std::error_code error;
  std::filesystem::create_directories(run, error);
  TELLTALE_RETURN_IF_ERROR(store::WriteRunInfo(run, MakeInfo(sample, true)));
  TELLTALE_ASSIGN_OR_RETURN(auto writer, store::Writer::Open(run / "agent-sample", "agent-sample"));
  StringPool pool;
  for (format::Batch& batch : Cut(MakeRows(sample, &pool), 200'000'000)) {
    TELLTALE_RETURN_IF_ERROR(writer->Append(std::move(batch)));
  }
  return writer->Close(true);
}

}  // namespace telltale::testing
