// SPDX-License-Identifier: Apache-2.0
// The elements of a stored tensor as doubles, whatever its dtype.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace telltale::rules {

/// The first `limit` elements of `bytes`, in C order; of complex numbers the absolute value, of
/// bool 0 or 1. `dtype`: as the column of `tensors` has it. Nothing where there is no such dtype.
std::optional<std::vector<double>> ElementValues(std::string_view dtype,
                                                 std::span<const std::byte> bytes,
                                                 std::size_t limit);

}  // namespace telltale::rules
