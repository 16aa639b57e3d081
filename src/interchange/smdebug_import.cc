// SPDX-License-Identifier: Apache-2.0
#include "interchange/smdebug_import.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/string_pool.h"
#include "base/unique_fd.h"
#include "base/utf8.h"
#include "format/dtypes.h"
#include "interchange/array_statistics.h"
#include "interchange/smdebug_index.h"
#include "interchange/tf_event.h"
#include "interchange/tf_record.h"
#include "store/folder.h"
#include "store/run_info.h"
#include "store/tensor_file.h"
#include "store/writer.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWriterName = "agent-imported";
/// Messages of protocol buffers are at most of 2 GiB.
constexpr std::uint64_t kMaxRecordBytes = (2ULL << 30) + kRecordFrameBytes;
/// What no framework has; the header of a file of values must have room for them.
constexpr std::size_t kMaxDimensions = 64;
constexpr std::size_t kMaxNotes = 100;
constexpr std::size_t kMaxTextBytes = 4096;  ///< Of names too, as of those that Telltale records.
constexpr std::string_view kScalarPrefix = "scalar/";
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// The index's name of a type of TensorFlow's; empty where there is none.
std::string_view DtypeOf(std::int32_t type) {
  switch (static_cast<TfType>(type)) {
    case TfType::kFloat:
      return "F32";
    case TfType::kDouble:
      return "F64";
    case TfType::kInt32:
    case TfType::kQint32:
      return "I32";
    case TfType::kUint8:
    case TfType::kQuint8:
      return "U8";
    case TfType::kInt16:
    case TfType::kQint16:
      return "I16";
    case TfType::kInt8:
    case TfType::kQint8:
      return "I8";
    case TfType::kComplex64:
      return "C64";
    case TfType::kInt64:
      return "I64";
    case TfType::kBool:
      return "BOOL";
    case TfType::kBfloat16:
      return "BF16";
    case TfType::kUint16:
    case TfType::kQuint16:
      return "U16";
    case TfType::kComplex128:
      return "C128";
    case TfType::kHalf:
      return "F16";
    case TfType::kUint32:
      return "U32";
    case TfType::kUint64:
      return "U64";
    case TfType::kString:
      break;
  }
  return {};
}

/// As the table statistics names a type.
std::string_view LongName(std::string_view dtype) {
  const format::DtypeInfo* const known = format::FindDtype(dtype);
  return known == nullptr ? dtype : known->name;
}

std::int64_t ToNs(double seconds) {
  if (!(seconds > 0) || seconds > 9e9) return 0;
  return static_cast<std::int64_t>(seconds * 1e9);
}

/// Where a reduction of smdebug stands in the statistics of its tensor.
struct Column {
  std::string_view reduction;
  double format::StatisticRow::*value;
  bool more = false;      ///< Of those that `more` says are there.
  bool variance = false;  ///< Its root is the value, where that is not saved itself.
};
constexpr Column kColumns[] = {
    {"min", &format::StatisticRow::min},
    {"max", &format::StatisticRow::max},
    {"mean", &format::StatisticRow::mean},
    {"std", &format::StatisticRow::std},
    {"variance", &format::StatisticRow::std, false, true},
    {"l1", &format::StatisticRow::l1},
    {"abs_l1", &format::StatisticRow::l1},
    {"l2", &format::StatisticRow::l2},
    {"abs_l2", &format::StatisticRow::l2},
    {"abs_min", &format::StatisticRow::abs_min, true},
    {"abs_std", &format::StatisticRow::abs_std, true},
    {"abs_variance", &format::StatisticRow::abs_std, true, true},
    {"prod", &format::StatisticRow::prod, true},
};

/// What one reduction says of its tensor's statistics; false where it has no column.
bool Enter(std::string_view reduction, double value, format::StatisticRow* row) {
  const Column* const column = std::ranges::find(kColumns, reduction, &Column::reduction);
  if (column == std::end(kColumns)) return false;
  double& at = row->*column->value;
  if (!column->variance) {
    at = value;
  } else if (std::isnan(at)) {
    at = std::sqrt(value);
  }
  row->more = row->more || column->more;
  return true;
}

