// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/load.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "base/json.h"
#include "base/process.h"
#include "store/column_scan.h"
#include "store/folder.h"
#include "store/window_folder.h"

namespace telltale::analysis::trace {
namespace {

/// Of a machine that does not say how much it has left.
constexpr std::uint64_t kMuchMemory = 8ULL << 30;

/// Of a slice in memory, as trace.h says.
std::uint64_t BytesOfSlice(Needs needs) {
  return 58 + (needs.bytes ? 8 : 0) + (needs.flops ? 16 : 0) + (needs.facts ? 12 : 0);
}

/// Ids of a piece's texts, each looked up once.
class TextIds {
 public:
  template <class F>
  TextIds(const store::ScanColumn& column, F&& id_of) : column_(column) {
    ids_.reserve(column.texts.size());
    for (const std::string_view text : column.texts) ids_.push_back(id_of(text));
  }
  std::uint32_t At(std::size_t row) const { return ids_[column_.Code(row)]; }

 private:
  const store::ScanColumn& column_;
  std::vector<std::uint32_t> ids_;
};

enum SliceColumn : std::size_t {
  kTime,
  kDuration,
  kName,
  kCategory,
  kKind,
  kRank,
  kPid,
  kTid,
  kLane,
  kDevice,
  kStream,
  kCorrelation,
  kExternal,
  kWindow,
  kFixedColumns,
};

std::vector<std::string> ColumnsOf(Needs needs) {
  std::vector<std::string> columns = {"time_ns", "duration_ns", "name",     "category", "kind",
                                      "rank",    "pid",         "tid",      "lane",     "device",
                                      "stream",  "correlation", "external", "window"};
  if (needs.bytes) columns.emplace_back("bytes");
  if (needs.flops) columns.emplace_back("flops");
  if (needs.args()) columns.emplace_back("args");
  return columns;
}

/// Sampled stacks (src/stacks): no profiler's, on the lanes that a profiler has too.
constexpr std::string_view kStacksWriter = "stacks";
/// Kineto's slice around all that one profiler has recorded.
constexpr std::string_view kFrameKind = "Trace";

/// When each recording of a rank was made. A window of detail is one, and so is what a profiler's
/// own frame spans; all else of a writer is one together.
class Recordings {
 public:
  explicit Recordings(std::string_view writer)
      : of_window_(writer.starts_with(store::kWindowFolderPrefix)) {}

  void See(std::string_view window, std::int64_t begin_ns, std::int64_t duration_ns, bool frame) {
    Part* part = last_;
    if (part == nullptr || window != last_window_) {
      part =
          &parts_.try_emplace(std::string(of_window_ ? std::string_view() : window)).first->second;
      last_ = part;
      last_window_ = window;
    }
    part->framed = part->framed || frame;
    std::int64_t end_ns = 0;
    if (duration_ns < 0 || __builtin_add_overflow(begin_ns, duration_ns, &end_ns))
      end_ns = begin_ns;
    part->when.begin = std::min(part->when.begin, begin_ns);
    part->when.end = std::max(part->when.end, end_ns);
  }

  void AddTo(TraceBuilder* builder) const {
    Part rest;
    for (const auto& [window, part] : parts_) {
      if (of_window_ || part.framed) {
        builder->AddRecording(part.when);
        continue;
      }
      rest.when.begin = std::min(rest.when.begin, part.when.begin);
      rest.when.end = std::max(rest.when.end, part.when.end);
    }
    if (rest.when.begin <= rest.when.end) builder->AddRecording(rest.when);
  }

 private:
  struct Part {
    Span when{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()};
    bool framed = false;
  };

