// SPDX-License-Identifier: Apache-2.0
// What the user called a folder that is ours: a trace that a command reads as a temporary run. All
// that a user is told names the trace, in commands to run next as in errors.
// Thread safety: any thread.
#pragma once
#include <string>
#include <string_view>

namespace telltale {

/// While this lives, `path` was given as `name`.
class GivenName {
 public:
  GivenName(std::string path, std::string name);
  ~GivenName();
  GivenName(const GivenName&) = delete;
  GivenName& operator=(const GivenName&) = delete;

 private:
  const std::string path_;
};

/// `path` as the user gave it: itself where it is none of ours.
std::string AsGiven(const std::string& path);
/// The same for each such path in a text.
std::string TextAsGiven(std::string_view text);

}  // namespace telltale
