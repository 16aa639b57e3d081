// SPDX-License-Identifier: Apache-2.0
// Reads a run while it is recorded: prints each step and loss as it comes, and at the end how the
// run went and what the rules say. Works the same on a run that has ended.
//
//   build/examples/follow telltale-runs/cpp
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>

#include "telltale/read.hpp"

namespace {

int Fail(const telltale::Error& error) {
  std::fprintf(stderr, "follow: %s\n", error.message.c_str());
  return error.code;
}

void Print(const telltale::Batch& batch) {
  const auto* const step = batch.Column<std::int64_t>("step");
  if (batch.table() == "steps") {
    const auto* const duration_ns = batch.Column<std::int64_t>("duration_ns");
    for (std::int64_t i = 0; i < batch.rows(); ++i) {
      std::printf("step %lld took %.3f ms\n", static_cast<long long>(step[i]),
                  static_cast<double>(duration_ns[i]) / 1e6);
    }
  } else {
    const auto* const value = batch.Column<double>("value");
    const telltale::TextColumn name = batch.Text("name");
    for (std::int64_t i = 0; i < batch.rows(); ++i) {
      if (name[i] != "loss") continue;
      std::printf("loss at step %lld: %.4f\n", static_cast<long long>(step[i]), value[i]);
    }
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: follow RUN\n");
    return 2;
  }
  telltale::Error error;
  auto run = telltale::Run::Open(argv[1], &error);
  if (!run) return Fail(error);
  auto follower = run->Follow({"steps", "scalars"}, &error);
  if (!follower) return Fail(error);

  using State = telltale::Follower::State;
  telltale::Batch batch;
  while (true) {
    const State state = follower->Next(&batch, &error);
    if (state == State::kFailed) return Fail(error);
    if (state == State::kEnd) break;
    if (state == State::kRecords) {
      Print(batch);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  const auto info = run->Info(&error);
  if (!info) return Fail(error);
  const auto findings = run->Findings(&error);
  if (!findings) return Fail(error);
  std::printf("run %s\nfindings %s\n", info->c_str(), findings->c_str());
  return 0;
}