  const bool of_window_;
  std::map<std::string, Part> parts_;
  Part* last_ = nullptr;
  std::string last_window_;
};

}  // namespace

Result<RankWriters> FindRanks(const std::filesystem::path& run,
                              const std::vector<std::int32_t>& asked, std::uint64_t* left_out) {
  RankWriters out;
  std::set<std::int32_t> beyond;
  for (const std::string& writer : store::ListWriters(run)) {
    std::set<std::int32_t> ranks;
    const auto visit = [&](store::ScanPiece& piece) -> Status {
      const store::ScanColumn& rank = piece.columns[0];
      const std::size_t rows = rank.constant ? 1 : piece.rows;
      for (std::size_t i = 0; i < rows; ++i) ranks.insert(static_cast<std::int32_t>(rank.Int(i)));
      return {};
    };
    // Damage is counted where the rows are loaded.
    store::Salvage ignored;
    TELLTALE_RETURN_IF_ERROR(store::ScanWriterColumns(
        run / writer, {.table = format::SliceRow::kTable, .columns = {"rank"}}, visit, &ignored));
    std::size_t of_writer = 0;
    for (const std::int32_t rank : ranks) {
      const bool fits =
          ++of_writer <= kMostRanksOfWriter && (out.size() < kMostRanks || out.contains(rank));
      if (fits || std::find(asked.begin(), asked.end(), rank) != asked.end()) {
        out[rank].push_back(writer);
      } else {
        beyond.insert(rank);
      }
    }
  }
  if (left_out != nullptr) {
    *left_out = 0;
    for (const std::int32_t rank : beyond) *left_out += out.contains(rank) ? 0 : 1;
  }
  for (auto& [rank, writers] : out) {
    if (writers.size() > 1) std::erase(writers, kStacksWriter);
  }
  if (out.empty()) {
    return Status(
        Code::kUnusable,
        fmt::format("{} holds no trace (its table slices is empty): import one with `telltale "
                    "import TRACE.json.gz -o RUN`, or record one of some steps with `telltale "
                    "capture RUN --steps 5 --detail ops,kernels`",
                    run.string()));
  }
  return out;
}

Result<Trace> LoadTrace(const std::filesystem::path& run, const RankWriters& ranks,
                        std::int32_t rank, Needs needs, store::Salvage* salvage,
                        std::optional<std::uint64_t> most_bytes) {
  TraceBuilder builder(rank, needs);
  // A segment of some KB may hold, or claim, millions of rows.
  if (!most_bytes) most_bytes = MemoryLeft().value_or(kMuchMemory) / 2;
  std::uint64_t bytes = 0;
  const std::vector<std::string> columns = ColumnsOf(needs);
  std::size_t next = kFixedColumns;
  const std::size_t bytes_at = needs.bytes ? next++ : 0;
  const std::size_t flops_at = needs.flops ? next++ : 0;
  const std::size_t args_at = needs.args() ? next++ : 0;
  std::optional<Recordings> recordings;
  const auto visit = [&](store::ScanPiece& piece) -> Status {
    const auto& c = piece.columns;
    builder.Reserve(std::min<std::uint64_t>(piece.rows, *most_bytes / BytesOfSlice(needs)));
    const TextIds names(c[kName], [&](std::string_view t) { return builder.NameId(t); });
    const TextIds kinds(c[kKind], [&](std::string_view t) { return builder.KindId(t); });
    const TextIds categories(
        c[kCategory], [](std::string_view t) { return static_cast<std::uint32_t>(CategoryOf(t)); });
    for (std::size_t i = 0; i < piece.rows; ++i) {
      if (c[kRank].Int(i) != rank) continue;
      const auto category = static_cast<Category>(categories.At(i));
      const auto kind = static_cast<std::uint8_t>(kinds.At(i));
      const bool mark = builder.IsMark(category, kind);
      const bool frame = mark && c[kKind].Text(i) == kFrameKind;
      // Python's stacks may be cProfile's, whose times are made up.
      if (frame || (!mark && category != Category::kPython)) {
        recordings->See(c[kWindow].Text(i), c[kTime].Int(i), c[kDuration].Int(i), frame);
      }
      if (mark) continue;
      bytes += BytesOfSlice(needs);
      if (bytes > *most_bytes) {
        return {Code::kLimit,
                fmt::format("{}: the trace of rank {} takes more memory than this machine can give "
                            "it: {} MiB; free memory, or record fewer steps",
                            run.string(), rank, *most_bytes >> 20)};
      }
      TraceBuilder::Row row{.begin_ns = c[kTime].Int(i),
                            .duration_ns = c[kDuration].Int(i),
                            .name = names.At(i),
                            .lane = builder.LaneId(c[kPid].Int(i), c[kTid].Int(i),
                                                   static_cast<std::int32_t>(c[kDevice].Int(i)),
                                                   c[kStream].Int(i), c[kLane].Text(i)),
                            .category = category,
                            .kind = kind,
                            .correlation = c[kCorrelation].Int(i),
                            .external = c[kExternal].Int(i)};
      if (needs.bytes) row.bytes = c[bytes_at].Int(i);
      if (needs.flops) row.flops = c[flops_at].Real(i);
      if (needs.args()) row.args = c[args_at].Text(i);
      builder.Add(row);
    }
    return {};
  };
  const auto found = ranks.find(rank);
  if (found == ranks.end()) {
    constexpr std::size_t kNamed = 64;
    std::string known;
    std::size_t named = 0;
    for (const auto& [number, writers] : ranks) {
      if (++named > kNamed) continue;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", number);
    }
    if (named > kNamed) known += fmt::format(" and {} more", named - kNamed);
    return Status(Code::kUsage, fmt::format("{} holds no trace of rank {}: it has {}", run.string(),
                                            rank, known));
  }
  for (const std::string& writer : found->second) {
    recordings.emplace(writer);
    TELLTALE_RETURN_IF_ERROR(store::ScanWriterColumns(
        run / writer, {.table = format::SliceRow::kTable, .columns = columns}, visit, salvage));
    recordings->AddTo(&builder);
  }
  return builder.Finish();
}

std::string DeviceNameOf(const std::filesystem::path& run, std::int32_t rank) {
  std::string name;
  const auto visit = [&](store::ScanPiece& piece) -> Status {
    for (std::size_t i = 0; i < piece.rows; ++i) {
      if (!name.empty() || piece.columns[0].Text(i) != "trace.source") continue;
      if (piece.columns[1].Int(i) != rank) continue;
      const nlohmann::json data = ParseJson(piece.columns[2].Text(i));
      if (!data.is_object() || !data.contains("devices") || !data["devices"].is_array()) continue;
      for (const nlohmann::json& device : data["devices"]) {
        if (!device.is_object() || !device.contains("name") || !device["name"].is_string())
          continue;
        name = device["name"].get<std::string>();
        break;
      }
    }
    return {};
  };
  // Where nothing can be read, nothing says so.
  store::Salvage ignored;
  const Status status = store::ScanColumns(
      run, {.table = format::EventRow::kTable, .columns = {"kind", "rank", "data"}}, visit,
      &ignored);
  return status.ok() ? name : std::string();
}

}  // namespace telltale::analysis::trace
