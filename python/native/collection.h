// SPDX-License-Identifier: Apache-2.0
//
// A collection of tensors that the plan may ask for.
#pragma once

#include <cstdint>
#include <string_view>

#include "state.h"

namespace telltale::native {

/// Cheap enough to be looked at in each call. Used with the GIL held; lives as long as the process.
class Collection {
 public:
  constexpr explicit Collection(std::string_view name) : name_(name) {}

  /// Whether any tensor of it is asked for at some step or other.
  bool Wanted() {
    if (epoch_ != g_epoch || id_ == 0) {
      id_ = tt_tensor(name_.data(), name_.size(), "", 0);
      epoch_ = g_epoch;
    }
    return (tt_wanted(id_) & ~std::uint32_t{TT_TAKE_UNKNOWN}) != 0;
  }

 private:
  std::string_view name_;
  std::uint32_t id_ = 0;
  std::uint32_t epoch_ = 0;  ///< g_epoch for which `id_`, if any, holds; 0: never.
};

}  // namespace telltale::native
