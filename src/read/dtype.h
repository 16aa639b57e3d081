// SPDX-License-Identifier: Apache-2.0
// Names of element types: those of statistics and the reading API ("float32"), those of safetensors
// ("F32").
#pragma once
#include <cstdint>
#include <string_view>

namespace telltale::read {

struct Dtype {
  std::string_view name;        ///< "float32".
  std::string_view short_name;  ///< "F32".
  std::uint32_t item_bytes = 0;
};

/// By either name; null where it is unknown.
const Dtype* FindDtype(std::string_view name);

}  // namespace telltale::read
