// SPDX-License-Identifier: Apache-2.0
// The C ABI: finds the process's probe, or does nothing.
//
// The whole state lies in one private mapping that the kernel zeroes in a forked child
// (MADV_WIPEONFORK), so that a child is silent however it was forked; the atfork handler clears the
// pointer too, for kernels without it. Nothing is freed: other threads may be inside.
#include "telltale/probe.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "channel/producer.h"
#include "probe/capture.h"
#include "probe/detail_rate.h"
#include "probe/stats.h"
#include "probe/step_machine.h"

namespace {

using telltale::channel::OpenResult;
using telltale::channel::Producer;
using telltale::format::ClockKind;
using telltale::probe::Capture;
using telltale::probe::SampleOf;
using telltale::probe::StepMachine;

struct Probe {
  std::atomic<std::uint32_t> active;
  Producer producer;
  StepMachine machine;
  Capture capture;
  telltale::probe::DetailRate detail;
  std::atomic<std::uint32_t> polls;    ///< Calls made while the answer has not come.
  std::atomic<std::uint32_t> polling;  ///< 1: a thread is looking for it.
};

/// How long tt_init waits for the supervisor's answer; later it is looked for where steps begin.
constexpr int kAcceptWaitMs = 20;
/// Looking costs about a microsecond: one call of so many does it.
constexpr std::uint32_t kPollEvery = 4;

/// Below this limit on the size of files nothing is logged: writing past it would be a SIGXFSZ.
constexpr rlim_t kLogRoom = 16 << 20;

enum InitState : int { kNever = 0, kRunning = 1, kDone = 2, kForked = 3 };

std::atomic<Probe*> g_probe{nullptr};
std::atomic<int> g_init{kNever};
std::atomic<int> g_fork_handler{0};
/// ClockKind + 1; 0: not looked yet.
std::atomic<int> g_clock{0};
/// Of the last probe of this process or of the one it was forked from.
std::uint8_t g_uuid[16];
bool g_has_uuid = false;

[[gnu::hot]] Probe* Active() {
  Probe* probe = g_probe.load(std::memory_order_acquire);
  if (__builtin_expect(probe == nullptr, 0)) return nullptr;
  return probe->active.load(std::memory_order_relaxed) != 0 ? probe : nullptr;
}

void InChild() {
  Producer::ForgetAfterFork();
  g_probe.store(nullptr, std::memory_order_relaxed);
  g_init.store(kForked, std::memory_order_relaxed);
}

[[gnu::hot]] ClockKind Clock() {
  int known = g_clock.load(std::memory_order_relaxed);
  if (__builtin_expect(known == 0, 0)) {
    const int saved = errno;
    known = static_cast<int>(telltale::channel::DetectClock()) + 1;
    g_clock.store(known, std::memory_order_relaxed);
    errno = saved;
  }
  return static_cast<ClockKind>(known - 1);
}

/// Says once why nothing is recorded, where the channel cannot.
[[gnu::cold]] void Log(const char* what, const char* detail) {
  const char* path = ::getenv("TELLTALE_PROBE_LOG");
  if (path == nullptr || *path == 0) return;
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur < kLogRoom) return;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const int fd = ::open(path, kFlags, 0600);
  if (fd < 0) return;
  struct stat file {};
  if (::fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) {
    ::close(fd);  // Of a pipe a write may end the training by SIGPIPE.
    return;
  }
  char line[640];
  std::size_t used = 0;
  const auto add = [&](const char* text) {
    while (*text != 0 && used + 2 < sizeof line) {
      line[used++] = *text == '\n' ? ' ' : *text;
      ++text;
    }
  };
  char digits[12];
  std::size_t at = sizeof digits;
  digits[--at] = 0;
  for (auto pid = static_cast<unsigned>(::getpid()); pid != 0; pid /= 10) {
    digits[--at] = static_cast<char>('0' + pid % 10);
  }
  add("process ");
  add(&digits[at]);
  add(": ");
  add(what);
  add(detail);
  line[used++] = '\n';
  [[maybe_unused]] const ssize_t written = ::write(fd, line, used);
  ::close(fd);
}

