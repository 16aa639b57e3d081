// SPDX-License-Identifier: Apache-2.0
// Formatted text behind a text.
#pragma once
#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

namespace telltale::report {

template <class... Args>
void Add(std::string* out, fmt::format_string<Args...> text, Args&&... args) {
  fmt::format_to(std::back_inserter(*out), text, std::forward<Args>(args)...);
}

}  // namespace telltale::report
