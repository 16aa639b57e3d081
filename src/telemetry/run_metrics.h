// SPDX-License-Identifier: Apache-2.0
// One run as metrics: follows its writers, keeps totals and newest values, and takes findings and
// the states of rules from its watcher. The order of records matters to no number here, so no
// writer waits for another.
//
// Thread safety: none. Memory: bounded whatever the run's length; what exceeds a bound is counted
// in telltale_series_left_out.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status.h"
#include "rules/engine.h"
#include "rules/replay.h"
#include "rules/watched_findings.h"
#include "store/follower.h"
#include "store/reader.h"
#include "telemetry/metric_set.h"
#include "telemetry/step_totals.h"

namespace telltale::telemetry {

struct RunMetricsOptions {
  /// Of a run that is over and whose watcher did not come to its own end, the rules are run over
  /// its records, as `check` does: it takes as long.
  bool replay = false;
};

class RunMetrics {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// Ranks from here on are left out.
  static constexpr std::int32_t kMaxRanks = 64;
  static constexpr std::size_t kMaxScalars = 256;
  static constexpr std::size_t kMaxSystem = 1024;
  static constexpr std::size_t kMaxFindings = 200;
  static constexpr std::size_t kMaxLedgerParts = 20'000;
  /// A subject of the machine that has no sample for so long, while others have, is gone.
  static constexpr std::int64_t kGoneNs = 60'000'000'000;

  /// `id`: the label `run`; empty: the run's own id.
  RunMetrics(std::string id, std::filesystem::path run, RunMetricsOptions options = {})
      : id_(std::move(id)), path_(std::move(run)), options_(options) {}

  /// Reads what is new, until the deadline, a piece at least; true where there is more. kUnusable,
  /// kVersion: it cannot be read.
  Result<bool> Advance(Deadline deadline);

  /// Everything that there was at the last look was read.
  bool whole() const { return whole_; }
  /// The run has ended, as of the last look.
  bool over() const { return opened_ && state_.state != "running"; }
  /// The watcher has said its last word of the newest attempt, or the rules were run here.
  bool judged() const { return judged_ || (watched_ && watched_->log().CameToItsEnd(info_)); }
  const store::RunInfo& info() const { return info_; }

  /// Adds the run's metrics. `now_ns`: Unix time; of a run that is over its last record's is taken.
  /// Before all was read those of the run itself alone: half a total would be a wrong one.
  void AddTo(std::int64_t now_ns, MetricSet* out) const;

 private:
  using StepKey = std::pair<std::string, std::int32_t>;                  // mode, rank
  using ScalarKey = std::tuple<std::string, std::string, std::int32_t>;  // name, mode, rank
  using SystemKey = std::tuple<std::string, std::string, std::string>;   // name, node, subject
  using LedgerKey = std::tuple<std::string, std::string, std::uint32_t, std::int32_t>;
  struct Value {
    double value = 0;
    std::int64_t time_ns = 0;
    std::string unit;
  };
  struct LedgerPart {
    std::uint64_t value = 0;
    std::string unit;
    bool loss = false;
  };

  Status Look();
  void Reset();
  void FindWriters();
  Status Judge();
  void Take(const format::Rows& rows);
  void OnStep(const format::StepRow& row);
  void OnScalar(const format::ScalarRow& row);
  void OnMetric(const format::MetricRow& row);
  void OnLedger(const format::LedgerRow& row);
  /// Counts a series that is not kept, once.
  void LeaveOut(std::string_view kind, std::string_view name, std::string_view subject);

  void AddRun(MetricSet* out) const;
  void AddSteps(std::int64_t now_ns, MetricSet* out) const;
  void AddSystem(MetricSet* out) const;
  void AddLedger(MetricSet* out) const;
  void AddRules(MetricSet* out) const;
  void AddFindings(const std::vector<rules::RuleState>& states, MetricSet* out) const;

  const std::string id_;
  const std::filesystem::path path_;
  const RunMetricsOptions options_;
  bool opened_ = false;
  bool whole_ = false;
  store::RunInfo info_;
  store::RunState state_;
  std::unique_ptr<rules::WatchedFindings> watched_;
  std::vector<std::unique_ptr<store::WriterFollower>> writers_;
  store::Salvage salvage_;
  std::unique_ptr<rules::Replay> judged_;
  std::size_t judged_attempts_ = 0;

  std::map<StepKey, StepTotals> steps_;
  std::map<ScalarKey, Value> scalars_;
  std::map<SystemKey, Value> system_;
  std::map<LedgerKey, LedgerPart> ledger_;
  std::map<std::string, std::int64_t> node_newest_ns_;
  std::int64_t newest_ns_ = 0;
  std::set<std::size_t> left_out_;  ///< Hashes of series.
};

}  // namespace telltale::telemetry
