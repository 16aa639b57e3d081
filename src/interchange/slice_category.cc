// SPDX-License-Identifier: Apache-2.0
#include "interchange/slice_category.h"

#include <algorithm>
#include <iterator>

#include "interchange/chrome/event_names.h"

namespace telltale::interchange {
namespace {

constexpr std::string_view kSliceCategories[] = {
    "op",     "python", "module", "runtime",           "kernel",
    "memcpy", "sync",   "comm",   "device_annotation", "step",
    "data",   "memset", "gc",     "annotation",        "compile",
    "memory", "io",     "other"};

}  // namespace

std::string_view SliceCategoryOf(std::string_view kind) {
  const auto* const own = std::find(std::begin(kSliceCategories), std::end(kSliceCategories), kind);
  if (own != std::end(kSliceCategories)) return *own;
  const std::string_view word = CategoryOfKind(kind).word;
  return word == "other" ? "annotation" : word;
}

}  // namespace telltale::interchange
