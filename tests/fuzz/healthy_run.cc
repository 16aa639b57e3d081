// SPDX-License-Identifier: Apache-2.0
#include "healthy_run.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/string_pool.h"
#include "format/batch.h"
#include "fuzz.h"
#include "interchange/windows/window_import.h"
#include "query/slice_order.h"
#include "store/requests.h"
#include "store/run_info.h"
#include "store/tensor_file.h"
#include "store/verify.h"
#include "store/writer.h"

namespace telltale::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kRunBegin = 1'700'000'000'000'000'000;
constexpr std::int64_t kRunStepNs = 10'000'000;
constexpr std::int64_t kRunSteps = 20;
constexpr int kRunPid = 42;

std::int64_t BeginOf(std::int64_t step) { return kRunBegin + step * kRunStepNs; }

void AddSteps(format::Rows* rows) {
  for (std::int64_t i = 0; i < kRunSteps; ++i) {
    format::StepRow step;
    step.time_ns = BeginOf(i);
    step.duration_ns = step.other_ns = kRunStepNs;
    step.ord_ns = step.time_ns + step.duration_ns;
    step.step = i;
    step.mode = "TRAIN";
    step.pid = kRunPid;
    step.attempt = 1;
    rows->steps.push_back(step);
    format::ScalarRow loss;
    loss.time_ns = loss.ord_ns = step.ord_ns;
    loss.name = "loss";
    loss.mode = "TRAIN";
    loss.step = i;
    loss.pid = kRunPid;
    loss.attempt = 1;
    rows->scalars.push_back(loss);
  }
}

/// Of a window of detail that began at this step.
std::string TraceName(std::int64_t step) {
  return fmt::format("windows/few/rank0-step{}-{}.pt.trace.json", step, kRunPid);
}

void AddEndOfWindow(std::int64_t step, StringPool* pool, format::Rows* rows) {
  format::EventRow event;
  event.time_ns = event.ord_ns = BeginOf(kRunSteps);
  event.kind = "window.closed";
  event.severity = "info";
  event.data = pool->Intern(
      fmt::format(R"({{"window":"few","first":{0},"last":{0},"early":"","files":{{"{1}":1}}}})",
                  step, TraceName(step)));
  event.pid = kRunPid;
  event.attempt = 1;
  rows->events.push_back(event);
}

void WriteTrace(std::int64_t step) {
  WriteInput(
      fmt::format(R"({{"schemaVersion":1,"baseTimeNanoseconds":{0},"traceEvents":[)"
                  R"({{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{1}","pid":{2},)"
                  R"("tid":{2},"ts":{3},"dur":9000}},)"
                  R"({{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":{2},"tid":{2},"ts":{4},)"
                  R"("dur":5,"args":{{"External id":1}}}}]}})",
                  kRunBegin, step, kRunPid, step * kRunStepNs / 1000,
                  step * kRunStepNs / 1000 + 100),
      "healthy/" + TraceName(step));
}

void AddTensor(const fs::path& folder, StringPool* pool, format::Rows* rows) {
  constexpr std::uint64_t kHeaderBytes = 192;
  constexpr std::array<float, 2> kValues = {0.5F, -1.0F};
  bool no_space = false;
  const auto file = store::TensorFileWriter::Create(folder, 1, &no_space, kHeaderBytes);
  Require(file.ok());
  const auto add = [&](format::TensorRow row, const Result<store::Placed>& placed) {
    Require(placed.ok());
    row.time_ns = row.ord_ns = BeginOf(1);
    row.attempt = 1;
    row.file = pool->Intern((*file)->file());
    row.offset = placed->offset;
    row.bytes = placed->bytes;
    row.digest = pool->Intern(placed->digest);
    rows->tensors.push_back(row);
  };
  format::TensorRow row;
  row.name = "fc.bias";
  row.collection = "biases";
  row.dtype = "F32";
  row.shape = "[2]";
  row.mode = "TRAIN";
  add(row, (*file)->Append(row, std::as_bytes(std::span(kValues))));
  format::TensorRow header;
  header.name = store::kHeaderRow;
  add(header, (*file)->WriteHeader());
  Require(store::SealTensorFile((*file)->fd()->get(), folder, (*file)->file()).ok());
}

void AddStack(format::Rows* rows) {
  std::int64_t inset_ns = 0;
  for (const char* name : {"MainThread", "forward", "f (train.py:3)"}) {
    format::SliceRow slice;
    slice.time_ns = BeginOf(2) + inset_ns;
    slice.ord_ns = BeginOf(3) - inset_ns;
    slice.duration_ns = slice.ord_ns - slice.time_ns;
    slice.name = name;
    slice.category = "python";
    slice.pid = slice.tid = kRunPid;
    slice.device = -1;
    slice.stream = -1;
    slice.attempt = 1;
    slice.window = query::kSampledStacks;
    rows->slices.push_back(slice);
    inset_ns += 1000;
  }
}

/// What a watcher says at the end.
void AddLastWord(format::Rows* rows) {
  format::EventRow event;
  event.time_ns = event.ord_ns = BeginOf(kRunSteps);
  event.kind = "rules.ended";
  event.severity = "info";
  event.data = "{}";
  event.attempt = 1;
  rows->events.push_back(event);
}

/// `add` gives the rows of the writer, whose folder is there by then.
template <class Add>
void WriteFolder(const fs::path& run, const std::string& name, const Add& add) {
  const auto writer = store::Writer::Open(run / name, name);
  Require(writer.ok());
  format::Batch batch;
  add(&batch.rows);
  batch.watermark_ns = BeginOf(kRunSteps);
  Require((*writer)->Append(std::move(batch)).ok() && (*writer)->Close(true).ok());
}

fs::path MakeRun() {
  const fs::path run = ScratchRoot() / "healthy";
  fs::create_directories(run / "requests" / "who");
  store::RunInfo info{.id = "run", .name = "run"};
  info.attempts.push_back({.number = 1, .start_ns = 1, .end_ns = 2, .exit_code = 0});
  info.finished = true;
  Require(store::WriteRunInfo(run, info).ok());
  StringPool pool;
  WriteFolder(run, "agent-a", [&](format::Rows* rows) {
    AddSteps(rows);
    AddEndOfWindow(5, &pool, rows);
    AddEndOfWindow(12, &pool, rows);
    AddTensor(run / "agent-a", &pool, rows);
  });
  WriteFolder(run, "watch", AddLastWord);
  WriteFolder(run, "stacks", AddStack);
  store::Request request{.who = "who", .kind = "plan", .body = "{}"};
  Require(store::WriteRequest(run, request).ok());
  WriteInput("<html></html>", "healthy/report.html");
  WriteTrace(5);
  const auto imported = interchange::ImportWindows({.run = run, .in_child = false});
  Require(imported.ok() && imported->windows.size() == 1 && imported->windows[0].failure.empty());
  WriteTrace(12);
  const auto verified = store::Verify(run);
  Require(verified.ok() && verified->problems.empty());
  return run;
}

}  // namespace

const fs::path& HealthyRun() {
  static const fs::path run = MakeRun();
  return run;
}

}  // namespace telltale::fuzz
