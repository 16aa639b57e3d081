// SPDX-License-Identifier: Apache-2.0
// What the codes of tt_dtype stand for: their names in the tables and in safetensors, their size.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace telltale::format {

struct DtypeInfo {
  std::string_view name;         ///< As numpy and torch write it.
  std::string_view safetensors;  ///< As the column `dtype` of the table `tensors` has it.
  std::uint8_t bytes;            ///< Of one element.
};

/// By code. Of the complex ones files hold pairs of real numbers (docs/formats/tensors.md).
inline constexpr DtypeInfo kDtypes[] = {
    {"float32", "F32", 4},
    {"float64", "F64", 8},
    {"float16", "F16", 2},
    {"bfloat16", "BF16", 2},
    {"int64", "I64", 8},
    {"int32", "I32", 4},
    {"int16", "I16", 2},
    {"int8", "I8", 1},
    {"uint8", "U8", 1},
    {"bool", "BOOL", 1},
    {"complex64", "C64", 8},
    {"complex128", "C128", 16},
    {"float8_e4m3fn", "F8_E4M3", 1},
    {"float8_e5m2", "F8_E5M2", 1},
    {"uint16", "U16", 2},
    {"uint32", "U32", 4},
    {"uint64", "U64", 8},
};
inline constexpr std::uint32_t kDtypeCount = static_cast<std::uint32_t>(std::size(kDtypes));

/// By either name; null where it is unknown.
constexpr const DtypeInfo* FindDtype(std::string_view name) {
  for (const DtypeInfo& dtype : kDtypes) {
    if (dtype.name == name || dtype.safetensors == name) return &dtype;
  }
  return nullptr;
}

/// Bytes of one element; 0: no such dtype.
constexpr std::size_t DtypeBytes(std::uint32_t dtype) {
  return dtype < kDtypeCount ? kDtypes[dtype].bytes : 0;
}

}  // namespace telltale::format