/// Writes the files of values, one after the other.
class ValueFiles {
 public:
  ValueFiles(fs::path folder, std::uint64_t file_bytes)
      : folder_(std::move(folder)), file_bytes_(file_bytes) {}

  /// Appends and fills what the row says of the place; rows of headers of files that are full go to
  /// `rows`, and the files are finished once those are written (Seal).
  Status Append(std::string_view content, format::TensorRow* row, StringPool* pool,
                std::vector<format::TensorRow>* rows) {
    if (file_ != nullptr && !file_->empty() &&
        (!file_->HasRoom(*row) || file_->size() + content.size() > file_bytes_)) {
      TELLTALE_RETURN_IF_ERROR(Finish(pool, rows));
    }
    if (file_ == nullptr) {
      bool no_space = false;
      TELLTALE_ASSIGN_OR_RETURN(file_,
                                store::TensorFileWriter::Create(folder_, ++number_, &no_space));
    }
    row->file = pool->Intern(file_->file());
    TELLTALE_ASSIGN_OR_RETURN(
        const store::Placed placed,
        file_->Append(*row, std::as_bytes(std::span(content.data(), content.size()))));
    row->offset = placed.offset;
    row->bytes = placed.bytes;
    row->digest = pool->Intern(placed.digest);
    time_ns_ = row->time_ns;
    step_ = row->step;
    mode_ = row->mode;
    return {};
  }

  /// Writes the header of the file that is open; its row must be written before Seal.
  Status Finish(StringPool* pool, std::vector<format::TensorRow>* rows) {
    if (file_ == nullptr) return {};
    TELLTALE_ASSIGN_OR_RETURN(const store::Placed header, file_->WriteHeader());
    format::TensorRow row;
    row.ord_ns = row.time_ns = time_ns_;
    row.name = store::kHeaderRow;
    row.dtype = "U8";
    row.shape = pool->Intern(fmt::format("[{}]", header.bytes));
    // As the agent's: of the step and mode before it, so that columns of one value stay so.
    row.step = step_;
    row.mode = pool->Intern(mode_);
    row.attempt = 1;
    row.file = pool->Intern(file_->file());
    row.offset = header.offset;
    row.bytes = header.bytes;
    row.digest = pool->Intern(header.digest);
    rows->push_back(row);
    full_.push_back(std::move(file_));
    return {};
  }

  /// Gives their names to the files that are finished.
  Status Seal() {
    for (const auto& file : full_) {
      TELLTALE_RETURN_IF_ERROR(store::SealTensorFile(file->fd()->get(), folder_, file->file()));
    }
    full_.clear();
    return {};
  }

 private:
  const fs::path folder_;
  const std::uint64_t file_bytes_;
  std::uint64_t number_ = 0;
  std::int64_t time_ns_ = 0;  ///< Of the newest tensor, as the next two.
  std::int64_t step_ = 0;
  std::string mode_;
  std::unique_ptr<store::TensorFileWriter> file_;
  std::vector<std::unique_ptr<store::TensorFileWriter>> full_;
};

class Import {
 public:
  Import(fs::path folder, fs::path run, ImportOptions options)
      : folder_(std::move(folder)),
        run_(std::move(run)),
        options_(std::move(options)),
        values_(run_ / kWriterName, options_.file_bytes) {}

