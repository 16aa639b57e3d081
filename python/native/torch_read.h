// SPDX-License-Identifier: Apache-2.0
//
// Tensors of torch, read where they lie.
//
// Everything here runs with the GIL held; it is released while a large tensor is read.
#pragma once

#include "py_api.h"
#include "telltale/probe.h"

namespace telltale::native {

/// Why a tensor was not read; the adapter's tensors.py has the same numbers.
enum class Refusal : int {
  kNone = 0,
  kType = 1,        ///< A subclass, whose getters are the user's.
  kLayout = 2,      ///< Sparse, or a layout of a library's own.
  kDevice = 3,      ///< Not in main memory.
  kDtype = 4,       ///< Quantized, or unknown to the kernels.
  kLazy = 5,        ///< Stands for the conjugate or the negative of its memory.
  kDimensions = 6,  ///< More than TT_MAX_DIMS.
  kStorage = 7,     ///< Its storage was freed or cut.
  kFailed = 8,      ///< torch would not say (a functional transform's wrapper).
};

/// What the adapter tells of torch, all owned; null until then.
struct TorchFacts {
  PyObject* types = nullptr;    ///< tuple of the classes whose tensors are read, Tensor first.
  PyObject* dtypes = nullptr;   ///< dict: torch.dtype -> tt_dtype
  PyObject* strided = nullptr;  ///< torch.strided
  PyObject* storage = nullptr;  ///< Name of the method that gives a tensor's storage.
};
extern TorchFacts g_torch_facts;
/// To be called when any of them is another.
void TorchFactsChanged();

/// Where a record belongs.
struct Moment {
  std::int64_t step = TT_STEP_OPEN;
  int mode = TT_MODE_OPEN;
};

/// Whether it is of a class whose tensors are read.
bool IsPlain(PyObject* tensor);
/// The gradient of a plain tensor, or None; null with an exception set. New reference.
PyObject* GradientOf(PyObject* tensor);
/// Gives what `take` asks of a tensor, of which the caller holds a reference. `known`, where not
/// null: address and size at which a tensor of this name was last found plain and whole in its
/// storage, to spare asking again; updated. Leaves no exception.
Refusal RecordTensor(PyObject* tensor, std::uint32_t id, std::uint32_t take, Moment moment,
                     std::uint64_t* known);

/// A few elements of a tensor, spread over all of it, to tell whether it is another one by now.
struct Glance {
  const void* memory = nullptr;  ///< Of the first element.
  std::uint64_t print = 0;       ///< Of the elements looked at and how many there are in all.
  bool zero = false;             ///< All of them are zero.
  bool finite = false;           ///< None is NaN or infinite.
  bool varied = false;           ///< They differ enough from each other to tell two tensors apart.
};
/// Looks at `most` elements (64 at most) of a tensor that is plain and in main memory; false where
/// it is not, or is empty. `known` as for RecordTensor. Leaves no exception.
bool LookInto(PyObject* tensor, std::uint32_t most, std::uint64_t* known, Glance* out);
/// Counts the changes of a plain tensor in place; -1 where torch does not say. No exception.
std::int64_t VersionOf(PyObject* tensor);
/// Whether a plain tensor takes part in backward passes. No exception.
bool RequiresGradient(PyObject* tensor);

/// Interns the names used here, once. False with an exception set.
bool InitTorchRead();

}  // namespace telltale::native