std::int32_t RankOfEnvironment() {
  const char* text = ::getenv("RANK");
  std::int32_t rank = 0;
  for (; text != nullptr && *text >= '0' && *text <= '9' && rank < 100'000'000; ++text) {
    rank = rank * 10 + (*text - '0');
  }
  return rank;
}

/// The supervisor's late answer: a control page, or a refusal.
[[gnu::cold]] void LookForAnswer(Probe* probe) {
  if (probe->polls.fetch_add(1, std::memory_order_relaxed) % kPollEvery != 0) return;
  if (probe->polling.exchange(1, std::memory_order_acquire) != 0) return;
  probe->producer.PollAccept(0);
  if (probe->producer.refusal()[0] != 0 &&
      probe->active.exchange(0, std::memory_order_relaxed) != 0) {
    const int saved = errno;
    Log("recording is off: ", probe->producer.refusal());
    errno = saved;
  }
  probe->polling.store(0, std::memory_order_release);
}

/// As Active, where a step may begin.
Probe* Stepping() {
  Probe* probe = Active();
  if (probe != nullptr && __builtin_expect(probe->producer.awaiting_accept(), 0)) {
    LookForAnswer(probe);
    return Active();
  }
  return probe;
}

std::int64_t StepOf(const Probe& probe, std::int64_t step) {
  return step == TT_STEP_OPEN ? probe.machine.step() : step;
}

std::uint8_t ModeOf(const Probe& probe, int mode) {
  return mode < 0 ? probe.machine.mode() : static_cast<std::uint8_t>(mode & 3);
}

[[gnu::cold]] int Start(tt_process_kind kind, std::int32_t rank, const std::uint8_t* parent_uuid) {
  const char* socket_path = ::getenv("TELLTALE_SOCKET");
  if (socket_path == nullptr || *socket_path == 0) return 0;
  int none = 0;
  if (g_fork_handler.compare_exchange_strong(none, 1)) {
    // Without the handler a forked child is still silent where the kernel wipes the mapping.
    if (::pthread_atfork(nullptr, nullptr, InChild) != 0) {
      Log("recording is off: ", "no memory for the fork handler");
      return 0;
    }
  }
  void* map =
      ::mmap(nullptr, sizeof(Probe), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) {
    Log("recording is off: ", "no memory");
    return 0;
  }
  ::madvise(map, sizeof(Probe), MADV_WIPEONFORK);
  // Most of it is for names that few processes have: a huge page would be memory for nothing.
  ::madvise(map, sizeof(Probe), MADV_NOHUGEPAGE);
  auto* probe = static_cast<Probe*>(map);
  const ClockKind clock = Clock();
  const auto kind_byte = static_cast<std::uint8_t>(kind);
  if (rank < 0) rank = RankOfEnvironment();
  OpenResult opened = OpenResult::kNoMemory;
  // The first that there is memory for.
  for (const auto* plan :
       {&telltale::channel::kTrainerPlan, &telltale::channel::kLimitedTrainerPlan,
        &telltale::channel::kSmallPlan}) {
    if (kind != TT_PROCESS_TRAINER && plan != &telltale::channel::kSmallPlan) continue;
    if (opened != OpenResult::kNoMemory) break;
    opened = probe->producer.Open(*plan, kind_byte, rank, clock, parent_uuid, socket_path);
  }
  if (opened != OpenResult::kOk) {
    const char* why = "the supervisor of telltale run cannot be reached";
    if (opened == OpenResult::kNoMemory) {
      why = "no shared memory for the arena (memory limit?)";
    } else if (probe->producer.refusal()[0] != 0) {
      why = probe->producer.refusal();
    }
    Log("recording is off: ", why);
    probe->producer.Close();
    ::munmap(map, sizeof(Probe));
    return 0;
  }
  probe->producer.PollAccept(kAcceptWaitMs);
  if (probe->producer.refusal()[0] != 0) {
    Log("recording is off: ", probe->producer.refusal());
    // No thread has it yet. One that is refused later keeps it: threads may be inside.
    probe->producer.Close();
    ::munmap(map, sizeof(Probe));
    return 0;
  }
  probe->capture.Init(&probe->producer);
  probe->machine.Init(&probe->producer, &probe->capture);
  probe->detail.Init(probe->machine.ticks_per_second());
  std::memcpy(g_uuid, probe->producer.uuid(), sizeof g_uuid);
  g_has_uuid = true;
  probe->producer.Ring();  // The first ring, the large one, is this thread's.
  probe->active.store(1, std::memory_order_relaxed);
  g_probe.store(probe, std::memory_order_release);
  return 1;
}

}  // namespace

