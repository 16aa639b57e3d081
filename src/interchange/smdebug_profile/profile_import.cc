// SPDX-License-Identifier: Apache-2.0
// Files are read by several threads, and given to the sink in the order of their times.
//
// Memory: a file's text (10 MB as smdebug rotates them) and a block of its rows, a thread.
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
#include <string>
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

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxThreads = 4;
constexpr std::uint64_t kMaxFileBytes = 512ULL << 20;
constexpr std::uint64_t kMaxStatisticsBytes = 256ULL << 20;

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
        done_[at] = true;
        while (done_.contains(turn_)) done_.erase(turn_++);
        changed_.notify_all();
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

  /// Until all jobs before `at` are done.
  void Await(std::size_t at) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return turn_ >= at; });
  }

 private:
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
    FindSteps();
    outcomes_.resize(rows_.size());
    Turns turns;
    turns.Run(rows_.size(), [&](std::size_t at) {
      if (rows_[at]->kind == ProfileFileKind::kSystem) {
        TakeSystem(at, &turns);
      } else {
        TakeTimeline(at, &turns);
      }
    });
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

  /// Slices that do not say of which step they are get it by their time: so the steps come first.
  void FindSteps() {
    std::vector<std::vector<TimelineStep>> found(rows_.size());
    Turns turns;
    turns.Run(rows_.size(), [&](std::size_t at) {
      if (rows_[at]->kind != ProfileFileKind::kTimeline) return;
      std::string ignored;
      const auto text = ReadTrace(rows_[at]->path, kMaxFileBytes, &ignored);
      if (text.ok()) found[at] = ReadTimelineSteps(*text);
    });
    for (std::size_t at = 0; at < rows_.size(); ++at) {
      for (const TimelineStep& step : found[at]) {
        by_time_[RankOf(*rows_[at])].Add(step.step, step.begin_ns, step.end_ns, step.pid, 0,
                                         step.mode);
      }
    }
    for (auto& [rank, marks] : by_time_) marks.Finish();
  }

  void TakeTimeline(std::size_t at, Turns* turns) {
    const ProfileFile& file = *rows_[at];
    FileOutcome& outcome = outcomes_[at];
    const auto text = ReadTrace(file.path, kMaxFileBytes, &outcome.gzip_damage);
    if (!text.ok()) {
      outcome.status = text.status();
      return;
    }
    const std::int32_t rank = RankOf(file);
    const auto marks = by_time_.find(rank);
    Timeline read = ReadTimeline(*text,
                                 {.rank = rank,
                                  .window = file.name,
                                  .communication = file.kind == ProfileFileKind::kTransfers},
                                 [&](store::SliceBlock* block) {
                                   if (marks != by_time_.end()) {
                                     for (std::size_t i = 0; i < block->rows(); ++i) {
                                       if (block->step[i] < 0)
                                         block->step[i] = marks->second.StepAt(block->time_ns[i]);
                                     }
                                   }
                                   // Numbers of rows go by the files' order, whichever thread is
                                   // first.
                                   turns->Await(at);
                                   sink_->Put(rank, sink_->Place(rank, block->rows()), *block);
                                 });
    outcome.damaged = read.damaged;
    outcome.unclosed = read.unclosed;
    outcome.left_out = read.left_out;
    outcome.steps = std::move(read.steps);
    outcome.waits = std::move(read.waits);
  }

  void TakeSystem(std::size_t at, Turns* turns) {
    const ProfileFile& file = *rows_[at];
    FileOutcome& outcome = outcomes_[at];
    const auto text = ReadTrace(file.path, kMaxFileBytes, &outcome.gzip_damage);
    if (!text.ok()) {
      outcome.status = text.status();
      return;
    }
    store::MetricBlock samples;
    SystemMetrics metrics(&samples);
    metrics.Read(*text);
    outcome.damaged = metrics.damaged();
    for (auto& [rank, block] : ByRank(std::move(samples))) {
      turns->Await(at);
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
