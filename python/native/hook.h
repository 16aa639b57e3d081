// SPDX-License-Identifier: Apache-2.0
//
// Hook: a callable that stands in for a function or method of the framework and records around it.
//
// It looks like what it wraps: attributes are read from and written to the original (except
// __wrapped__, which is the original itself; __class__ too, so that isinstance and with it inspect
// and torch.compile take it for the function and look at its code), it binds as a method, it adds
// no frame to tracebacks. Invariant: the original is called exactly once with exactly the caller's
// arguments, and its result or exception is what the caller gets. (Of kStandIn the adapter sees to
// that.)
#pragma once

#include "py_api.h"

namespace telltale::native {

/// What is recorded around the call. The names are those of Python's
/// Hook(original, kind, name=None, least_ns=0, tell=None).
enum class HookKind : int {
  kForward = 0,       ///< nn.Module.__call__
  kBackward = 1,      ///< autograd.backward, which Tensor.backward calls
  kOptimizer = 2,     ///< Optimizer.step of one class
  kScaler = 3,        ///< GradScaler.step
  kScale = 4,         ///< GradScaler.scale
  kNext = 5,          ///< data loader iterator's __next__
  kIter = 6,          ///< DataLoader.__iter__
  kFetch = 7,         ///< dataset fetcher's fetch
  kCommWait = 8,      ///< collectives
  kNewGroup = 9,      ///< init_process_group
  kLoss = 10,         ///< functional losses
  kTrace = 11,        ///< torch.jit's tracers
  kTimed = 12,        ///< anything that is worth a span of its own: writing a checkpoint
  kMove = 13,         ///< Tensor.to and its like: copies between the host and a device
  kClear = 14,        ///< zero_grad of optimizers and modules
  kRescale = 15,      ///< GradScaler.update
  kSchedule = 16,     ///< a scheduler's step; with a name: what calls it and is none
  kSeen = 17,         ///< anything of which it is asked whether it was called
  kCaught = 18,       ///< a function that is called while an exception is handled
  kMakesCaught = 19,  ///< a function that makes such a one
  kActs = 20,         ///< an environment's reset and step, which an agent calls
  kTold = 21,         ///< anything of which the adapter is told each call that ended well
  kStandIn = 22,      ///< a method in whose place the adapter's `tell` is called, which calls it
  kCount = 23,
};

struct HookObject {
  PyObject_HEAD Vectorcall vectorcall;
  PyObject* original;         ///< Owned.
  PyObject* weak_references;  ///< torch.compile keeps some to the functions that it reads.
  PyObject* name;  ///< Owned, interned, or null: of the span; of kFetch the attribute that holds
                   ///< what items are taken of; of kStandIn the folder of the adapter's code.
  PyObject* tell;  ///< Owned or null: (args, kwargs, ns) after a call of kTimed, (args, kwargs)
                   ///< after one of kTold; (exception) before one of kCaught; of kStandIn with the
                   ///< caller's arguments.
  std::uint64_t least_ns;             ///< Of kTimed and kMove: what took less has no span.
  std::uint64_t calls, bytes, ticks;  ///< Of kCommWait: of this process so far.
  std::uint32_t epoch;                ///< g_epoch to which these belong; of another they are zero.
};

/// Copies between the host and a device that hooks of kMove have seen in this process.
struct CopyTotals {
  std::uint64_t calls = 0, bytes = 0;
  std::uint64_t ticks = 0;  ///< For which the calls held their threads up.
};
/// Of [0] those to a device, of [1] those to the host.
extern CopyTotals g_copies[2];
/// This is a forked child: what was copied so far is its parent's.
void ForgetCopies();

/// The behaviour of a kind; in framework_hooks.cc.
Vectorcall HookFunction(HookKind kind);
/// Names used by the hooks, interned once. False with an exception set.
bool InitFrameworkHooks();

/// Calls the original with the same arguments.
inline PyObject* CallOriginal(PyObject* self, PyObject* const* args, std::size_t nargsf,
                              PyObject* kwnames) {
  return CallVector(reinterpret_cast<HookObject*>(self)->original, args, nargsf, kwnames);
}

PyObject* MakeHookType();

}  // namespace telltale::native
