// SPDX-License-Identifier: Apache-2.0
#include "read/dtype.h"

namespace telltale::read {
namespace {

constexpr Dtype kDtypes[] = {
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
    {"float8_e4m3", "F8_E4M3", 1},
    {"float8_e5m2", "F8_E5M2", 1},
    {"uint16", "U16", 2},
    {"uint32", "U32", 4},
    {"uint64", "U64", 8},
};

}  // namespace

const Dtype* FindDtype(std::string_view name) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.name == name || dtype.short_name == name) return &dtype;
  }
  return nullptr;
}

}  // namespace telltale::read
