// SPDX-License-Identifier: Apache-2.0
// Tables and columns as Nvidia's "SQLite Export Schema Reference" has them. Which of them are there
// differs by version and by what was traced: a column that is missing reads as 0.
//
// A database can be hostile: only plain tables are read (no views, no virtual tables, no triggers),
// the schema is not trusted, cells are checked, and no text is longer than kMaxText.
#include "interchange/nsys_import.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "interchange/args_writer.h"
#include "interchange/step_marks.h"

namespace telltale::interchange {
namespace {

constexpr int kMaxText = 1 << 20;
constexpr std::size_t kMaxTextsBytes = 256U << 20;  ///< Of all names together.
constexpr std::size_t kMaxLanes = 1U << 20;
constexpr std::int64_t kIdBits = 24;
constexpr std::int64_t kIdMask = (1 << kIdBits) - 1;
/// Kinds of events of NVTX in Nsight's table.
constexpr std::int64_t kNvtxMark = 34;
constexpr std::int64_t kNvtxPushPop = 59;
constexpr std::int64_t kNvtxStartEnd = 60;

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
};
struct FinishStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, FinishStatement>;

/// The rows of a table, with the columns that were asked for under their numbers.
class NsysTable {
 public:
  NsysTable(sqlite3* database, std::string_view table, const std::set<std::string>& there,
            std::initializer_list<const char*> columns) {
    std::string query = "SELECT ";
    bool first = true;
    for (const char* const column : columns) {
      query += first ? "" : ",";
      first = false;
      query += there.contains(column) ? fmt::format("\"{}\"", column) : std::string("NULL");
    }
    query += fmt::format(" FROM main.\"{}\"", table);
    sqlite3_stmt* statement = nullptr;
    state_ = sqlite3_prepare_v2(database, query.c_str(), static_cast<int>(query.size()), &statement,
                                nullptr);
    statement_.reset(statement);
  }

  bool Next() {
    if (state_ != SQLITE_OK && state_ != SQLITE_ROW) return false;
    state_ = sqlite3_step(statement_.get());
    return state_ == SQLITE_ROW;
  }
  /// The table ends in the middle, or cannot be read at all.
  bool damaged() const { return state_ != SQLITE_DONE; }

  bool IsNull(int column) const {
    return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
  }
  bool IsNumber(int column) const {
    return sqlite3_column_type(statement_.get(), column) == SQLITE_INTEGER;
  }
  std::int64_t Number(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  std::string_view Text(int column) const {
    const auto* const text = sqlite3_column_text(statement_.get(), column);
    if (text == nullptr) return {};
    return {reinterpret_cast<const char*>(text),
            static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column))};
  }

 private:
  Statement statement_;
  int state_ = SQLITE_OK;
};

/// cudaMemcpyKind as CUPTI numbers it.
std::string_view CopyName(std::int64_t kind) {
  constexpr std::string_view kNames[] = {"Memcpy",      "Memcpy HtoD", "Memcpy DtoH", "Memcpy HtoA",
                                         "Memcpy AtoH", "Memcpy AtoA", "Memcpy AtoD", "Memcpy DtoA",
                                         "Memcpy DtoD", "Memcpy HtoH", "Memcpy PtoP"};
  return kind >= 0 && kind < static_cast<std::int64_t>(std::size(kNames)) ? kNames[kind]
                                                                          : kNames[0];
}

/// Where a column stands in one of the queries below.
constexpr int kStartColumn = 0;
constexpr int kEndColumn = 1;

class NsysImport {
 public:
  NsysImport(Database database, TraceSource* source)
      : database_(std::move(database)), source_(source) {}

  Status Run() {
    if (!ReadSchema()) {
      return {Code::kUnusable,
              "it is an SQLite database that cannot be read, or is damaged: export it anew with "
              "`nsys export --type sqlite`"};
    }
    ReadStart();
    ReadTexts();
    ReadThreads();
    FindSteps();
    TakeKernels();
    TakeCopies();
    TakeMemsets();
    TakeWaits();
    TakeGraphs();
    TakeCalls("CUPTI_ACTIVITY_KIND_RUNTIME", "cuda_runtime", "runtime");
    TakeCalls("OSRT_API", "osrt", "other");
    TakeCalls("CUDNN_EVENTS", "cudnn", "op");
    TakeCalls("CUBLAS_EVENTS", "cublas", "op");
    TakeRanges();
    TakeMemory();
    TakeGpuMetrics();
    CountTheRest();
    steps_.Emit(source_);
    if (taken_.empty()) {
      return {Code::kUnusable,
              "it is an SQLite database, but has none of the tables of an export of Nsight "
              "Systems"};
    }
    return {};
  }

