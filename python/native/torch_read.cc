// SPDX-License-Identifier: Apache-2.0
#include "torch_read.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "attribute.h"
#include "capture.h"
#include "state.h"

namespace telltale::native {

TorchFacts g_torch_facts;

namespace {

// What needs no order of the elements.
constexpr std::uint32_t kUnordered = TT_TAKE_STATS | TT_TAKE_MORE | TT_TAKE_HISTOGRAM;

struct TensorClass {
  Attribute data_ptr{"data_ptr"};
  Attribute dtype{"dtype"};
  Attribute grad{"grad"};
  Attribute is_conj{"is_conj"};
  Attribute is_contiguous{"is_contiguous"};
  Attribute is_cpu{"is_cpu"};
  Attribute is_neg{"is_neg"};
  Attribute layout{"layout"};
  Attribute numel{"numel"};
  Attribute requires_grad{"requires_grad"};
  Attribute shape{"shape"};
  Attribute storage{"storage"};  ///< Under the name that the adapter gives.
  Attribute storage_offset{"storage_offset"};
  Attribute stride{"stride"};
  Attribute version{"_version"};

  template <class F>
  bool Each(F&& f) {
    for (Attribute* each :
         {&data_ptr, &dtype, &grad, &is_conj, &is_contiguous, &is_cpu, &is_neg, &layout, &numel,
          &requires_grad, &shape, &storage, &storage_offset, &stride, &version}) {
      if (!f(each)) return false;
    }
    return true;
  }
};
constinit TensorClass g_tensor;
PyObject* g_nbytes = nullptr;

/// The first classes of g_torch_facts.types, not owned: each call asks.
std::array<const PyTypeObject*, 4> g_plain{};

/// The torch.dtype seen last and what it is to the kernels: most networks have one.
struct LastDtype {
  PyObject* object = nullptr;  ///< Not owned: g_torch_facts.dtypes keeps it.
  tt_dtype dtype = TT_DTYPE_F32;
};
LastDtype g_last_dtype;

// ---- asking a tensor ----

unsigned ElementBytes(tt_dtype dtype) {
  switch (dtype) {
    case TT_DTYPE_C128:
      return 16;
    case TT_DTYPE_F64:
    case TT_DTYPE_I64:
    case TT_DTYPE_U64:
    case TT_DTYPE_C64:
      return 8;
    case TT_DTYPE_F32:
    case TT_DTYPE_I32:
    case TT_DTYPE_U32:
      return 4;
    case TT_DTYPE_F16:
    case TT_DTYPE_BF16:
    case TT_DTYPE_I16:
    case TT_DTYPE_U16:
      return 2;
    case TT_DTYPE_I8:
    case TT_DTYPE_U8:
    case TT_DTYPE_BOOL:
    case TT_DTYPE_F8E4M3:
    case TT_DTYPE_F8E5M2:
      break;
  }
  return 1;
}

/// False for null, or with an exception set.
bool Integer(PyObject* value, std::int64_t* out) {
  if (value == nullptr) return false;
  *out = PyLong_AsLongLong(value);
  return *out != -1 || PyErr_Occurred() == nullptr;
}

/// 1 yes, 0 no, -1 with an exception set.
int Boolean(const Attribute& method, PyObject* tensor) {
  const Ref value(method.Call(tensor));
  if (!value) return -1;
  return value.get() == Py_True ? 1 : 0;
}

bool Sizes(PyObject* tuple, std::int64_t* out, std::uint32_t count) {
  if (tuple == nullptr || PyTuple_Check(tuple) == 0 ||
      PyTuple_Size(tuple) != static_cast<Py_ssize_t>(count)) {
    return false;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, static_cast<Py_ssize_t>(i)));
    if (out[i] == -1 && PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

bool FindDtype(PyObject* object, tt_dtype* dtype) {
  if (object != g_last_dtype.object) {
    PyObject* code = PyDict_GetItemWithError(g_torch_facts.dtypes, object);
    if (code == nullptr) return false;
    g_last_dtype = {object, static_cast<tt_dtype>(PyLong_AsLong(code))};
  }
  *dtype = g_last_dtype.dtype;
  return true;
}

/// A tensor as the probe takes it.
struct View {
  tt_array array{};
  std::uint64_t bytes = 0;  ///< Read by the kernels.
  std::array<std::int64_t, TT_MAX_DIMS> shape{};
  std::array<std::int64_t, TT_MAX_DIMS> strides{};
};

/// Elements from the first to one past the last in memory.
std::int64_t Extent(const View& view) {
  std::int64_t last = 0;
  for (std::uint32_t i = 0; i < view.array.ndim; ++i) {
    if (view.shape[i] == 0) return 0;
    last += (view.shape[i] - 1) * (view.array.strides == nullptr ? 0 : view.strides[i]);
  }
  return last + 1;
}

/// Whether all elements lie in the tensor's storage, which may have been resized (sharding frees
/// the full parameters so). -1 with an exception set.
int InStorage(PyObject* tensor, std::int64_t extent, unsigned element_bytes) {
  const Ref storage(g_tensor.storage.Call(tensor));
  const Ref size(storage ? PyObject_CallMethodObjArgs(storage.get(), g_nbytes, nullptr) : nullptr);
  std::int64_t bytes = 0, offset = 0;
  if (!size || !Integer(size.get(), &bytes) ||
      !Integer(Ref(g_tensor.storage_offset.Call(tensor)).get(), &offset)) {
    return -1;
  }
  return (offset + extent) * static_cast<std::int64_t>(element_bytes) <= bytes ? 1 : 0;
}

/// Fills shape and strides of a tensor of any order; false: refused for `*why`.
bool Arrange(PyObject* tensor, bool contiguous, std::uint32_t take, std::int64_t count, View* view,
             Refusal* why) {
  tt_array& array = view->array;
  array.shape = view->shape.data();
  array.strides = nullptr;
  array.ndim = 1;
  view->shape[0] = count;
  // The common case: no order matters and the memory is one block.
  if (contiguous && (take & ~kUnordered) == 0) return true;
  *why = Refusal::kFailed;
  const Ref shape(g_tensor.shape.Get(tensor));
  if (!shape || PyTuple_Check(shape.get()) == 0) return false;
  const Py_ssize_t dims = PyTuple_Size(shape.get());
  if (dims > TT_MAX_DIMS) {
    *why = Refusal::kDimensions;
    return false;
  }
  array.ndim = static_cast<std::uint32_t>(dims);
  if (!Sizes(shape.get(), view->shape.data(), array.ndim)) return false;
  if (contiguous) return true;
  const Ref strides(g_tensor.stride.Call(tensor));
  if (!strides || !Sizes(strides.get(), view->strides.data(), array.ndim)) return false;
  array.strides = view->strides.data();
  return true;
}

/// Whether torch keeps its elements in main memory, in the order of its strides. May leave an
/// exception.
Refusal LookWhere(PyObject* tensor) {
  const Ref layout(g_tensor.layout.Get(tensor));
  if (!layout) return Refusal::kFailed;
  if (layout.get() != g_torch_facts.strided) return Refusal::kLayout;
  const Ref is_cpu(g_tensor.is_cpu.Get(tensor));
  return is_cpu.get() == Py_True ? Refusal::kNone : Refusal::kDevice;
}

/// The memory of a tensor that is strided and in main memory. `*at`: its address and size; 0 where
/// there is nothing to read. May leave an exception.
Refusal LookAtMemory(PyObject* tensor, std::uint32_t take, View* view, std::uint64_t* at) {
  *at = 0;
  tt_array& array = view->array;
  const Ref dtype(g_tensor.dtype.Get(tensor));
  if (!dtype) return Refusal::kFailed;
  if (!FindDtype(dtype.get(), &array.dtype)) return Refusal::kDtype;
  std::int64_t count = 0;
  const int contiguous = Boolean(g_tensor.is_contiguous, tensor);
  if (contiguous < 0 || !Integer(Ref(g_tensor.numel.Call(tensor)).get(), &count)) {
    return Refusal::kFailed;
  }
  Refusal why = Refusal::kNone;
  if (!Arrange(tensor, contiguous == 1, take, count, view, &why)) return why;
  const Ref address(g_tensor.data_ptr.Call(tensor));
  if (!address) return Refusal::kFailed;
  array.data = PyLong_AsVoidPtr(address.get());
  if (count == 0) return Refusal::kNone;
  if (array.data == nullptr) return Refusal::kStorage;
  view->bytes = static_cast<std::uint64_t>(count) * ElementBytes(array.dtype);
  // Address and size: a storage that is resized moves.
  *at = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(array.data)) ^
        (view->bytes << 48 | view->bytes >> 16);
  return Refusal::kNone;
}

/// Whether the memory holds the tensor's elements as they are, and all of them. May leave an
/// exception.
Refusal LookAtElements(PyObject* tensor, const View& view) {
  const tt_array& array = view.array;
  int lazy = Boolean(g_tensor.is_neg, tensor);
  if (lazy == 0 && (array.dtype == TT_DTYPE_C64 || array.dtype == TT_DTYPE_C128)) {
    lazy = Boolean(g_tensor.is_conj, tensor);
  }
  if (lazy != 0) return lazy > 0 ? Refusal::kLazy : Refusal::kFailed;
  const unsigned element_bytes = ElementBytes(array.dtype);
  const std::int64_t extent = array.strides != nullptr
                                  ? Extent(view)
                                  : static_cast<std::int64_t>(view.bytes / element_bytes);
  const int whole = InStorage(tensor, extent, element_bytes);
  if (whole == 1) return Refusal::kNone;
  return whole == 0 ? Refusal::kStorage : Refusal::kFailed;
}

/// Where the elements of a tensor lie; `known` as for RecordTensor. May leave an exception.
Refusal Look(PyObject* tensor, std::uint32_t take, std::uint64_t* known, View* view) {
  if (!IsPlain(tensor)) return Refusal::kType;
  // What has the address that was found in main memory before is there still.
  const bool met = known != nullptr && *known != 0;
  Refusal where = met ? Refusal::kNone : LookWhere(tensor);
  if (where != Refusal::kNone) return where;
  std::uint64_t at = 0;
  const Refusal memory = LookAtMemory(tensor, take, view, &at);
  const bool block = memory == Refusal::kNone && at != 0 && view->array.strides == nullptr;
  if (met) {
    if (block && at == *known) return Refusal::kNone;
    DropError();
    where = LookWhere(tensor);
    if (where != Refusal::kNone) return where;
  }
  if (memory != Refusal::kNone || at == 0) return memory;
  const Refusal elements = LookAtElements(tensor, *view);
  if (elements == Refusal::kNone && block && known != nullptr) *known = at;
  return elements;
}

// ---- a glance at some elements ----

constexpr std::uint32_t kMostLooked = 64;

bool IsFinite(std::uint64_t bits, tt_dtype dtype) {
  const auto all_ones = [bits](std::uint64_t exponent) { return (bits & exponent) == exponent; };
  switch (dtype) {
    case TT_DTYPE_F32:
      return !all_ones(0x7f800000);
    case TT_DTYPE_F64:
      return !all_ones(0x7ff0000000000000);
    case TT_DTYPE_F16:
      return !all_ones(0x7c00);
    case TT_DTYPE_BF16:
      return !all_ones(0x7f80);
    default:
      return true;
  }
}

bool IsFloating(tt_dtype dtype) { return dtype <= TT_DTYPE_BF16; }

/// Where an element lies, in elements from the first.
std::int64_t Place(const View& view, std::uint64_t index) {
  if (view.array.strides == nullptr) return static_cast<std::int64_t>(index);
  std::int64_t place = 0;
  for (std::uint32_t i = view.array.ndim; i-- > 0;) {
    const auto size = static_cast<std::uint64_t>(view.shape[i]);
    place += static_cast<std::int64_t>(index % size) * view.strides[i];
    index /= size;
  }
  return place;
}

/// Whether the elements tell one tensor from another: of few values, nearly all of them the same
/// (a mask, padding, a border), many tensors have the same ones.
bool Varies(const std::array<std::uint64_t, kMostLooked>& elements, std::uint32_t count,
            tt_dtype dtype) {
  if (count < (IsFloating(dtype) ? 4U : 16U)) return false;
  // The one that most have, where one has the majority.
  std::uint64_t common = 0;
  std::uint32_t votes = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (votes == 0) common = elements[i];
    votes = elements[i] == common ? votes + 1 : votes - 1;
  }
  const auto others = static_cast<std::uint32_t>(
      std::count_if(elements.begin(), elements.begin() + count,
                    [common](std::uint64_t element) { return element != common; }));
  return others >= std::min(8U, count / 4);
}

void LookAtSome(const View& view, std::uint64_t total, std::uint32_t most, Glance* out) {
  const unsigned bytes = std::min(8U, ElementBytes(view.array.dtype));
  const std::uint64_t width = ElementBytes(view.array.dtype);
  const auto* memory = static_cast<const unsigned char*>(view.array.data);
  const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(total, most));
  std::array<std::uint64_t, kMostLooked> elements{};
  for (std::uint32_t i = 0; i < count; ++i) {
    // Parts of the golden ratio: they keep step with no row or column.
    const std::uint64_t part = (i + 1) * 0x9e3779b97f4a7c15ULL;
    const std::uint64_t index =
        count == total ? i : static_cast<std::uint64_t>((__uint128_t{part} * total) >> 64);
    std::memcpy(&elements[i], memory + Place(view, index) * static_cast<std::int64_t>(width),
                bytes);
  }
  std::uint64_t print = 0xcbf29ce484222325ULL ^ total;
  std::uint64_t any = 0;
  out->finite = true;
  for (std::uint32_t i = 0; i < count; ++i) {
    print = (print ^ elements[i]) * 0x9fb21c651e98df25ULL;
    print ^= print >> 29;
    any |= elements[i];
    out->finite = out->finite && IsFinite(elements[i], view.array.dtype);
  }
  out->memory = view.array.data;
  out->print = print;
  out->zero = any == 0;
  out->varied = Varies(elements, count, view.array.dtype);
}

}  // namespace

