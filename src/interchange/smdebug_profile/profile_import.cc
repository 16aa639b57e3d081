// SPDX-License-Identifier: Apache-2.0
// Files are read by several threads, and given to the sink in the order of their times. Many small
// ones, as smdebug writes them, are a batch, whose rows share blocks.
//
// Memory: a file's text (10 MB as smdebug rotates them) and a block of rows a rank, a thread.
#include "interchange/smdebug_profile/profile_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "interchange/json_scan.h"
#include "interchange/pstats_import.h"
#include "interchange/smdebug_profile/profile_files.h"
#include "interchange/smdebug_profile/system_metrics.h"
#include "interchange/smdebug_profile/timeline.h"
#include "interchange/step_marks.h"
#include "interchange/trace_input.h"
#include "interchange/trace_source.h"
#include "interchange/whole_files.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxThreads = 4;
constexpr std::uint64_t kMaxFileBytes = 512ULL << 20;
constexpr std::uint64_t kMaxStatisticsBytes = 256ULL << 20;
/// Of the files of a batch: a block of rows or little less. The last are smaller, so that no thread
/// waits long for another's.
constexpr std::uint64_t kBatchBytes = 13ULL << 20;
constexpr std::uint64_t kLeastBatchBytes = 4ULL << 20;
constexpr std::size_t kMostBatchFiles = 4096;
/// Names, lanes and series that files of a batch may share.
constexpr std::size_t kMostSharedWords = 1U << 16;

/// Has the numbered jobs run on several threads, and lets each wait for its turn.
class Turns {
 public:
  /// Runs `job(i)` for all i below `count`; an exception of one is thrown here again.
  void Run(std::size_t count, const std::function<void(std::size_t)>& job) {
    std::exception_ptr error;
    const auto work = [&] {
      while (true) {
        std::size_t at = 0;
        {
          const std::lock_guard lock(mutex_);
          if (next_ >= count || error) return;
          at = next_++;
        }
        std::exception_ptr thrown;
        try {
          job(at);
        } catch (...) {
          thrown = std::current_exception();
        }
        const std::lock_guard lock(mutex_);
        if (thrown && !error) error = thrown;
        PassLocked(at);
      }
    };
    const std::size_t threads = std::min<std::size_t>(
        {kMaxThreads, std::max(1U, std::thread::hardware_concurrency()), count});
    std::vector<std::thread> helpers;
    for (std::size_t i = 1; i < threads; ++i) {
      try {
        helpers.emplace_back(work);
      } catch (const std::system_error&) {
        break;  // Those that are there do it.
      }
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    if (error) std::rethrow_exception(error);
  }

  /// Until all jobs before `at` are done or have passed.
  void Await(std::size_t at) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return turn_ >= at; });
  }
  /// The job waits no more: the next may.
  void Pass(std::size_t at) {
    const std::lock_guard lock(mutex_);
    PassLocked(at);
  }

 private:
  void PassLocked(std::size_t at) {
    if (at < turn_) return;
    done_[at] = true;
    while (done_.contains(turn_)) done_.erase(turn_++);
    changed_.notify_all();
  }

  std::mutex mutex_;  ///< Guards all of it.
  std::condition_variable changed_;
  std::size_t next_ = 0;
  std::size_t turn_ = 0;  ///< All below are done.
  std::map<std::size_t, bool> done_;
};

/// What one file came to, told to the sink afterwards by one thread.
struct FileOutcome {
  Status status;
  std::string gzip_damage;
  std::uint64_t damaged = 0;
  std::uint64_t unclosed = 0;
  std::uint64_t left_out = 0;
  std::vector<TimelineStep> steps;
  std::vector<TimelineWait> waits;
};

class ProfileImport {
 public:
  ProfileImport(std::vector<ProfileFile> files, TraceSink* sink)
      : files_(std::move(files)), sink_(sink) {}