 private:
  bool ReadSchema() {
    NsysTable tables(database_.get(), "sqlite_master", {"type", "name", "sql", "rootpage"},
                     {"type", "name", "sql", "rootpage"});
    while (tables.Next()) {
      // A virtual table has no page.
      if (tables.Text(0) != "table" || tables.Number(3) == 0) continue;
      const std::string name(tables.Text(1));
      if (name.find('"') == std::string::npos && schema_.size() < 4096) schema_[name];
    }
    if (tables.damaged()) return false;
    for (auto& [name, columns] : schema_) {
      const std::string query = fmt::format("PRAGMA main.table_info(\"{}\")", name);
      sqlite3_stmt* statement = nullptr;
      if (sqlite3_prepare_v2(database_.get(), query.c_str(), -1, &statement, nullptr) !=
          SQLITE_OK) {
        continue;
      }
      const Statement owner(statement);
      while (sqlite3_step(statement) == SQLITE_ROW) {
        const auto* const text = sqlite3_column_text(statement, 1);
        if (text != nullptr) columns.emplace(reinterpret_cast<const char*>(text));
      }
    }
    return true;
  }

  /// The rows of `table`, each to `take`; false where there is no such table.
  template <class Take>
  bool Each(const std::string& table, std::initializer_list<const char*> columns,
            const Take& take) {
    const auto found = schema_.find(table);
    if (found == schema_.end()) return false;
    NsysTable rows(database_.get(), table, found->second, columns);
    while (rows.Next()) take(rows);
    if (rows.damaged()) {
      source_->Damaged(
          1, fmt::format("the table {} is damaged: {}", table, sqlite3_errmsg(database_.get())));
    }
    return true;
  }

