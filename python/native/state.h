// SPDX-License-Identifier: Apache-2.0
//
// State of the binding in this process: whether records are wanted, and where each thread is.
//
// Ownership: the objects of Adapter are strong references that live until the process ends.
// Thread safety: everything here is touched with the GIL held; ThreadState belongs to its thread.
#pragma once

#include <string_view>

#include "py_api.h"
#include "telltale/probe.h"

namespace telltale::native {

/// kCold: nothing recorded yet; the first record registers the process (also after a fork).
enum class Recording { kCold, kOn, kOff };

/// Where the calling thread stands; each hook only acts at its outermost call.
struct ThreadState {
  std::int64_t module_depth = 0;  ///< Module calls on the stack.
  /// Depth that counts as outside (raised by a fork inside one, and where one trains).
  std::int64_t module_base = 0;
  std::int64_t root_size = 0;  ///< Samples in the root's forward that runs.
  bool root_open = false;      ///< The forward of a root runs that has not begun a backward.
  int backward_depth = 0;
  int optimizer_depth = 0;
  bool in_scaler = false;       ///< Inside GradScaler.step, which records the optimizer's call.
  bool scaler_stepped = false;  ///< The optimizer did run inside it.
  bool trains = false;          ///< Has begun a backward, or called an optimizer, of its own.
  int next_depth = 0;
  int wait_depth = 0;
  int schedule_depth = 0;
  int loss_depth = 0;  ///< Calls of loss modules on the stack.
  int move_depth = 0;  ///< Inside of Tensor.to, which a mode may call again, or of a tracer.
  int watching = 0;    ///< Inside a root's forward whose calls the adapter is told; kWatch bits.
  PyObject* timed[8] = {};  ///< Names of the timed calls on the stack; borrowed.
  int timed_count = 0;
  std::uint64_t recorded_ticks = 0;  ///< Spent in records that account for themselves.
};

/// What the framework's adapter gave us (None or null: not there).
struct Adapter {
  PyObject* on_wake = nullptr;       ///< (kind_hint: int, forked: bool) -> kind or -1
  PyObject* on_awake = nullptr;      ///< (kind) the process is registered
  PyObject* on_root = nullptr;       ///< (module) first call of a root module
  PyObject* on_eval = nullptr;       ///< (module) first forward of a root module without gradient
  PyObject* on_optimizer = nullptr;  ///< (optimizer) first step of an optimizer
  PyObject* on_stats = nullptr;      ///< (optimizer) something is due
  PyObject* on_loader = nullptr;     ///< (loader) an iterator was asked for
  PyObject* on_group = nullptr;      ///< () a process group was made
  PyObject* on_border = nullptr;     ///< (step, mode, said) a step begins; windows.h
  PyObject* on_queue = nullptr;      ///< (iterator) -> whether the batch is ready; one is
                                     ///< fetched; ten times a second at most
  PyObject* on_second = nullptr;     ///< (None) a step of training begins; once a second at most
  PyObject* on_manual = nullptr;     ///< (root) -> [(weak reference to a module, name)]: parameters
                                     ///< to look at, where no optimizer steps
  PyObject* on_gradient = nullptr;   ///< (gradient, ticket) -> answer_gradient, later
  PyObject* on_scale = nullptr;      ///< (scaler) its scale may have changed
  PyObject* on_item = nullptr;       ///< (facts) an item of a batch took far longer than others
  PyObject* on_again = nullptr;      ///< (facts) one of the few items that are compared was made
  PyObject* length_of = nullptr;     ///< (data set) -> how many items it has, or None
  PyObject* on_fetch = nullptr;      ///< (begins: bool) a long fetch begins -> 1 where it is
                                     ///< profiled; such a one has ended -> nanoseconds of ours
  PyObject* on_fetched = nullptr;    ///< (fetcher) it has made a batch; once a second at most
  PyObject* decorate = nullptr;      ///< (name, function) -> function inside a span
  PyObject* on_device_loss = nullptr;  ///< (tensor) loss that is not in main memory
  PyObject* on_device_eval = nullptr;  ///< (tensor) the same of an evaluation
  PyObject* grad_enabled = nullptr;    ///< () -> bool
  PyObject* function_mode = nullptr;   ///< () -> bool: torch gives its calls to a mode first.
  PyObject* float32 = nullptr;         ///< The dtype of that name.
  PyTypeObject* tensor_type = nullptr;
  PyTypeObject* loss_type = nullptr;  ///< Base class of loss modules.
  PyTypeObject* user_dict_type = nullptr;
};

extern Recording g_recording;
extern bool g_forked;          ///< In a child by fork that has not registered yet.
extern bool g_fetch_seen;      ///< A data loader tells batch sizes.
extern bool g_acts;            ///< An agent acts in an environment.
extern bool g_acts_untold;     ///< The event that says so is still to be written.
extern bool g_machine_owned;   ///< A thread has begun to drive the step machine.
extern std::uint32_t g_epoch;  ///< Changes whenever name ids become invalid.
extern bool g_worker;          ///< A data loader's worker: spans only, no steps.
extern int g_backwards;        ///< Backward passes that threads which train are in.
extern Adapter g_adapter;

/// Ids of the names that hooks use, valid while g_recording is kOn.
struct Names {
  std::uint32_t fetch = 0;
  std::uint32_t loss = 0;
  std::uint32_t gc = 0;
  std::uint32_t gc_ms = 0;
  std::uint32_t evaluation = 0;
  std::uint32_t sample = 0;
};
extern Names g_names;
/// Counts one thing that was wanted and not recorded.
inline void Skipped(std::string_view reason) {
  tt_count_skipped(tt_name(reason.data(), reason.size()), 1);
}
/// Text to name id, for names given by the user. A new process starts with an empty one.
extern PyObject* g_name_ids;

/// Whether a cache may keep a name. What is long, or more than a str, is looked up each time: the
/// cache would keep all of it.
inline bool MayKeep(PyObject* text) {
  constexpr Py_ssize_t kMaxLength = 256;
  return Py_TYPE(text) == &PyUnicode_Type && PyUnicode_GetLength(text) <= kMaxLength;
}
/// Id of a name, through the cache. False with an exception set where `text` is not a str.
bool NameId(PyObject* text, std::uint32_t* id);

ThreadState& ThisThread();

/// Time that is ours from `begin` on; what is recorded in between accounts for itself. Belongs to
/// its thread.
class OwnTime {
 public:
  OwnTime() : OwnTime(tt_now(), ThisThread().recorded_ticks) {}
  /// `recorded`: recorded_ticks at `begin`.
  OwnTime(std::uint64_t begin, std::uint64_t recorded)
      : thread_(ThisThread()), begin_(begin), recorded_(recorded) {}
  void Account() const {
    tt_account(begin_ + (thread_.recorded_ticks - recorded_));
    // All of it is accounted for by now, for a caller that measures around it.
    const std::uint64_t now = tt_now();
    if (now > begin_) thread_.recorded_ticks = recorded_ + (now - begin_);
  }

