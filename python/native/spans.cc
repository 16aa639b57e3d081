// SPDX-License-Identifier: Apache-2.0
#include "spans.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "state.h"
#include "torch_capture.h"

namespace telltale::native {

bool g_evaluating = false;
std::uint64_t g_newest_fetch = 0;
std::uint64_t g_queue_due = std::numeric_limits<std::uint64_t>::max();
std::uint64_t g_second_due = std::numeric_limits<std::uint64_t>::max();
std::uint64_t g_fetched_due = std::numeric_limits<std::uint64_t>::max();

namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
/// A pause of the garbage collector below this is only part of its step's sum.
constexpr std::uint64_t kLeastPauseNs = 1'000'000;
constexpr std::uint64_t kQueueEveryNs = 100'000'000;
constexpr std::uint64_t kSecondNs = 1'000'000'000;

std::uint64_t MonotonicNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

/// A reading of both clocks when the binding was loaded: how fast the channel's goes, and where a
/// time of the other lies on it.
struct Anchor {
  std::uint64_t ticks = 0;
  std::uint64_t ns = 0;
};
Anchor g_anchor;

double TicksPerNs() {
  const std::uint64_t ns = MonotonicNs() - g_anchor.ns;
  const std::uint64_t ticks = tt_now() - g_anchor.ticks;
  return ns == 0 ? 1 : static_cast<double>(ticks) / static_cast<double>(ns);
}

// ---- kept until the process registers ----

struct Kept {
  PyObject* name;  ///< Owned.
  std::uint64_t begin, end;
  tt_span_category category;
  std::uint64_t between = 0;  ///< Of a joined one: time in which it did not read.
};
std::array<Kept, 64> g_kept;
/// Calls that read files are kept as one span while less than this part of it passes between them.
/// Of each name so many are kept, the longest: a data set of many files must not take the room of
/// all else.
constexpr const char* kReads = "read";
constexpr std::uint64_t kBetweenReads = 8;
constexpr std::ptrdiff_t kMostOfName = 16;
std::size_t g_kept_count = 0;

bool IsRead(PyObject* name) { return PyUnicode_CompareWithASCIIString(name, kReads) == 0; }

/// Whether the newest span that is kept is of reading too and now goes on to `end`.
bool JoinRead(std::uint64_t begin, std::uint64_t end) {
  if (g_kept_count == 0) return false;
  Kept& newest = g_kept[g_kept_count - 1];
  if (!IsRead(newest.name) || begin < newest.begin) return false;
  // Of threads they overlap.
  const std::uint64_t last = std::max(end, newest.end);
  const std::uint64_t between = newest.between + (begin > newest.end ? begin - newest.end : 0);
  if (between >= (last - newest.begin) / kBetweenReads) return false;
  newest.end = last;
  newest.between = between;
  return true;
}

/// Makes room for a span of this name that took `ticks`, if need be by the shortest of its name. A
/// short one of reading takes it too: those that follow may make it the longest.
bool RoomFor(PyObject* name, std::uint64_t ticks) {
  const auto end = g_kept.begin() + static_cast<std::ptrdiff_t>(g_kept_count);
  auto shortest = end;
  std::ptrdiff_t of_name = 0;
  for (auto kept = g_kept.begin(); kept != end; ++kept) {
    if (kept->name != name && PyUnicode_Compare(kept->name, name) != 0) continue;
    ++of_name;
    if (shortest == end || kept->end - kept->begin < shortest->end - shortest->begin) {
      shortest = kept;
    }
  }
  if (of_name < kMostOfName && g_kept_count < g_kept.size()) return true;
  if (shortest == end) return false;
  if (!IsRead(name) && shortest->end - shortest->begin >= ticks) return false;
  Py_DECREF(shortest->name);
  std::move(shortest + 1, end, shortest);
  --g_kept_count;
  return true;
}

// ---- the garbage collector ----

struct Collector {
  std::uint64_t begin = 0;  ///< Of the pause that is on; 0: none.
  std::uint64_t sum = 0;    ///< Of the pauses of the step.
  std::int64_t step = -1;
  int mode = TT_MODE_GLOBAL;
};
Collector g_collector;

void TellCollected() {
  const auto ns = static_cast<double>(g_collector.sum) / TicksPerNs();
  if (g_collector.step >= 0 && ns >= static_cast<double>(kLeastPauseNs)) {
    tt_scalar_at(g_names.gc_ms, ns / 1e6, g_collector.step, static_cast<tt_mode>(g_collector.mode));
  }
  g_collector.sum = 0;
}

/// collected(phase, info): one of gc.callbacks. Never raises, makes no object.
PyObject* Collected(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs > 0 && g_recording == Recording::kOn && PyUnicode_Check(args[0])) {
    static std::uint64_t least = 0;
    if (PyUnicode_CompareWithASCIIString(args[0], "start") == 0) {
      g_collector.begin = tt_now();
    } else if (g_collector.begin != 0) {
      const std::uint64_t begin = g_collector.begin;
      const std::uint64_t end = tt_now();
      g_collector.begin = 0;
      if (least == 0) least = Ticks(kLeastPauseNs);
      if (end - begin >= least) tt_span(g_names.gc, begin, end, TT_SPAN_RUNTIME);
      std::int64_t step = -1;
      const int mode = tt_current(&step);
      if (step != g_collector.step || mode != g_collector.mode) {
        if (g_collector.sum >= least) TellCollected();
        g_collector.sum = 0;
        g_collector.step = step;
        g_collector.mode = mode;
      }
      g_collector.sum += end - begin;
    }
  }
  Py_INCREF(Py_None);
  return Py_None;
}

