// SPDX-License-Identifier: Apache-2.0
#include "collect/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "collect/counter.h"
#include "collect/text.h"

namespace telltale::collect {
namespace {

constexpr std::int64_t kRefreshNs = 1'000'000'000;
// Two descriptors each, and the agent keeps more for every producer: well below 1,024 in all.
constexpr std::size_t kMaxProcesses = 192;

struct Stat {
  char state = 0;
  int parent = 0;
  std::uint64_t ticks = 0;  ///< User and system time.
  std::uint64_t threads = 0;
  std::uint64_t rss_pages = 0;
};

std::optional<Stat> ParseStat(std::string_view text) {
  // The name stands in parentheses and may itself hold blanks and parentheses.
  const std::size_t end_of_name = text.rfind(')');
  if (end_of_name == std::string_view::npos) return std::nullopt;
  text.remove_prefix(end_of_name + 1);
  if (const std::size_t newline = text.find('\n'); newline != std::string_view::npos) {
    text = text.substr(0, newline);
  }
  const std::string_view state = NextField(&text);
  constexpr int kFirst = 4;  // Number of the field behind the state, as proc(5) counts.
  std::array<std::int64_t, 21> fields{};
  if (state.size() != 1 || ReadNumbers(text, fields.data(), fields.size()) != fields.size()) {
    return std::nullopt;
  }
  const auto field = [&fields](int number) { return fields[number - kFirst]; };
  return Stat{state[0], static_cast<int>(field(4)),
              static_cast<std::uint64_t>(field(14) + field(15)),
              static_cast<std::uint64_t>(field(20)), static_cast<std::uint64_t>(field(24))};
}

bool IsEnded(char state) { return state == 'Z' || state == 'X'; }

/// Names in a folder that are numbers.
std::vector<int> NumbersIn(const std::string& folder) {
  std::vector<int> numbers;
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) return numbers;
  while (const dirent* entry = ::readdir(dir)) {
    if (const auto number = ParseNumber<int>(entry->d_name)) numbers.push_back(*number);
  }
  ::closedir(dir);
  return numbers;
}

}  // namespace

struct ProcessTree::Totals {
  std::optional<double> cpu, rss, read_rate, write_rate, threads;
  static void Add(std::optional<double>* total, double value) {
    *total = total->value_or(0) + value;
  }
};

ProcessTree::ProcessTree(SourceContext* context)
    : context_(context),
      ticks_per_second_(static_cast<double>(::sysconf(_SC_CLK_TCK))),
      page_bytes_(static_cast<double>(::sysconf(_SC_PAGESIZE))) {}

void ProcessTree::SetRoots(const std::vector<int>& pids) {
  for (const int pid : pids) Add(pid);
  refresh_at_ns_ = INT64_MIN;
}

bool ProcessTree::Add(int pid) {
  if (processes_.contains(pid)) return false;
  if (processes_.size() >= kMaxProcesses) {
    ++context_->counters.processes_skipped;
    return false;
  }
  // Everything is opened through this one descriptor, so it is of one and the same process.
  const std::string folder = fmt::format("{}proc/{}", context_->root, pid);
  const UniqueFd dir(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!dir) return false;  // It ended meanwhile, which is no failure.
  UniqueFd stat(::openat(dir.get(), "stat", O_RDONLY | O_CLOEXEC));
  UniqueFd io(::openat(dir.get(), "io", O_RDONLY | O_CLOEXEC));
  if (!stat) {
    ++context_->counters.unreadable;
    return false;
  }
  if (!io) ++context_->counters.unreadable;
  processes_.emplace(pid, Process{.subject = fmt::format("proc:{}", pid),
                                  .stat = KeptFile(std::move(stat)),
                                  .io = KeptFile(std::move(io))});
  return true;
}

void ProcessTree::ListChildren(int pid, std::vector<int>* out) {
  const std::string tasks = fmt::format("{}proc/{}/task/", context_->root, pid);
  for (const int tid : NumbersIn(tasks)) {
    KeptFile file(fmt::format("{}{}/children", tasks, tid));
    bool failed = false;
    auto text = file.Read(0, &context_->buffer, &failed);
    if (!text) {
      // Absent for the main thread of a process that lives: the kernel was built without it.
      if (tid == pid && ::access(tasks.c_str(), F_OK) == 0 && processes_.contains(pid)) {
        scan_ = true;
      }
      continue;
    }
    for (std::string_view field = NextField(&*text); !field.empty(); field = NextField(&*text)) {
      if (const auto child = ParseNumber<int>(field)) out->push_back(*child);
    }
  }
}

void ProcessTree::ListChildrenByScan(std::vector<int>* out) {
  for (const int pid : NumbersIn(context_->root + "proc")) {
    KeptFile file(fmt::format("{}proc/{}/stat", context_->root, pid));
    bool failed = false;
    const auto text = file.Read(0, &context_->buffer, &failed);
    const auto stat = text ? ParseStat(*text) : std::nullopt;
    if (stat && !IsEnded(stat->state) && processes_.contains(stat->parent)) out->push_back(pid);
  }
}

