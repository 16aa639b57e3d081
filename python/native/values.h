// SPDX-License-Identifier: Apache-2.0
//
// Reads facts off the framework's objects without changing them or letting an exception out.
#pragma once

#include "py_api.h"

namespace telltale::native {

bool InitValues();
/// g_adapter.tensor_type is another one.
void TensorTypeChanged();

bool IsTensor(PyObject* object);
/// Samples in a batch: first dimension of the first tensor in it, else the length of a list; 0
/// where unknown.
std::int64_t BatchSize(PyObject* batch);
/// Samples in a module's arguments, by the first tensor among them; 0 where unknown or where asking
/// could run user code (a tensor subclass). REQUIRES: no graph is being traced.
std::int64_t InputSize(PyObject* const* args, std::size_t count, PyObject* kwnames);
/// The value of a one-element tensor in main memory. False where it is not one, or distributed.
bool HostScalar(PyObject* tensor, double* value);
/// True where the tensor has one element but lies on a device, or is distributed.
bool IsDeviceScalar(PyObject* tensor);
struct LearningRates {
  double first;    ///< Of the optimizer's first parameter group; NaN: unknown.
  double largest;  ///< Of all its groups; NaN: it has one group, or none of the rates is known.
};
LearningRates LearningRatesOf(PyObject* optimizer);
/// object.name is True; false on any failure.
bool IsTrueAttr(PyObject* object, PyObject* name);
/// tensor.detach(), or null without an exception.
PyObject* Detached(PyObject* tensor);

}  // namespace telltale::native