  Status Run(const ImportLimits& limits) {
    most_bytes_ = std::min(kMaxFileBytes, MostBytesOfFile(limits));
    ranks_ = RanksOfNodes(files_);
    for (const ProfileFile& file : files_) {
      if (file.kind == ProfileFileKind::kTimeline || file.kind == ProfileFileKind::kTransfers ||
          file.kind == ProfileFileKind::kSystem) {
        rows_.push_back(&file);
      }
    }
    if (rows_.empty() && !Has(ProfileFileKind::kPython) && !Has(ProfileFileKind::kTrace)) {
      return {Code::kUnusable, "there is no file of SageMaker Debugger's profiler in it"};
    }
    MakeBatches();
    FindSteps();
    outcomes_.resize(rows_.size());
    Turns turns;
    turns.Run(batches_.size(), [&](std::size_t number) { TakeBatch(number, &turns); });
    TELLTALE_RETURN_IF_ERROR(Tell());
    for (const ProfileFile& file : files_) {
      if (file.kind == ProfileFileKind::kPython) TakeStatistics(file);
      if (file.kind == ProfileFileKind::kTrace) TakeTrace(file, limits);
      if (file.kind == ProfileFileKind::kOther) {
        sink_->Count("left_out_files", file.name, 1, false);
      }
    }
    return {};
  }

 private:
  bool Has(ProfileFileKind kind) const {
    return std::any_of(files_.begin(), files_.end(),
                       [&](const ProfileFile& file) { return file.kind == kind; });
  }
  std::int32_t RankOf(const ProfileFile& file) const {
    const auto found = ranks_.find(file.node);
    return found == ranks_.end() ? 0 : found->second;
  }

  /// Files that follow one another.
  struct Batch {
    std::size_t begin = 0, end = 0;
  };

  void MakeBatches() {
    std::vector<std::uint64_t> sizes(rows_.size());
    for (std::size_t at = 0; at < rows_.size(); ++at) {
      std::error_code unknown;
      const std::uint64_t size = fs::file_size(rows_[at]->path, unknown);
      if (!unknown) sizes[at] = size;
    }
    std::uint64_t left = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
    std::uint64_t bytes = 0;
    std::uint64_t enough = 0;
    for (std::size_t at = 0; at < rows_.size(); ++at) {
      if (batches_.empty() || bytes >= enough || at - batches_.back().begin >= kMostBatchFiles) {
        batches_.push_back({at, at});
        bytes = 0;
        enough = std::clamp(left / (2 * kMaxThreads), kLeastBatchBytes, kBatchBytes);
      }
      batches_.back().end = at + 1;
      bytes += sizes[at];
      left -= sizes[at];
    }
  }

  /// Slices that do not say of which step they are get it by their time: so the steps come first.
  void FindSteps() {
    std::vector<std::vector<TimelineStep>> found(rows_.size());
    Turns turns;
    turns.Run(batches_.size(), [&](std::size_t number) {
      std::string buffer;
      for (std::size_t at = batches_[number].begin; at < batches_[number].end; ++at) {
        if (rows_[at]->kind != ProfileFileKind::kTimeline) continue;
        std::string ignored;
        const auto text = ReadTraceInto(rows_[at]->path, most_bytes_, &ignored, &buffer);
        if (text.ok()) found[at] = ReadTimelineSteps(*text);
      }
    });
    for (std::size_t at = 0; at < rows_.size(); ++at) {
      for (const TimelineStep& step : found[at]) {
        by_time_[RankOf(*rows_[at])].Add(step.step, step.begin_ns, step.end_ns, step.pid, 0,
                                         step.mode);
      }
    }
    for (auto& [rank, marks] : by_time_) marks.Finish();
  }

  /// The timelines of a rank within a batch.
  struct RankTimelines {
    std::optional<TimelineReader> reader;
    std::optional<store::SlicePlace> place;  ///< Of what is left at the batch's end.
  };
  /// What the files of a batch came to.
  struct BatchRows {
    std::size_t number = 0;
    Turns* turns = nullptr;
    std::map<std::int32_t, RankTimelines> timelines;  ///< By rank.
    store::MetricBlock samples;
    std::optional<SystemMetrics> metrics;  ///< Writes to `samples`.
  };

