// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attribute.h"
#include "state.h"

namespace telltale::native {
namespace {

struct Strings {
  PyObject* data = nullptr;
  PyObject* detach = nullptr;
  PyObject* is_cpu = nullptr;
  PyObject* item = nullptr;
  PyObject* local_tensor = nullptr;
  PyObject* lr = nullptr;
  PyObject* numel = nullptr;
  PyObject* param_groups = nullptr;
  PyObject* shape = nullptr;
};
Strings g_strings;

/// What the class of tensors itself has; for no subclass.
struct TensorClass {
  Attribute base{"_base"};
  Attribute data_ptr{"data_ptr"};
  Attribute dtype{"dtype"};
  Attribute is_cpu{"is_cpu"};
  Attribute numel{"numel"};
  Attribute shape{"shape"};

  template <class F>
  bool Each(F&& f) {
    for (Attribute* each : {&base, &data_ptr, &dtype, &is_cpu, &numel, &shape}) {
      if (!f(each)) return false;
    }
    return true;
  }
};
constinit TensorClass g_tensor;

constexpr int kMaxNesting = 4;
constexpr int kMaxEntries = 16;

/// The first dimension of a shape; null or of no dimensions: 0.
std::int64_t FirstOf(PyObject* shape) {
  if (shape == nullptr || !PyTuple_Check(shape)) {
    DropError();
    return 0;
  }
  if (PyTuple_Size(shape) == 0) return 0;
  const std::int64_t value = PyLong_AsLongLong(PyTuple_GetItem(shape, 0));
  if (value == -1) DropError();
  return value < 0 ? 0 : value;
}

std::int64_t FirstDimension(PyObject* tensor) {
  return FirstOf(Ref(PyObject_GetAttr(tensor, g_strings.shape)).get());
}

std::int64_t BatchSizeNested(PyObject* batch, int nesting) {
  if (IsTensor(batch)) return FirstDimension(batch);
  if (nesting >= kMaxNesting) return 0;
  if (PyList_Check(batch) || PyTuple_Check(batch)) {
    const bool list = PyList_Check(batch) != 0;
    const Py_ssize_t length = list ? PyList_Size(batch) : PyTuple_Size(batch);
    for (Py_ssize_t i = 0; i < length && i < 4; ++i) {
      PyObject* element = list ? PyList_GetItem(batch, i) : PyTuple_GetItem(batch, i);
      const std::int64_t size = BatchSizeNested(element, nesting + 1);
      if (size > 0 && !PyUnicode_Check(element)) return size;
    }
    return length;
  }
  if (PyDict_Check(batch)) {
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(batch, &position, &key, &value) != 0) {
      const std::int64_t size = BatchSizeNested(value, nesting + 1);
      if (size > 0) return size;
    }
    return 0;
  }
  PyTypeObject* user_dict = g_adapter.user_dict_type;
  if (user_dict != nullptr && PyType_IsSubtype(Py_TYPE(batch), user_dict)) {
    Ref data(PyObject_GetAttr(batch, g_strings.data));
    if (data) return BatchSizeNested(data.get(), nesting + 1);
    DropError();
  }
  return 0;
}

/// Of the first tensor of the class of tensors itself in an argument; 0: there is none.
std::int64_t InputSizeNested(PyObject* value, int nesting) {
  if (Py_TYPE(value) == g_adapter.tensor_type) {
    return FirstOf(Ref(g_tensor.shape.Get(value)).get());
  }
  std::int64_t size = 0;
  if (nesting >= kMaxNesting) return size;
  if (PyList_Check(value) != 0 || PyTuple_Check(value) != 0) {
    const bool list = PyList_Check(value) != 0;
    const Py_ssize_t length = list ? PyList_Size(value) : PyTuple_Size(value);
    for (Py_ssize_t i = 0; i < std::min<Py_ssize_t>(length, 4) && size == 0; ++i) {
      PyObject* each = list ? PyList_GetItem(value, i) : PyTuple_GetItem(value, i);
      if (each == nullptr) break;
      size = InputSizeNested(each, nesting + 1);
    }
  } else if (PyDict_Check(value) != 0) {
    PyObject *key = nullptr, *each = nullptr;
    Py_ssize_t position = 0;
    for (int i = 0; i < kMaxEntries && size == 0; ++i) {
      if (PyDict_Next(value, &position, &key, &each) == 0) break;
      Py_INCREF(each);  // To ask for its shape may run the user's code, which may change the dict.
      const Ref kept(each);
      size = InputSizeNested(each, nesting + 1);
    }
  }
  return size;
}

/// Whether the tensor is a DTensor, whose value other ranks may have to be asked for.
bool IsDistributed(PyObject* tensor) {
  PyTypeObject* type = Py_TYPE(tensor);
  return type != g_adapter.tensor_type &&
         PyObject_HasAttr(reinterpret_cast<PyObject*>(type), g_strings.local_tensor) != 0;
}

bool HasOneElement(PyObject* tensor) {
  Ref numel(PyObject_CallMethodObjArgs(tensor, g_strings.numel, nullptr));
  const long count = numel ? PyLong_AsLong(numel.get()) : -1;
  if (count == -1) DropError();
  return count == 1;
}

/// Reads the one element of a plain float tensor in main memory where it lies: item() goes through
/// torch's dispatcher, whose code is cold here, and took a third of all that the hooks cost a small
/// network. False: not to be read so. A view is not, for it may stand for the negative of its
/// memory. REQUIRES: of the class of tensors itself. May leave an exception.
bool ReadInPlace(PyObject* tensor, double* value) {
  if (g_adapter.float32 == nullptr || Ref(g_tensor.is_cpu.Get(tensor)).get() != Py_True ||
      Ref(g_tensor.base.Get(tensor)).get() != Py_None ||
      Ref(g_tensor.dtype.Get(tensor)).get() != g_adapter.float32) {
    return false;
  }
  const Ref count(g_tensor.numel.Call(tensor));
  if (!count || PyLong_AsLong(count.get()) != 1) return false;
  // Raises where there is no storage (sparse, a functional transform's wrapper).
  const Ref address(g_tensor.data_ptr.Call(tensor));
  const void* memory = address ? PyLong_AsVoidPtr(address.get()) : nullptr;
  if (memory == nullptr) return false;
  float element = 0;
  std::memcpy(&element, memory, sizeof element);
  *value = element;
  return true;
}

}  // namespace

