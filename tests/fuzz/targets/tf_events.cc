// SPDX-License-Identifier: Apache-2.0
// TensorFlow's record files and the events in them; events also without their frame, whose
// checksum hardly any mutation passes.
#include "fuzz.h"
#include "interchange/tf_event.h"
#include "interchange/tf_record.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(tf_events) {
  static_cast<void>(interchange::ParseEvent(bytes));
  while (const auto payload = interchange::RecordPayload(bytes)) {
    Require(payload->size() + interchange::kRecordFrameBytes <= bytes.size());
    static_cast<void>(interchange::ParseEvent(*payload));
    bytes.remove_prefix(payload->size() + interchange::kRecordFrameBytes);
  }
}

}  // namespace telltale::fuzz
