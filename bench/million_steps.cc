// SPDX-License-Identifier: Apache-2.0
// Writes a run of a million steps of one small tensor, with the store's own writers: steps, values,
// statistics. bench/reading_bench.py reads it.
// usage: million_steps RUN [STEPS]
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/string_pool.h"
#include "must.h"
#include "store/run_info.h"
#include "store/tensor_file.h"
#include "store/writer.h"

namespace {

namespace fs = std::filesystem;
namespace format = telltale::format;
namespace store = telltale::store;
using telltale::bench::Must;

constexpr std::int64_t kStepNs = 10'000'000;
constexpr std::int64_t kStart = 1'760'000'000'000'000'000;
constexpr std::int64_t kStepsABatch = 1000;

class Run {
 public:
  explicit Run(fs::path run) : run_(std::move(run)), folder_(run_ / "agent-bench") {
    fs::create_directories(run_);
    writer_ = Must(store::Writer::Open(folder_, "agent-bench"));
  }

  void Write(std::int64_t steps) {
    for (std::int64_t step = 0; step < steps; ++step) {
      if (step % kStepsABatch == 0) Flush();
      Add(step);
    }
    if (file_ != nullptr) Finish();
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
  void Add(std::int64_t step) {
    now_ = kStart + step * kStepNs;
    format::StepRow row;
    row.time_ns = now_;
    row.ord_ns = now_ + kStepNs;
    row.duration_ns = row.other_ns = kStepNs;
    row.step = step;
    row.mode = "TRAIN";
    row.attempt = 1;
    batch_.rows.steps.push_back(row);

    format::StatisticRow statistics;
    statistics.time_ns = statistics.ord_ns = now_;
    statistics.name = "small";
    statistics.collection = "weights";
    statistics.dtype = "float32";
    statistics.step = step;
    statistics.mode = "TRAIN";
    statistics.attempt = 1;
    statistics.count = 4;
    statistics.mean = static_cast<double>(step);
    batch_.rows.statistics.push_back(statistics);

    const std::array<float, 4> values{static_cast<float>(step), 1, 2, 3};
    format::TensorRow tensor;
    tensor.time_ns = tensor.ord_ns = now_;
    tensor.name = "small";
    tensor.collection = "weights";
    tensor.dtype = "F32";
    tensor.shape = "[4]";
    tensor.step = step;
    tensor.mode = "TRAIN";
    tensor.attempt = 1;
    if (file_ != nullptr && !file_->HasRoom(tensor)) Finish();
    if (file_ == nullptr) {
      bool no_space = false;
      file_ = Must(store::TensorFileWriter::Create(folder_, ++number_, &no_space));
    }
    tensor.file = pool_.Intern(file_->file());
    const store::Placed placed = Must(file_->Append(tensor, std::as_bytes(std::span(values))));
    tensor.offset = placed.offset;
    tensor.bytes = placed.bytes;
    tensor.digest = pool_.Intern(placed.digest);
    batch_.rows.tensors.push_back(tensor);
  }

  void Finish() {
    const store::Placed header = Must(file_->WriteHeader());
    format::TensorRow row;
    row.time_ns = row.ord_ns = now_;
    row.name = store::kHeaderRow;
    row.mode = "TRAIN";  // As the agent's: that of the tensor before it.
    row.file = pool_.Intern(file_->file());
    row.bytes = header.bytes;
    row.digest = pool_.Intern(header.digest);
    batch_.rows.tensors.push_back(row);
    Must(store::SealTensorFile(file_->fd()->get(), folder_, file_->file()));
    file_.reset();
  }

  void Flush() {
    batch_.watermark_ns = now_;
    Must(writer_->Append(std::exchange(batch_, {})));
    Must(writer_->Tick());
  }

  const fs::path run_;
  const fs::path folder_;
  telltale::StringPool pool_;
  std::unique_ptr<store::Writer> writer_;
  std::unique_ptr<store::TensorFileWriter> file_;
  std::uint64_t number_ = 0;
  std::int64_t now_ = kStart;
  format::Batch batch_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: million_steps RUN [STEPS]\n");
    return 2;
  }
  Run(argv[1]).Write(argc > 2 ? std::atoll(argv[2]) : 1'000'000);
  return 0;
}
