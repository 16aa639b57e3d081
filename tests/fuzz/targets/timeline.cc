// SPDX-License-Identifier: Apache-2.0
// The timelines of Horovod and of SageMaker Debugger's profiler, two files into common blocks.
#include "interchange/smdebug_profile/timeline.h"

#include "fuzz.h"

namespace telltale::fuzz {
namespace {

void CheckBlock(const store::SliceBlock& block) {
  for (std::size_t i = 0; i < block.rows(); ++i) {
    Require(block.duration_ns[i] >= 0);
    Require(block.name[i] < block.names.size() && block.lane[i] < block.lanes.size());
    Require(block.category[i] < block.categories.size() && block.kind[i] < block.kinds.size());
  }
}

}  // namespace

TELLTALE_FUZZ_TARGET(timeline) {
  for (const bool communication : {false, true}) {
    interchange::TimelineReader reader([](store::SliceBlock* block) { CheckBlock(*block); });
    for (const std::string_view text : {bytes.substr(0, bytes.size() / 2), bytes}) {
      const interchange::Timeline read =
          reader.Read(text, {.window = "fuzz", .communication = communication});
      Require(read.slices <= text.size());
    }
    reader.Flush();
  }
  static_cast<void>(interchange::ReadTimelineSteps(bytes));
}

}  // namespace telltale::fuzz