// ---- evaluations ----

struct Evaluation {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t forwards = 0;
};
Evaluation g_evaluation;

bool Number(PyObject* object, unsigned long long* out) {
  *out = PyLong_AsUnsignedLongLong(object);
  return PyErr_Occurred() == nullptr;
}

bool Category(PyObject* object, tt_span_category* out) {
  const long value = PyLong_AsLong(object);
  *out = static_cast<tt_span_category>(value & 3);
  return PyErr_Occurred() == nullptr;
}

PyObject* Spanned(PyObject* const* args, Py_ssize_t nargs, const char* call, bool ns) {
  unsigned long long begin = 0, end = 0;
  tt_span_category category = TT_SPAN_RUNTIME;
  if (nargs != 4 || PyUnicode_Check(args[0]) == 0) {
    PyErr_Format(PyExc_TypeError, "_probe.%s takes name, begin, end, category", call);
    return nullptr;
  }
  if (!Number(args[1], &begin) || !Number(args[2], &end) || !Category(args[3], &category)) {
    return nullptr;
  }
  if (ns) {
    const double slope = TicksPerNs();
    const auto to_ticks = [&](unsigned long long time) {
      const auto since = static_cast<double>(static_cast<std::int64_t>(time - g_anchor.ns));
      return g_anchor.ticks + static_cast<std::uint64_t>(std::llround(since * slope));
    };
    begin = to_ticks(begin);
    end = to_ticks(end);
  }
  if (end >= begin) RecordSpan(args[0], begin, end, category);
  Py_INCREF(Py_None);
  return Py_None;
}

/// span_at(name, begin, end, category): times of now().
PyObject* SpanAt(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  return Spanned(args, nargs, "span_at", false);
}

/// span_ns(name, begin, end, category): times of time.monotonic_ns().
PyObject* SpanNs(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  return Spanned(args, nargs, "span_ns", true);
}

