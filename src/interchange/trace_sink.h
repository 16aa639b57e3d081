// SPDX-License-Identifier: Apache-2.0
// Where importers put what they read: the run that is being made. Texts are copied, bytes that are
// no UTF-8 replaced; seq and ord_ns are the sink's. Each rank has a writer's folder of its own.
//
// Errors of the disk are kept: an importer goes on, or asks ok() now and then and ends early; the
// frame looks at the end. Thread safety: Place, Put and ok from any thread, the rest from one.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "format/records.gen.h"
#include "store/metric_segment.h"
#include "store/slice_segment.h"

namespace telltale::interchange {

class TraceSink {
 public:
  virtual ~TraceSink() = default;

  /// `row.rank` says whose; attempt is 1 where it is 0, step -1 unless it is known, device and
  /// stream -1 on the host.
  virtual void Slice(const format::SliceRow& row) = 0;
  virtual void Step(const format::StepRow& row) = 0;
  virtual void Span(const format::SpanRow& row) = 0;
  virtual void Scalar(const format::ScalarRow& row) = 0;
  virtual void Event(const format::EventRow& row) = 0;
  virtual void Metric(std::int32_t rank, const format::MetricRow& row) = 0;

  /// Adds to a counter of the ledger, import.NAME; `loss` where it counts what could not be kept:
  /// the import is then called partial (exit code 7). `subject`: the file.
  virtual void Count(std::string_view name, std::string_view subject, std::uint64_t n,
                     bool loss) = 0;
  /// A line for the user; a hundred are kept.
  virtual void Note(std::string text) = 0;

  // Whole blocks of slices, for importers of millions. Places are given in the order of the calls,
  // the blocks may be put in any order and from several threads at once.
  virtual store::SlicePlace Place(std::int32_t rank, std::uint64_t rows) = 0;
  virtual void Put(std::int32_t rank, const store::SlicePlace& place,
                   const store::SliceBlock& block) = 0;

  /// The same of samples.
  virtual store::SlicePlace PlaceMetrics(std::int32_t rank, std::uint64_t rows) = 0;
  virtual void PutMetrics(std::int32_t rank, const store::SlicePlace& place,
                          const store::MetricBlock& block) = 0;

  /// False once something could not be written.
  virtual bool ok() const = 0;
};

}  // namespace telltale::interchange
