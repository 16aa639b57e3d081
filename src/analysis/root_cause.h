// SPDX-License-Identifier: Apache-2.0
// What was different while something was wrong: where the time of a step went, which spans, ranks
// and metrics changed, in windows of the run against the rest of it, ranked by the share of the gap
// that each explains. The method is that of a bottleneck notebook: the same functions, averaged
// over the bad steps and over the normal ones, side by side.
//
// One pass, in the order of the records; what is asked later may be about any window. A cause is
// named only where one difference covers kCoverage of the gap; else there are only candidates.
//
// Thread safety: none. Memory: at most 455 factors with 512 columns each, about 4 MB.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "analysis/quantiles.h"
#include "format/records.gen.h"
#include "store/reader.h"

namespace telltale::analysis {

/// What a difference is about. Later ones say more: a line of code more than the phase that it is
/// in. A span whose name is a path is of a file, one that ends as "train.py:42" of a line of code.
enum class FactorKind : std::uint8_t { kMetric, kPhase, kRank, kSpan, kFile, kCode };
std::string_view Name(FactorKind kind);

/// One thing that was different.
struct Factor {
  FactorKind kind = FactorKind::kPhase;
  std::string name;   ///< "data wait", "fetch", "rank 3", "gpu.utilization of gpu:0".
  std::string unit;   ///< "ns" a step; of a metric its own.
  double during = 0;  ///< Mean a step in the windows; of a metric its mean.
  double normal = 0;
  /// Of a time: what it grew by, of what the step grew by; 1 where all of it is here, more where
  /// others shrank. Of a metric: the share of the variation of step time over the run that goes
  /// with it (r²), which is no cause.
  double share = 0;
};

/// The windows against the rest.
struct Contrast {
  std::uint64_t steps_during = 0;  ///< Of all ranks together.
  std::uint64_t steps_normal = 0;
  double step_ns_during = 0;  ///< Mean.
  double step_ns_normal = 0;
  std::vector<Factor> times;    ///< By share, largest first; at most kShown.
  std::vector<Factor> metrics;  ///< Likewise: what moved with it.
  /// Of `times`: what covers kCoverage of the gap, the one that says most; none: cause not found.
  std::optional<std::size_t> cause;

  static constexpr std::size_t kShown = 8;
  double gap_ns() const { return step_ns_during - step_ns_normal; }
  /// Enough steps on both sides, and those in the windows at least 5 % slower.
  bool comparable() const;
};

/// [begin, end) of the run's clock.
struct Window {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

class CauseTrail {
 public:
  /// What one difference must cover of the gap to be named as the cause (TraceML's guard).
  static constexpr double kCoverage = 0.8;

  CauseTrail();

  /// Tables that it reads; those of Summary have them all.
  static std::uint32_t table_mask();
  void OnRecord(const store::OrderedRecord& record);

  /// Steps in `during` against those in neither `during` nor `apart`: other trouble, which is not
  /// normal either. A column counts as in a window where half of it is; a window that fills half
  /// of none (a short one of a long run) is in those that have most of it, beside normal steps.
  Contrast Between(std::span<const Window> during, std::span<const Window> apart = {}) const;
  /// Steps of more than twice the median against the others, each by itself: outliers are shorter
  /// than a column.
  Contrast SlowSteps() const;
  /// Steps during which a device idled (≤ 10 %) while a core was busy (≥ 90 %), against those in
  /// which it worked (≥ 90 %).
  Contrast StarvedSteps() const;

  /// Names beyond the bounds.
  std::uint64_t folded() const { return folded_; }

 private:
  /// What a step is counted under besides its time: by its length, and by what the device did.
  enum Class : std::uint8_t { kSlow, kUsual, kStarved, kBusy, kClassCount };

  struct Cell {
    double sum = 0;
    std::uint64_t count = 0;
    void Add(double value) {
      sum += value;
      ++count;
    }
    void Add(const Cell& other) {
      sum += other.sum;
      count += other.count;
    }
  };
  struct Known {
    FactorKind kind{};
    std::string name, unit;
    std::vector<Cell> columns;  ///< Over time.
    std::array<Cell, kClassCount> classes;
    Cell pending;         ///< Of a metric: since the newest step.
    bool beside = false;  ///< Of a span: in a process or thread beside the step, as a worker's.
  };
  struct Pending {
    std::uint32_t factor;
    double ns;
  };
  struct Rank {
    std::uint32_t attempt = 0;  ///< Of the newest step.
    std::int32_t pid = 0;       ///< Likewise.
    std::uint64_t steps = 0;
    Quantiles duration_ns;
    double slow_ns = 0;            ///< From here on a step is slow; 0 where not known yet.
    std::vector<Pending> pending;  ///< Spans since the newest step.
    std::optional<std::uint32_t> factor;
  };
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  using Take = std::function<Cell(const Known&)>;

  void OnStep(const format::StepRow& row);
  void OnSpan(const format::SpanRow& row);
  void OnMetric(const format::MetricRow& row);

  /// The factor, new where it is; nullopt beyond the bound of its kind.
  std::optional<std::uint32_t> At(FactorKind kind, std::string_view name, std::string_view more,
                                  std::string_view unit);
  void Put(std::uint32_t factor, std::int64_t time_ns, double value);
  std::size_t ColumnOf(std::int64_t time_ns);
  void Widen();
  /// Columns of which at least half lies in one of the windows. `sought`: where there is none,
  /// those of which most does.
  std::vector<bool> In(std::span<const Window> windows, bool sought) const;
  /// r² of a metric and step time over the columns given.
  double Follows(const Known& metric, const std::vector<bool>& columns) const;
  Contrast Make(const Take& during, const Take& normal, const std::vector<bool>& columns) const;
  /// What the devices did while the newest step was made.
  std::optional<Class> DeviceClass() const;

  static constexpr std::uint32_t kStep = 0;        ///< Factor of the whole step.
  static constexpr std::uint32_t kFirstPhase = 1;  ///< The first of the six.

  std::vector<Known> known_;
  std::unordered_map<std::string, std::uint32_t, TextHash, std::equal_to<>> index_;
  std::string key_;                        ///< Reused.
  std::array<std::size_t, 6> count_of_{};  ///< By FactorKind.
  std::map<std::int32_t, Rank> ranks_;
  std::vector<std::uint32_t> fresh_;  ///< Metrics with something pending.
  std::int64_t begin_ns_ = 0;
  std::int64_t width_ns_ = 0;  ///< 0: nothing was entered yet.
  // The newest of the machine, for what a device did during a step.
  std::map<std::string, double, std::less<>> devices_;
  std::map<std::string, double, std::less<>> cores_;
  std::string first_node_;
  std::uint64_t folded_ = 0;
};

}  // namespace telltale::analysis
