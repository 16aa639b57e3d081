// SPDX-License-Identifier: Apache-2.0
// The key-value metadata of a segment. Included only by .cc files that use Arrow.
#pragma once
#include <arrow/type_fwd.h>

#include <memory>

#include "store/segment.h"

namespace telltale::store {

std::shared_ptr<const arrow::KeyValueMetadata> SegmentMetadata(const SegmentInfo& info);

}  // namespace telltale::store
