// SPDX-License-Identifier: Apache-2.0
// Looks at one run so that whatever happens stays with that run: the others of a listing or a
// server go on.
#pragma once
#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/status.h"

namespace telltale::server {

/// f(), or why it threw. kLimit: no memory; kUnusable: anything else.
template <class F>
Status Isolated(const std::filesystem::path& run, F&& f) {
  try {
    std::forward<F>(f)();
    return {};
  } catch (const std::bad_alloc&) {
    return {Code::kLimit, fmt::format("{}: the machine has no memory left for it: close other runs "
                                      "and retry",
                                      run.string())};
  } catch (const std::exception& error) {
    return {Code::kUnusable,
            fmt::format("{}: cannot be read: {}: `telltale verify {}` names what is damaged",
                        run.string(), error.what(), run.string())};
  }
}

/// What f() gave, or why it threw.
template <class F>
std::invoke_result_t<F> IsolatedResult(const std::filesystem::path& run, F&& f) {
  std::optional<std::invoke_result_t<F>> out;
  const Status isolated = Isolated(run, [&] { out.emplace(std::forward<F>(f)()); });
  if (!isolated.ok()) return isolated;
  return *std::move(out);
}

}  // namespace telltale::server
