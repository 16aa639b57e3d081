// SPDX-License-Identifier: Apache-2.0
// Makes slices of what py-spy saw: the thread, the phase of the step that its rank was in, and
// below it the frames, outermost first; so whatever shows slices shows stacks merged by phase.
//
// A sample counts for the time until the next one. py-spy says only when something has changed:
// when it looked between, is known where another thread had; else it is taken to have looked once a
// period. Slices of neighbouring samples are one where
// they are the same in the same phase of the same step. Stateless; thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/string_pool.h"
#include "format/records.gen.h"
#include "stacks/phase_clock.h"
#include "stacks/py_spy_trace.h"

namespace telltale::stacks {

/// What the run says of its processes.
struct Processes {
  std::map<std::int64_t, std::int32_t> trainers;  ///< Rank by pid.
  std::map<std::int64_t, std::int64_t> ended_ns;  ///< On the run's clock, by pid.
};

struct Piece {
  std::int64_t start_ns = 0;   ///< py-spy's start on the run's clock.
  std::int64_t period_ns = 0;  ///< Between two samples, above 0.
  std::uint32_t attempt = 1;
};

/// Takes slices, some thousand at a time: by thread and begin, but what lasts comes when it has
/// ended. Their texts are in the pool.
using SliceSink = std::function<void(std::vector<format::SliceRow>* rows)>;
inline constexpr std::size_t kSlicesAtOnce = 8192;

/// How many samples of one thread each are known. Memory: kSlicesAtOnce, and twice the frames of
/// one stack.
std::uint64_t MakeSlices(const PySpyTrace& trace, const Piece& piece, const Processes& processes,
                         PhaseClock* clock, StringPool* pool, const SliceSink& sink);

}  // namespace telltale::stacks