  /// Numbers of rows go by the files' order, whichever thread is first: a batch that is read has
  /// all of its own before the next one gets any, and writes what it has beside it.
  void TakeBatch(std::size_t number, Turns* turns) {
    BatchRows rows{.number = number, .turns = turns};
    std::string buffer;
    for (std::size_t at = batches_[number].begin; at < batches_[number].end; ++at) {
      const ProfileFile& file = *rows_[at];
      FileOutcome& outcome = outcomes_[at];
      const auto text = ReadTraceInto(file.path, most_bytes_, &outcome.gzip_damage, &buffer);
      if (!text.ok()) {
        outcome.status = text.status();
      } else if (file.kind == ProfileFileKind::kSystem) {
        TakeSystem(*text, &outcome, &rows);
      } else {
        TakeTimeline(file, *text, &outcome, &rows);
      }
    }
    buffer = {};
    const auto samples = ByRank(std::move(rows.samples));
    turns->Await(number);
    for (auto& [rank, timelines] : rows.timelines) {
      const std::uint64_t left = timelines.reader->rows();
      if (left > 0) timelines.place = sink_->Place(rank, left);
    }
    std::vector<store::SlicePlace> places;
    places.reserve(samples.size());
    for (const auto& [rank, block] : samples) {
      places.push_back(sink_->PlaceMetrics(rank, block.rows()));
    }
    turns->Pass(number);
    for (auto& [rank, timelines] : rows.timelines) timelines.reader->Flush();
    auto place = places.begin();
    for (const auto& [rank, block] : samples) sink_->PutMetrics(rank, *place++, block);
  }

  void TakeTimeline(const ProfileFile& file, std::string_view text, FileOutcome* outcome,
                    BatchRows* rows) {
    const std::int32_t rank = RankOf(file);
    RankTimelines& timelines = rows->timelines[rank];
    if (timelines.reader && timelines.reader->words() >= kMostSharedWords) {
      timelines.reader->Flush();
      timelines.reader.reset();
    }
    if (!timelines.reader) {
      timelines.reader.emplace([this, rank, rows, &timelines](store::SliceBlock* block) {
        FindStepsOf(rank, block);
        if (!timelines.place) rows->turns->Await(rows->number);
        sink_->Put(rank, timelines.place ? *timelines.place : sink_->Place(rank, block->rows()),
                   *block);
      });
    }
    Timeline read =
        timelines.reader->Read(text, {.rank = rank,
                                      .window = file.name,
                                      .communication = file.kind == ProfileFileKind::kTransfers});
    outcome->damaged = read.damaged;
    outcome->unclosed = read.unclosed;
    outcome->left_out = read.left_out;
    outcome->steps = std::move(read.steps);
    outcome->waits = std::move(read.waits);
  }

  void FindStepsOf(std::int32_t rank, store::SliceBlock* block) const {
    const auto marks = by_time_.find(rank);
    if (marks == by_time_.end()) return;
    for (std::size_t i = 0; i < block->rows(); ++i) {
      if (block->step[i] < 0) block->step[i] = marks->second.StepAt(block->time_ns[i]);
    }
  }

  void TakeSystem(std::string_view text, FileOutcome* outcome, BatchRows* rows) {
    if (!rows->metrics) rows->metrics.emplace(&rows->samples);
    const std::uint64_t damaged = rows->metrics->damaged();
    rows->metrics->Read(text);
    outcome->damaged = rows->metrics->damaged() - damaged;
    if (rows->samples.rows() < store::kSliceBlockRows &&
        rows->samples.names.size() < kMostSharedWords) {
      return;
    }
    rows->metrics.reset();
    for (const auto& [rank, block] : ByRank(std::exchange(rows->samples, {}))) {
      rows->turns->Await(rows->number);
      sink_->PutMetrics(rank, sink_->PlaceMetrics(rank, block.rows()), block);
    }
  }

  /// A node's samples are its lowest rank's.
  std::map<std::int32_t, store::MetricBlock> ByRank(store::MetricBlock samples) {
    std::map<std::int32_t, store::MetricBlock> out;
    std::vector<std::int32_t> rank_of(samples.names.size());
    bool same = true;
    for (std::size_t i = 0; i < samples.names.size(); ++i) {
      rank_of[i] = RankOfHost(samples.names[i].node);
      same = same && rank_of[i] == rank_of[0];
    }
    if (samples.rows() == 0) return out;
    if (same) {
      out.emplace(rank_of[0], std::move(samples));
      return out;
    }
    for (std::size_t i = 0; i < samples.rows(); ++i) {
      store::MetricBlock& block = out[rank_of[samples.series[i]]];
      if (block.names.empty()) block.names = samples.names;
      block.Add(samples.time_ns[i], samples.series[i], samples.value[i]);
    }
    return out;
  }