  /// Times count from the begin of the session; where that is not known they stay so.
  void ReadStart() {
    Each("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs"}, [&](const NsysTable& row) {
      if (row.Number(0) > 0) session_ns_ = row.Number(0);
    });
  }

  void ReadTexts() {
    Each("StringIds", {"id", "value"}, [&](const NsysTable& row) {
      const std::string_view text = row.Text(1);
      if (texts_bytes_ + text.size() > kMaxTextsBytes) {
        source_->Damaged(1, "there are more names than can be held");
        return;
      }
      texts_bytes_ += text.size() + sizeof(std::string);
      texts_.insert_or_assign(row.Number(0), std::string(text));
    });
  }
  std::string_view TextOf(std::int64_t id) const {
    const auto text = texts_.find(id);
    return text == texts_.end() ? std::string_view() : std::string_view(text->second);
  }

  void ReadThreads() {
    Each("ThreadNames", {"nameId", "globalTid"}, [&](const NsysTable& row) {
      if (thread_names_.size() < kMaxLanes) thread_names_[row.Number(1)] = TextOf(row.Number(0));
    });
  }

  /// A thread's or stream's name, made once.
  std::string_view ThreadLane(std::int64_t global_tid) {
    auto lane = thread_lanes_.find(global_tid);
    if (lane == thread_lanes_.end()) {
      if (thread_lanes_.size() >= kMaxLanes) return "threads";
      const auto name = thread_names_.find(global_tid);
      lane = thread_lanes_
                 .emplace(global_tid,
                          name == thread_names_.end() || name->second.empty()
                              ? fmt::format("thread {}", global_tid & kIdMask)
                              : fmt::format("thread {} ({})", global_tid & kIdMask, name->second))
                 .first;
    }
    return lane->second;
  }
  std::string_view StreamLane(std::int64_t stream) {
    auto lane = stream_lanes_.find(stream);
    if (lane == stream_lanes_.end()) {
      if (stream_lanes_.size() >= kMaxLanes) return "streams";
      lane = stream_lanes_.emplace(stream, fmt::format("stream {}", stream)).first;
    }
    return lane->second;
  }

  /// Begin and length; false where they make no sense.
  bool Times(const NsysTable& from, format::SliceRow* row, bool may_be_open = false) {
    if (!from.IsNumber(kStartColumn)) return Bad();
    const std::int64_t start = from.Number(kStartColumn);
    const bool open = may_be_open && from.IsNull(kEndColumn);
    if (!open && !from.IsNumber(kEndColumn)) return Bad();
    const std::int64_t end = open ? start : from.Number(kEndColumn);
    if (end < start || __builtin_add_overflow(start, session_ns_, &row->time_ns) ||
        __builtin_sub_overflow(end, start, &row->duration_ns)) {
      return Bad();
    }
    return true;
  }
  bool Bad() {
    source_->Damaged(1, "an event has no time, or ends before it begins");
    return false;
  }

  static format::SliceRow DeviceRow(std::int64_t device, std::int64_t stream,
                                    std::int64_t correlation, std::int64_t global_pid) {
    format::SliceRow row;
    row.step = -1;
    row.device = static_cast<std::int32_t>(std::clamp<std::int64_t>(device, 0, 1 << 20));
    row.stream = stream;
    row.correlation = correlation;
    row.pid = (global_pid >> kIdBits) & kIdMask;
    return row;
  }
  format::SliceRow HostRow(std::int64_t global_tid) {
    format::SliceRow row;
    row.step = -1;
    row.device = -1;
    row.stream = -1;
    row.pid = (global_tid >> kIdBits) & kIdMask;
    row.tid = global_tid & kIdMask;
    row.lane = ThreadLane(global_tid);
    return row;
  }

  void Took(const std::string& table, bool there) {
    if (there) taken_.insert(table);
  }

  void TakeKernels() {
    const std::string table = "CUPTI_ACTIVITY_KIND_KERNEL";
    Took(table, Each(table,
                     {"start", "end", "deviceId", "streamId", "correlationId", "globalPid",
                      "demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY",
                      "blockZ", "registersPerThread", "staticSharedMemory", "dynamicSharedMemory",
                      "graphNodeId", "contextId"},
                     [&](const NsysTable& from) {
                       format::SliceRow row = DeviceRow(from.Number(2), from.Number(3),
                                                        from.Number(4), from.Number(5));
                       if (!Times(from, &row)) return;
                       row.name = TextOf(from.Number(6));
                       if (row.name.empty()) row.name = TextOf(from.Number(7));
                       if (row.name.empty()) row.name = "(kernel without a name)";
                       row.category = "kernel";
                       row.kind = "kernel";
                       row.lane = StreamLane(row.stream);
                       args_.Clear();
                       AddTriple("grid", from, 8);
                       AddTriple("block", from, 11);
                       AddNumber("registers per thread", from, 14);
                       if (!from.IsNull(15)) {
                         args_.Add("shared memory", SharedMemory(from));
                       }
                       AddNumber("graph node id", from, 17);
                       AddNumber("context", from, 18);
                       row.args = args_.Finish();
                       Emit(row);
                     }));
  }
  static std::int64_t SharedMemory(const NsysTable& from) {
    std::int64_t sum = 0;
    return __builtin_add_overflow(from.Number(15), from.Number(16), &sum) ? 0 : sum;
  }

  void AddTriple(std::string_view key, const NsysTable& from, int column) {
    if (from.IsNull(column)) return;
    args_.AddRaw(key, fmt::format("[{},{},{}]", from.Number(column), from.Number(column + 1),
                                  from.Number(column + 2)));
  }
  void AddNumber(std::string_view key, const NsysTable& from, int column) {
    if (!from.IsNull(column)) args_.Add(key, from.Number(column));
  }

  void TakeCopies() {
    const std::string table = "CUPTI_ACTIVITY_KIND_MEMCPY";
    Took(table, Each(table,
                     {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes",
                      "copyKind", "srcKind", "dstKind", "graphNodeId"},
                     [&](const NsysTable& from) {
                       format::SliceRow row = DeviceRow(from.Number(2), from.Number(3),
                                                        from.Number(4), from.Number(5));
                       if (!Times(from, &row)) return;
                       row.name = CopyName(from.Number(7));
                       row.category = "memcpy";
                       row.kind = "memcpy";
                       row.lane = StreamLane(row.stream);
                       row.bytes = from.Number(6);
                       args_.Clear();
                       AddNumber("source kind", from, 8);
                       AddNumber("destination kind", from, 9);
                       AddNumber("graph node id", from, 10);
                       row.args = args_.Finish();
                       Emit(row);
                     }));
  }

  void TakeMemsets() {
    const std::string table = "CUPTI_ACTIVITY_KIND_MEMSET";
    Took(table, Each(table,
                     {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes",
                      "value", "graphNodeId"},
                     [&](const NsysTable& from) {
                       format::SliceRow row = DeviceRow(from.Number(2), from.Number(3),
                                                        from.Number(4), from.Number(5));
                       if (!Times(from, &row)) return;
                       row.name = "Memset";
                       row.category = "memset";
                       row.kind = "memset";
                       row.lane = StreamLane(row.stream);
                       row.bytes = from.Number(6);
                       args_.Clear();
                       AddNumber("value", from, 7);
                       AddNumber("graph node id", from, 8);
                       row.args = args_.Finish();
                       Emit(row);
                     }));
  }

  void TakeWaits() {
    const std::map<std::int64_t, std::string> kinds = Labels("ENUM_CUPTI_SYNC_TYPE");
    const std::string table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION";
    Took(table,
         Each(table,
              {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "syncType"},
              [&](const NsysTable& from) {
                format::SliceRow row =
                    DeviceRow(from.Number(2), from.Number(3), from.Number(4), from.Number(5));
                if (!Times(from, &row)) return;
                const auto kind = kinds.find(from.Number(6));
                row.name = kind == kinds.end() ? std::string_view("Synchronization")
                                               : std::string_view(kind->second);
                row.category = "sync";
                row.kind = "synchronization";
                row.lane = StreamLane(row.stream);
                Emit(row);
              }));
  }

  /// Launches of whole CUDA graphs, where their kernels were not traced one by one.
  void TakeGraphs() {
    const std::string table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
    Took(table, Each(table,
                     {"start", "end", "deviceId", "streamId", "correlationId", "globalPid",
                      "graphId", "graphExecId"},
                     [&](const NsysTable& from) {
                       format::SliceRow row = DeviceRow(from.Number(2), from.Number(3),
                                                        from.Number(4), from.Number(5));
                       if (!Times(from, &row)) return;
                       const std::string name = fmt::format("CUDA graph {}", from.Number(6));
                       row.name = name;
                       row.category = "kernel";
                       row.kind = "cuda_graph";
                       row.lane = StreamLane(row.stream);
                       args_.Clear();
                       AddNumber("graph exec id", from, 7);
                       row.args = args_.Finish();
                       Emit(row);
                     }));
  }

  void TakeCalls(const std::string& table, std::string_view kind, std::string_view category) {
    Took(table, Each(table, {"start", "end", "globalTid", "correlationId", "nameId", "returnValue"},
                     [&](const NsysTable& from) {
                       format::SliceRow row = HostRow(from.Number(2));
                       if (!Times(from, &row, true)) return;
                       row.correlation = from.Number(3);
                       row.name = ApiName(TextOf(from.Number(4)));
                       row.kind = kind;
                       const bool waits = kind == "cuda_runtime" &&
                                          row.name.find("Synchronize") != std::string_view::npos;
                       row.category = waits ? std::string_view("sync") : category;
                       args_.Clear();
                       if (from.Number(5) != 0) args_.Add("return value", from.Number(5));
                       row.args = args_.Finish();
                       Emit(row);
                     }));
  }
  /// "cudaLaunchKernel_v7000" is the call cudaLaunchKernel of that version of the interface.
  static std::string_view ApiName(std::string_view name) {
    const std::size_t at = name.rfind("_v");
    if (at == std::string_view::npos || at + 2 == name.size() || !name.starts_with("cu")) {
      return name.empty() ? std::string_view("(call without a name)") : name;
    }
    const std::string_view version = name.substr(at + 2);
    const bool digits =
        version.size() >= 4 &&
        std::all_of(version.begin(), version.end(), [](char c) { return c >= '0' && c <= '9'; });
    return digits ? name.substr(0, at) : name;
  }

  void TakeRanges() {
    const std::map<std::int64_t, std::string> domains = Domains();
    const std::string table = "NVTX_EVENTS";
    Took(table,
         Each(table,
              {"start", "end", "globalTid", "eventType", "text", "textId", "domainId", "category"},
              [&](const NsysTable& from) {
                const std::int64_t type = from.Number(3);
                // What names domains, categories and threads is no event.
                if (type != kNvtxMark && type != kNvtxPushPop && type != kNvtxStartEnd) {
                  return;
                }
                format::SliceRow row = HostRow(from.Number(2));
                if (!Times(from, &row, true)) return;
                row.name = from.Text(4);
                if (row.name.empty()) row.name = TextOf(from.Number(5));
                if (row.name.empty()) row.name = "(range without a name)";
                row.category = type != kNvtxMark && StepNumberOf(row.name) ? "step" : "annotation";
                row.kind = type == kNvtxMark ? "nvtx mark" : "nvtx range";
                args_.Clear();
                if (const auto domain = domains.find(from.Number(6)); domain != domains.end()) {
                  args_.Add("domain", domain->second);
                }
                row.args = args_.Finish();
                Emit(row);
              }));
  }
  /// Ranges that are named as steps are: "step 12", "iteration 12".
  void FindSteps() {
    Each("NVTX_EVENTS", {"start", "end", "globalTid", "eventType", "text", "textId"},
         [&](const NsysTable& from) {
           if (from.Number(3) != kNvtxPushPop && from.Number(3) != kNvtxStartEnd) return;
           const std::string_view text = from.Text(4);
           const auto step = StepNumberOf(text.empty() ? TextOf(from.Number(5)) : text);
           std::int64_t begin_ns = 0;
           std::int64_t end_ns = 0;
           if (!step || !from.IsNumber(kStartColumn) || !from.IsNumber(kEndColumn) ||
               __builtin_add_overflow(from.Number(kStartColumn), session_ns_, &begin_ns) ||
               __builtin_add_overflow(from.Number(kEndColumn), session_ns_, &end_ns)) {
             return;
           }
           steps_.Add(*step, begin_ns, end_ns, (from.Number(2) >> kIdBits) & kIdMask,
                      from.Number(2) & kIdMask);
         });
    steps_.Finish();
  }
  void Emit(format::SliceRow row) {
    row.step = steps_.StepAt(row.time_ns);
    source_->Slice(row);
  }

  std::map<std::int64_t, std::string> Domains() {
    constexpr std::int64_t kDomainCreate = 75;
    std::map<std::int64_t, std::string> out;
    Each("NVTX_EVENTS", {"eventType", "domainId", "text", "textId"}, [&](const NsysTable& row) {
      if (row.Number(0) != kDomainCreate || out.size() >= 65536) return;
      const std::string_view text = row.Text(2);
      out[row.Number(1)] = std::string(text.empty() ? TextOf(row.Number(3)) : text);
    });
    return out;
  }

  void TakeMemory() {
    const std::string table = "CUDA_GPU_MEMORY_USAGE_EVENTS";
    Took(table,
         Each(table,
              {"start", "name", "globalPid", "deviceId", "bytes", "memoryOperationType", "memKind",
               "correlationId"},
              [&](const NsysTable& from) {
                format::SliceRow row = DeviceRow(from.Number(3), 0, from.Number(7), from.Number(2));
                if (!from.IsNumber(0) ||
                    __builtin_add_overflow(from.Number(0), session_ns_, &row.time_ns)) {
                  Bad();
                  return;
                }
                const bool released = from.Number(5) == 1;
                row.name = TextOf(from.Number(1));
                if (row.name.empty()) row.name = released ? "release" : "allocation";
                row.category = "memory";
                row.kind = "gpu memory";
                row.lane = "memory";
                const std::int64_t bytes = std::clamp<std::int64_t>(from.Number(4), 0, INT64_MAX);
                row.bytes = released ? -bytes : bytes;
                Emit(row);
              }));
  }

  /// Samples of the GPU's own counters.
  void TakeGpuMetrics() {
    std::map<std::pair<std::int64_t, std::int64_t>, std::string> names;
    Each("TARGET_INFO_GPU_METRICS", {"typeId", "metricId", "metricName"},
         [&](const NsysTable& row) {
           if (names.size() < 65536) {
             names[{row.Number(0), row.Number(1)}] = std::string(row.Text(2).substr(0, 256));
           }
         });
    const std::string table = "GPU_METRICS";
    Took(table,
         Each(table, {"timestamp", "value", "typeId", "metricId"}, [&](const NsysTable& from) {
           const auto name = names.find({from.Number(2), from.Number(3)});
           format::MetricRow row;
           if (name == names.end() || !from.IsNumber(0) ||
               __builtin_add_overflow(from.Number(0), session_ns_, &row.time_ns)) {
             source_->Damaged(1, "a sample has no time or no name");
             return;
           }
           row.name = name->second;
           const std::string subject = fmt::format("gpu:{}", from.Number(2) & 0xFF);
           row.subject = subject;
           row.value = static_cast<double>(from.Number(1));
           const bool percent = name->second.ends_with("[Throughput %]");
           row.unit = percent ? "percent" : "";
           if (percent && name->second.starts_with("GR Active")) {
             row.name = "gpu.utilization";
           }
           source_->Metric(row);
         }));
  }

  std::map<std::int64_t, std::string> Labels(const std::string& table) {
    std::map<std::int64_t, std::string> out;
    Each(table, {"id", "label"}, [&](const NsysTable& row) {
      if (out.size() < 65536) out[row.Number(0)] = std::string(row.Text(1).substr(0, 256));
    });
    return out;
  }

  void CountTheRest() {
    for (const auto& [name, columns] : schema_) {
      if (taken_.contains(name) || !columns.contains("start")) continue;
      std::uint64_t rows = 0;
      Each(name, {"start"}, [&](const NsysTable&) { ++rows; });
      if (rows > 0) source_->LeftOut(rows, fmt::format("rows of the table {}", name));
    }
  }

  const Database database_;
  TraceSource* const source_;
  std::map<std::string, std::set<std::string>> schema_;  ///< Columns by table.
  std::set<std::string> taken_;
  std::int64_t session_ns_ = 0;
  std::unordered_map<std::int64_t, std::string> texts_;
  std::size_t texts_bytes_ = 0;
  std::unordered_map<std::int64_t, std::string_view> thread_names_;
  std::unordered_map<std::int64_t, std::string> thread_lanes_;
  std::unordered_map<std::int64_t, std::string> stream_lanes_;
  StepMarks steps_;
  ArgsWriter args_;
};

