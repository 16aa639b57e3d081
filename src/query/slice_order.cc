// SPDX-License-Identifier: Apache-2.0
#include "query/slice_order.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/string_pool.h"
#include "query/spill_file.h"
#include "store/scan_writers.h"
#include "store/window_folder.h"

namespace telltale::query {
namespace {

using format::SliceRow;

constexpr std::size_t kMostTextBytes = 64 << 20;
constexpr std::size_t kMostLanes = 1 << 16;
constexpr std::size_t kMostSteps = 1 << 20;
constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::uint32_t kFoldedId = 1;
constexpr std::string_view kFoldedText = "(one of too many names)";
constexpr std::string_view kFoldedLane = "(rows beyond the 65536th)";
constexpr std::string_view kStepLane = "steps";

/// A slice as it lies in memory and in the file; its args follow.
struct Packed {
  std::int64_t begin_ns;
  std::int64_t duration_ns;
  std::uint64_t seq;
  std::int64_t step;
  std::int64_t correlation;
  std::int64_t external;
  std::int64_t flow;
  std::int64_t bytes;
  double flops;
  std::uint32_t name;
  std::uint32_t category;
  std::uint32_t kind;
  std::uint32_t attempt;
  std::uint32_t args_size;
  std::uint32_t unused;
};

struct Entry {
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::uint64_t offset;  ///< In the arena: the order of arrival.
  std::uint32_t lane;
};

struct ByPlace {
  bool operator()(const Entry& a, const Entry& b) const {
    return std::tie(a.lane, a.begin_ns, b.end_ns, a.offset) <
           std::tie(b.lane, b.begin_ns, a.end_ns, b.offset);
  }
};

/// The slices of one lane in one spilled piece.
struct Stretch {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

using LaneKey = std::tuple<std::int64_t, std::int32_t, std::int64_t, std::int64_t, std::int32_t,
                           std::int64_t, std::string_view, std::string_view>;

std::string_view CategoryOfSpan(std::string_view category) {
  if (category == "data") return "data";
  return category == "runtime" ? "other" : "annotation";
}

/// Reads the slices of a stretch one after the other.
class StretchReader {
 public:
  StretchReader(const SpillFile* file, Stretch stretch) : file_(file), stretch_(stretch) {}

  /// False at the end.
  Result<bool> Next() {
    if (stretch_.bytes == 0) return false;
    TELLTALE_RETURN_IF_ERROR(Need(sizeof(Packed)));
    std::memcpy(&packed_, buffer_.data() + at_, sizeof packed_);
    const std::size_t whole = sizeof(Packed) + packed_.args_size;
    TELLTALE_RETURN_IF_ERROR(Need(whole));
    args_ = std::string_view(buffer_).substr(at_ + sizeof(Packed), packed_.args_size);
    at_ += whole;
    stretch_.offset += whole;
    stretch_.bytes -= whole;
    return true;
  }
  const Packed& packed() const { return packed_; }
  std::string_view args() const { return args_; }

 private:
  Status Need(std::size_t size) {
    if (buffer_.size() - at_ >= size) return {};
    const std::uint64_t want =
        std::min<std::uint64_t>(std::max<std::uint64_t>(kReadBytes, size), stretch_.bytes);
    TELLTALE_RETURN_IF_ERROR(file_->Read(stretch_.offset, want, &buffer_));
    at_ = 0;
    if (buffer_.size() >= size) return {};
    return {Code::kIo, "a temporary file is shorter than what was written to it"};
  }

  const SpillFile* file_;
  Stretch stretch_;  ///< What has not been given yet; `at_` is its begin.
  std::string buffer_;
  std::size_t at_ = 0;
  Packed packed_{};
  std::string_view args_;
};

class Order final : public SliceOrder {
 public:
  explicit Order(const SliceOrderOptions& options) : options_(options) {
    texts_ = {{}, kFoldedText};
    text_ids_ = {{texts_[0], 0}, {kFoldedText, kFoldedId}};
  }

