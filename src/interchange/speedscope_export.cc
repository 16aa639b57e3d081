// SPDX-License-Identifier: Apache-2.0
#include "interchange/speedscope_export.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "interchange/json_out.h"
#include "interchange/nested_lanes.h"
#include "interchange/python_frame.h"

namespace telltale::interchange {
namespace {

using format::SliceRow;

constexpr std::size_t kSpeedscopePieceBytes = 64 << 10;

class SpeedscopeWriter {
 public:
  SpeedscopeWriter(ExportFile* file, const TraceExportOptions& options)
      : file_(file), options_(options) {}

  Result<TraceExportReport> Run(const std::filesystem::path& run, const std::string& name) {
    TELLTALE_ASSIGN_OR_RETURN(
        const auto order, query::SliceOrder::Load(run, {.memory_bytes = options_.memory_bytes}));
    report_.salvage = order->salvage();
    base_ns_ = order->first_ns();
    out_ =
        "{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\","
        "\"exporter\":\"telltale\",\"name\":";
    AppendQuoted(name, &out_);
    out_ += ",\"profiles\":[";
    for (const query::Lane& lane : order->lanes()) {
      // What overlaps goes to profiles of its own, read again for each.
      std::size_t rows = 1;
      for (std::size_t row = 0; row < rows; ++row) {
        TELLTALE_RETURN_IF_ERROR(Profile(order.get(), lane, row, &rows));
      }
    }
    // The format needs them; their place in the file is free.
    out_ += "\n],\"shared\":{\"frames\":[";
    bool first = true;
    for (const std::string_view frame : frames_) {
      out_ += first ? "\n" : ",\n";
      first = false;
      const FrameName parts = ParseFrame(frame);
      out_ += "{\"name\":";
      AppendQuoted(parts.function, &out_);
      if (!parts.file.empty()) {
        out_ += ",\"file\":";
        AppendQuoted(parts.file, &out_);
        fmt::format_to(std::back_inserter(out_), ",\"line\":{}", parts.line);
      }
      out_ += '}';
      TELLTALE_RETURN_IF_ERROR(Flush());
    }
    out_ += "\n]}}\n";
    TELLTALE_RETURN_IF_ERROR(file_->Append(out_));
    TELLTALE_RETURN_IF_ERROR(file_->Commit());
    return std::move(report_);
  }

 private:
  Status Flush() {
    if (out_.size() < kSpeedscopePieceBytes) return {};
    const Status status = file_->Append(out_);
    out_.clear();
    return status;
  }

  /// The slices of one row of the lane; `rows` becomes how many it has.
  Status Profile(query::SliceOrder* order, const query::Lane& lane, std::size_t row,
                 std::size_t* rows) {
    out_ += first_profile_ ? "\n" : ",\n";
    first_profile_ = false;
    std::string name = TraceIdMap::ProcessName(lane) + ", " + TraceIdMap::ThreadName(lane);
    if (row > 0) name += fmt::format(" (row {})", row + 1);
    out_ += "{\"type\":\"evented\",\"name\":";
    AppendQuoted(name, &out_);
    fmt::format_to(std::back_inserter(out_),
                   ",\"unit\":\"nanoseconds\",\"startValue\":{},\"endValue\":{},\"events\":[",
                   lane.first_ns - base_ns_, lane.last_ns - base_ns_);
    first_event_ = true;
    std::vector<std::size_t> open;
    NestedLanes nested;
    const auto ended = [&](std::size_t of_row, std::int64_t end_ns) {
      if (of_row != row) return;
      Event('C', open.back(), end_ns);
      open.pop_back();
    };
    TELLTALE_RETURN_IF_ERROR(order->Visit(lane, [&](const SliceRow& slice) {
      if (slice.category == "memory") return Status();
      const auto place = nested.Put(slice.time_ns, query::EndOf(slice), ended);
      if (place.row != row) return Status();
      open.push_back(FrameOf(slice.name));
      Event('O', open.back(), slice.time_ns);
      ++report_.slices;
      return Flush();
    }));
    nested.Finish(ended);
    *rows = nested.rows();
    out_ += "]}";
    return Flush();
  }

  void Event(char type, std::size_t frame, std::int64_t time_ns) {
    fmt::format_to(std::back_inserter(out_), "{}{{\"type\":\"{}\",\"frame\":{},\"at\":{}}}",
                   first_event_ ? "\n" : ",\n", type, frame, time_ns - base_ns_);
    first_event_ = false;
  }

  std::size_t FrameOf(std::string_view name) {
    const auto [at, made] = ids_.try_emplace(name, frames_.size());
    if (made) frames_.push_back(name);
    return at->second;
  }

  ExportFile* const file_;
  const TraceExportOptions options_;
  TraceExportReport report_;
  std::vector<std::string_view> frames_;  ///< Texts of the order's.
  std::unordered_map<std::string_view, std::size_t> ids_;
  std::int64_t base_ns_ = 0;
  std::string out_;
  bool first_profile_ = true;
  bool first_event_ = true;
};

}  // namespace

Result<TraceExportReport> ExportSpeedscope(const std::filesystem::path& run,
                                           const std::string& name, ExportFile* file,
                                           const TraceExportOptions& options) {
  return SpeedscopeWriter(file, options).Run(run, name);
}

}  // namespace telltale::interchange
