// SPDX-License-Identifier: Apache-2.0
// Memory that two processes share, as one of them may find it: what a healthy one left there, with
// patches. A patch of the input is a place (4 bytes, little-endian), a length (1) and so many
// bytes.
#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

namespace telltale::fuzz {

class Patched {
 public:
  /// The memory behind `fd`, which stays open, as it is now.
  explicit Patched(int fd);
  /// Puts it back as it was, then writes the patches. Those beyond its end are left out.
  void Apply(std::string_view patches);
  std::size_t size() const { return healthy_.size(); }

 private:
  int fd_;
  std::vector<char> healthy_;
  std::size_t used_;                                        ///< All behind these bytes was zero.
  std::vector<std::pair<std::size_t, std::size_t>> dirty_;  ///< Patches behind `used_`.
};

}  // namespace telltale::fuzz
