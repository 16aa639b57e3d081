// SPDX-License-Identifier: Apache-2.0
#include "store/metric_segment.h"

#include <algorithm>
#include <string_view>

#include "store/bulk_columns.h"

namespace telltale::store {
namespace {

/// Columns that count upwards.
constexpr std::string_view kMetricDeltas[] = {"seq", "ord_ns", "time_ns"};

class MetricColumns {
 public:
  MetricColumns(const MetricBlock& block, std::uint64_t first_seq)
      : block_(block), first_seq_(first_seq) {}

  /// The columns in the schema's order.
  arrow::Status Build() {
    for (const format::TableDesc& table : format::kTables) {
      if (table.id != format::TableId::kMetrics) continue;
      for (const format::ColumnDesc& column : table.columns) {
        ARROW_ASSIGN_OR_RAISE(auto array, Column(column.name));
        if (array == nullptr) return arrow::Status::NotImplemented(std::string(column.name));
        fields_.push_back(arrow::field(std::string(column.name), array->type(), false));
        arrays_.push_back(std::move(array));
      }
    }
    return arrow::Status::OK();
  }
  const arrow::FieldVector& fields() const { return fields_; }
  const arrow::ArrayVector& arrays() const { return arrays_; }

 private:
  ArrowColumn Column(std::string_view name) {
    if (name == "seq") {
      seqs_.resize(block_.rows());
      for (std::size_t i = 0; i < seqs_.size(); ++i) seqs_[i] = first_seq_ + i;
      return NumbersColumn(arrow::uint64(), seqs_);
    }
    if (name == "ord_ns") {
      ends_ = block_.time_ns;
      for (std::int64_t& end : ends_) end = std::max<std::int64_t>(0, end);
      return NumbersColumn(arrow::int64(), ends_);
    }
    if (name == "time_ns") return NumbersColumn(arrow::int64(), block_.time_ns);
    if (name == "value") return NumbersColumn(arrow::float64(), block_.value);
    if (name == "node") return OfSeries(&MetricSeries::node);
    if (name == "subject") return OfSeries(&MetricSeries::subject);
    if (name == "name") return OfSeries(&MetricSeries::name);
    if (name == "unit") return OfSeries(&MetricSeries::unit);
    if (name == "pid") {
      pids_.assign(block_.rows(), 0);
      return NumbersColumn(arrow::int32(), pids_);
    }
    return std::shared_ptr<arrow::Array>();
  }

  ArrowColumn OfSeries(std::string MetricSeries::*text) {
    std::vector<std::string_view> words;
    for (const MetricSeries& series : block_.names) words.push_back(series.*text);
    return WordsColumn(block_.series, words);
  }

  const MetricBlock& block_;
  const std::uint64_t first_seq_;
  std::vector<std::uint64_t> seqs_;
  std::vector<std::int64_t> ends_;
  std::vector<std::int32_t> pids_;
  arrow::FieldVector fields_;
  arrow::ArrayVector arrays_;
};

}  // namespace

Result<SealedRecord> WriteMetricSegment(const std::filesystem::path& folder,
                                        const SlicePlace& place, const MetricBlock& block) {
  // Measured values hardly repeat: a dictionary would be as long as they are.
  static const auto properties = BulkProperties(kMetricDeltas).disable_dictionary("value")->build();
  MetricColumns columns(block, place.first_seq);
  const arrow::Status status = columns.Build();
  if (!status.ok()) return {Code::kIo, "cannot write metrics: " + status.ToString()};
  return WriteColumns(folder, place, format::TableId::kMetrics, block.rows(), columns.fields(),
                      columns.arrays(), properties);
}

}  // namespace telltale::store