PyCFunction Fast(FastFunction function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef g_span_functions[] = {
    {"collected", Fast(Collected), METH_FASTCALL, "collected(phase, info): one of gc.callbacks"},
    {"span_at", Fast(SpanAt), METH_FASTCALL, "span_at(name, begin, end, category), of now()"},
    {"span_ns", Fast(SpanNs), METH_FASTCALL,
     "span_ns(name, begin, end, category), of time.monotonic_ns()"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

std::uint64_t Ticks(std::uint64_t ns) {
  return static_cast<std::uint64_t>(static_cast<double>(ns) * TicksPerNs());
}

std::uint64_t Nanoseconds(std::uint64_t ticks) {
  return static_cast<std::uint64_t>(static_cast<double>(ticks) / TicksPerNs());
}

void RecordSpan(PyObject* name, std::uint64_t begin, std::uint64_t end, tt_span_category category) {
  if (g_recording == Recording::kOff) return;
  if (g_recording == Recording::kCold) {
    if (IsRead(name) && JoinRead(begin, end)) return;
    if (!RoomFor(name, end - begin)) return;
    Py_INCREF(name);
    g_kept[g_kept_count++] = {name, begin, end, category};
    return;
  }
  ErrorGuard guard;
  std::uint32_t id = 0;
  if (NameId(name, &id)) {
    tt_span(id, begin, end, category);
  } else {
    DropError();
  }
}

void SpansAwake() {
  g_names.gc = tt_name("gc", 2);
  g_names.gc_ms = tt_name("gc_ms", 5);
  g_names.evaluation = tt_name("evaluation", 10);
  g_names.sample = tt_name("sample", 6);
  const std::size_t count = g_kept_count;
  g_kept_count = 0;
  for (std::size_t i = 0; i < count; ++i) {
    RecordSpan(g_kept[i].name, g_kept[i].begin, g_kept[i].end, g_kept[i].category);
    Py_DECREF(g_kept[i].name);
  }
  RenewSamplers();
}

void ForgetSpans() {
  for (std::size_t i = 0; i < g_kept_count; ++i) Py_DECREF(g_kept[i].name);
  g_kept_count = 0;
  g_collector = {};
  g_evaluation = {};
  g_evaluating = false;
}

void FinishSpans() {
  if (g_recording != Recording::kOn) return;
  if (g_evaluating) {
    g_newest_fetch = kNever;  // Nothing follows: it was no pass beside a step's own.
    EndEvaluation();
    g_newest_fetch = 0;
  }
  if (g_collector.sum != 0) TellCollected();
}

void EvaluationForward(std::uint64_t begin, std::uint64_t end) {
  if (tt_owns_steps() == 0) return;
  if (!g_evaluating) {
    g_evaluating = true;
    // Its first batch, where the wait for that was the last thing before.
    const bool fetched = g_newest_fetch != 0 && g_newest_fetch > g_evaluation.end;
    g_evaluation = {fetched ? g_newest_fetch : begin, end, 0};
  }
  g_evaluation.end = end;
  ++g_evaluation.forwards;
}

void EndEvaluation() {
  g_evaluating = false;
  // A teacher's or a generator's pass over the batch that is trained on next is no evaluation.
  const bool apart = g_fetch_seen ? g_newest_fetch > g_evaluation.end : g_evaluation.forwards > 1;
  if (apart) tt_span(g_names.evaluation, g_evaluation.begin, g_evaluation.end, TT_SPAN_RUNTIME);
}

bool SampleQueue(PyObject* iterator, std::uint64_t now) {
  g_queue_due = now + Ticks(kQueueEveryNs);
  if (tt_owns_steps() == 0 && g_machine_owned) return false;
  if (g_adapter.on_queue == nullptr) return false;
  const OwnTime own;
  bool ready = false;
  {
    ErrorGuard guard;
    const OutsideCompiler outside;
    Ref answer(PyObject_CallFunctionObjArgs(g_adapter.on_queue, iterator, nullptr));
    if (!answer) {
      DisableByException("on_queue");
    } else {
      ready = answer.get() == Py_True;
    }
  }
  own.Account();
  return ready;
}

void SampleSecond(std::uint64_t now) {
  g_second_due = now + Ticks(kSecondNs);
  if (tt_owns_steps() == 0) return;
  const OwnTime own;
  CallAdapter(g_adapter.on_second, Py_None, "on_second");
  own.Account();
}

void SampleFetcher(PyObject* fetcher, std::uint64_t now) {
  g_fetched_due = now + Ticks(kSecondNs);
  const OwnTime own;
  CallAdapter(g_adapter.on_fetched, fetcher, "on_fetched");
  own.Account();
}

void RenewSamplers() {
  g_fetched_due = g_adapter.on_fetched != nullptr ? 0 : kNever;
  g_queue_due = g_adapter.on_queue != nullptr ? 0 : kNever;
  g_second_due = g_adapter.on_second != nullptr ? 0 : kNever;
}

bool AddSpanFunctions(PyObject* module) {
  g_anchor = {tt_now(), MonotonicNs()};
  return PyModule_AddFunctions(module, g_span_functions) == 0;
}

}  // namespace telltale::native