  Status Read(const std::filesystem::path& run) {
    TELLTALE_ASSIGN_OR_RETURN(const auto reader, store::RunReader::Open(run));
    std::uint32_t tables = store::MaskOf(format::TableId::kSlices);
    if (options_.recorded) {
      tables |= store::MaskOf(format::TableId::kSpans) | store::MaskOf(format::TableId::kSteps);
    }
    Status failed;
    const auto take = [&](const std::string& writer, const format::Rows& rows) {
      // A window of detail marks a few steps of many.
      const bool whole = !writer.starts_with(store::kWindowFolderPrefix);
      for (const SliceRow& row : rows.slices) {
        if (!failed.ok()) break;
        if (options_.sampled && *options_.sampled != (row.window == kSampledStacks)) continue;
        if (whole && row.category == "step") marked_.insert(row.rank);
        failed = Add(row, false);
      }
      for (const format::SpanRow& row : rows.spans) {
        if (!failed.ok()) break;
        failed = Add(OfSpan(row), false);
      }
      for (const format::StepRow& row : rows.steps) {
        if (!failed.ok()) break;
        failed = Add(OfStep(row), true);
      }
      return failed.ok();
    };
    if (options_.writers) {
      const bool final = store::DeriveRunState(reader->info(), run).state != "running";
      TELLTALE_RETURN_IF_ERROR(
          store::ScanWriters(run, *options_.writers, final, tables, take, &salvage_));
    } else {
      TELLTALE_RETURN_IF_ERROR(reader->Scan(tables, take, &salvage_));
    }
    TELLTALE_RETURN_IF_ERROR(failed);
    return Finish();
  }

  const std::vector<Lane>& lanes() const override { return lanes_; }
  std::uint64_t slices() const override { return slices_; }
  std::int64_t first_ns() const override { return first_ns_; }
  std::uint64_t steps() const override { return steps_.size(); }
  std::uint64_t spilled_bytes() const override { return file_.size(); }
  const store::Salvage& salvage() const override { return salvage_; }

  Status Visit(const Lane& lane, const Visitor& visit) override {
    const std::uint32_t id = ids_[static_cast<std::size_t>(&lane - lanes_.data())];
    SliceRow row;
    row.rank = lane.rank;
    row.pid = lane.pid;
    row.tid = lane.tid;
    row.device = lane.device;
    row.stream = lane.stream;
    row.lane = lane.name;
    row.window = lane.window;
    if (pieces_.empty()) {
      Entry first{std::numeric_limits<std::int64_t>::min(),
                  std::numeric_limits<std::int64_t>::max(), 0, id};
      for (auto at = std::lower_bound(entries_.begin(), entries_.end(), first, ByPlace());
           at != entries_.end() && at->lane == id; ++at) {
        Packed packed;
        std::memcpy(&packed, arena_.data() + at->offset, sizeof packed);
        Fill(packed, {arena_.data() + at->offset + sizeof packed, packed.args_size}, &row);
        TELLTALE_RETURN_IF_ERROR(visit(row));
      }
      return {};
    }
    return Merge(id, &row, visit);
  }

 private:
  SliceRow OfSpan(const format::SpanRow& span) {
    SliceRow row;
    own_text_ = fmt::format("thread {}", span.tid);
    row.lane = own_text_;
    row.seq = span.seq;
    row.time_ns = span.time_ns;
    row.duration_ns = span.duration_ns;
    row.name = span.name;
    row.category = CategoryOfSpan(span.category);
    row.kind = span.category;
    row.step = span.step;
    row.rank = span.rank;
    row.pid = span.pid;
    row.tid = span.tid;
    row.device = -1;
    row.stream = -1;
    row.attempt = span.attempt;
    return row;
  }
  SliceRow OfStep(const format::StepRow& step) {
    SliceRow row;
    row.seq = step.seq;
    row.time_ns = step.time_ns;
    row.duration_ns = step.duration_ns;
    own_text_ = fmt::format("{} step {}", step.mode, step.step);
    row.name = own_text_;
    row.category = "step";
    row.kind = step.mode;
    row.step = step.step;
    row.rank = step.rank;
    row.pid = step.pid;
    row.lane = kStepLane;
    row.device = -1;
    row.stream = -1;
    row.attempt = step.attempt;
    return row;
  }

  std::uint32_t TextId(std::string_view text) {
    if (const auto found = text_ids_.find(text); found != text_ids_.end()) return found->second;
    if (pool_.bytes() + text.size() > kMostTextBytes) return kFoldedId;
    const auto id = static_cast<std::uint32_t>(texts_.size());
    texts_.push_back(pool_.Intern(text));
    text_ids_[texts_.back()] = id;
    return id;
  }