void TorchFactsChanged() {
  TorchFacts& facts = g_torch_facts;
  g_last_dtype = {};
  g_plain = {};
  const Py_ssize_t count = facts.types == nullptr ? 0 : PyTuple_Size(facts.types);
  for (Py_ssize_t i = 0; i < count && i < static_cast<Py_ssize_t>(g_plain.size()); ++i) {
    g_plain[static_cast<std::size_t>(i)] =
        reinterpret_cast<PyTypeObject*>(PyTuple_GetItem(facts.types, i));
  }
  if (facts.storage != nullptr) {
    Py_INCREF(facts.storage);
    g_tensor.storage.Rename(facts.storage);
  }
  PyObject* type = count > 0 ? PyTuple_GetItem(facts.types, 0) : nullptr;
  g_tensor.Each([type](Attribute* each) {
    each->Find(type);
    return true;
  });
}

[[gnu::hot]] bool IsPlain(PyObject* tensor) {
  const PyTypeObject* type = Py_TYPE(tensor);
  for (const PyTypeObject* plain : g_plain) {
    if (plain == type) return true;
  }
  const Py_ssize_t count = g_plain.back() == nullptr ? 0 : PyTuple_Size(g_torch_facts.types);
  for (Py_ssize_t i = static_cast<Py_ssize_t>(g_plain.size()); i < count; ++i) {
    if (reinterpret_cast<PyTypeObject*>(PyTuple_GetItem(g_torch_facts.types, i)) == type) {
      return true;
    }
  }
  return false;
}

