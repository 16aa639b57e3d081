// SPDX-License-Identifier: Apache-2.0
// How deep JSON may nest. nlohmann's serializer calls itself once a level: what a file or another
// process sends must not be deeper than our stack. Thread safety: stateless.
#pragma once
#include <string_view>

namespace telltale {

/// What is deeper is no JSON to ParseJson. Trees of XGBoost, a level of which are two here, are the
/// deepest that anybody writes.
inline constexpr int kDeepestJson = 1000;

/// Counts brackets outside of strings; the text need not be JSON.
bool JsonTooDeep(std::string_view text);

}  // namespace telltale
