// SPDX-License-Identifier: Apache-2.0
#include "interchange/tensorboard_export.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "base/run_files.h"
#include "base/unique_fd.h"
#include "interchange/tf_event.h"
#include "interchange/tf_record.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

/// A run of thousands of ranks has as many buffers.
constexpr std::size_t kFlushBytes = 64 << 10;

/// Of the run's, in that of an event file, which has 255 bytes in all.
constexpr std::size_t kMaxName = 128;

double Seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

/// One event file: opened for each piece, since a run may have thousands of ranks.
class EventFile {
 public:
  explicit EventFile(fs::path path) : path_(std::move(path)) {}

  Status Add(double wall_time_s, const std::string& event) {
    if (!begun_) AppendRecord(VersionEvent(wall_time_s), &buffer_);
    begun_ = true;
    AppendRecord(event, &buffer_);
    return buffer_.size() < kFlushBytes ? Status() : Flush();
  }

  Status Flush() {
    const int how = created_ ? O_APPEND : O_CREAT | O_EXCL;
    const mode_t mode = run_files::LiesInARun(path_) ? 0600 : 0644;
    const UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | how, mode));
    if (!fd) {
      return errno == EEXIST
                 ? Status(Code::kUsage,
                          fmt::format("{} is there already: name another folder", path_.string()))
                 : IoError();
    }
    created_ = true;
    for (std::size_t done = 0; done < buffer_.size();) {
      const ssize_t n = ::write(fd.get(), buffer_.data() + done, buffer_.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return IoError();
      done += static_cast<std::size_t>(n);
    }
    buffer_.clear();
    return {};
  }

  const fs::path& path() const { return path_; }

 private:
  Status IoError() const {
    return {Code::kIo, fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno))};
  }

  const fs::path path_;
  std::string buffer_;
  bool begun_ = false;
  bool created_ = false;
};

/// The counts of a row's bins; nothing where they are none.
std::optional<std::vector<double>> CountsOf(const format::HistogramRow& row) {
  const auto list = ParseJson(row.bins);
  if (!list.is_array() || list.empty()) return std::nullopt;
  std::vector<double> counts;
  for (const auto& count : list) {
    if (!count.is_number()) return std::nullopt;
    counts.push_back(count.get<double>());
  }
  return counts;
}

/// Nothing where the row has no bins to show.
std::optional<EventHistogram> HistogramOf(const format::HistogramRow& row) {
  auto counts = CountsOf(row);
  if (!counts || row.taken == 0 || !std::isfinite(row.min) || !std::isfinite(row.max)) {
    return std::nullopt;
  }
  EventHistogram out;
  out.min = row.min;
  out.max = row.max;
  out.number = static_cast<double>(row.taken);
  const double width = (row.max - row.min) / static_cast<double>(counts->size());
  for (std::size_t i = 0; i < counts->size(); ++i) {
    const double middle = row.min + (static_cast<double>(i) + 0.5) * width;
    out.sum += (*counts)[i] * middle;
    out.sum_squares += (*counts)[i] * middle * middle;
    out.limits.push_back(row.min + static_cast<double>(i + 1) * width);
  }
  out.limits.back() = row.max;
  out.counts = *std::move(counts);
  return out;
}

class Export {
 public:
  Export(fs::path folder, ExportOptions options) : folder_(std::move(folder)), options_(options) {}

  Result<ExportReport> Run(const fs::path& run) {
    TELLTALE_ASSIGN_OR_RETURN(const auto reader, store::RunReader::Open(run));
    name_ =
        fmt::format("events.out.tfevents.{}.{}.telltale", reader->info().created_ns / 1'000'000'000,
                    fs::absolute(run).lexically_normal().filename().string().substr(0, kMaxName));
    std::uint32_t tables =
        store::MaskOf(format::TableId::kScalars) | store::MaskOf(format::TableId::kHistograms);
    if (options_.statistics) tables |= store::MaskOf(format::TableId::kStatistics);
    Status failed;
    const auto take = [&](const std::string&, const format::Rows& rows) {
      failed = Take(rows);
      return failed.ok();
    };
    TELLTALE_RETURN_IF_ERROR(reader->Scan(tables, take, &report_.salvage));
    TELLTALE_RETURN_IF_ERROR(failed);
    for (const auto& [name, file] : files_) {
      TELLTALE_RETURN_IF_ERROR(file->Flush());
      report_.files.push_back(file->path());
    }
    return std::move(report_);
  }

