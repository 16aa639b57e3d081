// SPDX-License-Identifier: Apache-2.0
#include "collect/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <memory>
#include <optional>
#include <utility>

#include "collect/text.h"

namespace telltale::collect {
namespace {

// Five descriptors each, and the agent keeps four for every producer; the supervisor has raised
// the limit for both.
constexpr std::size_t kMaxProcesses = 192;

// To tell private pages from shared ones the kernel walks through all of them: see ReadingBudget.
constexpr std::int64_t kPrivateEveryNs = 2'000'000'000;
constexpr double kPrivateChange = 16.0 * 1048576;
constexpr double kPrivateLeast = 32.0 * 1048576;

struct Stat {
  char state = 0;
  int parent = 0;
  std::uint64_t minor_faults = 0;
  std::uint64_t major_faults = 0;
  std::uint64_t user_ticks = 0;
  std::uint64_t system_ticks = 0;
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
  const auto count = [&field](int number) { return static_cast<std::uint64_t>(field(number)); };
  return Stat{
      state[0], static_cast<int>(field(4)), count(10), count(12), count(14), count(15), count(20),
      count(24)};
}

/// What the calling thread has computed so far: on a busy machine a reading takes longer.
std::int64_t ThreadCpuNs() {
  timespec now{};
  if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) return 0;
  return std::int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

bool IsEnded(char state) { return state == 'Z' || state == 'X'; }

using Folder = std::unique_ptr<DIR, int (*)(DIR*)>;

/// Names in a folder that are numbers.
std::vector<int> NumbersIn(const std::string& path) {
  std::vector<int> numbers;
  const Folder folder(::opendir(path.c_str()), ::closedir);
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    if (const auto number = ParseNumber<int>(entry->d_name)) numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

struct ProcessTree::Values {
  int pid;
  Process* process;
  std::string_view subject;
  RowSink* sink;
  Totals* totals;
  std::uint64_t* resets;

  void Gauge(MetricId id, double value) {
    sink->Emit(id, subject, value, pid);
    std::optional<double>& total = (*totals)[Index(id)];
    total = total.value_or(0) + value;
  }
  void Rate(MetricId id, std::uint64_t counter, std::int64_t now_ns, double factor = 1) {
    const auto rate = process->rates[Index(id)].Advance(counter, now_ns, resets);
    if (rate) Gauge(id, *rate * factor);
  }
  static std::size_t Index(MetricId id) { return static_cast<std::size_t>(id) - kProcFirst; }
};

ProcessTree::ProcessTree(SourceContext* context)
    : context_(context),
      ticks_per_second_(static_cast<double>(::sysconf(_SC_CLK_TCK))),
      page_bytes_(static_cast<double>(::sysconf(_SC_PAGESIZE))) {}

void ProcessTree::SetRoots(const std::vector<int>& pids) {
  for (const int pid : pids) Add(pid);
  refresh_.Reset();
  forks_.reset();
}

bool ProcessTree::Add(int pid) {
  if (processes_.contains(pid)) return false;
  if (processes_.size() >= kMaxProcesses) {
    ++context_->counters.processes_skipped;
    return false;
  }
  // Everything is opened through this one descriptor, so it is of one and the same process.
  const std::string folder = fmt::format("{}proc/{}", context_->root, pid);
  UniqueFd dir(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!dir) {
    // It ended meanwhile, which is no failure; its children may be where the look has been already.
    forks_.reset();
    return false;
  }
  KeptFile stat{UniqueFd(::openat(dir.get(), "stat", O_RDONLY | O_CLOEXEC))};
  if (!stat.is_open()) {
    ++context_->counters.unreadable;
    forks_.reset();
    return false;
  }
  // One that has ended and is not reaped is found by each look.
  bool failed = false;
  const auto text = stat.Read(0, &context_->buffer, &failed);
  const auto now = text ? ParseStat(*text) : std::nullopt;
  if (now && IsEnded(now->state)) return false;
  UniqueFd io(::openat(dir.get(), "io", O_RDONLY | O_CLOEXEC));
  // The counts of I/O are told to the owner only.
  if (!io) ++context_->counters.unreadable;
  UniqueFd status(::openat(dir.get(), "status", O_RDONLY | O_CLOEXEC));
  if (!status) ++context_->counters.unreadable;
  // Not every kernel keeps it.
  UniqueFd schedstat(::openat(dir.get(), "schedstat", O_RDONLY | O_CLOEXEC));
  processes_.emplace(pid, Process{.subject = fmt::format("proc:{}", pid),
                                  .folder = std::move(dir),
                                  .stat = std::move(stat),
                                  .io = KeptFile(std::move(io)),
                                  .status = KeptFile(std::move(status)),
                                  .schedstat = KeptFile(std::move(schedstat)),
                                  .rates = {},
                                  .sample = 0,
                                  .private_due_ns = 0});
  return true;
}

void ProcessTree::ListChildren(int pid, const Process& process, std::vector<int>* out) {
  // Not by its number, which may be somebody else's by now.
  UniqueFd tasks(::openat(process.folder.get(), "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Folder folder(tasks ? ::fdopendir(tasks.get()) : nullptr, ::closedir);
  if (folder) tasks.release();
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    const auto tid = ParseNumber<int>(entry->d_name);
    if (!tid) continue;
    std::array<char, 32> name{};
    fmt::format_to_n(name.data(), name.size() - 1, "{}/children", *tid);
    UniqueFd children(::openat(::dirfd(folder.get()), name.data(), O_RDONLY | O_CLOEXEC));
    const bool absent = !children && errno == ENOENT;
    KeptFile file(std::move(children), KeptFile::Text::kRecords);
    bool failed = false;
    auto text = file.Read(0, &context_->buffer, &failed);
    if (!text) {
      // Absent for the main thread of a process that lives: the kernel was built without it.
      if (absent && tid == pid && ::faccessat(process.folder.get(), "task", F_OK, 0) == 0) {
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
      ListChildren(pid, processes_.at(pid), &found);
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

void ProcessTree::SampleIo(Values* values) {
  Reading reading = ReadFile(&values->process->io, context_);
  if (!reading.ok) return;
  constexpr std::array<std::pair<std::string_view, MetricId>, 6> kKeys = {{
      {"rchar:", MetricId::kProcReadCallBytes},
      {"wchar:", MetricId::kProcWriteCallBytes},
      {"syscr:", MetricId::kProcReadCalls},
      {"syscw:", MetricId::kProcWriteCalls},
      {"read_bytes:", MetricId::kProcReadBytes},
      {"write_bytes:", MetricId::kProcWriteBytes},
  }};
  bool any = false;
  std::string_view line;
  while (NextLine(&reading.text, &line)) {
    const std::string_view key = NextField(&line);
    const auto* const known = std::find_if(kKeys.begin(), kKeys.end(),
                                           [&](const auto& entry) { return entry.first == key; });
    if (known == kKeys.end()) continue;
    const auto value = ParseNumber<std::uint64_t>(NextField(&line));
    if (!value) {
      ++context_->counters.malformed;
      continue;
    }
    any = true;
    values->Rate(known->second, *value, reading.monotonic_ns);
  }
  if (!any) ++context_->counters.malformed;
}

void ProcessTree::SampleStatus(Values* values) {
  Reading reading = ReadFile(&values->process->status, context_);
  if (!reading.ok) return;
  std::string_view line;
  while (NextLine(&reading.text, &line)) {
    // Some 60 lines, of which three matter.
    const char first = line.empty() ? ' ' : line.front();
    if (first != 'V' && first != 'v' && first != 'n') continue;
    const std::string_view key = NextField(&line);
    const bool swap = key == "VmSwap:";
    const bool voluntary = key == "voluntary_ctxt_switches:";
    if (!swap && !voluntary && key != "nonvoluntary_ctxt_switches:") continue;
    const auto value = ParseNumber<std::uint64_t>(NextField(&line));
    if (!value) {
      ++context_->counters.malformed;
    } else if (swap) {
      values->Gauge(MetricId::kProcSwap, static_cast<double>(*value) * 1024);
    } else {
      values->Rate(
          voluntary ? MetricId::kProcVoluntarySwitches : MetricId::kProcInvoluntarySwitches, *value,
          reading.monotonic_ns);
    }
  }
}

void ProcessTree::SampleRunDelay(Values* values) {
  bool failed = false;
  const std::int64_t now_ns = context_->clock->MonotonicNs();
  const auto text = values->process->schedstat.Read(now_ns, &context_->buffer, &failed);
  if (!text) return;
  // Time on a core and time in its queue, in nanoseconds, and how often it got one.
  std::array<std::uint64_t, 2> times{};
  if (ReadNumbers(text->substr(0, text->find('\n')), times.data(), times.size()) != times.size()) {
    ++context_->counters.malformed;
    return;
  }
  constexpr double kNsToPercent = 1e-7;
  values->Rate(MetricId::kProcRunDelay, times[1], now_ns, kNsToPercent);
}

void ProcessTree::SamplePrivate(double rss, double faulted, Values* values) {
  Process& process = *values->process;
  const std::int64_t begin_ns = context_->clock->MonotonicNs();
  const bool changed = process.private_rss < 0 ||
                       std::abs(rss - process.private_rss) >= kPrivateChange ||
                       faulted - process.private_faulted >= kPrivateChange;
  if (!changed || rss < kPrivateLeast || begin_ns < process.private_due_ns ||
      !private_budget_.Allows(begin_ns, rss)) {
    return;
  }
  const std::int64_t begin_cpu_ns = ThreadCpuNs();
  KeptFile file(UniqueFd(::openat(process.folder.get(), "smaps_rollup", O_RDONLY | O_CLOEXEC)));
  bool failed = false;
  auto text = file.is_open() ? file.Read(0, &context_->buffer, &failed) : std::nullopt;
  const std::int64_t pause_ns = private_budget_.Take(begin_ns, rss, ThreadCpuNs() - begin_cpu_ns) *
                                static_cast<std::int64_t>(processes_.size());
  // Others have their turn meanwhile.
  process.private_due_ns = begin_ns + std::max(kPrivateEveryNs, pause_ns);
  process.private_rss = rss;
  process.private_faulted = faulted;
  if (!text) return;  // A kernel before 4.14, or somebody else's process.
  std::string_view line;
  std::optional<std::uint64_t> kilobytes;
  while (NextLine(&*text, &line)) {
    if (!line.starts_with("Private_Dirty:") && !line.starts_with("Private_Hugetlb:")) continue;
    NextField(&line);
    const auto value = ParseNumber<std::uint64_t>(NextField(&line));
    if (!value) {
      ++context_->counters.malformed;
      return;
    }
    kilobytes = kilobytes.value_or(0) + *value;
  }
  // Without a sum over the tree: the processes have it at different times.
  if (kilobytes) {
    values->sink->Emit(MetricId::kProcPrivate, values->subject,
                       static_cast<double>(*kilobytes) * 1024, values->pid);
  }
}

bool ProcessTree::SampleOne(int pid, Process* process, bool slow, RowSink* sink, Totals* totals) {
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
  Values values{pid,  process, sink->Intern(process->subject),
                sink, totals,  &context_->counters.counter_resets};
  const double percent = 100.0 / ticks_per_second_;
  values.Rate(MetricId::kProcCpu, stat->user_ticks + stat->system_ticks, now_ns, percent);
  values.Rate(MetricId::kProcCpuUser, stat->user_ticks, now_ns, percent);
  values.Rate(MetricId::kProcCpuSystem, stat->system_ticks, now_ns, percent);
  values.Gauge(MetricId::kProcRss, static_cast<double>(stat->rss_pages) * page_bytes_);
  values.Rate(MetricId::kProcMajorFaults, stat->major_faults, now_ns);
  values.Rate(MetricId::kProcMinorFaults, stat->minor_faults, now_ns);
  values.Gauge(MetricId::kProcThreads, static_cast<double>(stat->threads));
  SampleIo(&values);
  if (slow) {
    SampleStatus(&values);
    SampleRunDelay(&values);
    if (processes_.contains(stat->parent)) {
      SamplePrivate(static_cast<double>(stat->rss_pages) * page_bytes_,
                    static_cast<double>(stat->minor_faults) * page_bytes_, &values);
    }
  }
  return true;
}

void ProcessTree::SampleRest(bool slow, RowSink* sink, Totals* totals) {
  for (auto it = processes_.begin(); it != processes_.end();) {
    auto& [pid, process] = *it;
    if (std::exchange(process.sample, sample_) == sample_ ||
        SampleOne(pid, &process, slow, sink, totals)) {
      ++it;
      continue;
    }
    it = processes_.erase(it);
    forks_.reset();
  }
}

void ProcessTree::Sample(RowSink* sink) {
  const std::int64_t now_ns = context_->clock->MonotonicNs();
  const bool slow = slow_.Due(now_ns);
  Totals totals{};
  ++sample_;
  // Before the look: who has ended makes room, and its number may be a new one's.
  SampleRest(slow, sink, &totals);
  if (unasked_.Due(now_ns)) forks_.reset();
  // Of a reading before this one, so what was started since makes another look.
  const bool none_new = context_->forks && context_->forks == forks_;
  if (!processes_.empty() && !none_new && refresh_.Due(now_ns)) {
    forks_ = context_->forks;
    Refresh();
    SampleRest(slow, sink, &totals);
  }
  const std::string_view tree = sink->Intern("proc:tree");
  for (std::size_t i = 0; i < totals.size(); ++i) {
    if (totals[i]) sink->Emit(static_cast<MetricId>(kProcFirst + i), tree, *totals[i]);
  }
}

}  // namespace telltale::collect