 private:
  ThreadState& thread_;
  std::uint64_t begin_;
  std::uint64_t recorded_;
};

[[gnu::cold]] bool WakeUp(tt_process_kind hint);
/// True when a record made now would be kept. Registers the process at its first record.
inline bool Ready(tt_process_kind hint) {
  if (g_recording == Recording::kOn) [[likely]]
    return true;
  if (g_recording == Recording::kOff) return false;
  return WakeUp(hint);
}

/// Whether the calling thread may drive the step machine: any once one has begun, before only the
/// main one (a thread that only prefetches must not become the owner).
bool MayFetch();
/// Whether the calling thread works for a backward pass of another one: autograd has threads of its
/// own for devices, on which checkpointed modules run again. What they do is part of that pass.
bool HelpsBackward();

/// Clears the pending exception, if any; an interrupt is passed on as by DisableByException.
void DropError();
/// A hook of ours failed with the pending Python exception: clears it, switches the probe off for
/// good and records why. `where`: the hook's name. An interrupt (KeyboardInterrupt, SystemExit of a
/// signal handler) is no failure: it is raised again in the user's code.
[[gnu::cold]] void DisableByException(const char* where);
[[gnu::cold]] void Disable(const char* reason);

/// Calls a callback of the adapter; a failure of it disables us. Keeps a pending exception.
[[gnu::cold]] void CallAdapter(PyObject* callback, PyObject* argument, const char* where);

/// The process was forked and this is the child.
void AfterForkInChild();

}  // namespace telltale::native
