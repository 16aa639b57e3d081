// SPDX-License-Identifier: Apache-2.0
// The capture plan: collections of tensors, what is taken of them, and at which steps of each mode;
// windows of detail.
// Thread safety: none of its own; a plan is a value.
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "plan/window.h"

namespace telltale::plan {

/// What is taken, as TT_TAKE_ of telltale/probe.h.
inline constexpr std::uint32_t kStats = 1;
inline constexpr std::uint32_t kHistogram = 2;
inline constexpr std::uint32_t kRaw = 4;
inline constexpr std::uint32_t kShape = 8;
inline constexpr std::uint32_t kMore = 16;

inline constexpr std::uint64_t kDefaultSlabBytes = 256ULL << 20;
inline constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max();

/// A step of `steps` is due, and one of [start, end) that `interval` divides (0: none).
struct When {
  std::uint32_t interval = 0;
  std::int64_t start = 0;
  std::int64_t end = kNoEnd;
  std::vector<std::int64_t> steps;  ///< Ascending.

  bool Due(std::int64_t step) const;
  bool Listed(std::int64_t step) const;
  /// No step is due, ever.
  bool Never() const { return (interval == 0 || end <= start) && steps.empty(); }
  friend bool operator==(const When&, const When&) = default;
};

/// A named set of tensors and what is taken of them. A tensor belongs to it when the adapter says
/// it is of the collection of this name, when its name is one of `tensors`, when a pattern of
/// `include` is found in its name, or when it belongs to a module (or one beneath) of `modules`;
/// unless one of `exclude` is found.
struct Collection {
  std::string name;
  std::vector<std::string> include;  ///< RE2, found anywhere in the name.
  std::vector<std::string> exclude;
  std::vector<std::string> tensors;
  std::vector<std::string> modules;
  std::uint32_t take = kStats;
  std::uint32_t max_elements = 0;  ///< Of a histogram's sample; 0: the default.
  std::array<When, 4> when;        ///< By tt_mode: TRAIN, EVAL, PREDICT, GLOBAL.
  /// By name: the governor leaves it at least 20 captures (governor.h).
  bool asked = false;
  /// What the user asked by name, for fronts that show no more than that; empty: all.
  std::vector<std::string> reductions;

  friend bool operator==(const Collection&, const Collection&) = default;
};

/// The words of `reductions` and what each needs taken; docs/formats/plan.md.
struct Reduction {
  std::string_view name;
  std::uint32_t take;
};
std::span<const Reduction> Reductions();

struct CapturePlan {
  std::string level = "steps";  ///< system, steps, tensors, operators, all; or custom.
  std::vector<Collection> collections;
  std::vector<Window> windows;
  std::optional<std::uint64_t> slab_bytes;  ///< As SlabBytes(); none: nothing is said of it.

  /// Bound on raw values on their way to the disk.
  std::uint64_t SlabBytes() const { return slab_bytes.value_or(kDefaultSlabBytes); }

  friend bool operator==(const CapturePlan&, const CapturePlan&) = default;
};

/// What `telltale run` records where nothing is asked: statistics of weights and gradients every
/// 100 steps.
CapturePlan DefaultPlan();
/// The plan of a named level. kUsage names the levels.
Result<CapturePlan> PlanOfLevel(std::string_view level);
/// A level takes the collection of this name at these times.
bool IsAsOfALevel(const Collection& collection);
/// Both: a collection or window that both name, and a bound on raw values that both say, is as
/// `more` has it.
CapturePlan Union(CapturePlan plan, const CapturePlan& more);
/// `NAME[:key=value,...]` of --collect: keys as in a plan file, `+` between the items of a list, a
/// mode's own keys as `eval.interval=1`, and what is taken also without a key:
/// `losses:values,interval=1`.
Result<Collection> ParseCollect(std::string_view text);
/// "statistics, histogram": what the bits say, in the words of plan files.
std::string TakeWords(std::uint32_t take, std::string_view separator = ", ");

/// The plan as a JSON object with the keys of a plan file, for the run and for requests. FromJson
/// reads it back: without a key `level` the plan is what the collections say, with it they are
/// added to the level's; without both it is DefaultPlan(), or nothing of a plan that is added to
/// another. kUsage says which key is wrong and what
/// to write. Whether the patterns are any, Compiled::Create finds.
std::string ToJson(const CapturePlan& plan);
enum class Stands { kAlone, kAdded };
Result<CapturePlan> FromJson(std::string_view text, Stands stands = Stands::kAlone);
/// A plan file; docs/formats/plan.md. `where`: its name, for messages, which name the line.
Result<CapturePlan> FromToml(std::string_view text, std::string_view where,
                             Stands stands = Stands::kAlone);
std::string ToToml(const CapturePlan& plan);

}  // namespace telltale::plan
