// SPDX-License-Identifier: Apache-2.0
#include "interchange/run_maker.h"

#include <fmt/core.h>

#include <algorithm>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "base/run_files.h"
#include "base/saturate.h"
#include "base/utf8.h"
#include "format/bounds.h"
#include "store/run_info.h"

namespace telltale::interchange {
namespace {

constexpr std::size_t kRowsKept = 64 << 10;
constexpr std::size_t kBlockArgsBytes = 64 << 20;
constexpr std::size_t kMaxRowTextBytes = 1 << 20;
constexpr std::size_t kMaxRunNotes = 100;
constexpr std::size_t kMaxRanks = 4096;
/// A profiler's window holds a handful of steps, those of warm-up are not in it: what a rule wants
/// of a whole training would never be there.
constexpr const char* kRulesOfTraces =
    R"({"rules":{"InputBound":{"parameters":{"min_steps":"3","min_seconds":"0","warmup_steps":"0"}}}})";

/// Words of a column of a block and their codes.
class WordTable {
 public:
  std::uint32_t CodeOf(std::string_view text, std::vector<std::string_view>* words) {
    const auto [at, is_new] = codes_.try_emplace(text, static_cast<std::uint32_t>(words->size()));
    if (is_new) words->push_back(text);
    return at->second;
  }
  void Clear() { codes_.clear(); }

 private:
  std::unordered_map<std::string_view, std::uint32_t> codes_;
};

std::int64_t EndOfRow(std::int64_t begin_ns, std::int64_t duration_ns) {
  const std::int64_t end_ns = SaturatingAdd(begin_ns, std::max<std::int64_t>(duration_ns, 0));
  return std::clamp<std::int64_t>(end_ns, 0, format::kTimeBound.most);
}

/// Brings numbers that cannot be to the nearest that can; returns how many there were.
std::uint64_t Clamp(const format::Bound& bound, std::vector<std::int64_t>* values) {
  std::uint64_t count = 0;
  for (std::int64_t& value : *values) {
    if (bound.Has(value)) continue;
    value = std::clamp(value, bound.least, bound.most);
    ++count;
  }
  return count;
}

bool Possible(const format::Bound& bound, const std::vector<std::int64_t>& values) {
  return std::all_of(values.begin(), values.end(),
                     [&](std::int64_t value) { return bound.Has(value); });
}

bool Possible(const store::SliceBlock& block) {
  return Possible(format::kTimeBound, block.time_ns) &&
         Possible(format::kLengthBound, block.duration_ns) &&
         Possible(format::kStepBound, block.step) && Possible(format::kSignedBound, block.bytes) &&
         std::all_of(block.lanes.begin(), block.lanes.end(), [](const store::SliceLane& lane) {
           return format::kIndexBound.Has(lane.rank) && format::kIndexBound.Has(lane.device);
         });
}

std::uint64_t Clamp(store::SliceBlock* block) {
  std::uint64_t count = Clamp(format::kTimeBound, &block->time_ns) +
                        Clamp(format::kLengthBound, &block->duration_ns) +
                        Clamp(format::kStepBound, &block->step) +
                        Clamp(format::kSignedBound, &block->bytes);
  for (store::SliceLane& lane : block->lanes) {
    for (std::int32_t* number : {&lane.rank, &lane.device}) {
      if (format::kIndexBound.Has(*number)) continue;
      *number = static_cast<std::int32_t>(
          std::clamp<std::int64_t>(*number, format::kIndexBound.least, format::kIndexBound.most));
      ++count;
    }
  }
  return count;
}

}  // namespace

struct RunMaker::Rank {
  std::unique_ptr<store::BulkWriter> writer;
  // Slices that came row by row.
  store::SliceBlock block;
  StringPool block_texts;
  WordTable names, categories, kinds, windows;
  std::unordered_map<std::string, std::uint32_t> lanes;
  // All else.
  format::Rows rows;
  StringPool texts;
  std::size_t count = 0;

  /// Interned, valid UTF-8 and not endless.
  static std::string_view Text(std::string_view text, StringPool* pool) {
    if (text.size() > kMaxRowTextBytes) text = text.substr(0, kMaxRowTextBytes);
    std::string scratch;
    return pool->Intern(ToValidUtf8(text, &scratch));
  }

