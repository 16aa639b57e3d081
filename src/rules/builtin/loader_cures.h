// SPDX-License-Identifier: Apache-2.0
// What can be done about a fetch, by what holds it: one table.
#pragma once
#include <string_view>

namespace telltale::rules {

struct LoaderCure {
  std::string_view library;  ///< As the adapter names it; empty: the user's own code.
  std::string_view does;     ///< "PIL decodes or changes images"
  std::string_view cure;     ///< A sentence.
  bool waits = false;        ///< It waits and does not compute.
  bool within = false;       ///< It is the cause also where another library calls it.
  bool locks = false;        ///< It waits for what another maker of batches holds.
};

/// The cure where most of a fetch lies in `library`, much of that in `inner`, which it calls. There
/// is one for each; those without a line of their own have that of computing, or of waiting.
const LoaderCure& CureOf(std::string_view library, std::string_view inner, bool waits);

}  // namespace telltale::rules