extern "C" {

int tt_init(tt_process_kind kind, int32_t rank) {
  int state = kNever;
  if (!g_init.compare_exchange_strong(state, kRunning)) return tt_active();
  const int saved = errno;
  const int started = Start(kind, rank, nullptr);
  g_init.store(kDone, std::memory_order_release);
  errno = saved;
  return started;
}

int tt_reinit_after_fork(tt_process_kind kind) {
  int state = kForked;
  if (!g_init.compare_exchange_strong(state, kRunning)) return tt_active();
  const int saved = errno;
  std::uint8_t parent[16];
  std::memcpy(parent, g_uuid, sizeof parent);
  const int started = Start(kind, -1, g_has_uuid ? parent : nullptr);
  g_init.store(kDone, std::memory_order_release);
  errno = saved;
  return started;
}

int tt_active(void) { return Active() != nullptr ? 1 : 0; }

void tt_set_rank(int32_t rank) {
  if (Probe* probe = Active()) probe->producer.SetRank(rank);
}

void tt_disable(const char* reason, size_t reason_len) {
  if (reason == nullptr) reason_len = 0;
  if (Probe* probe = Active()) {
    probe->producer.Disable(reason, reason_len);
    probe->active.store(0, std::memory_order_relaxed);
    return;
  }
  const int saved = errno;
  char text[256];
  if (reason_len >= sizeof text) reason_len = sizeof text - 1;
  if (reason_len > 0) std::memcpy(text, reason, reason_len);
  text[reason_len] = 0;
  // Later tt_init calls must not start what was switched off.
  int state = kNever;
  g_init.compare_exchange_strong(state, kDone);
  if (::getenv("TELLTALE_SOCKET") != nullptr) Log("recording is off: ", text);
  errno = saved;
}

uint32_t tt_name(const char* text, size_t len) {
  Probe* probe = Active();
  if (probe == nullptr || (text == nullptr && len > 0)) return 0;
  return probe->producer.Intern(text, len);
}

[[gnu::hot]] uint64_t tt_now(void) { return telltale::channel::Ticks(Clock()); }

void tt_span(uint32_t name, uint64_t begin, uint64_t end, tt_span_category category) {
  Probe* probe = Active();
  if (probe == nullptr) return;
  probe->producer.Span(
      name, begin, end,
      telltale::format::SpanFlags(probe->machine.mode(), static_cast<unsigned>(category)),
      probe->machine.step());
}

int tt_detail_pass(void) {
  Probe* probe = Active();
  if (probe == nullptr) return 0;
  const std::uint32_t flags = probe->producer.ControlFlags();
  if (flags <= telltale::format::kControlWantAll || !probe->machine.Owned()) return 0;
  const telltale::probe::DetailRate::Pass pass = probe->detail.Begins(flags, probe->producer.Now());
  if (pass.thinned > 0) probe->producer.CountThinned(pass.thinned);
  return pass.wanted ? 1 : 0;
}

void tt_detail_span(uint32_t name, uint64_t begin, uint64_t end, tt_span_category category) {
  Probe* probe = Active();
  if (probe == nullptr) return;
  probe->detail.Wrote();
  const std::uint8_t flags =
      telltale::format::SpanFlags(probe->machine.mode(), static_cast<unsigned>(category)) |
      telltale::format::kDetailFlag;
  probe->producer.Span(name, begin, end, flags, probe->machine.step());
}

void tt_scalar(uint32_t name, double value) {
  Probe* probe = Active();
  if (probe == nullptr) return;
  probe->producer.Scalar(name, value, probe->machine.step(), probe->machine.mode(),
                         probe->producer.Now());
}

void tt_scalar_at(uint32_t name, double value, int64_t step, tt_mode mode) {
  Probe* probe = Active();
  if (probe == nullptr) return;
  probe->producer.Scalar(name, value, step, static_cast<std::uint8_t>(mode & 3),
                         probe->producer.Now());
}

void tt_event(uint32_t kind, tt_severity severity, uint32_t subject, const char* message,
              size_t message_len, const char* data, size_t data_len) {
  Probe* probe = Active();
  if (probe == nullptr) return;
  probe->producer.Event(kind, static_cast<std::uint8_t>(severity & 3), subject, message,
                        message_len, data, data_len, probe->machine.step(), probe->producer.Now());
}

void tt_fetch_begin(void) {
  if (Probe* probe = Stepping()) probe->machine.FetchBegin();
}
void tt_fetch_end(int64_t batch_size) {
  if (Probe* probe = Active()) probe->machine.FetchEnd(batch_size);
}
[[gnu::hot]] void tt_forward_begin(tt_mode mode) {
  if (Probe* probe = Stepping()) probe->machine.ForwardBegin(mode);
}
[[gnu::hot]] void tt_forward_end(int64_t batch_size) {
  if (Probe* probe = Active()) probe->machine.ForwardEnd(batch_size);
}
[[gnu::hot]] void tt_backward_begin(void) {
  if (Probe* probe = Active()) probe->machine.BackwardBegin();
}
[[gnu::hot]] void tt_backward_end(int has_loss, double loss) {
  if (Probe* probe = Active()) probe->machine.BackwardEnd(has_loss != 0, loss);
}
uint64_t tt_loss_later(void) {
  Probe* probe = Active();
  return probe == nullptr ? 0 : probe->machine.LossLater();
}
void tt_loss_arrived(uint64_t loss, double value) {
  if (Probe* probe = Active()) probe->machine.LossArrived(loss, value);
}
void tt_optimizer_made(uint64_t optimizer) {
  if (Probe* probe = Active()) probe->machine.OptimizerMade(optimizer);
}
[[gnu::hot]] void tt_optimizer_begin(uint64_t optimizer) {
  if (Probe* probe = Active()) probe->machine.OptimizerBegin(optimizer);
}
[[gnu::hot]] void tt_optimizer_end(uint64_t optimizer, int skipped, double learning_rate) {
  if (Probe* probe = Active()) probe->machine.OptimizerEnd(optimizer, skipped != 0, learning_rate);
}
[[gnu::hot]] int tt_gradients_cleared(uint64_t owner, int kept) {
  Probe* probe = Active();
  return probe != nullptr && probe->machine.GradientsCleared(owner, kept != 0) ? 1 : 0;
}
void tt_gradients_used(void) {
  if (Probe* probe = Active()) probe->machine.GradientsUsed();
}
void tt_acts(void) {
  if (Probe* probe = Active()) probe->machine.Acts();
}
[[gnu::hot]] void tt_phase_begin(tt_phase phase) {
  if (Probe* probe = Active()) probe->machine.PhaseBegin(phase);
}
[[gnu::hot]] void tt_phase_end(tt_phase phase) {
  if (Probe* probe = Active()) probe->machine.PhaseEnd(phase);
}
void tt_step(void) {
  if (Probe* probe = Stepping()) probe->machine.ExplicitStep();
}
void tt_finish(void) {
  if (Probe* probe = Active()) {
    probe->machine.Finish();
    probe->capture.Flush();
  }
}
int64_t tt_current_step(void) {
  Probe* probe = Active();
  return probe == nullptr ? -1 : probe->machine.train_step();
}

int tt_compute_stats(const void* data, uint64_t count, tt_dtype dtype, tt_stats* out) {
  if (data == nullptr && count > 0) return -1;
  return telltale::probe::ComputeStats(data, count, dtype, telltale::probe::BestKernels(), out);
}

int tt_wants_stats(uint32_t tensor) {
  Probe* probe = Active();
  if (probe == nullptr || (probe->capture.any_due() & TT_TAKE_STATS) == 0) return 0;
  // The plan goes by collections, which a plain name does not tell: any tensor's are its, too.
  if (!probe->producer.IsTensor(tensor)) return 1;
  return (probe->capture.DueNow(tensor) & TT_TAKE_STATS) != 0 ? 1 : 0;
}

void tt_record_stats(uint32_t tensor, uint32_t collection, const void* data, uint64_t count,
                     tt_dtype dtype) {
  Probe* probe = Active();
  if (probe == nullptr) return;
  const std::uint64_t begin = probe->producer.Now();
  probe->machine.BeginOwn(begin);
  tt_stats stats;
  if (tt_compute_stats(data, count, dtype, &stats) != 0) {
    probe->producer.CountSkipped("capture.dtype", 1);
    return;
  }
  probe->capture.RecordStats(tensor, collection, stats, dtype, probe->machine.step(),
                             probe->machine.mode());
  probe->machine.Account(begin);
}

[[gnu::hot]] uint64_t tt_windows_epoch(void) {
  Probe* probe = Active();
  return probe == nullptr ? 0 : probe->producer.WindowsSequence();
}

int32_t tt_windows(char* out, size_t room) {
  Probe* probe = Active();
  if (probe == nullptr || out == nullptr) return 0;
  std::size_t bytes = 0;
  return probe->producer.ReadWindows(out, room, &bytes) == 0 ? -1 : static_cast<int32_t>(bytes);
}

[[gnu::hot]] int tt_owns_steps(void) {
  Probe* probe = Active();
  return probe != nullptr && probe->machine.Owned() ? 1 : 0;
}

uint32_t tt_tensor(const char* collection, size_t collection_len, const char* name,
                   size_t name_len) {
  Probe* probe = Stepping();
  if (probe == nullptr || (collection == nullptr && collection_len > 0) ||
      (name == nullptr && name_len > 0)) {
    return 0;
  }
  constexpr char kMark = telltale::format::kTensorMark;
  // A collection is a word of an adapter; one that is longer is cut.
  constexpr std::size_t kMaxCollection = 256;
  if (collection_len > kMaxCollection) probe->producer.CountNameFolded();
  char head[kMaxCollection + 2];
  std::size_t used = 0;
  head[used++] = kMark;
  for (std::size_t i = 0; i < collection_len && i < kMaxCollection; ++i) {
    head[used++] = collection[i] == kMark ? '_' : collection[i];
  }
  head[used++] = kMark;
  if (name_len > telltale::format::kMaxTextBytes - used) probe->producer.CountNameFolded();
  char text[telltale::format::kMaxTextBytes];
  return probe->producer.Intern(text, telltale::channel::FitName(head, used, name, name_len, text));
}

[[gnu::hot]] uint32_t tt_due(uint32_t tensor, int64_t step, int mode) {
  Probe* probe = Active();
  if (probe == nullptr) return 0;
  if (step == TT_STEP_OPEN && mode < 0) {
    const std::uint32_t any = probe->capture.any_due();
    return tensor == 0 || any == 0 ? any : probe->capture.DueNow(tensor);
  }
  probe = Stepping();  // Who numbers its steps itself may never open one here.
  if (probe == nullptr) return 0;
  return probe->capture.DueAt(tensor, StepOf(*probe, step), ModeOf(*probe, mode));
}

uint32_t tt_record_tensor(uint32_t tensor, const tt_array* array, uint32_t take, int64_t step,
                          int mode) {
  Probe* probe = Active();
  if (probe == nullptr || array == nullptr || take == 0) return 0;
  const std::uint64_t begin = probe->producer.Now();
  probe->machine.BeginOwn(begin);
  const int saved = errno;
  const std::uint32_t recorded =
      probe->capture.Record(tensor, *array, take, StepOf(*probe, step), ModeOf(*probe, mode));
  errno = saved;
  probe->machine.Account(begin);
  return recorded;
}

void tt_record_computed(uint32_t tensor, const tt_stats* stats, tt_dtype dtype, int64_t step,
                        int mode) {
  Probe* probe = Active();
  if (probe == nullptr || stats == nullptr) return;
  if (tensor == 0) {  // The table of names was full.
    probe->producer.CountSkipped("", 1);
    return;
  }
  probe->capture.RecordStats(tensor, 0, *stats, dtype, StepOf(*probe, step), ModeOf(*probe, mode));
}

void tt_record_computed_more(uint32_t tensor, const tt_stats* stats, const tt_more_stats* more,
                             tt_dtype dtype, int64_t step, int mode) {
  Probe* probe = Active();
  if (probe == nullptr || stats == nullptr || more == nullptr) return;
  if (tensor == 0) {  // The table of names was full.
    probe->producer.CountSkipped("", 1);
    return;
  }
  probe->capture.RecordStats(tensor, 0, *stats, dtype, StepOf(*probe, step), ModeOf(*probe, mode),
                             more);
}

uint32_t tt_sample_size(uint32_t tensor, int64_t step, int mode) {
  Probe* probe = Active();
  if (probe == nullptr || tensor == 0) return 0;
  return SampleOf(probe->capture.SampleSize(tensor, StepOf(*probe, step), ModeOf(*probe, mode)));
}

int tt_record_sample(uint32_t tensor, const tt_array* sample, const tt_stats* stats, int64_t step,
                     int mode) {
  Probe* probe = Active();
  if (probe == nullptr || sample == nullptr || stats == nullptr) return 0;
  const std::uint64_t begin = probe->producer.Now();
  probe->machine.BeginOwn(begin);
  const int saved = errno;
  const bool taken = probe->capture.RecordSample(tensor, *sample, *stats, StepOf(*probe, step),
                                                 ModeOf(*probe, mode));
  errno = saved;
  probe->machine.Account(begin);
  return taken ? 1 : 0;
}

uint64_t tt_slab_bytes(void) {
  Probe* probe = Active();
  return probe == nullptr ? 0 : probe->capture.slab_bytes();
}

[[gnu::hot]] uint32_t tt_wanted(uint32_t tensor) {
  Probe* probe = Stepping();
  return probe == nullptr || tensor == 0 ? 0 : probe->capture.Wanted(tensor);
}

uint64_t tt_plan_epoch(void) {
  Probe* probe = Stepping();
  return probe == nullptr ? 0 : probe->capture.epoch();
}

int tt_current(int64_t* step) {
  Probe* probe = Active();
  if (step != nullptr) *step = probe == nullptr ? -1 : probe->machine.step();
  return probe == nullptr ? int{TT_MODE_GLOBAL} : int{probe->machine.mode()};
}

[[gnu::hot]] void tt_account(uint64_t begin) {
  if (Probe* probe = Active()) probe->machine.Account(begin);
}

void tt_count_skipped(uint32_t reason, uint64_t n) {
  if (Probe* probe = Active()) probe->producer.CountSkipped(reason, n);
}

}  // extern "C"
