// SPDX-License-Identifier: Apache-2.0
// SageMaker Debugger's profilerconfig.json.
#include "plan/profiler_config.h"

#include "fuzz.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(profiler_config) {
  const auto windows = plan::WindowsOfProfilerConfig(bytes);
  if (windows.ok()) Require(plan::WindowsText(*windows).ok());
}

}  // namespace telltale::fuzz
