// SPDX-License-Identifier: Apache-2.0
// The bytes of a file, inflated where it is gzip.
#include "fuzz.h"
#include "interchange/trace_input.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(gzip_input) {
  constexpr std::uint64_t kMost = 1 << 20;
  std::string damage;
  const auto text = interchange::ReadTrace(WriteInput(bytes, "input.gz"), kMost, &damage);
  if (text.ok()) Require(text->size() <= kMost);
}

}  // namespace telltale::fuzz
