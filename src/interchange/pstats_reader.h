// SPDX-License-Identifier: Apache-2.0
// Reads what Python's cProfile and profile save (Profile.dump_stats): a dictionary of functions in
// the format of Python's module marshal, of which so much is understood as those two write.
//
// Memory: some 40 bytes a function and reference; text is views into the bytes given.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::interchange {

struct PythonFunction {
  std::string_view file;  ///< "~" of functions that are not Python's.
  std::int64_t line = 0;
  std::string_view name;
};

struct PythonCaller {
  PythonFunction function;
  std::int64_t calls = 0;
  std::int64_t primitive_calls = 0;  ///< Those that are no recursion.
  double self_s = 0;                 ///< Of the callee, when called by this one.
  double cumulative_s = 0;
};

struct PythonProfileEntry {
  PythonFunction function;
  std::int64_t calls = 0;
  std::int64_t primitive_calls = 0;
  double self_s = 0;
  double cumulative_s = 0;  ///< With what it called.
  std::vector<PythonCaller> callers;
};

/// Whether the bytes may be such a dictionary.
bool LooksLikePstats(std::string_view bytes);

/// Calls `take` for each function whose entry is whole. kPartial where the bytes end or break in
/// the middle, kUnusable where they are something else.
Status ReadPstats(std::string_view bytes,
                  const std::function<void(const PythonProfileEntry&)>& take);

}  // namespace telltale::interchange
