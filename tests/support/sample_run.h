// SPDX-License-Identifier: Apache-2.0
// Records of a training as the agent would write them, from a few numbers: for tests and for
// looking at reports. Deterministic. Written with the real store::Writer.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/string_pool.h"
#include "format/records.gen.h"
#include "store/run_info.h"
#include "store/writer.h"

namespace telltale::testing {

struct SampleRun {
  std::string name = "train";
  int steps = 400;
  std::int32_t rank = 0;
  std::int64_t step_ns = 50'000'000;
  double wait_share = 0.6;
  int slow_from = 0;    ///< First step that waits; before it 1 %.
  bool learns = false;  ///< Loss falls; else it stays at 2.3.
  int nan_at = -1;      ///< Step whose loss is NaN.
  bool exits = false;   ///< The end of its process is recorded, before that of the attempt.
  int cores = 4;
  int workers = 0;
  std::uint32_t attempt = 1;
  std::int64_t start_ns = 1'800'000'000'000'000'000;  ///< Run clock.
  std::uint32_t seed = 1;
};

/// Rows of one writer, each table ordered by ord_ns. Text points into `pool` or is static.
format::Rows MakeRows(const SampleRun& sample, StringPool* pool);

/// Cuts rows into batches by ord_ns, `batch_ns` each, with the watermark at the end of each.
std::vector<format::Batch> Cut(const format::Rows& rows, std::int64_t batch_ns);

/// run.json of a run with one attempt of exit code 0, finished or still running under this process.
store::RunInfo MakeInfo(const SampleRun& sample, bool finished);

/// A whole recorded run in `run`: run.json and agent-sample with everything, ended.
Status WriteRun(const std::filesystem::path& run, const SampleRun& sample);

}  // namespace telltale::testing