  Result<ImportReport> Run() {
    TELLTALE_ASSIGN_OR_RETURN(const std::vector<IndexFile> files, ListIndex(folder_));
    std::error_code error;
    if (!fs::create_directory(run_, error)) {
      return error ? Status{Code::kIo,
                            fmt::format("cannot create {}: {}", run_.string(), error.message())}
                   : Status{Code::kUsage, fmt::format("{} is there already: name a folder that is "
                                                      "to be made",
                                                      run_.string())};
    }
    made_ = true;
    collections_ = ReadCollections(folder_);
    ChooseRanks(files);
    FindTheLoss();
    TELLTALE_ASSIGN_OR_RETURN(writer_, store::Writer::Open(run_ / kWriterName, kWriterName));
    for (std::size_t i = 0; i < files.size(); ++i) {
      TELLTALE_RETURN_IF_ERROR(Take(files[i]));
    }
    format::Batch last;
    StringPool pool;
    AddPendingSteps(&last.rows);
    TELLTALE_RETURN_IF_ERROR(values_.Finish(&pool, &last.rows.tensors));
    last.watermark_ns = newest_ns_;
    TELLTALE_RETURN_IF_ERROR(writer_->Append(std::move(last)));
    TELLTALE_RETURN_IF_ERROR(values_.Seal());
    TELLTALE_RETURN_IF_ERROR(writer_->Close(true));
    TELLTALE_RETURN_IF_ERROR(WriteInfo());
    TELLTALE_RETURN_IF_ERROR(
        store::SyncFolder(fs::absolute(run_).lexically_normal().parent_path()));
    return std::move(report_);
  }

  /// Takes what was made of the run away: half a run is none.
  void Abandon() {
    if (!made_) return;
    writer_.reset();
    std::error_code ignored;
    fs::remove_all(run_, ignored);
  }

 private:
  /// Of one step of one worker, while its rows are put together.
  struct Step {
    std::int64_t step = 0;  ///< Of the mode.
    std::int64_t global = 0;
    std::string_view mode;
    std::int32_t rank = 0;
    std::int64_t time_ns = 0;
    format::Batch batch;
    StringPool pool;
    std::map<std::string, format::StatisticRow, std::less<>> reduced;
  };
  /// The newest step of a rank: how long it took shows when the next one comes.
  struct Pending {
    format::StepRow row;
    std::int64_t global = 0;
    std::string mode;
  };

  void Note(std::string text) {
    if (text.size() > kMaxTextBytes) text.resize(ValidUtf8Prefix(text.substr(0, kMaxTextBytes)));
    if (report_.notes.size() < kMaxNotes) report_.notes.push_back(std::move(text));
  }
  void Damaged(std::string text) {
    ++report_.damaged;
    Note(std::move(text));
  }

  /// worker_3 is rank 3; devices of one process count in the order of their names.
  void ChooseRanks(const std::vector<IndexFile>& files) {
    constexpr std::int32_t kUnknown = -1;
    std::set<std::int32_t> taken;
    for (const IndexFile& file : files) {
      const auto [at, is_new] = ranks_.emplace(file.worker, kUnknown);
      if (!is_new) continue;
      const std::int32_t number = NumberOf(file.worker);
      if (number >= 0 && taken.insert(number).second) at->second = number;
    }
    // No two of one number: each has steps of its own.
    std::int32_t next = 0;
    for (auto& [worker, rank] : ranks_) {
      if (rank != kUnknown) continue;
      while (taken.contains(next)) ++next;
      rank = next++;
    }
    report_.workers = ranks_.size();
  }

  /// 3 of worker_3; below zero where there is none.
  static std::int32_t NumberOf(std::string_view worker) {
    constexpr std::string_view kPrefix = "worker_";
    if (!worker.starts_with(kPrefix)) return -1;
    worker.remove_prefix(kPrefix.size());
    std::int32_t number = 0;
    const char* const end = worker.data() + worker.size();
    const auto [at, error] = std::from_chars(worker.data(), end, number);
    return error == std::errc() && at == end ? number : -1;
  }

  /// Where one tensor alone is a loss, the rules shall see it as the loss.
  void FindTheLoss() {
    std::string only;
    for (const auto& [tensor, collection] : collections_) {
      if (collection != "losses") continue;
      if (!only.empty()) return;
      only = tensor;
    }
    loss_ = only;
  }

  std::string_view Text(std::string_view text, StringPool* pool) {
    std::string scratch;
    return pool->Intern(ToValidUtf8(text.substr(0, kMaxTextBytes), &scratch));
  }