bool InitValues() {
  Strings& s = g_strings;
  s.data = PyUnicode_InternFromString("data");
  s.detach = PyUnicode_InternFromString("detach");
  s.is_cpu = PyUnicode_InternFromString("is_cpu");
  s.item = PyUnicode_InternFromString("item");
  s.local_tensor = PyUnicode_InternFromString("_local_tensor");
  s.lr = PyUnicode_InternFromString("lr");
  s.numel = PyUnicode_InternFromString("numel");
  s.param_groups = PyUnicode_InternFromString("param_groups");
  s.shape = PyUnicode_InternFromString("shape");
  return s.data && s.detach && s.is_cpu && s.item && s.local_tensor && s.lr && s.numel &&
         s.param_groups && s.shape && g_tensor.Each([](Attribute* each) { return each->Init(); });
}

bool IsTensor(PyObject* object) {
  PyTypeObject* type = g_adapter.tensor_type;
  return type != nullptr && PyType_IsSubtype(Py_TYPE(object), type) != 0;
}

[[gnu::hot]] bool IsTrueAttr(PyObject* object, PyObject* name) {
  Ref value(PyObject_GetAttr(object, name));
  if (!value) {
    DropError();
    return false;
  }
  return value.get() == Py_True;
}

std::int64_t BatchSize(PyObject* batch) { return BatchSizeNested(batch, 0); }

[[gnu::hot]] std::int64_t InputSize(PyObject* const* args, std::size_t count, PyObject* kwnames) {
  const std::size_t named =
      kwnames == nullptr ? 0 : static_cast<std::size_t>(PyTuple_Size(kwnames));
  std::int64_t size = 0;
  // Behind the module itself.
  for (std::size_t i = 1; i < count + named && size == 0; ++i) size = InputSizeNested(args[i], 0);
  return size;
}

void TensorTypeChanged() {
  g_tensor.Each([](Attribute* each) {
    each->Find(reinterpret_cast<PyObject*>(g_adapter.tensor_type));
    return true;
  });
}

[[gnu::hot]] bool HostScalar(PyObject* tensor, double* value) {
  if (Py_TYPE(tensor) == g_adapter.tensor_type) {
    if (ReadInPlace(tensor, value)) return true;
    DropError();
  }
  if (!IsTensor(tensor) || IsDistributed(tensor) || !IsTrueAttr(tensor, g_strings.is_cpu) ||
      !HasOneElement(tensor)) {
    return false;
  }
  Ref item(PyObject_CallMethodObjArgs(tensor, g_strings.item, nullptr));
  if (item) *value = PyFloat_AsDouble(item.get());
  if (PyErr_Occurred() != nullptr) {
    DropError();  // Complex, or a subclass without a value.
    return false;
  }
  return true;
}

bool IsDeviceScalar(PyObject* tensor) {
  return IsTensor(tensor) && (IsDistributed(tensor) || !IsTrueAttr(tensor, g_strings.is_cpu)) &&
         HasOneElement(tensor);
}

namespace {

/// Of one parameter group; NaN: not known.
[[gnu::hot]] double RateOfGroup(PyObject* group) {
  double value = std::numeric_limits<double>::quiet_NaN();
  if (group == nullptr || PyDict_Check(group) == 0) return value;
  PyObject* lr = PyDict_GetItemWithError(group, g_strings.lr);
  if (lr != nullptr && Py_TYPE(lr) == &PyFloat_Type) return PyFloat_AsDouble(lr);
  if (lr != nullptr) {
    if (PyFloat_Check(lr) || PyLong_Check(lr)) {
      value = PyFloat_AsDouble(lr);
    } else {
      HostScalar(lr, &value);
    }
  }
  DropError();
  return value;
}

/// A new reference to the list of them; null where there are none.
[[gnu::hot]] PyObject* GroupsOf(PyObject* optimizer) {
  PyObject* groups = PyObject_GetAttr(optimizer, g_strings.param_groups);
  if (groups != nullptr && PyList_Check(groups) != 0 && PyList_Size(groups) > 0) return groups;
  Py_XDECREF(groups);
  DropError();
  return nullptr;
}

}  // namespace

LearningRates LearningRatesOf(PyObject* optimizer) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  LearningRates rates{kUnknown, kUnknown};
  const Ref groups(GroupsOf(optimizer));
  if (!groups) return rates;
  rates.first = RateOfGroup(PyList_GetItem(groups.get(), 0));
  // Reading a rate may run the user's code, which may shorten the list.
  if (PyList_Size(groups.get()) > 1) rates.largest = rates.first;
  for (Py_ssize_t i = 1; i < PyList_Size(groups.get()); ++i) {
    const double rate = RateOfGroup(PyList_GetItem(groups.get(), i));
    if (std::isnan(rates.largest) || rate > rates.largest) rates.largest = rate;
  }
  return rates;
}

PyObject* Detached(PyObject* tensor) {
  PyObject* result = PyObject_CallMethodObjArgs(tensor, g_strings.detach, nullptr);
  if (result == nullptr) DropError();
  return result;
}

}  // namespace telltale::native