PyObject* GradientOf(PyObject* tensor) { return g_tensor.grad.Get(tensor); }

Refusal RecordTensor(PyObject* tensor, std::uint32_t id, std::uint32_t take, Moment moment,
                     std::uint64_t* known) {
  View view;
  const Refusal refusal = Look(tensor, take, known, &view);
  if (refusal != Refusal::kNone) {
    DropError();
    return refusal;
  }
  Give(id, view.array, view.bytes, take, moment.step, moment.mode);
  return Refusal::kNone;
}

bool LookInto(PyObject* tensor, std::uint32_t most, std::uint64_t* known, Glance* out) {
  View view;
  const Refusal refusal = Look(tensor, TT_TAKE_STATS, known, &view);
  DropError();
  const unsigned width = ElementBytes(view.array.dtype);
  if (refusal != Refusal::kNone || view.bytes < width) return false;
  LookAtSome(view, view.bytes / width, std::min(most, kMostLooked), out);
  return true;
}

std::int64_t VersionOf(PyObject* tensor) {
  std::int64_t version = -1;
  // What an inference made has none.
  if (!Integer(Ref(g_tensor.version.Get(tensor)).get(), &version)) DropError();
  return version;
}

bool RequiresGradient(PyObject* tensor) {
  const Ref requires_grad(g_tensor.requires_grad.Get(tensor));
  if (!requires_grad) DropError();
  return requires_grad.get() == Py_True;
}

bool InitTorchRead() {
  g_nbytes = PyUnicode_InternFromString("nbytes");
  return g_nbytes != nullptr && g_tensor.Each([](Attribute* each) { return each->Init(); });
}

}  // namespace telltale::native
