// SPDX-License-Identifier: Apache-2.0
#include "interchange/chrome_export.h"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "interchange/json_out.h"

namespace telltale::interchange {
namespace {

using format::SliceRow;

/// Ids of flows are one space a rank; doubles hold them exactly up to rank 8191.
constexpr std::int64_t kFlowsOfRank = std::int64_t{1} << 40;

class ChromeWriter {
 public:
  ChromeWriter(ExportFile* file, const TraceExportOptions& options)
      : file_(file), options_(options) {}

  Result<TraceExportReport> Run(const std::filesystem::path& run) {
    TELLTALE_ASSIGN_OR_RETURN(
        const auto order, query::SliceOrder::Load(run, {.memory_bytes = options_.memory_bytes}));
    report_.salvage = order->salvage();
    base_ns_ = order->first_ns();
    if (base_ns_ == 0) {
      TELLTALE_ASSIGN_OR_RETURN(const auto info, store::ReadRunInfo(run));
      base_ns_ = info.created_ns;
    }
    out_ = fmt::format(
        "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":{},"
        "\"traceEvents\":[",
        base_ns_);
    for (const query::Lane& lane : order->lanes()) {
      const TraceIds ids = ids_.Of(lane);
      if (ids_.TakeNewProcess(lane)) NameProcess(ids.pid, TraceIdMap::ProcessName(lane));
      Begin('M', "thread_name", ids.pid, ids.tid);
      out_ += ",\"args\":{\"name\":";
      AppendQuoted(TraceIdMap::ThreadName(lane), &out_);
      out_ += "}}";
      TELLTALE_RETURN_IF_ERROR(order->Visit(lane, [&](const SliceRow& slice) {
        Slice(slice, ids);
        ++report_.slices;
        return Flush();
      }));
    }
    if (options_.counters) TELLTALE_RETURN_IF_ERROR(Counters(run));
    out_ += "\n]}\n";
    TELLTALE_RETURN_IF_ERROR(file_->Append(out_));
    TELLTALE_RETURN_IF_ERROR(file_->Commit());
    return std::move(report_);
  }

 private:
  static constexpr std::size_t kPieceBytes = 64 << 10;

  Status Flush() {
    if (out_.size() < kPieceBytes) return {};
    Status status = file_->Append(out_);
    out_.clear();
    return status;
  }

  /// Up to the ids: what follows begins with a comma, and ends with a brace.
  void Begin(char phase, std::string_view name, std::int64_t pid, std::int64_t tid) {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
    fmt::format_to(std::back_inserter(out_), "{{\"ph\":\"{}\",\"name\":", phase);
    AppendQuoted(name, &out_);
    fmt::format_to(std::back_inserter(out_), ",\"pid\":{},\"tid\":{}", pid, tid);
  }
  void Time(std::int64_t time_ns) {
    out_ += ",\"ts\":";
    AppendMicros(time_ns - base_ns_, &out_);
  }
  void Category(std::string_view category) {
    out_ += ",\"cat\":";
    AppendQuoted(category, &out_);
  }

  void NameProcess(std::int64_t pid, std::string_view name) {
    Begin('M', "process_name", pid, 0);
    out_ += ",\"args\":{\"name\":";
    AppendQuoted(name, &out_);
    out_ += "}}";
  }

  void Slice(const SliceRow& slice, const TraceIds& ids) {
    const bool instant = slice.category == "memory" && slice.duration_ns <= 0;
    Begin(instant ? 'i' : 'X', slice.name, ids.pid, ids.tid);
    Category(slice.kind.empty() ? slice.category : slice.kind);
    Time(slice.time_ns);
    if (instant) {
      out_ += ",\"s\":\"t\"";
    } else {
      out_ += ",\"dur\":";
      AppendMicros(query::EndOf(slice) - slice.time_ns, &out_);
    }
    out_ += ",\"args\":";
    ObjectOut args(slice.args, &out_);
    if (slice.step >= 0) args.Add("step", slice.step);
    if (slice.external != 0) args.Add("External id", slice.external);
    if (slice.correlation != 0) args.Add("correlation", slice.correlation);
    if (slice.device >= 0) {
      args.Add("device", std::int64_t{slice.device});
      args.Add("stream", slice.stream);
    }
    if (slice.bytes != 0) args.Add(slice.category == "memory" ? "Bytes" : "bytes", slice.bytes);
    if (slice.flops != 0) args.Add("flops", slice.flops);
    args.Close();
    out_ += '}';
    if (slice.correlation != 0) {
      if (slice.device >= 0) {
        Arrow('f', "ac2g", slice.correlation, slice, ids);
      } else if (slice.category == "runtime") {
        Arrow('s', "ac2g", slice.correlation, slice, ids);
      }
    }
    if (slice.flow != 0) {
      const bool forward = forwards_.insert({slice.rank, slice.flow}).second;
      Arrow(forward ? 's' : 'f', "fwdbwd", slice.flow, slice, ids);
    }
  }

  void Arrow(char phase, std::string_view kind, std::int64_t id, const SliceRow& slice,
             const TraceIds& ids) {
    Begin(phase, kind, ids.pid, ids.tid);
    Category(kind);
    Time(slice.time_ns);
    // A profiler's numbers may be any of 64 bits: beyond the end it goes on from the other.
    const auto of_rank = static_cast<std::uint64_t>(slice.rank * kFlowsOfRank);
    fmt::format_to(std::back_inserter(out_), ",\"id\":{}",
                   static_cast<std::int64_t>(static_cast<std::uint64_t>(id) + of_rank));
    out_ += phase == 'f' ? ",\"bp\":\"e\"}" : "}";
  }

  Status Counters(const std::filesystem::path& run) {
    const auto counter = [&](const CounterValue& value) {
      auto [at, made] = groups_.try_emplace(value.group);
      if (made) {
        at->second = ids_.NewProcess();
        NameProcess(at->second, value.group);
      }
      Begin('C', value.name, at->second, 0);
      Time(value.time_ns);
      out_ += ",\"args\":{";
      AppendQuoted(value.unit.empty() ? "value" : value.unit, &out_);
      fmt::format_to(std::back_inserter(out_), ":{}}}}}", value.value);
      ++report_.counters;
      return Flush();
    };
    std::int64_t events = -1;
    const auto event = [&](const format::EventRow& row) {
      if (events < 0) {
        events = ids_.NewProcess();
        NameProcess(events, "events");
      }
      Begin('i', row.kind, events, row.rank);
      Category("event");
      Time(row.time_ns);
      out_ += ",\"s\":\"t\",\"args\":";
      ObjectOut args(row.data, &out_);
      args.Add("message", row.message);
      args.Add("subject", row.subject);
      args.Close();
      out_ += '}';
      ++report_.events;
      return Flush();
    };
    return VisitCounters(run, counter, event, &report_.salvage);
  }

  ExportFile* const file_;
  const TraceExportOptions options_;
  TraceExportReport report_;
  TraceIdMap ids_;
  std::map<std::string, std::int64_t> groups_;
  std::set<std::pair<std::int32_t, std::int64_t>> forwards_;
  std::int64_t base_ns_ = 0;
  std::string out_;
  bool first_ = true;
};

}  // namespace

Result<TraceExportReport> ExportChrome(const std::filesystem::path& run, ExportFile* file,
                                       const TraceExportOptions& options) {
  return ChromeWriter(file, options).Run(run);
}

}  // namespace telltale::interchange