  std::string_view CollectionOf(std::string_view tensor, StringPool* pool) {
    const auto found = collections_.find(tensor);
    return found == collections_.end() ? "default" : pool->Intern(found->second);
  }

  Status Take(const IndexFile& file) {
    const Result<Index> index = ReadIndex(file.path);
    if (!index.ok()) {
      Damaged(index.status().message());
      return {};
    }
    ++report_.steps;
    Step step;
    step.step = index->mode_step;
    step.global = file.step;
    step.mode = Text(index->mode, &step.pool);
    step.rank = ranks_.find(file.worker)->second;
    const std::int64_t before_ns = newest_ns_;
    TELLTALE_RETURN_IF_ERROR(TakeEvents(*index, &step));
    if (step.time_ns == 0) step.time_ns = before_ns;
    for (const IndexedShape& shape : index->shapes) AddShape(shape, &step);
    for (auto& [name, row] : step.reduced) {
      row.name = Text(name, &step.pool);
      row.collection = CollectionOf(name, &step.pool);
      row.time_ns = row.ord_ns = step.time_ns;
      step.batch.rows.statistics.push_back(row);
      ++report_.statistics;
    }
    AddStep(&step);
    newest_ns_ = std::max(newest_ns_, step.time_ns);
    if (oldest_ns_ == 0) oldest_ns_ = step.time_ns;
    step.batch.watermark_ns = newest_ns_;
    const bool sealed = !step.batch.rows.tensors.empty();
    TELLTALE_RETURN_IF_ERROR(writer_->Append(std::move(step.batch)));
    TELLTALE_RETURN_IF_ERROR(writer_->Tick());
    return sealed ? values_.Seal() : Status();
  }

  Status TakeEvents(const Index& index, Step* step) {
    if (index.tensors.empty()) return {};
    const fs::path relative(index.event_file);
    const bool inside =
        !index.event_file.empty() && relative.is_relative() &&
        std::find(relative.begin(), relative.end(), fs::path("..")) == relative.end();
    const fs::path path = folder_ / relative;
    const UniqueFd fd(inside ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1);
    if (!fd) {
      Damaged(fmt::format("{} cannot be opened: its tensors are missing", path.string()));
      return {};
    }
    std::string bytes;
    for (const IndexedTensor& tensor : index.tensors) {
      if (!ReadAt(fd.get(), tensor.offset, tensor.bytes, &bytes)) {
        Damaged(fmt::format("{}: {} is cut off", path.string(), tensor.name));
        continue;
      }
      const auto payload = RecordPayload(bytes);
      const Result<Event> event =
          payload ? ParseEvent(*payload)
                  : Result<Event>(Code::kUnusable, "its record's checksum is another");
      if (!event.ok() || event->values.size() != 1) {
        Damaged(
            fmt::format("{}: {}: {}", path.string(), tensor.name,
                        event.ok() ? "the event holds more than it" : event.status().message()));
        continue;
      }
      step->time_ns = std::max(step->time_ns, ToNs(event->wall_time_s));
      TELLTALE_RETURN_IF_ERROR(TakeValue(tensor.name, event->values[0], step));
    }
    return {};
  }

