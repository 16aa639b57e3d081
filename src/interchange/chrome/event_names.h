// SPDX-License-Identifier: Apache-2.0
// What the names and categories of PyTorch's and other Chrome traces say:
// docs/formats/chrome-trace.md has the tables.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace telltale::interchange {

/// The word for a slice's category; `device`: it lies on a device's row.
struct ChromeCategory {
  std::string_view word;
  bool device = false;
  bool refined = false;  ///< The name may say more: an operator's or annotation's.
};
ChromeCategory CategoryOfKind(std::string_view kind);

/// What a name alone says.
struct ChromeNameFacts {
  std::optional<std::int64_t> step;  ///< ProfilerStep#7.
  bool data = false;                 ///< enumerate(DataLoader)#...
  bool own_loader = false;           ///< A DataLoader without workers.
  bool optimizer = false;            ///< Optimizer.step#...
  bool aside = false;                ///< Optimizer.zero_grad#...
  bool backward = false;             ///< Of the autograd engine.
  bool comm = false;                 ///< A collective that the host calls.
  bool collective_kernel = false;    ///< Were it a kernel's.
  bool module = false;
  bool memory = false;
};
ChromeNameFacts FactsOfName(std::string_view name);

}  // namespace telltale::interchange