  Status SealRows() {
    format::ForEachTable(rows, [](auto& table) {
      std::stable_sort(table.begin(), table.end(),
                       [](const auto& a, const auto& b) { return a.ord_ns < b.ord_ns; });
    });
    Status status = writer->Seal(&rows);
    Forget();
    return status;
  }
  void Forget() {
    rows = {};
    texts = StringPool();
    count = 0;
  }
};

Result<std::unique_ptr<RunMaker>> RunMaker::Create(std::filesystem::path folder,
                                                   std::string writers) {
  if (const int error = run_files::MakeFolder(run_files::OfRun(folder)); error != 0) {
    return {Code::kIo,
            fmt::format("cannot create {}: {}", folder.string(), run_files::WhyNot(error))};
  }
  return std::unique_ptr<RunMaker>(new RunMaker(std::move(folder), std::move(writers)));
}

RunMaker::RunMaker(std::filesystem::path folder, std::string writers)
    : folder_(std::move(folder)), writers_(std::move(writers)) {}
RunMaker::~RunMaker() = default;

void RunMaker::Take(Status status) {
  if (status.ok()) return;
  const std::lock_guard lock(mutex_);
  if (status_.ok()) status_ = std::move(status);
  failed_ = true;
}

void RunMaker::TakeTimes(std::int64_t begin_ns, std::int64_t duration_ns) {
  const std::lock_guard lock(mutex_);
  first_ns_ = std::min(first_ns_, begin_ns);
  last_ns_ = std::max(last_ns_, EndOfRow(begin_ns, duration_ns));
}

RunMaker::Rank* RunMaker::RankOf(std::int32_t rank) {
  // As its rows have it.
  rank = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(rank, format::kIndexBound.least, format::kIndexBound.most));
  const std::lock_guard lock(ranks_mutex_);
  if (const auto found = ranks_.find(rank); found != ranks_.end()) return found->second.get();
  if (ranks_.size() >= kMaxRanks) {
    Take({Code::kLimit, fmt::format("more than {} ranks in one import", kMaxRanks)});
    return nullptr;
  }
  const std::string name = fmt::format("{}{}", writers_, rank);
  auto writer = store::BulkWriter::Create(folder_ / name, name);
  if (!writer.ok()) {
    Take(writer.status());
    return nullptr;
  }
  auto made = std::make_unique<Rank>();
  made->writer = std::move(writer).value();
  return ranks_.emplace(rank, std::move(made)).first->second.get();
}

template <class Row>
void RunMaker::Add(std::int32_t rank, Row row, std::vector<Row> format::Rows::*table,
                   std::int64_t duration_ns) {
  Rank* const to = failed_ ? nullptr : RankOf(rank);
  if (to == nullptr) return;
  impossible_ += format::ClampToBounds(&row);
  duration_ns = std::clamp(duration_ns, format::kLengthBound.least, format::kLengthBound.most);
  TakeTimes(row.time_ns, duration_ns);
  row.ord_ns = EndOfRow(row.time_ns, duration_ns);
  format::ForEachColumn<Row>([&](const format::ColumnDesc& column, auto member) {
    auto& value = row.*member;
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(value)>, std::string_view>) {
      value = Rank::Text(value, &to->texts);
    } else if constexpr (std::is_same_v<std::remove_reference_t<decltype(value)>, std::uint32_t>) {
      if (column.name == "attempt" && value == 0) value = 1;
    }
  });
  (to->rows.*table).push_back(row);
  if (++to->count >= kRowsKept) Take(to->SealRows());
}

void RunMaker::Step(const format::StepRow& row) {
  ++summary_.steps;
  Add(row.rank, row, &format::Rows::steps, row.duration_ns);
}
void RunMaker::Span(const format::SpanRow& row) {
  ++summary_.other_rows;
  Add(row.rank, row, &format::Rows::spans, row.duration_ns);
}
void RunMaker::Scalar(const format::ScalarRow& row) {
  ++summary_.other_rows;
  Add(row.rank, row, &format::Rows::scalars, 0);
}
void RunMaker::Event(const format::EventRow& row) {
  ++summary_.events;
  Add(row.rank, row, &format::Rows::events, 0);
}
void RunMaker::Metric(std::int32_t rank, const format::MetricRow& row) {
  ++summary_.metrics;
  Add(rank, row, &format::Rows::metrics, 0);
}