  std::uint32_t LaneOf(const SliceRow& row, bool steps) {
    // Not within the key: the second may move the texts while the first is a reference to one.
    const std::string_view name = texts_[TextId(row.lane)];
    const std::string_view window = texts_[TextId(row.window)];
    LaneKey key{options_.by_step ? row.step : -1,
                row.rank,
                row.pid,
                row.tid,
                row.device,
                row.stream,
                name,
                window};
    if (const auto found = lane_ids_.find(key); found != lane_ids_.end()) return found->second;
    if (found_.size() >= kMostLanes) {
      key = {-1, 0, 0, 0, -1, -1, kFoldedLane, {}};
      if (const auto found = lane_ids_.find(key); found != lane_ids_.end()) return found->second;
    }
    const auto id = static_cast<std::uint32_t>(found_.size());
    Lane lane;
    std::tie(lane.step, lane.rank, lane.pid, lane.tid, lane.device, lane.stream, lane.name,
             lane.window) = key;
    lane.first_ns = std::numeric_limits<std::int64_t>::max();
    lane.last_ns = std::numeric_limits<std::int64_t>::min();
    found_.push_back(lane);
    of_steps_.push_back(steps);
    lane_ids_[key] = id;
    return id;
  }

  Status Add(const SliceRow& row, bool steps) {
    if (options_.step && row.step != *options_.step) return {};
    if (options_.rank && row.rank != *options_.rank) return {};
    const std::uint32_t id = LaneOf(row, steps);
    Lane& lane = found_[id];
    const std::int64_t end_ns = EndOf(row);
    lane.first_ns = std::min(lane.first_ns, row.time_ns);
    lane.last_ns = std::max(lane.last_ns, end_ns);
    ++lane.slices;
    if (row.step >= 0 && steps_.size() < kMostSteps) steps_.insert(row.step);
    const std::size_t args = std::min<std::size_t>(row.args.size(), UINT32_MAX);
    const Packed packed{row.time_ns,
                        row.duration_ns,
                        row.seq,
                        row.step,
                        row.correlation,
                        row.external,
                        row.flow,
                        row.bytes,
                        row.flops,
                        TextId(row.name),
                        TextId(row.category),
                        TextId(row.kind),
                        row.attempt,
                        static_cast<std::uint32_t>(args),
                        0};
    if (arena_.capacity() < options_.memory_bytes) arena_.reserve(options_.memory_bytes);
    entries_.push_back({row.time_ns, end_ns, arena_.size(), id});
    arena_.append(reinterpret_cast<const char*>(&packed), sizeof packed);
    arena_.append(row.args.substr(0, args));
    if (arena_.size() + entries_.size() * sizeof(Entry) < options_.memory_bytes) return {};
    return Spill();
  }

  Status Spill() {
    std::sort(entries_.begin(), entries_.end(), ByPlace());
    std::vector<std::pair<std::uint32_t, Stretch>> piece;
    for (const Entry& entry : entries_) {
      if (piece.empty() || piece.back().first != entry.lane) {
        piece.push_back({entry.lane, {file_.size(), 0}});
      }
      Packed packed;
      std::memcpy(&packed, arena_.data() + entry.offset, sizeof packed);
      const std::size_t whole = sizeof packed + packed.args_size;
      TELLTALE_RETURN_IF_ERROR(file_.Append({arena_.data() + entry.offset, whole}));
      piece.back().second.bytes += whole;
    }
    pieces_.push_back(std::move(piece));
    entries_.clear();
    arena_.clear();
    return {};
  }

  Status Finish() {
    if (!pieces_.empty()) {
      TELLTALE_RETURN_IF_ERROR(Spill());
      TELLTALE_RETURN_IF_ERROR(file_.Flush());
      arena_ = {};
      entries_ = {};
    }
    std::sort(entries_.begin(), entries_.end(), ByPlace());
    for (std::uint32_t id = 0; id < found_.size(); ++id) {
      // A profiler's own marks are the better ones.
      if (of_steps_[id] && marked_.contains(found_[id].rank)) continue;
      ids_.push_back(id);
    }
    const auto place = [&](std::uint32_t id) {
      const Lane& lane = found_[id];
      return std::tuple(lane.step, !lane.host(), lane.rank, lane.pid, lane.device, lane.first_ns,
                        lane.stream, lane.tid, id);
    };
    std::sort(ids_.begin(), ids_.end(),
              [&](std::uint32_t a, std::uint32_t b) { return place(a) < place(b); });
    first_ns_ = std::numeric_limits<std::int64_t>::max();
    for (const std::uint32_t id : ids_) {
      lanes_.push_back(found_[id]);
      slices_ += found_[id].slices;
      first_ns_ = std::min(first_ns_, found_[id].first_ns);
    }
    if (slices_ == 0) first_ns_ = 0;
    return {};
  }