  std::int32_t RankOfHost(const std::string& host) {
    const std::lock_guard lock(hosts_mutex_);
    const auto known = hosts_.find(host);
    if (known != hosts_.end()) return known->second;
    std::int32_t rank = -1;
    for (const auto& [node, of] : ranks_) {
      if (HostOfNode(node) == host && (rank < 0 || of < rank)) rank = of;
    }
    // "algo-3" is the third machine, where no timeline says whose ranks it has.
    if (rank < 0) {
      const std::size_t dash = host.rfind('-');
      std::int32_t number = 1;
      if (dash != std::string::npos) {
        std::from_chars(host.data() + dash + 1, host.data() + host.size(), number);
      }
      rank = std::clamp(number, 1, 4096) - 1;
    }
    hosts_.emplace(host, rank);
    return rank;
  }

  /// Counters and steps, in the files' order.
  Status Tell() {
    std::map<std::int32_t, StepMarks> steps;
    std::size_t unusable = 0;
    for (std::size_t at = 0; at < rows_.size(); ++at) {
      const std::int32_t rank = RankOf(*rows_[at]);
      FileOutcome& outcome = outcomes_[at];
      TraceSource source(sink_, rows_[at]->name, rank);
      if (!outcome.status.ok()) {
        if (outcome.status.code() == Code::kLimit && rows_.size() == 1) return outcome.status;
        source.Damaged(1, outcome.status.message());
        ++unusable;
      }
      if (!outcome.gzip_damage.empty()) source.Damaged(1, outcome.gzip_damage);
      if (outcome.damaged > 0) source.Damaged(outcome.damaged, "an event is cut or damaged");
      if (outcome.unclosed > 0) {
        source.Damaged(outcome.unclosed, "an event that began has no end");
      }
      if (outcome.left_out > 0) source.LeftOut(outcome.left_out, "counters and arrows");
      for (const TimelineStep& step : outcome.steps) {
        steps[rank].Add(step.step, step.begin_ns, step.end_ns, step.pid, 0, step.mode);
      }
      for (const TimelineWait& wait : outcome.waits) {
        steps[rank].AddDataWait(0, wait.begin_ns, wait.end_ns);
      }
    }
    for (auto& [rank, marks] : steps) {
      TraceSource source(sink_, "steps", rank);
      marks.Finish();
      marks.Emit(&source);
    }
    if (unusable == rows_.size() && unusable > 0) return outcomes_[0].status;
    return {};
  }

  /// <mode>-<step>-<phase>-<begin µs>_<mode>-<step>-<phase>-<end µs>/python_stats.
  void TakeStatistics(const ProfileFile& file) {
    TraceSource source(sink_, file.name, RankOf(file));
    std::string damage;
    const auto bytes = ReadTrace(file.path, kMaxStatisticsBytes, &damage);
    Status status = bytes.status();
    if (bytes.ok()) {
      PstatsPlace place;
      const std::string folder = file.path.parent_path().filename().string();
      const std::string begin = folder.substr(0, folder.find('_'));
      std::vector<std::string> parts;
      for (std::size_t at = 0; at != std::string::npos && parts.size() < 4;) {
        const std::size_t dash = begin.find('-', at);
        parts.push_back(begin.substr(at, dash == std::string::npos ? dash : dash - at));
        at = dash == std::string::npos ? dash : dash + 1;
      }
      if (parts.size() == 4) {
        JsonValue number{JsonValue::Kind::kNumber, parts[1], false};
        place.step = number.Integer().value_or(-1);
        number.text = parts[3];
        place.begin_ns = number.Scaled(3).value_or(0);
      }
      status = ImportPstats(*bytes, place, &source);
    }
    if (!status.ok()) source.Damaged(1, status.message());
  }