void RunMaker::Slice(const format::SliceRow& given) {
  if (!format::InBounds(given)) {
    format::SliceRow row = given;
    impossible_ += format::ClampToBounds(&row);
    Slice(row);
    return;
  }
  const format::SliceRow& row = given;
  Rank* const to = failed_ ? nullptr : RankOf(row.rank);
  if (to == nullptr) return;
  store::SliceBlock& block = to->block;
  block.attempt = std::max(row.attempt, 1U);
  const auto text = [to](std::string_view value) { return Rank::Text(value, &to->block_texts); };
  block.time_ns.push_back(row.time_ns);
  block.duration_ns.push_back(row.duration_ns);
  block.step.push_back(row.step);
  block.correlation.push_back(row.correlation);
  block.external.push_back(row.external);
  block.flow.push_back(row.flow);
  block.bytes.push_back(row.bytes);
  block.flops.push_back(row.flops);
  block.name.push_back(to->names.CodeOf(text(row.name), &block.names));
  block.category.push_back(to->categories.CodeOf(text(row.category), &block.categories));
  block.kind.push_back(to->kinds.CodeOf(text(row.kind), &block.kinds));
  block.window.push_back(to->windows.CodeOf(text(row.window), &block.windows));
  const std::string_view lane_name = text(row.lane);
  const std::string key =
      fmt::format("{} {} {} {} {}", row.pid, row.tid, row.device, row.stream, lane_name);
  const auto [lane, is_new] =
      to->lanes.try_emplace(key, static_cast<std::uint32_t>(block.lanes.size()));
  if (is_new) {
    block.lanes.push_back(
        {row.rank, row.pid, row.tid, row.device, row.stream, std::string(lane_name)});
  }
  block.lane.push_back(lane->second);
  std::string scratch;
  block.args +=
      ToValidUtf8(row.args.size() > kMaxRowTextBytes ? std::string_view() : row.args, &scratch);
  block.args_end.push_back(static_cast<std::int32_t>(block.args.size()));
  TakeTimes(row.time_ns, row.duration_ns);
  if (block.rows() >= store::kSliceBlockRows || block.args.size() >= kBlockArgsBytes) {
    SealSlices(to);
  }
}

void RunMaker::SealSlices(Rank* rank) {
  const std::uint64_t rows = rank->block.rows();
  if (rows == 0) return;
  summary_.slices += rows;
  auto sealed =
      store::WriteSliceSegment(rank->writer->folder(), rank->writer->Place(rows), rank->block);
  if (sealed.ok()) {
    rank->writer->Took(std::move(sealed).value());
  } else {
    Take(sealed.status());
  }
  rank->block = {};
  rank->block_texts = StringPool();
  rank->lanes.clear();
  for (WordTable* table : {&rank->names, &rank->categories, &rank->kinds, &rank->windows}) {
    table->Clear();
  }
}

store::SlicePlace RunMaker::Place(std::int32_t rank, std::uint64_t rows) {
  Rank* const to = failed_ ? nullptr : RankOf(rank);
  if (to == nullptr) return {};
  {
    const std::lock_guard lock(mutex_);
    summary_.slices += rows;
  }
  return to->writer->Place(rows);
}

void RunMaker::Put(std::int32_t rank, const store::SlicePlace& place,
                   const store::SliceBlock& block) {
  Rank* const to = failed_ || block.rows() == 0 ? nullptr : RankOf(rank);
  if (to == nullptr) return;
  if (!Possible(block)) {
    store::SliceBlock clamped = block;
    impossible_ += Clamp(&clamped);
    Put(rank, place, clamped);
    return;
  }
  auto sealed = store::WriteSliceSegment(to->writer->folder(), place, block);
  if (!sealed.ok()) {
    Take(sealed.status());
    return;
  }
  to->writer->Took(std::move(sealed).value());
  std::int64_t first = INT64_MAX;
  std::int64_t last = INT64_MIN;
  for (std::size_t i = 0; i < block.rows(); ++i) {
    first = std::min(first, block.time_ns[i]);
    last = std::max(last, EndOfRow(block.time_ns[i], block.duration_ns[i]));
  }
  const std::lock_guard lock(mutex_);
  first_ns_ = std::min(first_ns_, first);
  last_ns_ = std::max(last_ns_, last);
}

