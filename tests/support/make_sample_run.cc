// SPDX-License-Identifier: Apache-2.0
// Writes a sample run, to look at reports: make_sample_run DIR slow|healthy|nan|late|empty|long
#include <cstdio>
#include <string>

#include "support/sample_run.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  telltale::testing::SampleRun sample;
  const std::string kind = argv[2];
  sample.name = kind;
  if (kind == "healthy" || kind == "late") sample.learns = true;
  if (kind == "healthy") sample.wait_share = 0.02;
  if (kind == "late") {
    sample.slow_from = 400;
    sample.steps = 1000;
    sample.wait_share = 0.4;
    sample.seed = 7;
  }
  if (kind == "nan") {
    sample.name = "<img src=x onerror=alert(1)>";
    sample.nan_at = 250;
  }
  if (kind == "empty") sample.steps = 0;
  if (kind == "long") {
    sample.learns = true;
    sample.steps = 200'000;
    sample.step_ns = 5'000'000;
  }
  const telltale::Status status = telltale::testing::WriteRun(argv[1], sample);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
