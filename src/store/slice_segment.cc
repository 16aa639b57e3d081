// SPDX-License-Identifier: Apache-2.0
#include "store/slice_segment.h"

#include <algorithm>
#include <memory>

#include "base/saturate.h"
#include "format/bounds.h"
#include "store/bulk_columns.h"

namespace telltale::store {
namespace {

/// Columns whose values rarely repeat or count upwards.
constexpr std::string_view kSliceDeltas[] = {"seq",  "ord_ns",      "time_ns",  "duration_ns",
                                             "step", "correlation", "external", "flow"};

std::int64_t EndOf(std::int64_t begin_ns, std::int64_t duration_ns) {
  const std::int64_t end_ns = SaturatingAdd(begin_ns, std::max<std::int64_t>(duration_ns, 0));
  return std::clamp<std::int64_t>(end_ns, 0, format::kTimeBound.most);
}

/// The columns of a block in the schema's order. The block outlives them.
class SliceColumns {
 public:
  SliceColumns(const SliceBlock& block, std::uint64_t first_seq)
      : block_(block), first_seq_(first_seq) {}

  arrow::Status Build() {
    for (const format::TableDesc& table : format::kTables) {
      if (table.id != format::TableId::kSlices) continue;
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
    if (name == "seq") return Sequence();
    if (name == "ord_ns") return Ends();
    if (name == "time_ns") return NumbersColumn(arrow::int64(), block_.time_ns);
    if (name == "duration_ns") return NumbersColumn(arrow::int64(), block_.duration_ns);
    if (name == "name") return WordsColumn(block_.name, block_.names);
    if (name == "category") return WordsColumn(block_.category, block_.categories);
    if (name == "kind") return WordsColumn(block_.kind, block_.kinds);
    if (name == "step") return NumbersColumn(arrow::int64(), block_.step);
    if (name == "rank") return OfLane(arrow::int32(), &ranks_, &SliceLane::rank);
    if (name == "pid") return OfLane(arrow::int64(), &pids_, &SliceLane::pid);
    if (name == "tid") return OfLane(arrow::int64(), &tids_, &SliceLane::tid);
    if (name == "lane") return LaneNames();
    if (name == "device") return OfLane(arrow::int32(), &devices_, &SliceLane::device);
    if (name == "stream") return OfLane(arrow::int64(), &streams_, &SliceLane::stream);
    if (name == "correlation") return NumbersColumn(arrow::int64(), block_.correlation);
    if (name == "external") return NumbersColumn(arrow::int64(), block_.external);
    if (name == "flow") return NumbersColumn(arrow::int64(), block_.flow);
    if (name == "bytes") return NumbersColumn(arrow::int64(), block_.bytes);
    if (name == "flops") return NumbersColumn(arrow::float64(), block_.flops);
    if (name == "attempt") {
      attempts_.assign(block_.rows(), block_.attempt);
      return NumbersColumn(arrow::uint32(), attempts_);
    }
    if (name == "window") return WordsColumn(block_.window, block_.windows);
    if (name == "args") return Args();
    return std::shared_ptr<arrow::Array>();
  }

  ArrowColumn Sequence() {
    seqs_.resize(block_.rows());
    for (std::size_t i = 0; i < seqs_.size(); ++i) seqs_[i] = first_seq_ + i;
    return NumbersColumn(arrow::uint64(), seqs_);
  }
  ArrowColumn Ends() {
    ends_.resize(block_.rows());
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      ends_[i] = EndOf(block_.time_ns[i], block_.duration_ns[i]);
    }
    return NumbersColumn(arrow::int64(), ends_);
  }
  template <class T>
  ArrowColumn OfLane(const std::shared_ptr<arrow::DataType>& type, std::vector<T>* values,
                     T SliceLane::*member) {
    values->resize(block_.rows());
    for (std::size_t i = 0; i < values->size(); ++i) {
      (*values)[i] = block_.lanes[block_.lane[i]].*member;
    }
    return NumbersColumn(type, *values);
  }
  ArrowColumn LaneNames() {
    std::vector<std::string_view> names;
    for (const SliceLane& lane : block_.lanes) names.push_back(lane.lane);
    return WordsColumn(block_.lane, names);
  }
  ArrowColumn Args() {
    offsets_.reserve(block_.rows() + 1);
    offsets_.push_back(0);
    offsets_.insert(offsets_.end(), block_.args_end.begin(), block_.args_end.end());
    return arrow::MakeArray(arrow::ArrayData::Make(
        arrow::utf8(), static_cast<std::int64_t>(block_.rows()),
        {nullptr, arrow::Buffer::Wrap(offsets_.data(), offsets_.size()),
         std::make_shared<arrow::Buffer>(reinterpret_cast<const std::uint8_t*>(block_.args.data()),
                                         static_cast<std::int64_t>(block_.args.size()))},
        /*null_count=*/0));
  }

  const SliceBlock& block_;
  const std::uint64_t first_seq_;
  std::vector<std::uint64_t> seqs_;
  std::vector<std::int64_t> ends_, pids_, tids_, streams_;
  std::vector<std::int32_t> ranks_, devices_, offsets_;
  std::vector<std::uint32_t> attempts_;
  arrow::FieldVector fields_;
  arrow::ArrayVector arrays_;
};

}  // namespace

Result<SealedRecord> WriteSliceSegment(const std::filesystem::path& folder, const SlicePlace& place,
                                       const SliceBlock& block) {
  static const auto properties = [] {
    auto builder = BulkProperties(kSliceDeltas);
    // Least and greatest word say little, and are found by hashing each row's number.
    for (const char* const words : {"name", "category", "kind", "lane"}) {
      builder.disable_statistics(words);
    }
    return builder.disable_dictionary("args")->disable_statistics("args")->build();
  }();
  SliceColumns columns(block, place.first_seq);
  const arrow::Status status = columns.Build();
  if (!status.ok()) {
    return {status.IsOutOfMemory() ? Code::kLimit : Code::kIo,
            "cannot write slices: " + status.ToStringWithoutContextLines()};
  }
  return WriteColumns(folder, place, format::TableId::kSlices, block.rows(), columns.fields(),
                      columns.arrays(), properties);
}

}  // namespace telltale::store
