// SPDX-License-Identifier: Apache-2.0
// What a benchmark cannot go on without: what went wrong is said on stderr, exit code 1.
#pragma once
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/status.h"

namespace telltale::bench {

inline void Must(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "{}: {}\n", program_invocation_short_name, status.message());
  std::exit(1);
}

template <class T>
T Must(Result<T> result) {
  Must(result.status());
  return std::move(result).value();
}

}  // namespace telltale::bench
