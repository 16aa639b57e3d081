// SPDX-License-Identifier: Apache-2.0
// A run directory whose journal holds rows that nobody vouches for.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace telltale::fuzz {

/// A finished run, ScratchRoot()/name, with this batch as it is: a writer of ours would put its
/// rows right. Replaces the one made before.
std::filesystem::path StoredRun(std::string_view batch, const std::string& name = "run");

}  // namespace telltale::fuzz