/// As sqlite.org's "Defense Against The Dark Arts" advises for files of strangers.
Database OpenDefensively(const std::filesystem::path& file) {
  sqlite3* raw = nullptr;
  // As a URI, so that nothing beside the file (a journal) is opened or made.
  std::string uri = "file:";
  for (const char c : std::filesystem::absolute(file).string()) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '%' || c == '?' || c == '#' || byte < 0x20) {
      uri += fmt::format("%{:02x}", byte);
    } else {
      uri += c;
    }
  }
  uri += "?immutable=1";
  const int state = sqlite3_open_v2(
      uri.c_str(), &raw, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(raw);
  if (state != SQLITE_OK) return nullptr;
  sqlite3_limit(raw, SQLITE_LIMIT_LENGTH, kMaxText);
  sqlite3_limit(raw, SQLITE_LIMIT_SQL_LENGTH, 100'000);
  sqlite3_limit(raw, SQLITE_LIMIT_EXPR_DEPTH, 10);
  sqlite3_limit(raw, SQLITE_LIMIT_ATTACHED, 0);
  sqlite3_limit(raw, SQLITE_LIMIT_TRIGGER_DEPTH, 1);
  sqlite3_db_config(raw, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(raw, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(raw, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_db_config(raw, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  for (const char* const setting :
       {"PRAGMA cell_size_check=ON", "PRAGMA mmap_size=0", "PRAGMA cache_size=-8192"}) {
    sqlite3_exec(raw, setting, nullptr, nullptr, nullptr);
  }
  return database;
}

}  // namespace

bool LooksLikeSqlite(std::string_view bytes) {
  return bytes.starts_with(std::string_view("SQLite format 3\0", 16));
}

Status ImportNsys(const std::filesystem::path& file, TraceSource* source) {
  Database database = OpenDefensively(file);
  if (database == nullptr) {
    return {Code::kUnusable, "SQLite cannot open it: the file is damaged or cannot be read"};
  }
  return NsysImport(std::move(database), source).Run();
}

}  // namespace telltale::interchange
