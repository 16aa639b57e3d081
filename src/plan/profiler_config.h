// SPDX-License-Identifier: Apache-2.0
// SageMaker Debugger's profilerconfig.json as windows of detail. Its values are texts, its parts
// texts with a dictionary of JSON or of Python in them, and keys are of any case; what smdebug
// reads is read (docs/guide/windows.md). Thread safety: stateless.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "plan/window.h"

namespace telltale::plan {

/// Each window of such a file has a name that begins so.
inline constexpr std::string_view kProfilerConfigPrefix = "sagemaker-";

/// Of a file that says DisableProfiler: none. kUsage says what is wrong.
Result<std::vector<Window>> WindowsOfProfilerConfig(std::string_view text);

}  // namespace telltale::plan