  static bool ReadAt(int fd, std::uint64_t offset, std::uint64_t size, std::string* out) {
    struct stat info {};
    if (size > kMaxRecordBytes || ::fstat(fd, &info) != 0) return false;
    const auto file_size = static_cast<std::uint64_t>(info.st_size);
    if (offset > file_size || size > file_size - offset) return false;
    out->resize(size);
    std::size_t done = 0;
    while (done < size) {
      const ssize_t n =
          ::pread(fd, out->data() + done, size - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      done += static_cast<std::size_t>(n);
    }
    return true;
  }

  Status TakeValue(const std::string& name, const EventValue& value, Step* step) {
    if (!value.texts.empty()) {
      AddTexts(name, value, step);
      return {};
    }
    const std::string_view dtype = DtypeOf(value.type);
    format::StatisticRow statistics = NewStatistics(*step);
    const auto known = store::FindTensorDtype(dtype);
    const auto size =
        known == nullptr ? std::nullopt : store::TensorBytes(value.shape, known->bytes);
    if (!size || *size != value.content.size() || value.shape.size() > kMaxDimensions ||
        !FillStatistics(dtype, value.content, &statistics)) {
      ++report_.unknown_types;
      Note(fmt::format("{} at step {} is left out: type {} of TensorFlow's, {} bytes", name,
                       step->step, value.type, value.content.size()));
      return {};
    }
    double number = 0;
    const bool one = statistics.count == 1 && FirstElement(dtype, value.content, &number);
    if (const auto reduction = ParseReduction(name)) {
      if (!one) return {};
      auto at = step->reduced.find(reduction->tensor);
      if (at == step->reduced.end()) {
        format::StatisticRow none = NewStatistics(*step);
        none.min = none.max = none.mean = none.std = none.l1 = none.l2 = kNone;
        none.abs_min = none.abs_std = none.prod = kNone;
        none.dtype = LongName(dtype);
        at = step->reduced.emplace(reduction->tensor, none).first;
      }
      // What was computed of the values themselves has all of them already. What has no column, and
      // NaN, which in a column is what was not saved, is kept under the name that smdebug gave it.
      if (at->second.count == 0 &&
          (!Enter(reduction->reduction, number, &at->second) || std::isnan(number))) {
        AddScalar(name, number, step);
      }
      return {};
    }
    statistics.dtype = LongName(dtype);
    step->reduced.insert_or_assign(name, statistics);
    if (one) AddScalar(name, number, step);
    format::TensorRow row = NewTensor(name, *step, &step->pool);
    row.dtype = dtype;
    row.shape = step->pool.Intern(store::ShapeText(value.shape));
    TELLTALE_RETURN_IF_ERROR(
        values_.Append(value.content, &row, &step->pool, &step->batch.rows.tensors));
    step->batch.rows.tensors.push_back(row);
    ++report_.values;
    return {};
  }

  format::StatisticRow NewStatistics(const Step& step) const {
    format::StatisticRow row;
    row.step = step.step;
    row.mode = step.mode;
    row.rank = step.rank;
    row.attempt = 1;
    return row;
  }

  format::TensorRow NewTensor(const std::string& name, const Step& step, StringPool* pool) {
    format::TensorRow row;
    row.time_ns = row.ord_ns = std::max(step.time_ns, newest_ns_);
    row.name = Text(name, pool);
    row.collection = CollectionOf(name, pool);
    row.step = step.step;
    row.mode = step.mode;
    row.rank = step.rank;
    row.attempt = 1;
    return row;
  }

  void AddShape(const IndexedShape& shape, Step* step) {
    if (shape.shape.size() > kMaxDimensions) {
      Damaged(fmt::format("{} at step {} has a shape of {} dimensions", shape.name, step->step,
                          shape.shape.size()));
      return;
    }
    format::TensorRow row = NewTensor(shape.name, *step, &step->pool);
    row.shape = step->pool.Intern(store::ShapeText(shape.shape));
    step->batch.rows.tensors.push_back(row);
    ++report_.shapes;
  }

  void AddScalar(const std::string& name, double value, Step* step) {
    format::ScalarRow row;
    row.time_ns = row.ord_ns = step->time_ns;
    std::string_view text = name;
    if (text.starts_with(kScalarPrefix)) text.remove_prefix(kScalarPrefix.size());
    row.name = name == loss_ ? "loss" : Text(text, &step->pool);
    row.value = value;
    row.step = step->step;
    row.mode = step->mode;
    row.rank = step->rank;
    row.attempt = 1;
    step->batch.rows.scalars.push_back(row);
    ++report_.scalars;
  }

  void AddTexts(const std::string& name, const EventValue& value, Step* step) {
    nlohmann::json values = nlohmann::json::array();
    std::size_t bytes = 0;
    for (const std::string_view text : value.texts) {
      bytes += text.size() + 3;
      if (bytes > kMaxTextBytes) break;
      values.push_back(std::string(text));
    }
    const nlohmann::json data = {
        {"values", values}, {"count", value.texts.size()}, {"mode", step->mode}};
    format::EventRow row;
    row.time_ns = row.ord_ns = step->time_ns;
    row.kind = "smdebug.text";
    row.severity = "info";
    row.subject = Text(name, &step->pool);
    row.message = "A tensor of text that SageMaker Debugger saved";
    row.data = step->pool.Intern(JsonText(data));
    row.step = step->step;
    row.rank = step->rank;
    row.attempt = 1;
    step->batch.rows.events.push_back(row);
    ++report_.texts;
  }

  /// The row of the step before goes out now that its end is known. smdebug knows when it wrote a
  /// step, not how long one took: that shows only where it saved two in a row.
  void AddStep(Step* step) {
    Pending next;
    next.row.time_ns = step->time_ns;
    next.row.step = step->step;
    next.row.rank = step->rank;
    next.row.attempt = 1;
    next.global = step->global;
    next.mode = std::string(step->mode);
    auto [at, is_new] = pending_.try_emplace(step->rank);
    if (!is_new) {
      Pending& before = at->second;
      if (step->global == before.global + 1 && step->time_ns > before.row.time_ns) {
        before.row.duration_ns = before.row.other_ns = step->time_ns - before.row.time_ns;
      }
      before.row.ord_ns = step->time_ns;
      before.row.mode = step->pool.Intern(before.mode);
      step->batch.rows.steps.push_back(before.row);
    }
    at->second = std::move(next);
  }

  void AddPendingSteps(format::Rows* rows) {
    for (auto& [rank, pending] : pending_) {
      pending.row.ord_ns = newest_ns_;
      pending.row.mode = pending.mode;
      rows->steps.push_back(pending.row);
    }
  }

  Status WriteInfo() {
    store::RunInfo info{.id = fs::absolute(run_).lexically_normal().filename().string(),
                        .name = fs::absolute(folder_).lexically_normal().filename().string(),
                        .command = {"(recorded by SageMaker Debugger)"}};
    if (info.name.empty()) info.name = "smdebug";
    info.cwd = folder_.string();
    info.telltale_version = options_.telltale_version;
    info.created_ns = oldest_ns();
    info.attempts.push_back(
        {.number = 1, .start_ns = oldest_ns(), .end_ns = newest_ns_, .exit_code = 0});
    info.finished = true;
    return store::WriteRunInfo(run_, info);
  }
  std::int64_t oldest_ns() const { return oldest_ns_ == 0 ? newest_ns_ : oldest_ns_; }

  const fs::path folder_;
  const fs::path run_;
  const ImportOptions options_;
  ValueFiles values_;
  std::unique_ptr<store::Writer> writer_;
  std::map<std::string, std::string, std::less<>> collections_;
  std::map<std::string, std::int32_t, std::less<>> ranks_;
  std::map<std::int32_t, Pending> pending_;
  std::string loss_;
  bool made_ = false;  ///< The run's folder, by us.
  std::int64_t newest_ns_ = 0;
  std::int64_t oldest_ns_ = 0;
  ImportReport report_;
};

}  // namespace

Result<ImportReport> ImportSmdebug(const fs::path& folder, const fs::path& run,
                                   const ImportOptions& options) {
  // Outside: what an exception leaves is taken away too.
  std::optional<Import> work;
  Result<ImportReport> report = Status(Code::kLimit, "not begun");
  try {
    work.emplace(folder, run, options);
    report = work->Run();
  } catch (const std::bad_alloc&) {
    report = Status(Code::kLimit, fmt::format("cannot import {}: out of memory", folder.string()));
  } catch (const std::exception& error) {
    report =
        Status(Code::kUnusable, fmt::format("cannot import {}: {}", folder.string(), error.what()));
  }
  if (!report.ok() && work) work->Abandon();
  return report;
}

}  // namespace telltale::interchange
