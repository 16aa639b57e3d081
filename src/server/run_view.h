// SPDX-License-Identifier: Apache-2.0
// What the server knows of one run: the summary that the report is made from, and each series in
// full. Times that leave it are nanoseconds since the run's begin.
//
// Thread safety: none; live_run.h locks.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "report/load.h"
#include "server/heat_map.h"
#include "server/series.h"
#include "server/step_outline.h"

namespace telltale::server {

enum class SeriesKind : std::uint8_t { kMetric, kScalar, kSteps };

/// What /api/runs/ID/series asks for. Names are as the overview lists them.
struct SeriesQuery {
  SeriesKind kind = SeriesKind::kMetric;
  std::string name;
  std::string subject;  ///< Of a metric.
  std::string mode;     ///< Of a scalar.
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 0;  ///< 0: to the newest record.
  std::size_t points = 800;
  bool with_step = false;  ///< The training step that was open at each column's begin, too.
};

struct HeatmapQuery {
  std::string name;
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 0;
  std::size_t columns = 400;
  bool as_bytes = false;  ///< HeatBytes instead of HeatJson.
};

/// Records that were dropped between two looks at a counter.
struct Dropped {
  std::int64_t from_ns = 0;  ///< Run clock.
  std::int64_t to_ns = 0;
  std::string name;
  std::uint64_t count = 0;
};

struct MetricEntry {
  std::string name, unit;
  std::vector<std::string> subjects;
  /// What to call a subject where its own words do not say it: proc:4711 is "worker 0 (4711)".
  std::map<std::string, std::string> labels;
};

class RunView {
 public:
  /// Nothing is kept for series beyond this many; they are counted in the summary's `folded`.
  static constexpr std::size_t kMaxSeries = 4096;
  /// Points kept one by one, over all series, unless LimitPoints says otherwise: about 300 MB.
  static constexpr std::size_t kMaxPoints = 24'000'000;

  void OnRecord(const store::OrderedRecord& record);
  /// Gives up what is beyond `points` now, and from now on; buckets stay.
  void LimitPoints(std::size_t points);
  std::size_t max_points() const { return max_points_; }

  /// Step times of all of a long run, shown until the records themselves have come as far.
  void TakeOutline(StepOutline outline) { outline_ = std::move(outline); }
  void DropOutline() { outline_.reset(); }

  report::RunData data;       ///< `summary` is filled here, the rest by the owner.
  std::int64_t begin_ns = 0;  ///< Run clock of t = 0.
  std::vector<Dropped> dropped;

  /// Metrics in the order of names, with their subjects.
  std::vector<MetricEntry> metrics() const;
  /// Scalars of the summary's shown_rank(), as (name, mode).
  std::vector<std::pair<std::string, std::string>> scalars() const;

  /// kUnusable where there is no such series.
  Result<std::string> SeriesJson(const SeriesQuery& query) const;
  Result<HeatMap> Heatmap(const HeatmapQuery& query) const;

 private:
  struct Key {
    SeriesKind kind;
    std::string_view name, subject, node;  ///< `subject` is the mode of a scalar.
    std::int32_t rank;                     ///< Of steps and scalars; 0 of a metric.
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  struct Entry {
    SeriesKind kind;
    std::string name, subject, node, unit;
    std::int32_t rank;
    Series series;
  };

  /// The series, made where it is new; null beyond the bound.
  Entry* At(const Key& key, std::string_view unit);
  /// What the API calls its subject: with the node in front where it is not the first one.
  std::string Subject(const Entry& entry) const;
  void Put(Entry* entry, std::int64_t time_ns, double value);
  void OnStep(const format::StepRow& row);
  void OnScalar(const format::ScalarRow& row);
  /// Steps and scalars of higher ranks are no more shown.
  void ForgetRanksAbove(std::int32_t rank);
  void OnLedger(const format::LedgerRow& row);
  std::int64_t Newest() const;
  std::int64_t StepAt(std::int64_t t) const;
  std::size_t kept() const;
  /// What is shown of it: the outline, where that reaches further.
  bool OutlineServes(const Entry& entry) const;

  std::vector<std::unique_ptr<Entry>> entries_;
  std::unordered_map<Key, Entry*, KeyHash> index_;  ///< Keys point into the entries.
  std::string first_node_;
  std::size_t max_points_ = kMaxPoints;
  std::size_t added_ = 0;
  std::int32_t train_rank_ = -1;  ///< The summary's, as of the newest TRAIN step.
  /// Begin and number of TRAIN steps, each `step_stride_`-th.
  std::vector<std::pair<std::int64_t, std::int64_t>> step_at_;
  std::uint64_t step_stride_ = 1;
  std::optional<StepOutline> outline_;
  std::uint64_t steps_seen_ = 0;
  struct Counter {
    std::uint64_t value = 0;
    std::int64_t time_ns = 0;
  };
  std::map<std::string, Counter> counters_;  ///< Of losses, by name, subject, attempt and pid.
};

}  // namespace telltale::server
