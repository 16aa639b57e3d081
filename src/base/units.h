// SPDX-License-Identifier: Apache-2.0
// Spans of time in the unit of every time stamp here: nanoseconds.
#pragma once
#include <cstdint>

namespace telltale {

inline constexpr std::int64_t kUs = 1'000;
inline constexpr std::int64_t kMs = 1'000'000;
inline constexpr std::int64_t kSecond = 1'000'000'000;

}  // namespace telltale
