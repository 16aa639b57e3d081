// SPDX-License-Identifier: Apache-2.0
// An importer of bytes, tried with these: it may refuse them, and what it gives must make sense.
#pragma once
#include <string_view>

#include "fuzz.h"
#include "interchange/recording_sink.h"

namespace telltale::fuzz {

inline void CheckSlices(const interchange::RecordingSink& sink) {
  for (const auto& slice : sink.slices) Require(slice.duration_ns >= 0);
}

/// `import(bytes, source)` gives a Status.
template <class Import>
void TryImport(std::string_view bytes, const Import& import) {
  interchange::RecordingSink sink;
  {
    interchange::TraceSource source(&sink, "fuzz", 0);
    static_cast<void>(import(bytes, &source));
  }
  CheckSlices(sink);
}

}  // namespace telltale::fuzz
