// SPDX-License-Identifier: Apache-2.0
// SageMaker Debugger's system metrics.
#include "fuzz.h"
#include "interchange/smdebug_profile/profile_files.h"
#include "interchange/smdebug_profile/system_metrics.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(smdebug_metrics) {
  store::MetricBlock block;
  interchange::SystemMetrics metrics(&block);
  metrics.Read(bytes);
  Require(metrics.read() + metrics.damaged() <= bytes.size());
  for (const std::uint32_t series : block.series) Require(series < block.names.size());
  static_cast<void>(interchange::ClassifyProfileFile("x", std::string(bytes.substr(0, 512))));
}

}  // namespace telltale::fuzz
