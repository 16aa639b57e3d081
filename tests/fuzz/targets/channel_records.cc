// SPDX-License-Identifier: Apache-2.0
// Records out of a ring whose producer is not to be trusted.
#include "channel/record_reader.h"
#include "fuzz.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(channel_records) {
  static const channel::NameList names = [] {
    channel::NameList list;
    for (const char* plain : {"(folded)", "loss", "TRAIN"}) list.Add(plain);
    list.Add(format::kTensorMark + std::string("weights") + format::kTensorMark + "fc.weight");
    list.Add(std::string(1, format::kTensorMark));
    return list;
  }();
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
