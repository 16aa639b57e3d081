// SPDX-License-Identifier: Apache-2.0
// The name of a Python function as profilers write it, "torch/nn/functional.py(123): linear", taken
// apart.
#pragma once
#include <charconv>
#include <cstdint>
#include <string_view>

namespace telltale::interchange {

struct FrameName {
  std::string_view function;
  std::string_view file;  ///< Empty where the name is no such one; `function` then is all of it.
  std::int64_t line = 0;
};

inline FrameName ParseFrame(std::string_view name) {
  const std::size_t colon = name.find("): ");
  const std::size_t open = colon == std::string_view::npos ? colon : name.rfind('(', colon);
  FrameName out{.function = name};
  if (open == std::string_view::npos || open == 0) return out;
  std::int64_t line = 0;
  const char* const end = name.data() + colon;
  const auto [at, error] = std::from_chars(name.data() + open + 1, end, line);
  if (error != std::errc() || at != end) return out;
  return {name.substr(colon + 3), name.substr(0, open), line};
}

}  // namespace telltale::interchange
