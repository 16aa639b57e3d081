// SPDX-License-Identifier: Apache-2.0
// Records out of a ring whose producer is not to be trusted.
#include "channel/record_reader.h"
#include "fuzz.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(channel_records) {
  static const std::vector<std::string> names = {
      "(folded)", "loss", "TRAIN",
      format::kTensorMark + std::string("weights") + format::kTensorMark + "fc.weight",
      std::string(1, format::kTensorMark)};
  StringPool pool;
  const channel::ProducerInfo info;
  const channel::ClockMap clock;
  channel::RecordReader reader(names, info, clock, 0, &pool);
  channel::Drained drained;
  while (!bytes.empty()) {
    const channel::ReadResult read = reader.Read(bytes, &drained);
    if (read.bytes == 0) break;
    Require(read.bytes <= bytes.size());
    bytes.remove_prefix(read.bytes);
  }
}

}  // namespace telltale::fuzz
