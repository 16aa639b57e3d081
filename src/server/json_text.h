// SPDX-License-Identifier: Apache-2.0
// JSON written piece by piece, for answers of many numbers: no tree is built of them first.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/json.h"

namespace telltale::server {

/// Text from a training may hold any bytes.
inline std::string Quoted(std::string_view text) {
  return JsonText(nlohmann::json(std::string(text)));
}

/// null where it is no finite number.
template <class T>
void AppendNumber(std::string* out, T value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) {
      out->append("null");
      return;
    }
  }
  fmt::format_to(std::back_inserter(*out), "{}", value);
}

/// "name":[1,2,3]
template <class T>
void AppendArray(std::string* out, std::string_view name, const std::vector<T>& values) {
  fmt::format_to(std::back_inserter(*out), "\"{}\":[", name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendNumber(out, values[i]);
  }
  out->push_back(']');
}

}  // namespace telltale::server