  void Fill(const Packed& packed, std::string_view args, SliceRow* row) const {
    row->seq = packed.seq;
    row->time_ns = packed.begin_ns;
    row->duration_ns = packed.duration_ns;
    row->step = packed.step;
    row->correlation = packed.correlation;
    row->external = packed.external;
    row->flow = packed.flow;
    row->bytes = packed.bytes;
    row->flops = packed.flops;
    row->name = texts_[packed.name];
    row->category = texts_[packed.category];
    row->kind = texts_[packed.kind];
    row->attempt = packed.attempt;
    row->args = args;
    row->ord_ns = EndOf(*row);
  }

  Status Merge(std::uint32_t id, SliceRow* row, const Visitor& visit) {
    std::vector<StretchReader> readers;
    for (const auto& piece : pieces_) {
      const auto at =
          std::lower_bound(piece.begin(), piece.end(), id,
                           [](const auto& one, std::uint32_t lane) { return one.first < lane; });
      if (at != piece.end() && at->first == id) readers.emplace_back(&file_, at->second);
    }
    const auto later = [&](std::size_t a, std::size_t b) {
      const auto place = [](const StretchReader& reader, std::size_t index) {
        const Packed& packed = reader.packed();
        return std::tuple(packed.begin_ns, -std::max<std::int64_t>(packed.duration_ns, 0), index);
      };
      return place(readers[a], a) > place(readers[b], b);
    };
    std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(later)> next(later);
    for (std::size_t i = 0; i < readers.size(); ++i) {
      TELLTALE_ASSIGN_OR_RETURN(const bool more, readers[i].Next());
      if (more) next.push(i);
    }
    while (!next.empty()) {
      const std::size_t i = next.top();
      next.pop();
      Fill(readers[i].packed(), readers[i].args(), row);
      TELLTALE_RETURN_IF_ERROR(visit(*row));
      TELLTALE_ASSIGN_OR_RETURN(const bool more, readers[i].Next());
      if (more) next.push(i);
    }
    return {};
  }

  const SliceOrderOptions options_;
  StringPool pool_;
  std::vector<std::string_view> texts_;
  std::unordered_map<std::string_view, std::uint32_t> text_ids_;
  std::vector<Lane> found_;  ///< As first met.
  std::vector<bool> of_steps_;
  std::map<LaneKey, std::uint32_t> lane_ids_;
  std::vector<std::uint32_t> ids_;  ///< Of lanes_, in found_.
  std::vector<Lane> lanes_;
  std::string arena_;
  std::vector<Entry> entries_;
  SpillFile file_;
  std::vector<std::vector<std::pair<std::uint32_t, Stretch>>> pieces_;
  std::set<std::int32_t> marked_;  ///< Ranks whose steps a profiler marked.
  std::set<std::int64_t> steps_;
  std::string own_text_;  ///< Of the row being added.
  std::uint64_t slices_ = 0;
  std::int64_t first_ns_ = 0;
  store::Salvage salvage_;
};

}  // namespace

std::int64_t EndOf(const SliceRow& slice) {
  const std::int64_t length = std::max<std::int64_t>(slice.duration_ns, 0);
  std::int64_t end = 0;
  if (__builtin_add_overflow(slice.time_ns, length, &end)) {
    return std::numeric_limits<std::int64_t>::max();
  }
  return end;
}

std::string DeviceName(std::int32_t rank, std::int32_t device) {
  if (device < 0) return fmt::format("/job:worker/task:{}/device:CPU:0", rank);
  return fmt::format("/job:worker/task:{}/device:GPU:{}", rank, device);
}

Result<std::unique_ptr<SliceOrder>> SliceOrder::Load(const std::filesystem::path& run,
                                                     const SliceOrderOptions& options) {
  auto order = std::make_unique<Order>(options);
  TELLTALE_RETURN_IF_ERROR(order->Read(run));
  return std::unique_ptr<SliceOrder>(std::move(order));
}

}  // namespace telltale::query