  /// By whichever importer knows it.
  void TakeTrace(const ProfileFile& file, const ImportLimits& limits) {
    auto looked = LookAtFile(file.path);
    const Importer* const importer = looked.ok() ? DetectImporter(*looked) : nullptr;
    if (importer == nullptr) {
      sink_->Count("left_out_files", file.name, 1, false);
      return;
    }
    looked->name = file.name;
    const Status status = importer->import(std::span(&*looked, 1), limits, sink_);
    if (!status.ok()) {
      TraceSource(sink_, file.name, 0).Damaged(1, status.message());
    }
  }

  const std::vector<ProfileFile> files_;
  TraceSink* const sink_;
  std::vector<const ProfileFile*> rows_;  ///< Those of samples and events.
  std::uint64_t most_bytes_ = 0;          ///< Of a file, inflated.
  std::vector<Batch> batches_;            ///< Of rows_.
  std::vector<FileOutcome> outcomes_;
  std::map<std::string, std::int32_t> ranks_;
  std::map<std::int32_t, StepMarks> by_time_;
  std::mutex hosts_mutex_;
  std::map<std::string, std::int32_t> hosts_;
};

bool HeadHas(const ImportFile& file, std::string_view text) {
  return file.head.find(text) != std::string::npos;
}

/// Of a file that has not one of smdebug's names.
ProfileFileKind KindByContent(const ImportFile& file) {
  JsonScanner scanner(file.head);
  if (!scanner.FindObject()) return ProfileFileKind::kOther;
  bool dimension = false;
  bool timestamp = false;
  bool value = false;
  scanner.ReadObject([&](std::string_view key, const JsonValue&) {
    dimension = dimension || key == "Dimension";
    timestamp = timestamp || key == "Timestamp";
    value = value || key == "Value";
  });
  if (dimension && timestamp && value) return ProfileFileKind::kSystem;
  if (HeadHas(file, "start_time_since_epoch_in_micros")) return ProfileFileKind::kTimeline;
  return ProfileFileKind::kOther;
}

}  // namespace

bool DetectSmdebugProfile(const ImportFile& file) {
  if (!file.folder) return KindByContent(file) != ProfileFileKind::kOther;
  const auto files = ListProfileFiles(file.path);
  return files.ok() && std::any_of(files->begin(), files->end(), [](const ProfileFile& one) {
           return one.kind != ProfileFileKind::kOther && one.kind != ProfileFileKind::kTrace;
         });
}

Status ImportSmdebugProfile(std::span<const ImportFile> files, const ImportLimits& limits,
                            TraceSink* sink) {
  std::vector<ProfileFile> all;
  for (const ImportFile& file : files) {
    if (file.folder) {
      TELLTALE_ASSIGN_OR_RETURN(std::vector<ProfileFile> within, ListProfileFiles(file.path));
      std::move(within.begin(), within.end(), std::back_inserter(all));
      continue;
    }
    ProfileFile one = ClassifyProfileFile(file.path, file.name);
    if (one.kind == ProfileFileKind::kOther) one.kind = KindByContent(file);
    all.push_back(std::move(one));
  }
  return ProfileImport(std::move(all), sink).Run(limits);
}

bool DetectHorovod(const ImportFile& file) {
  if (file.folder) return false;
  const std::size_t begin = file.head.find_first_not_of(" \t\r\n");
  return begin != std::string::npos && file.head[begin] == '[' &&
         (HeadHas(file, "\"NEGOTIATE_") || HeadHas(file, "\"CYCLE_START\""));
}

Status ImportHorovod(std::span<const ImportFile> files, const ImportLimits& limits,
                     TraceSink* sink) {
  std::vector<ProfileFile> all;
  for (const ImportFile& file : files) {
    ProfileFile one;
    one.path = file.path;
    one.name = ClassifyProfileFile(file.path, file.name).name;
    one.kind = ProfileFileKind::kTransfers;
    // A file a rank, in the order in which they were named.
    one.node = fmt::format("{}", all.size());
    all.push_back(std::move(one));
  }
  return ProfileImport(std::move(all), sink).Run(limits);
}

}  // namespace telltale::interchange