 private:
  Status Take(const format::Rows& rows) {
    for (const format::ScalarRow& row : rows.scalars) {
      TELLTALE_RETURN_IF_ERROR(Scalar(row, row.name, row.value));
    }
    for (const format::StatisticRow& row : rows.statistics) {
      const std::array<std::pair<std::string_view, double>, 6> values{{
          {"mean", row.mean},
          {"std", row.std},
          {"min", row.min},
          {"max", row.max},
          {"nan_count", static_cast<double>(row.nan_count)},
          {"inf_count", static_cast<double>(row.inf_count)},
      }};
      for (const auto& [name, value] : values) {
        TELLTALE_RETURN_IF_ERROR(
            Scalar(row, fmt::format("{}/{}/{}", row.collection, row.name, name), value));
      }
    }
    for (const format::HistogramRow& row : rows.histograms) {
      const auto histogram = HistogramOf(row);
      if (!histogram) {
        ++report_.empty_histograms;
        continue;
      }
      const double seconds = Seconds(row.time_ns);
      const std::string tag = fmt::format("{}/{}", row.collection, row.name);
      TELLTALE_ASSIGN_OR_RETURN(EventFile* const file, FileOf(row.mode, row.rank));
      TELLTALE_RETURN_IF_ERROR(
          file->Add(seconds, HistogramEvent(seconds, row.step, tag, *histogram)));
      ++report_.histograms;
    }
    return {};
  }

  template <class Row>
  Status Scalar(const Row& row, std::string_view tag, double value) {
    const double seconds = Seconds(row.time_ns);
    TELLTALE_ASSIGN_OR_RETURN(EventFile* const file, FileOf(row.mode, row.rank));
    TELLTALE_RETURN_IF_ERROR(file->Add(seconds, ScalarEvent(seconds, row.step, tag, value)));
    ++report_.scalars;
    return {};
  }

  /// TRAIN, TRAIN_rank1, ...: TensorBoard shows each folder as a run.
  Result<EventFile*> FileOf(std::string_view mode, std::int32_t rank) {
    // A damaged or foreign run must not write outside of the folder.
    static const std::set<std::string_view> known{"TRAIN", "EVAL", "PREDICT", "GLOBAL"};
    std::string name(known.contains(mode) ? mode : "OTHER");
    if (rank != 0) name += fmt::format("_rank{}", rank);
    std::unique_ptr<EventFile>& file = files_[name];
    if (file != nullptr) return file.get();
    std::error_code error;
    fs::create_directories(folder_ / name, error);
    if (error) {
      return {Code::kIo,
              fmt::format("cannot create {}: {}", (folder_ / name).string(), error.message())};
    }
    file = std::make_unique<EventFile>(folder_ / name / name_);
    return file.get();
  }

  const fs::path folder_;
  const ExportOptions options_;
  std::string name_;
  std::map<std::string, std::unique_ptr<EventFile>> files_;
  ExportReport report_;
};

}  // namespace

Result<ExportReport> ExportTensorBoard(const fs::path& run, const fs::path& folder,
                                       const ExportOptions& options) {
  try {
    return Export(folder, options).Run(run);
  } catch (const std::bad_alloc&) {
    return {Code::kLimit, fmt::format("cannot export {}: out of memory", run.string())};
  } catch (const std::exception& error) {
    return {Code::kUnusable, fmt::format("cannot export {}: {}", run.string(), error.what())};
  }
}

}  // namespace telltale::interchange
