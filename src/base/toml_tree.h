// SPDX-License-Identifier: Apache-2.0
// A TOML text as a tree of JSON, with the lines on which its keys stand: what plan files and rules
// files are read from. Thread safety: stateless; a tree is a value.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace telltale {

class TomlTree {
 public:
  /// `where`: the file's name, for messages. `page`: what describes such files, for the same.
  /// kUsage: it is no TOML; the message names the line.
  static Result<TomlTree> Parse(std::string_view text, std::string_view where,
                                std::string_view page);

  /// Tables are objects; a date is null, since no key of ours takes one; an integer is unsigned
  /// where it can be.
  const nlohmann::ordered_json& root() const { return root_; }
  /// "file.toml:12": the line of "collections.NAME.key", where NAME itself may hold dots; else of
  /// the nearest above it that is known.
  std::string PlaceOf(std::string_view key) const;

 private:
  std::string where_;
  nlohmann::ordered_json root_;
  std::map<std::string, int, std::less<>> lines_;  ///< By the keys, joined by dots.
};

}  // namespace telltale
