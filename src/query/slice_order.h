// SPDX-License-Identifier: Apache-2.0
// The slices of a run lane by lane (a host thread, a stream of a device), each lane in the order of
// begin and the longer before the shorter: an enclosing slice comes before those within it. What a
// live recording has of it comes as slices too: spans, and steps where no profiler marked any.
//
// Memory: that of the options, 24 bytes a lane and spilled piece, and each distinct text once, up
// to 64 MiB of them; the rest lies sorted in unlinked files of the temporary folder (TMPDIR) until
// it is read. Thread safety: none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "format/records.gen.h"
#include "store/reader.h"

namespace telltale::query {

/// Sources round the ends of slices to the microsecond: so far may one reach beyond what encloses
/// it.
inline constexpr std::int64_t kRoundingNs = 1000;

/// `window` of the slices that `telltale run --stacks` makes of sampled stacks.
inline constexpr std::string_view kSampledStacks = "stacks (py-spy)";

/// Whether what goes from `begin_ns` to `end_ns` lies within an open slice, which began before.
inline bool Encloses(std::int64_t open_end_ns, std::int64_t begin_ns, std::int64_t end_ns) {
  return begin_ns < open_end_ns && end_ns - kRoundingNs <= open_end_ns;
}

/// End of a slice; a damaged length does not overflow.
std::int64_t EndOf(const format::SliceRow& slice);

/// One row of a timeline.
struct Lane {
  std::int64_t step = -1;  ///< With by_step alone.
  std::int32_t rank = 0;
  std::int64_t pid = 0;
  std::int64_t tid = 0;
  std::int32_t device = -1;
  std::int64_t stream = -1;
  std::string_view name;
  std::string_view window;
  std::int64_t first_ns = 0;  ///< First begin, last end.
  std::int64_t last_ns = 0;
  std::uint64_t slices = 0;

  bool host() const { return device < 0; }
};

/// As TensorFlow names devices, a rank being a task: /job:worker/task:1/device:GPU:0.
std::string DeviceName(std::int32_t rank, std::int32_t device);

struct SliceOrderOptions {
  std::size_t memory_bytes = 96 << 20;
  /// Spans and steps as slices too.
  bool recorded = true;
  /// A lane is that of one step.
  bool by_step = false;
  /// Only slices of this step.
  std::optional<std::int64_t> step;
  /// Only slices of this rank.
  std::optional<std::int32_t> rank;
  /// Only those of sampled stacks (kSampledStacks), or all but these.
  std::optional<bool> sampled;
  /// Only what these writers wrote, in this order; the folders of the others are not opened.
  std::optional<std::vector<std::string>> writers;
};

class SliceOrder {
 public:
  using Visitor = std::function<Status(const format::SliceRow&)>;

  /// Reads the run. Code::kIo: a temporary file could not be written.
  static Result<std::unique_ptr<SliceOrder>> Load(const std::filesystem::path& run,
                                                  const SliceOrderOptions& options = {});
  virtual ~SliceOrder() = default;

  /// By step, hosts before devices, rank, process, device, first begin.
  virtual const std::vector<Lane>& lanes() const = 0;
  /// The slices of one lane; texts live as long as this, `args` during the call. What `visit` fails
  /// with ends it.
  virtual Status Visit(const Lane& lane, const Visitor& visit) = 0;
  virtual std::uint64_t slices() const = 0;
  /// Begin of the first slice, 0 where there is none.
  virtual std::int64_t first_ns() const = 0;
  /// How many steps (numbers, not rows) the slices lie in, those outside of any not counted.
  virtual std::uint64_t steps() const = 0;
  virtual std::uint64_t spilled_bytes() const = 0;
  virtual const store::Salvage& salvage() const = 0;
};

}  // namespace telltale::query
