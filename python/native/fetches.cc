// SPDX-License-Identifier: Apache-2.0
#include "fetches.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "spans.h"
#include "state.h"
#include "torch_capture.h"

namespace telltale::native {
namespace {

/// Counters are read around one fetch in this time.
constexpr std::uint64_t kLookEveryNs = 100'000'000;
/// The first of a process imports, opens and connects: it says nothing of those that follow.
constexpr std::uint64_t kWarmUp = 1;
/// Workers that are started anew for each epoch live for a few fetches.
constexpr std::uint64_t kFirstTell = 2;
constexpr std::uint64_t kTellEveryNs = 1'000'000'000;
constexpr std::uint64_t kTellAtLeastEveryNs = 30'000'000'000;
/// Hand-overs of which one is told first, and the newest that are kept.
constexpr std::uint64_t kFirstHandOvers = 8;
constexpr std::size_t kHandOversKept = 64;
/// Fetches that take this long are worth a profile.
constexpr std::uint64_t kLeastProfiledNs = 1'000'000;
constexpr int kMaxBatchDepth = 3;
constexpr Py_ssize_t kMaxBatchParts = 64;

struct Sums {
  std::uint64_t fetches, items;
  std::uint64_t wall_ns, cpu_ns, items_ns, collate_ns;
  // Of the fetches that were looked at:
  std::uint64_t looked, looked_wall_ns, looked_cpu_ns;
  std::int64_t process_cpu_ns, run_delay_ns, read_calls, read_bytes, storage_bytes;
  std::uint64_t batch_bytes, batch_tensors;
};

struct State {
  std::uint64_t seen;
  std::uint64_t began, look_due, tell_due, profile_due;
  std::uint64_t newest_ns;  ///< The fetch before.
  Sums sums;
  std::uint64_t hand_overs;
  std::uint64_t hand_over_ns[kHandOversKept];
};
State g_state;

std::int64_t ClockNs(clockid_t clock) {
  timespec now{};
  if (::clock_gettime(clock, &now) != 0) return -1;
  return std::int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

/// The text of a small file of /proc, ended by a zero; its length, 0 where it cannot be read.
std::size_t ReadSmall(const char* path, char* text, std::size_t room) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = ::read(file, text, room - 1);
  ::close(file);
  if (length <= 0) return 0;
  text[length] = 0;
  return static_cast<std::size_t>(length);
}

std::int64_t NumberAfter(const char* text, const char* key) {
  const char* at = std::strstr(text, key);
  return at == nullptr ? -1 : std::strtoll(at + std::strlen(key), nullptr, 10);
}

void ReadRunDelay(KernelCounters* counters) {
  char text[128];
  // Time on a core, time in the queue of one, slices.
  if (ReadSmall("/proc/thread-self/schedstat", text, sizeof text) == 0) return;
  if (const char* space = std::strchr(text, ' '); space != nullptr) {
    counters->run_delay_ns = std::strtoll(space, nullptr, 10);
  }
}

/// Of the process.
void ReadStorage(KernelCounters* counters) {
  char text[256];
  if (ReadSmall("/proc/self/io", text, sizeof text) == 0) return;
  counters->storage_bytes = NumberAfter(text, "\nread_bytes: ");
}

/// Of the thread: others read the pipes and sockets by which batches are handed over. `own`: what
/// the reading itself adds to the counters afterwards.
void ReadThreadReads(KernelCounters* counters, std::size_t* own) {
  char text[256];
  *own = ReadSmall("/proc/thread-self/io", text, sizeof text);
  if (*own == 0) return;
  counters->read_bytes = NumberAfter(text, "rchar: ");
  counters->read_calls = NumberAfter(text, "syscr: ");
}

KernelCounters Before() {
  KernelCounters counters;
  ReadRunDelay(&counters);
  ReadStorage(&counters);
  std::size_t own = 0;
  ReadThreadReads(&counters, &own);
  if (own > 0) {
    counters.read_bytes += static_cast<std::int64_t>(own);
    ++counters.read_calls;
  }
  counters.process_cpu_ns = ClockNs(CLOCK_PROCESS_CPUTIME_ID);
  return counters;
}

KernelCounters After() {
  KernelCounters counters;
  counters.process_cpu_ns = ClockNs(CLOCK_PROCESS_CPUTIME_ID);
  std::size_t own = 0;
  ReadThreadReads(&counters, &own);
  ReadStorage(&counters);
  ReadRunDelay(&counters);
  return counters;
}

/// Adds what a counter has grown by; -1 from then on where it could not be read.
void Grow(std::int64_t* sum, std::int64_t before, std::int64_t after) {
  if (*sum < 0 || before < 0 || after < 0) {
    *sum = -1;
  } else {
    *sum += std::max<std::int64_t>(0, after - before);
  }
}

/// Bytes and number of the tensors in a batch: in lists, tuples and dicts.
void AddBatch(PyObject* part, int depth, Sums* sums) {
  if (Py_TYPE(part) == g_adapter.tensor_type) {
    Ref elements(PyObject_CallMethod(part, "numel", nullptr));
    Ref size(elements ? PyObject_CallMethod(part, "element_size", nullptr) : nullptr);
    const unsigned long long bytes =
        size ? PyLong_AsUnsignedLongLong(elements.get()) * PyLong_AsUnsignedLongLong(size.get())
             : 0;
    if (PyErr_Occurred() != nullptr) {
      DropError();
      return;
    }
    sums->batch_bytes += bytes;
    ++sums->batch_tensors;
    return;
  }
  if (depth == 0) return;
  if (PyTuple_Check(part) != 0 || PyList_Check(part) != 0) {
    const bool tuple = PyTuple_Check(part) != 0;
    const Py_ssize_t size = tuple ? PyTuple_Size(part) : PyList_Size(part);
    for (Py_ssize_t i = 0; i < std::min(size, kMaxBatchParts); ++i) {
      PyObject* each = tuple ? PyTuple_GetItem(part, i) : PyList_GetItem(part, i);
      if (each == nullptr) {
        DropError();
        return;
      }
      Py_INCREF(each);
      const Ref kept(each);
      AddBatch(each, depth - 1, sums);
    }
  } else if (PyDict_Check(part) != 0) {
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t position = 0;
    for (Py_ssize_t i = 0; i < kMaxBatchParts && PyDict_Next(part, &position, &key, &value) != 0;
         ++i) {
      Py_INCREF(value);
      const Ref kept(value);
      AddBatch(value, depth - 1, sums);
    }
  }
}

void TellEvent(const char* kind, const char* data, int length) {
  if (length <= 0) return;
  tt_event(tt_name(kind, std::strlen(kind)), TT_INFO, tt_name("loader", 6), nullptr, 0, data,
           static_cast<std::size_t>(length));
}

void Tell() {
  const Sums& s = g_state.sums;
  char text[768];
  const int length = std::snprintf(
      text, sizeof text,
      "{\"fetches\":%llu,\"items\":%llu,\"wall_ns\":%llu,\"cpu_ns\":%llu,\"items_ns\":%llu,"
      "\"collate_ns\":%llu,\"looked\":%llu,\"looked_wall_ns\":%llu,\"looked_cpu_ns\":%llu,"
      "\"process_cpu_ns\":%lld,\"run_delay_ns\":%lld,\"read_calls\":%lld,\"read_bytes\":%lld,"
      "\"storage_bytes\":%lld,\"batch_bytes\":%llu,\"batch_tensors\":%llu}",
      static_cast<unsigned long long>(s.fetches), static_cast<unsigned long long>(s.items),
      static_cast<unsigned long long>(s.wall_ns), static_cast<unsigned long long>(s.cpu_ns),
      static_cast<unsigned long long>(s.items_ns), static_cast<unsigned long long>(s.collate_ns),
      static_cast<unsigned long long>(s.looked), static_cast<unsigned long long>(s.looked_wall_ns),
      static_cast<unsigned long long>(s.looked_cpu_ns), static_cast<long long>(s.process_cpu_ns),
      static_cast<long long>(s.run_delay_ns), static_cast<long long>(s.read_calls),
      static_cast<long long>(s.read_bytes), static_cast<long long>(s.storage_bytes),
      static_cast<unsigned long long>(s.batch_bytes),
      static_cast<unsigned long long>(s.batch_tensors));
  if (length < static_cast<int>(sizeof text)) TellEvent("dataloader.fetches", text, length);
}

/// Calls on_fetch, and returns the number that it gives; 0 where it gives none.
long AskProfile(PyObject* begins) {
  ErrorGuard guard;
  const OutsideCompiler outside;
  Ref answer(PyObject_CallFunctionObjArgs(g_adapter.on_fetch, begins, nullptr));
  if (!answer) {
    DisableByException("on_fetch");
    return 0;
  }
  const long number = answer.get() == Py_None ? 0 : PyLong_AsLong(answer.get());
  DropError();
  return number;
}

/// Whether the fetch that begins is profiled.
bool BeginProfile() {
  if (g_adapter.on_fetch == nullptr) return false;
  const std::uint64_t now = tt_now();
  if (now < g_state.profile_due) return false;
  g_state.profile_due = now + Ticks(kLookEveryNs);
  const OwnTime own;
  const bool begun = AskProfile(Py_True) > 0;
  own.Account();
  return begun;
}

void EndProfile() {
  const OwnTime own;
  const long cost_ns = g_adapter.on_fetch == nullptr ? 0 : AskProfile(Py_False);
  own.Account();
  // What it did within the fetch.
  const std::uint64_t ticks = Ticks(static_cast<std::uint64_t>(std::max(0L, cost_ns)));
  tt_account(tt_now() - ticks);
}

}  // namespace

void ForgetFetches() { g_state = {}; }

void TookHandOver(std::uint64_t ticks) {
  g_state.hand_over_ns[g_state.hand_overs++ % kHandOversKept] = Nanoseconds(ticks);
  const std::uint64_t count = g_state.hand_overs;
  // The first ones, then after twice as many each time, and at least each thousand.
  const bool tell = count == kFirstHandOvers ||
                    (count > kFirstHandOvers && (count & (count - 1)) == 0) || count % 1024 == 0;
  if (!tell) return;
  std::uint64_t sorted[kHandOversKept];
  const std::size_t kept = std::min<std::uint64_t>(count, kHandOversKept);
  std::copy_n(g_state.hand_over_ns, kept, sorted);
  std::sort(sorted, sorted + kept);
  char text[128];
  const int length = std::snprintf(
      text, sizeof text, "{\"batches\":%llu,\"low_ns\":%llu,\"median_ns\":%llu}",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(sorted[kept / 4]),
      static_cast<unsigned long long>(sorted[kept / 2]));
  TellEvent("dataloader.handover", text, length);
}

FetchCost::FetchCost()
    : profiled_(g_state.seen > kWarmUp && g_state.newest_ns >= kLeastProfiledNs && BeginProfile()),
      looked_(!profiled_ && g_state.seen >= kWarmUp && tt_now() >= g_state.look_due),
      cpu_ns_(0) {
  if (looked_) {
    const OwnTime own;
    counters_ = Before();
    own.Account();
  }
  cpu_ns_ = ClockNs(CLOCK_THREAD_CPUTIME_ID);
}

FetchCost::~FetchCost() {
  if (profiled_) EndProfile();
}

void FetchCost::End(std::uint64_t begin, std::uint64_t end, const WatchedItems& items,
                    PyObject* batch) {
  const std::int64_t cpu_ns = ClockNs(CLOCK_THREAD_CPUTIME_ID) - cpu_ns_;
  const OwnTime own;
  Take(begin, end, cpu_ns, items, batch);
  if (looked_) own.Account();
  g_state.newest_ns = Nanoseconds(end - begin);
}

void FetchCost::Take(std::uint64_t begin, std::uint64_t end, std::int64_t cpu_ns,
                     const WatchedItems& items, PyObject* batch) {
  const KernelCounters after = looked_ ? After() : KernelCounters();
  if (g_state.seen++ == 0) g_state.began = end;
  // One under a profile took longer than it does.
  if (g_state.seen <= kWarmUp || profiled_) return;
  Sums& sums = g_state.sums;
  const auto cpu = static_cast<std::uint64_t>(std::max<std::int64_t>(0, cpu_ns));
  ++sums.fetches;
  sums.wall_ns += Nanoseconds(end - begin);
  sums.cpu_ns += cpu;
  sums.items += items.count();
  // Without single items (a data set that gives whole batches) all of it is theirs.
  const std::uint64_t last = items.count() > 0 ? std::clamp(items.last(), begin, end) : end;
  sums.items_ns += Nanoseconds(last - begin);
  sums.collate_ns += Nanoseconds(end - last);
  if (looked_) {
    ++sums.looked;
    sums.looked_wall_ns += Nanoseconds(end - begin);
    sums.looked_cpu_ns += cpu;
    Grow(&sums.process_cpu_ns, counters_.process_cpu_ns, after.process_cpu_ns);
    Grow(&sums.run_delay_ns, counters_.run_delay_ns, after.run_delay_ns);
    Grow(&sums.read_calls, counters_.read_calls, after.read_calls);
    Grow(&sums.read_bytes, counters_.read_bytes, after.read_bytes);
    Grow(&sums.storage_bytes, counters_.storage_bytes, after.storage_bytes);
    ErrorGuard guard;
    AddBatch(batch, kMaxBatchDepth, &sums);
    g_state.look_due = end + Ticks(kLookEveryNs);
  }
  if (sums.looked == 0) return;
  if (g_state.seen != kFirstTell + kWarmUp && end < g_state.tell_due) return;
  Tell();
  sums = {};
  g_state.look_due = 0;
  g_state.tell_due =
      end + std::clamp((end - g_state.began) / 20, Ticks(kTellEveryNs), Ticks(kTellAtLeastEveryNs));
}

}  // namespace telltale::native
