// SPDX-License-Identifier: Apache-2.0
// Writes an imported run of slices, what a profiler sees of a small training on one GPU:
// make_slice_run DIR STEPS [stacks]
//
// Each step is 1000 us: the DataLoader 0..100, the model's forward 100..500 in a Python function
// and two modules with two operators that launch a kernel each, the backward of both operators on
// another thread 500..800, the optimizer 800..950. An operator allocates 4096 bytes, its backward
// gives them back. With `stacks` sampled ones of the thread too, as src/stacks makes them: forward
// 100..500, all else of a step "other".
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "query/slice_order.h"
#include "store/run_info.h"
#include "store/writer.h"

namespace telltale {
namespace {

constexpr std::int64_t kStart = 1'700'000'000'000'000'000;
constexpr std::int64_t kStepUs = 1000;

class SliceSteps {
 public:
  format::Batch Step(std::int64_t step) {
    step_ = step;
    Host("step", "ProfilerStep", fmt::format("ProfilerStep#{}", step), 0, kStepUs);
    Host("python", "python_function", "train.py(12): train_step", 0, kStepUs);
    Host("data", "user_annotation", "enumerate(DataLoader)#__next__", 0, 100);
    Host("python", "python_function", "model.py(30): forward", 100, 400);
    for (int layer = 0; layer < 2; ++layer) {
      const std::int64_t begin = 100 + 200 * layer;
      const std::int64_t flow = step * 2 + layer + 1;
      Host("module", "python_function", fmt::format("nn.Module: Linear_{}", layer), begin, 200);
      format::SliceRow& op = Host("op", "cpu_op", "aten::linear", begin + 10, 180);
      op.flow = flow;
      op.external = flow;
      op.flops = 1e6;
      op.args = R"({"Input Dims": [[32, 128], [64, 128]], "Sequence number": 7})";
      Memory(begin + 20, 4096, layer);
      Launch(begin + 50, flow * 10, 1);
      Device("sgemm_128x64", begin + 60, 120, flow * 10);
      const std::int64_t back = 500 + 150 * (1 - layer);
      format::SliceRow& backward = Host("op", "cpu_op", "AddmmBackward0", back, 140);
      backward.tid = 2;
      backward.lane = "thread 2 (pt_autograd_0)";
      backward.flow = flow;
      Launch(back + 20, flow * 10 + 1, 2);
      Device("sgemm_backward", back + 30, 100, flow * 10 + 1);
      Memory(back + 130, -4096, layer);
    }
    Host("annotation", "user_annotation", "Optimizer.step#SGD.step", 800, 150);
    batch_.watermark_ns = kStart + (step + 1) * kStepUs * 1000;
    return std::exchange(batch_, {});
  }

 private:
  format::SliceRow& Host(std::string_view category, std::string_view kind, std::string_view name,
                         std::int64_t begin_us, std::int64_t us) {
    format::SliceRow row;
    row.time_ns = kStart + (step_ * kStepUs + begin_us) * 1000;
    row.duration_ns = us * 1000;
    row.ord_ns = row.time_ns + row.duration_ns;
    row.name = texts_.emplace_back(name);
    row.category = category;
    row.kind = kind;
    row.step = step_;
    row.pid = 100;
    row.tid = 1;
    row.lane = "thread 1 (python)";
    row.device = -1;
    row.stream = -1;
    row.attempt = 1;
    row.window = "made.json";
    return batch_.rows.slices.emplace_back(row);
  }
  void Device(std::string_view name, std::int64_t begin_us, std::int64_t us,
              std::int64_t correlation) {
    format::SliceRow& row = Host("kernel", "kernel", name, begin_us, us);
    row.tid = 0;
    row.lane = "stream 7";
    row.device = 0;
    row.stream = 7;
    row.correlation = correlation;
    row.args = R"({"grid": [4, 1, 1], "block": [128, 1, 1]})";
  }
  void Launch(std::int64_t begin_us, std::int64_t correlation, std::int64_t tid) {
    format::SliceRow& row = Host("runtime", "cuda_runtime", "cudaLaunchKernel", begin_us, 5);
    row.correlation = correlation;
    row.tid = tid;
    if (tid == 2) row.lane = "thread 2 (pt_autograd_0)";
  }
  void Memory(std::int64_t at_us, std::int64_t bytes, int layer) {
    format::SliceRow& row = Host("memory", "cpu_instant_event", "[memory]", at_us, 0);
    row.bytes = bytes;
    row.args = texts_.emplace_back(
        fmt::format(R"({{"Device Type": 1, "Device Id": 0, "Addr": {}}})", 4096 + layer));
    if (bytes > 0) return;
    row.tid = 2;
    row.lane = "thread 2 (pt_autograd_0)";
  }

  std::int64_t step_ = 0;
  format::Batch batch_;
  std::deque<std::string> texts_;
};

Status WriteStacks(const std::filesystem::path& run, std::int64_t steps) {
  TELLTALE_ASSIGN_OR_RETURN(const auto writer, store::Writer::Open(run / "stacks", "stacks"));
  format::Batch batch;
  format::SliceRow row;
  row.pid = row.tid = 100;
  row.lane = "main thread (100)";
  row.device = row.stream = -1;
  row.attempt = 1;
  row.window = query::kSampledStacks;
  const auto add = [&](std::string_view name, std::string_view category, std::int64_t step,
                       std::int64_t begin_us, std::int64_t end_us) {
    row.name = name;
    row.category = category;
    row.step = step;
    row.time_ns = kStart + begin_us * 1000;
    row.duration_ns = (end_us - begin_us) * 1000;
    row.ord_ns = row.time_ns + row.duration_ns;
    batch.rows.slices.push_back(row);
  };
  add("main thread", "other", -1, 0, steps * kStepUs);
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::int64_t at = step * kStepUs;
    add("other", "other", step, at, at + 100);
    add("forward", "other", step, at + 100, at + 500);
    add("model.py(30): forward", "python", step, at + 100, at + 500);
    add("other", "other", step, at + 500, at + kStepUs);
  }
  batch.watermark_ns = kStart + steps * kStepUs * 1000;
  TELLTALE_RETURN_IF_ERROR(writer->Append(std::move(batch)));
  return writer->Close(true);
}

Status WriteSliceRun(const std::filesystem::path& run, std::int64_t steps, bool stacks) {
  std::filesystem::create_directories(run);
  store::RunInfo info{.id = run.filename().string(), .name = "slices", .command = {"made"}};
  info.attempts.push_back({.number = 1, .start_ns = kStart, .end_ns = kStart + 1, .exit_code = 0});
  info.created_ns = kStart;
  info.finished = true;
  TELLTALE_RETURN_IF_ERROR(store::WriteRunInfo(run, info));
  TELLTALE_ASSIGN_OR_RETURN(const auto writer,
                            store::Writer::Open(run / "agent-imported-0", "agent-imported-0"));
  for (std::int64_t step = 0; step < steps; ++step) {
    SliceSteps one;
    TELLTALE_RETURN_IF_ERROR(writer->Append(one.Step(step)));
  }
  TELLTALE_RETURN_IF_ERROR(writer->Close(true));
  return stacks ? WriteStacks(run, steps) : Status();
}

}  // namespace
}  // namespace telltale

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 2;
  const telltale::Status status = telltale::WriteSliceRun(argv[1], std::atoll(argv[2]), argc == 4);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
