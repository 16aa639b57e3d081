// SPDX-License-Identifier: Apache-2.0
// A recording of tensors of one step: two bytes (the index file's length), the index file, then the
// event file that it names.
#include <algorithm>
#include <system_error>

#include "fuzz.h"
#include "interchange/smdebug_import.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(smdebug_tensors) {
  if (bytes.size() < 2) return;
  const std::size_t said = static_cast<std::uint8_t>(bytes[0]) |
                           static_cast<std::size_t>(static_cast<std::uint8_t>(bytes[1])) << 8;
  bytes.remove_prefix(2);
  const std::size_t index = std::min(said, bytes.size());
  WriteInput(bytes.substr(0, index), "recording/index/000000000/000000000003_worker_0.json");
  WriteInput(bytes.substr(index), "recording/events/000000000003/000000000003_worker_0.tfevents");
  const auto run = ScratchRoot() / "run";
  static_cast<void>(interchange::ImportSmdebug(ScratchRoot() / "recording", run));
  std::error_code ignored;
  std::filesystem::remove_all(run, ignored);
}

}  // namespace telltale::fuzz