void ProcessTree::Refresh() {
  std::vector<int> found;
  if (!scan_) {
    std::vector<int> waiting;
    for (const auto& [pid, process] : processes_) waiting.push_back(pid);
    while (!waiting.empty()) {
      const int pid = waiting.back();
      waiting.pop_back();
      found.clear();
      ListChildren(pid, &found);
      for (const int child : found) {
        if (Add(child)) waiting.push_back(child);
      }
    }
  }
  while (scan_) {
    found.clear();
    ListChildrenByScan(&found);
    if (std::count_if(found.begin(), found.end(), [this](int pid) { return Add(pid); }) == 0) break;
  }
}

void ProcessTree::SampleIo(int pid, Process* process, std::string_view subject, RowSink* sink,
                           Totals* totals) {
  Reading reading = ReadFile(&process->io, context_);
  if (!reading.ok) return;
  std::optional<std::uint64_t> read_bytes, write_bytes;
  std::string_view line;
  while (NextLine(&reading.text, &line)) {
    const std::string_view key = NextField(&line);
    if (key == "read_bytes:") read_bytes = ParseNumber<std::uint64_t>(NextField(&line));
    if (key == "write_bytes:") write_bytes = ParseNumber<std::uint64_t>(NextField(&line));
  }
  if (!read_bytes || !write_bytes) {
    ++context_->counters.malformed;
    return;
  }
  const double seconds = static_cast<double>(reading.monotonic_ns -
                                             std::exchange(process->io_ns, reading.monotonic_ns)) *
                         1e-9;
  const auto read = CounterDelta(std::exchange(process->read_bytes, *read_bytes), *read_bytes);
  const auto written =
      CounterDelta(std::exchange(process->write_bytes, *write_bytes), *write_bytes);
  if (!std::exchange(process->has_io, true) || seconds <= 0) return;
  if (!read || !written) {
    ++context_->counters.counter_resets;
    return;
  }
  const double read_rate = static_cast<double>(*read) / seconds;
  const double write_rate = static_cast<double>(*written) / seconds;
  sink->Emit(MetricId::kProcReadBytes, subject, read_rate, pid);
  sink->Emit(MetricId::kProcWriteBytes, subject, write_rate, pid);
  Totals::Add(&totals->read_rate, read_rate);
  Totals::Add(&totals->write_rate, write_rate);
}

/// False where the process has ended.
bool ProcessTree::SampleOne(int pid, Process* process, RowSink* sink, Totals* totals) {
  bool failed = false;
  const std::int64_t now_ns = context_->clock->MonotonicNs();
  const auto text = process->stat.Read(now_ns, &context_->buffer, &failed);
  if (!text || text->empty()) return false;
  const auto stat = ParseStat(*text);
  if (!stat) {
    ++context_->counters.malformed;
    return true;
  }
  if (IsEnded(stat->state)) return false;
  const std::string_view subject = sink->Intern(process->subject);
  const double seconds =
      static_cast<double>(now_ns - std::exchange(process->ticks_ns, now_ns)) * 1e-9;
  const auto ticks = CounterDelta(std::exchange(process->ticks, stat->ticks), stat->ticks);
  if (std::exchange(process->has_ticks, true) && seconds > 0 && ticks) {
    const double cpu = 100.0 * static_cast<double>(*ticks) / ticks_per_second_ / seconds;
    sink->Emit(MetricId::kProcCpu, subject, cpu, pid);
    Totals::Add(&totals->cpu, cpu);
  }
  const double rss = static_cast<double>(stat->rss_pages) * page_bytes_;
  sink->Emit(MetricId::kProcRss, subject, rss, pid);
  Totals::Add(&totals->rss, rss);
  sink->Emit(MetricId::kProcThreads, subject, static_cast<double>(stat->threads), pid);
  Totals::Add(&totals->threads, static_cast<double>(stat->threads));
  SampleIo(pid, process, subject, sink, totals);
  return true;
}

void ProcessTree::Sample(RowSink* sink) {
  const std::int64_t now_ns = context_->clock->MonotonicNs();
  if (now_ns >= refresh_at_ns_ && !processes_.empty()) {
    Refresh();
    refresh_at_ns_ = now_ns + kRefreshNs;
  }
  Totals totals;
  for (auto it = processes_.begin(); it != processes_.end();) {
    const bool lives = SampleOne(it->first, &it->second, sink, &totals);
    it = lives ? std::next(it) : processes_.erase(it);
  }
  const std::string_view tree = sink->Intern("proc:tree");
  const auto emit = [&](MetricId id, const std::optional<double>& total) {
    if (total) sink->Emit(id, tree, *total);
  };
  emit(MetricId::kProcCpu, totals.cpu);
  emit(MetricId::kProcRss, totals.rss);
  emit(MetricId::kProcReadBytes, totals.read_rate);
  emit(MetricId::kProcWriteBytes, totals.write_rate);
  emit(MetricId::kProcThreads, totals.threads);
}

}  // namespace telltale::collect