store::SlicePlace RunMaker::PlaceMetrics(std::int32_t rank, std::uint64_t rows) {
  Rank* const to = failed_ ? nullptr : RankOf(rank);
  if (to == nullptr) return {};
  {
    const std::lock_guard lock(mutex_);
    summary_.metrics += rows;
  }
  return to->writer->Place(rows, format::TableId::kMetrics);
}

void RunMaker::PutMetrics(std::int32_t rank, const store::SlicePlace& place,
                          const store::MetricBlock& block) {
  Rank* const to = failed_ || block.rows() == 0 ? nullptr : RankOf(rank);
  if (to == nullptr) return;
  if (!Possible(format::kTimeBound, block.time_ns)) {
    store::MetricBlock clamped = block;
    impossible_ += Clamp(format::kTimeBound, &clamped.time_ns);
    PutMetrics(rank, place, clamped);
    return;
  }
  auto sealed = store::WriteMetricSegment(to->writer->folder(), place, block);
  if (!sealed.ok()) {
    Take(sealed.status());
    return;
  }
  to->writer->Took(std::move(sealed).value());
  const auto [first, last] = std::minmax_element(block.time_ns.begin(), block.time_ns.end());
  const std::lock_guard lock(mutex_);
  first_ns_ = std::min(first_ns_, *first);
  last_ns_ = std::max(last_ns_, *last);
}

void RunMaker::Count(std::string_view name, std::string_view subject, std::uint64_t n, bool loss) {
  if (n == 0) return;
  ImportSummary::Counter& counter = counters_[{std::string(name), std::string(subject)}];
  counter.name = fmt::format("import.{}", name);
  counter.subject = subject;
  counter.loss = loss;
  counter.value += n;
}

void RunMaker::Note(std::string text) {
  if (summary_.notes.size() < kMaxRunNotes) summary_.notes.push_back(std::move(text));
}

Result<ImportSummary> RunMaker::Finish(const Description& description) {
  for (auto& [number, rank] : ranks_) SealSlices(rank.get());
  if (!status_.ok()) return status_;
  if (const std::uint64_t impossible = impossible_; impossible > 0) {
    Count("damaged", "", impossible, true);
    Note(
        fmt::format("{} {} that cannot be (times beyond 1896 to 2116, lengths above 4.5 years, "
                    "steps above 2^53, ranks above 2^20): the nearest that can be was taken",
                    impossible, impossible == 1 ? "number" : "numbers"));
  }
  const bool any =
      summary_.slices + summary_.steps + summary_.metrics + summary_.events + summary_.other_rows >
      0;
  if (!any) return {Code::kUnusable, "there is no event in it"};
  const std::int64_t end_ns = std::max<std::int64_t>(last_ns_, 0);
  bool first = true;
  for (auto& [number, rank] : ranks_) {
    summary_.ranks.push_back(number);
    if (std::exchange(first, false)) {
      for (const auto& [key, counter] : counters_) {
        format::LedgerRow row;
        row.time_ns = row.ord_ns = end_ns;
        row.name = rank->texts.Intern(counter.name);
        row.subject = Rank::Text(counter.subject, &rank->texts);
        row.value = counter.value;
        row.unit = "records";
        row.loss = counter.loss;
        row.attempt = 1;
        rank->rows.ledger.push_back(row);
        summary_.counters.push_back(counter);
      }
    }
    format::ForEachTable(rank->rows, [](auto& table) {
      std::stable_sort(table.begin(), table.end(),
                       [](const auto& a, const auto& b) { return a.ord_ns < b.ord_ns; });
    });
    TELLTALE_RETURN_IF_ERROR(rank->writer->Close(&rank->rows, end_ns));
  }
  TELLTALE_RETURN_IF_ERROR(WriteInfo(description));
  summary_.format = description.format;
  return std::move(summary_);
}

Status RunMaker::WriteInfo(const Description& description) {
  store::RunInfo info{.id = description.id, .name = description.name};
  info.command = {fmt::format("(imported: {})", description.format)};
  info.command.insert(info.command.end(), description.sources.begin(), description.sources.end());
  info.telltale_version = description.telltale_version;
  info.created_ns = first_ns_;
  info.rules = kRulesOfTraces;
  info.attempts.push_back({.number = 1,
                           .start_ns = first_ns_,
                           .end_ns = std::max(last_ns_, first_ns_ + 1),
                           .exit_code = 0});
  info.finished = true;
  return store::WriteRunInfo(folder_, info);
}

}  // namespace telltale::interchange
