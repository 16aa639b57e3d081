// SPDX-License-Identifier: Apache-2.0
// The sink that importers write to, and the run directory behind it: a writer's folder a rank,
// run.json last. Memory: a block of slices and 64 Ki other rows, a rank.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/string_pool.h"
#include "interchange/import.h"
#include "interchange/trace_sink.h"
#include "store/bulk_writer.h"

namespace telltale::interchange {

class RunMaker final : public TraceSink {
 public:
  /// Makes `folder`. The writers in it are called `writers` and the rank.
  static Result<std::unique_ptr<RunMaker>> Create(std::filesystem::path folder,
                                                  std::string writers = "agent-imported-");
  ~RunMaker() override;

  void Slice(const format::SliceRow& row) override;
  void Step(const format::StepRow& row) override;
  void Span(const format::SpanRow& row) override;
  void Scalar(const format::ScalarRow& row) override;
  void Event(const format::EventRow& row) override;
  void Metric(std::int32_t rank, const format::MetricRow& row) override;
  void Count(std::string_view name, std::string_view subject, std::uint64_t n, bool loss) override;
  void Note(std::string text) override;
  store::SlicePlace Place(std::int32_t rank, std::uint64_t rows) override;
  void Put(std::int32_t rank, const store::SlicePlace& place,
           const store::SliceBlock& block) override;
  store::SlicePlace PlaceMetrics(std::int32_t rank, std::uint64_t rows) override;
  void PutMetrics(std::int32_t rank, const store::SlicePlace& place,
                  const store::MetricBlock& block) override;
  bool ok() const override { return !failed_; }

  /// What the run's description says, where the format has no better.
  struct Description {
    std::string id, name, format, telltale_version;
    std::vector<std::string> sources;
  };
  /// Writes what is left, the ledger and run.json. kUnusable where there is no row.
  Result<ImportSummary> Finish(const Description& description);

 private:
  struct Rank;

  RunMaker(std::filesystem::path folder, std::string writers);
  Rank* RankOf(std::int32_t rank);
  template <class Row>
  void Add(std::int32_t rank, Row row, std::vector<Row> format::Rows::*table,
           std::int64_t duration_ns);
  void SealSlices(Rank* rank);
  void Take(Status status);
  void TakeTimes(std::int64_t begin_ns, std::int64_t duration_ns);
  Status WriteInfo(const Description& description);

  const std::filesystem::path folder_;
  const std::string writers_;
  std::mutex ranks_mutex_;  ///< Guards the map; a rank's writer has its own.
  std::map<std::int32_t, std::unique_ptr<Rank>> ranks_;
  std::map<std::pair<std::string, std::string>, ImportSummary::Counter> counters_;
  ImportSummary summary_;
  std::atomic<bool> failed_ = false;
  std::atomic<std::uint64_t> impossible_ = 0;  ///< Numbers out of bounds.
  std::mutex mutex_;                           ///< Guards the rest.
  Status status_;
  std::int64_t first_ns_ = INT64_MAX;
  std::int64_t last_ns_ = INT64_MIN;
};

}  // namespace telltale::interchange
