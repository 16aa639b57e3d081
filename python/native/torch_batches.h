// SPDX-License-Identifier: Apache-2.0
//
// What a data loader gives in each pass over its data: how many batches and samples, and whether
// batches repeat. Of the first tensor of a batch, its input, some elements are looked at: those of
// the first batches of an epoch, of the first epochs and then of few. No reference to a batch is
// kept.
//
// Everything here runs with the GIL held, leaves no exception, and keeps a pending one.
#pragma once

#include "py_api.h"

namespace telltale::native {

extern PyMethodDef g_torch_batches_functions[];
/// Interns the names used here, once. False with an exception set.
bool InitTorchBatches();
/// This is a forked child: what was seen so far is its parent's.
void ForgetBatches();

/// A loader was asked for an iterator, and gave this one.
void LoaderIterates(PyObject* loader, PyObject* iterator);
/// An iterator gave a batch of so many samples; null: it gave none, `ended` since there are no
/// more.
void BatchComes(PyObject* iterator, PyObject* batch, std::int64_t samples, bool ended);

}  // namespace telltale::native
