// SPDX-License-Identifier: Apache-2.0
#include "base/json_depth.h"

#include <cstddef>

namespace telltale {

bool JsonTooDeep(std::string_view text) {
  if (text.size() <= static_cast<std::size_t>(kDeepestJson)) return false;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (in_string) {
      continue;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepestJson) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace telltale
