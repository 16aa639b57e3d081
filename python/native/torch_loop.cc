// SPDX-License-Identifier: Apache-2.0
#include "torch_loop.h"

#include <array>
#include <cstdio>

#include "look_schedule.h"
#include "spans.h"
#include "state.h"
#include "torch_gradients.h"
#include "torch_optimizer.h"

namespace telltale::native {
namespace {

struct Looks {
  PyObject* on_mode = nullptr;        ///< (root, optimizer) it trains a root that has run -> True:
                                      ///< in eval mode
  PyObject* on_parameters = nullptr;  ///< (optimizer) it is about to step
  PyObject* on_loss_function = nullptr;  ///< (tensor, scaled: bool) a backward begins
  PyObject* on_backward = nullptr;       ///< () likewise
  PyObject* on_not_finite = nullptr;     ///< (tensor) a backward begins from a NaN or Inf
  PyObject* on_eval_loss = nullptr;      ///< (function or module, input, target) of an evaluation
  PyObject* on_scheduler = nullptr;      ///< (scheduler, number, calls, epoch given: bool)
  PyObject* on_graph = nullptr;          ///< (result) a root's forward with gradients has ended
  PyObject* on_compiled_backward = nullptr;  ///< () a backward begins that torch compiles
};
Looks g_looks;

/// Of the forwards some in a row are looked at, then none for a while: of several in a step each is
/// met.
constexpr std::uint8_t kGraphsInARow = 4;
constexpr std::uint64_t kGraphsEveryNs = 200'000'000;
/// Marks go with their graph, at its backward; some graphs wait until others have had theirs.
constexpr std::uint8_t kMarkedBackwards = 32;
/// A prime: of several losses that take turns it meets each.
constexpr std::uint64_t kLossEvery = 31;
/// Each backward that comes so much later than the last look is looked at.
constexpr std::uint64_t kLossAfterNs = LookSchedule::kAfterNs;
/// An evaluation often has a round number of batches: each 10th of them would be the same ones.
constexpr std::uint64_t kEvalEvery = 7;

PyObject* None() {
  Py_INCREF(Py_None);
  return Py_None;
}

/// Calls a callback of the adapter, outside of torch.compile. What it took is ours. Returns whether
/// it gave True.
[[gnu::cold]] bool Call(PyObject* callback, const char* where,
                        const std::array<PyObject*, 4>& arguments) {
  if (callback == nullptr) return false;
  const ErrorGuard guard;
  if (ModeEnabled()) return false;
  const OwnTime own;
  bool gave_true = false;
  {
    const OutsideCompiler outside;
    const Ref result(PyObject_CallFunctionObjArgs(callback, arguments[0], arguments[1],
                                                  arguments[2], arguments[3], nullptr));
    gave_true = result.get() == Py_True;
    if (!result) DisableByException(where);
  }
  own.Account();
  return gave_true;
}

// ---- modes ----

/// Roots whose forward ran with gradients since the last step, where that step is looked at.
struct Candidate {
  PyObject* root = nullptr;  ///< Owned weak reference.
  bool backward = false;     ///< One has begun since.
};
std::array<Candidate, 4> g_candidates;

/// What each step looks at, in one line of the cache.
struct alignas(64) Hot {
  std::size_t candidates = 0;
  std::uint64_t optimizer_steps = 0, backwards = 0, retained = 0;
  std::uint64_t loss_due = 0;  ///< From when on a loss is looked at whatever its number.
  LookSchedule mode_looks;
  std::uint64_t graphs_due = 0;
  bool mode_due = true;
  bool met_eval = false;         ///< The newest look at modes met a root in eval mode.
  std::uint8_t marked = 0;       ///< Backwards that may still be of a graph that was looked at.
  std::uint8_t graphs_left = 0;  ///< Of kGraphsInARow.
};
static_assert(sizeof(Hot) == 64);
Hot g_hot;

void ForgetCandidates() {
  for (std::size_t i = 0; i < g_hot.candidates; ++i) {
    const Ref root(g_candidates[i].root);
    g_candidates[i] = {};
  }
  g_hot.candidates = 0;
}

[[gnu::cold]] void TellModes(PyObject* optimizer) {
  g_hot.met_eval = false;
  for (std::size_t i = 0; i < g_hot.candidates; ++i) {
    PyObject* root = PyWeakref_GetObject(g_candidates[i].root);
    if (!g_candidates[i].backward || root == nullptr || root == Py_None) continue;
    Py_INCREF(root);
    const Ref kept(root);
    const bool evaluates = Call(g_looks.on_mode, "on_mode", {root, optimizer, nullptr, nullptr});
    g_hot.met_eval = g_hot.met_eval || evaluates;
  }
}

// ---- backward passes ----

std::uint64_t g_retained_told = 0;
bool g_not_finite_told = false;
std::uint64_t g_eval_losses = 0;

[[gnu::hot]] bool KeepsGraph(const CallArguments& call) {
  const std::size_t count = ArgCount(call.nargsf);
  // (tensors, gradients, retain_graph, ...), as Tensor.backward gives them.
  if (count > 2) return call.args[2] == Py_True;
  const Py_ssize_t named = call.kwnames == nullptr ? 0 : PyTuple_Size(call.kwnames);
  for (Py_ssize_t i = 0; i < named; ++i) {
    if (PyUnicode_CompareWithASCIIString(PyTuple_GetItem(call.kwnames, i), "retain_graph") == 0) {
      return call.args[count + static_cast<std::size_t>(i)] == Py_True;
    }
  }
  return false;
}

/// Whether torch compiles the backwards that begin now (compiled autograd), from the graphs and the
/// hooks that are on them. A Python without torch 2's compiler has not loaded the module.
bool CompilesBackward() {
  static PyObject* const module_name =
      PyUnicode_InternFromString("torch._dynamo.compiled_autograd");
  static PyObject* const flag = PyUnicode_InternFromString("compiled_autograd_enabled");
  if (module_name == nullptr || flag == nullptr) return false;
  const ErrorGuard guard;
  PyObject* module = PyDict_GetItemWithError(PyImport_GetModuleDict(), module_name);  // Borrowed.
  PyObject* on = module != nullptr && PyModule_Check(module) != 0
                     ? PyDict_GetItemWithError(PyModule_GetDict(module), flag)
                     : nullptr;
  if (on == nullptr) DropError();
  return on == Py_True;
}

[[gnu::cold]] void TellRetained() {
  g_retained_told = g_hot.retained;
  char data[96];
  const int length = std::snprintf(data, sizeof data, R"({"calls":%llu,"backwards":%llu})",
                                   static_cast<unsigned long long>(g_hot.retained),
                                   static_cast<unsigned long long>(g_hot.backwards));
  tt_event(tt_name("backward.retained", 17), TT_INFO, 0, nullptr, 0, data,
           static_cast<std::size_t>(length));
}

// ---- schedulers ----

struct Scheduler {
  PyObject* scheduler = nullptr;  ///< Owned weak reference; null: a free place.
  std::uint64_t calls = 0;
  bool epoch = false;  ///< It was given the epoch.
};
std::array<Scheduler, 8> g_schedulers;

void TellScheduler(const Scheduler& scheduler, PyObject* object) {
  const Ref number(PyLong_FromSsize_t(&scheduler - g_schedulers.data()));
  const Ref calls(PyLong_FromUnsignedLongLong(scheduler.calls));
  Call(g_looks.on_scheduler, "on_scheduler",
       {object, number.get(), calls.get(), scheduler.epoch ? Py_True : Py_False});
}

/// finish_loop(): the process ends; what is told then.
PyObject* FinishLoop(PyObject*, PyObject*) {
  if (g_recording != Recording::kOn) return None();
  if (g_hot.retained > g_retained_told) TellRetained();
  for (const Scheduler& scheduler : g_schedulers) {
    if (scheduler.scheduler == nullptr || scheduler.calls == 0) continue;
    PyObject* object = PyWeakref_GetObject(scheduler.scheduler);
    Py_INCREF(object);
    const Ref kept(object);
    TellScheduler(scheduler, object);
  }
  return None();
}

/// optimizer_steps(optimizer) -> how often it has stepped, None where that is not known.
PyObject* OptimizerSteps(PyObject*, PyObject* optimizer) {
  std::uint32_t steps = 0;
  return StepsOf(optimizer, &steps) ? PyLong_FromUnsignedLong(steps) : None();
}

/// configure_loop(**callbacks): see Looks.
PyObject* ConfigureLoop(PyObject*, PyObject*, PyObject* kwargs) {
  const Slot slots[] = {
      {"on_mode", &g_looks.on_mode},
      {"on_parameters", &g_looks.on_parameters},
      {"on_loss_function", &g_looks.on_loss_function},
      {"on_backward", &g_looks.on_backward},
      {"on_not_finite", &g_looks.on_not_finite},
      {"on_eval_loss", &g_looks.on_eval_loss},
      {"on_scheduler", &g_looks.on_scheduler},
      {"on_graph", &g_looks.on_graph},
      {"on_compiled_backward", &g_looks.on_compiled_backward},
  };
  if (!FillSlots("configure_loop", slots, kwargs)) return nullptr;
  return None();
}

}  // namespace

// What is done at few steps is cold, so that it lies apart from what is done at each.

[[gnu::cold]] static void AddCandidate(PyObject* module) {
  const ErrorGuard guard;
  std::size_t at = 0;
  while (at < g_hot.candidates && PyWeakref_GetObject(g_candidates[at].root) != module) ++at;
  if (at < g_hot.candidates || at == g_candidates.size()) return;
  PyObject* root = PyWeakref_NewRef(module, nullptr);
  if (root == nullptr) {
    DropError();
    return;
  }
  g_candidates[g_hot.candidates++] = {root, false};
}

[[gnu::cold]] static void LookAtGraph(PyObject* result, std::uint64_t now) {
  if (g_hot.graphs_left == 0) {
    g_hot.graphs_due = now + Ticks(kGraphsEveryNs);
    g_hot.graphs_left = kGraphsInARow;
  }
  --g_hot.graphs_left;
  g_hot.marked = kMarkedBackwards;
  Call(g_looks.on_graph, "on_graph", {result, nullptr, nullptr, nullptr});
}

/// A backward begins, maybe of a graph that has marks of ours. Of a graph without marks a compiled
/// backward finds nothing of ours.
[[gnu::cold]] static void MarkedBackward() {
  --g_hot.marked;
  if (g_looks.on_compiled_backward != nullptr && CompilesBackward()) {
    Call(g_looks.on_compiled_backward, "on_compiled_backward", {});
  }
}

[[gnu::cold]] static void LookAtLoss(PyObject* tensor, bool scaled, std::uint64_t now) {
  g_hot.loss_due = now + Ticks(kLossAfterNs);
  Call(g_looks.on_backward, "on_backward", {});
  Call(g_looks.on_loss_function, "on_loss_function",
       {tensor, scaled ? Py_True : Py_False, nullptr, nullptr});
}

void LoopForward(PyObject* module) {
  if (g_hot.mode_due) [[unlikely]]
    AddCandidate(module);
}

void LoopForwardEnded(PyObject* result) {
  if (g_looks.on_graph == nullptr) return;
  const std::uint64_t now = tt_now();
  if (g_hot.graphs_left > 0 || now >= g_hot.graphs_due) [[unlikely]]
    LookAtGraph(result, now);
}

[[gnu::hot]] void LoopBackward(const CallArguments& call, bool scaled) {
  const std::uint64_t seen = g_hot.backwards++;
  if (g_hot.marked > 0) [[unlikely]]
    MarkedBackward();
  for (std::size_t i = 0; i < g_hot.candidates; ++i) g_candidates[i].backward = true;
  if (KeepsGraph(call)) [[unlikely]] {
    if (g_hot.retained++ == 0) TellRetained();
  }
  if (ArgCount(call.nargsf) == 0) return;
  const std::uint64_t now = tt_now();
  const bool counted =
      seen < LookSchedule::kFirst || (seen < LookSchedule::kOften && seen % kLossEvery == 0);
  if (counted || now >= g_hot.loss_due) [[unlikely]]
    LookAtLoss(call.args[0], scaled, now);
}

void LoopNotFinite(PyObject* tensor) {
  if (g_not_finite_told) return;
  g_not_finite_told = true;
  Call(g_looks.on_not_finite, "on_not_finite", {tensor, nullptr, nullptr, nullptr});
}

void LoopEvalLoss(PyObject* called, PyObject* input, PyObject* target) {
  const std::uint64_t seen = g_eval_losses++;
  if (seen >= LookSchedule::kFirst && seen % kEvalEvery != 0) return;
  Call(g_looks.on_eval_loss, "on_eval_loss", {called, input, target, nullptr});
}

[[gnu::hot]] void LoopOptimizer(PyObject* optimizer) {
  std::uint32_t steps = 0;
  // The first three, then each time that there are twice as many.
  if (StepsOf(optimizer, &steps) && (steps < 3 || (steps >= 15 && (steps & (steps + 1)) == 0)))
      [[unlikely]] {
    Call(g_looks.on_parameters, "on_parameters", {optimizer, nullptr, nullptr, nullptr});
  }
  if (g_hot.candidates > 0) {
    TellModes(optimizer);
    ForgetCandidates();
  }
  g_hot.mode_due = g_hot.mode_looks.Due(++g_hot.optimizer_steps, g_hot.met_eval);
}

void LoopSchedule(const CallArguments& call) {
  const std::size_t count = ArgCount(call.nargsf);
  if (count == 0) return;
  const ErrorGuard guard;
  PyObject* object = call.args[0];
  Scheduler* scheduler = nullptr;
  Scheduler* free = nullptr;
  for (Scheduler& each : g_schedulers) {
    PyObject* known = each.scheduler != nullptr ? PyWeakref_GetObject(each.scheduler) : nullptr;
    if (known == object) scheduler = &each;
    if (known == nullptr && free == nullptr) free = &each;
  }
  if (scheduler == nullptr) {
    if (free == nullptr) return;
    PyObject* reference = PyWeakref_NewRef(object, nullptr);
    if (reference == nullptr) {
      DropError();
      return;
    }
    *free = {reference, 0, false};
    scheduler = free;
  }
  ++scheduler->calls;
  const Py_ssize_t named = call.kwnames == nullptr ? 0 : PyTuple_Size(call.kwnames);
  for (Py_ssize_t i = 0; i < named; ++i) {
    scheduler->epoch = scheduler->epoch || PyUnicode_CompareWithASCIIString(
                                               PyTuple_GetItem(call.kwnames, i), "epoch") == 0;
  }
  // step(epoch), but step(metrics) of the one that waits for a plateau: its adapter knows which.
  scheduler->epoch = scheduler->epoch || count > 1;
  if (scheduler->calls == 1 || scheduler->calls == 10 || scheduler->calls == 100) {
    TellScheduler(*scheduler, object);
  }
}

void ForgetLoop() {
  ForgetCandidates();
  for (Scheduler& scheduler : g_schedulers) {
    const Ref object(scheduler.scheduler);
    scheduler = {};
  }
  g_hot = {};
  g_retained_told = 0;
  g_not_finite_told = false;
  g_eval_losses = 0;
}

PyMethodDef g_torch_loop_functions[] = {
    {"configure_loop", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(ConfigureLoop)),
     METH_VARARGS | METH_KEYWORDS, "configure_loop(**callbacks)"},
    {"finish_loop", FinishLoop, METH_NOARGS, "finish_loop(): the process ends"},
    {"optimizer_steps", OptimizerSteps, METH_O, "optimizer_steps(optimizer) -> int or None"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace telltale::native
