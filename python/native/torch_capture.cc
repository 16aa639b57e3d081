// SPDX-License-Identifier: Apache-2.0
#include "torch_capture.h"

#include <array>
#include <cstring>
#include <string_view>

#include "capture.h"
#include "seen_cache.h"
#include "values.h"

namespace telltale::native {
namespace {

// What needs no order of the elements.
constexpr std::uint32_t kUnordered = TT_TAKE_STATS | TT_TAKE_MORE | TT_TAKE_HISTOGRAM;

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

struct Strings {
  PyObject* data_ptr = nullptr;
  PyObject* dtype = nullptr;
  PyObject* grad = nullptr;
  PyObject* is_conj = nullptr;
  PyObject* is_contiguous = nullptr;
  PyObject* is_cpu = nullptr;
  PyObject* is_neg = nullptr;
  PyObject* layout = nullptr;
  PyObject* nbytes = nullptr;
  PyObject* numel = nullptr;
  PyObject* shape = nullptr;
  PyObject* storage_offset = nullptr;
  PyObject* stride = nullptr;
};
Strings g_strings;

/// What the adapter gave us, all owned; null until then.
struct Torch {
  PyObject* types = nullptr;        ///< tuple of the classes whose tensors are read.
  PyObject* dtypes = nullptr;       ///< dict: torch.dtype -> tt_dtype
  PyObject* strided = nullptr;      ///< torch.strided
  PyObject* storage = nullptr;      ///< Name of the method that gives a tensor's storage.
  PyObject* on_forward = nullptr;   ///< (root, train: bool) -> kWatch bits
  PyObject* on_inputs = nullptr;    ///< (module, args, kwargs or None, None) before the call
  PyObject* on_module = nullptr;    ///< (module, args, kwargs or None, result)
  PyObject* on_part = nullptr;      ///< (module) -> its path in the module tree
  PyObject* on_loss = nullptr;      ///< (loss module, args, kwargs or None, result)
  PyObject* on_function = nullptr;  ///< (function, args, kwargs or None, result)
  PyObject* on_backward = nullptr;  ///< (tensor)
  PyObject* on_closure = nullptr;   ///< (optimizer, closure) -> callable that calls tell_optimizer
  PyObject* set_eval_frame = nullptr;
};
Torch g_torch;

/// The torch.dtype seen last and what it is to the kernels: most networks have one.
struct LastDtype {
  PyObject* object = nullptr;  ///< Not owned: g_torch.dtypes keeps it.
  tt_dtype dtype = TT_DTYPE_F32;
};
LastDtype g_last_dtype;

PyObject* None() {
  Py_INCREF(Py_None);
  return Py_None;
}

// ---- what the plan asks for ----

/// A collection of which the plan may ask for tensors; cheap enough to be looked at in each call.
class Collection {
 public:
  constexpr explicit Collection(std::string_view name) : name_(name) {}

  /// Whether any tensor of it is asked for at some step or other.
  bool Wanted() {
    if (epoch_ != g_epoch) {
      id_ = tt_tensor(name_.data(), name_.size(), "", 0);
      epoch_ = g_epoch;
    }
    return (tt_wanted(id_) & ~std::uint32_t{TT_TAKE_UNKNOWN}) != 0;
  }

 private:
  std::string_view name_;
  std::uint32_t id_ = 0;
  std::uint32_t epoch_ = 0;  ///< g_epoch for which `id_` holds; 0: never.
};
constinit Collection g_activations{"activations"};
constinit Collection g_inputs{"inputs"};
constinit Collection g_labels{"labels"};
constinit Collection g_losses{"losses"};
constinit Collection g_outputs{"outputs"};

/// Roots whose training forward was told since g_told_epoch.
SeenCache g_told_roots;
std::uint32_t g_told_epoch = 0;

/// Whether a root was told before; it counts as told from now on.
bool WasTold(PyObject* root) {
  if (g_told_epoch != g_epoch) {
    g_told_roots.Clear();
    g_told_epoch = g_epoch;
  }
  return !g_told_roots.Insert(root);
}

// ---- reading a tensor ----

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

PyObject* CallNoArgs(PyObject* object, PyObject* method) {
  return PyObject_CallMethodObjArgs(object, method, nullptr);
}

bool Integer(PyObject* object, PyObject* method, std::int64_t* out) {
  Ref value(CallNoArgs(object, method));
  if (!value) return false;
  *out = PyLong_AsLongLong(value.get());
  return *out != -1 || PyErr_Occurred() == nullptr;
}

/// 1 yes, 0 no, -1 with an exception set.
int Boolean(PyObject* object, PyObject* method) {
  Ref value(CallNoArgs(object, method));
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

bool IsPlain(PyObject* tensor) {
  if (g_torch.types == nullptr) return false;
  const auto* type = reinterpret_cast<const PyObject*>(Py_TYPE(tensor));
  for (Py_ssize_t i = 0; i < PyTuple_Size(g_torch.types); ++i) {
    if (PyTuple_GetItem(g_torch.types, i) == type) return true;
  }
  return false;
}

bool FindDtype(PyObject* object, tt_dtype* dtype) {
  if (object != g_last_dtype.object) {
    PyObject* code = PyDict_GetItemWithError(g_torch.dtypes, object);
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
  Ref storage(CallNoArgs(tensor, g_torch.storage));
  std::int64_t bytes = 0, offset = 0;
  if (!storage || !Integer(storage.get(), g_strings.nbytes, &bytes) ||
      !Integer(tensor, g_strings.storage_offset, &offset)) {
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
  Ref shape(PyObject_GetAttr(tensor, g_strings.shape));
  if (!shape || PyTuple_Check(shape.get()) == 0) return false;
  const Py_ssize_t dims = PyTuple_Size(shape.get());
  if (dims > TT_MAX_DIMS) {
    *why = Refusal::kDimensions;
    return false;
  }
  array.ndim = static_cast<std::uint32_t>(dims);
  if (!Sizes(shape.get(), view->shape.data(), array.ndim)) return false;
  if (contiguous) return true;
  Ref strides(CallNoArgs(tensor, g_strings.stride));
  if (!strides || !Sizes(strides.get(), view->strides.data(), array.ndim)) return false;
  array.strides = view->strides.data();
  return true;
}

/// Where the elements of a tensor lie. `known`: address and size at which a tensor of this name was
/// last found plain and whole in its storage, to spare asking again; updated. May leave an
/// exception.
Refusal Look(PyObject* tensor, std::uint32_t take, std::uint64_t* known, View* view) {
  if (!IsPlain(tensor)) return Refusal::kType;
  Ref layout(PyObject_GetAttr(tensor, g_strings.layout));
  if (!layout) return Refusal::kFailed;
  if (layout.get() != g_torch.strided) return Refusal::kLayout;
  if (!IsTrueAttr(tensor, g_strings.is_cpu)) return Refusal::kDevice;
  Ref dtype(PyObject_GetAttr(tensor, g_strings.dtype));
  if (!dtype) return Refusal::kFailed;
  tt_array& array = view->array;
  if (!FindDtype(dtype.get(), &array.dtype)) return Refusal::kDtype;
  std::int64_t count = 0;
  const int contiguous = Boolean(tensor, g_strings.is_contiguous);
  if (contiguous < 0 || !Integer(tensor, g_strings.numel, &count)) return Refusal::kFailed;
  Refusal why = Refusal::kNone;
  if (!Arrange(tensor, contiguous == 1, take, count, view, &why)) return why;
  Ref address(CallNoArgs(tensor, g_strings.data_ptr));
  if (!address) return Refusal::kFailed;
  array.data = PyLong_AsVoidPtr(address.get());
  if (count == 0) return Refusal::kNone;
  if (array.data == nullptr) return Refusal::kStorage;
  const unsigned element_bytes = ElementBytes(array.dtype);
  view->bytes = static_cast<std::uint64_t>(count) * element_bytes;
  // Address and size: a storage that is resized moves.
  const auto at = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(array.data)) ^
                  (view->bytes << 48 | view->bytes >> 16);
  if (array.strides == nullptr && known != nullptr && *known == at) return Refusal::kNone;
  int lazy = Boolean(tensor, g_strings.is_neg);
  if (lazy == 0 && (array.dtype == TT_DTYPE_C64 || array.dtype == TT_DTYPE_C128)) {
    lazy = Boolean(tensor, g_strings.is_conj);
  }
  if (lazy != 0) return lazy > 0 ? Refusal::kLazy : Refusal::kFailed;
  const std::int64_t extent = array.strides == nullptr ? count : Extent(*view);
  const int whole = InStorage(tensor, extent, element_bytes);
  if (whole != 1) return whole == 0 ? Refusal::kStorage : Refusal::kFailed;
  if (array.strides == nullptr && known != nullptr) *known = at;
  return Refusal::kNone;
}

/// Where a record belongs.
struct Moment {
  std::int64_t step = TT_STEP_OPEN;
  int mode = TT_MODE_OPEN;
};

/// The caller holds a reference to the tensor.
Refusal Record(PyObject* tensor, std::uint32_t id, std::uint32_t take, Moment moment,
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

// ---- functions of the module ----

/// record_torch(tensor, id, take[, step, mode]) -> 0 or why it was refused.
PyObject* RecordTorch(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 3 && nargs != 5) {
    PyErr_SetString(PyExc_TypeError, "_probe.record_torch takes 3 or 5 arguments");
    return nullptr;
  }
  const auto id = static_cast<std::uint32_t>(PyLong_AsUnsignedLong(args[1]));
  const auto take = static_cast<std::uint32_t>(PyLong_AsUnsignedLong(args[2]));
  Moment moment;
  if (nargs == 5) {
    if (args[3] != Py_None) moment.step = PyLong_AsLongLong(args[3]);
    moment.mode = static_cast<int>(PyLong_AsLong(args[4]));
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  Refusal refusal = Refusal::kNone;
  if (g_recording == Recording::kOn && id != 0) {
    refusal = Record(args[0], id, take, moment, nullptr);
  }
  return PyLong_FromLong(static_cast<long>(refusal));
}

/// One parameter of an optimizer, as Python packs it (struct "=QIIQQ").
struct Entry {
  std::uint64_t parameter;  ///< Address of the object.
  std::uint32_t value_id, gradient_id;
  std::uint64_t value_memory, gradient_memory;  ///< Where each was last found whole.
};
static_assert(sizeof(Entry) == 32);

bool Matches(PyObject* parameters, const Entry* entries, Py_ssize_t count) {
  if (PyList_Size(parameters) != count) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(PyList_GetItem(parameters, i));
    if (static_cast<std::uint64_t>(address) != entries[i].parameter) return false;
  }
  return true;
}

/// Appends (position, is gradient, why, take) to the list, made when first needed.
bool AddRefused(PyObject** list, Py_ssize_t position, int gradient, Refusal refusal,
                std::uint32_t take) {
  if (*list == nullptr && (*list = PyList_New(0)) == nullptr) return false;
  Ref row(Py_BuildValue("(niiI)", position, gradient, static_cast<int>(refusal),
                        static_cast<unsigned>(take)));
  return row && PyList_Append(*list, row.get()) == 0;
}

/// False with an exception set.
bool RecordOne(PyObject* parameter, Py_ssize_t position, Entry* entry, PyObject** refused) {
  const auto due = [](std::uint32_t id) {
    return id == 0 ? 0U : tt_due(id, TT_STEP_OPEN, TT_MODE_OPEN);
  };
  const std::uint32_t take = due(entry->value_id);
  if (take != 0) {
    const Refusal refusal =
        Record(parameter, entry->value_id, take, Moment{}, &entry->value_memory);
    if (refusal != Refusal::kNone && !AddRefused(refused, position, 0, refusal, take)) return false;
  }
  const std::uint32_t gradient_take = due(entry->gradient_id);
  if (gradient_take == 0) return true;
  if (!IsPlain(parameter)) {
    return AddRefused(refused, position, 1, Refusal::kType, gradient_take);
  }
  Ref gradient(PyObject_GetAttr(parameter, g_strings.grad));
  if (!gradient) {
    DropError();
    return true;
  }
  if (gradient.get() == Py_None) return true;
  const Refusal refusal =
      Record(gradient.get(), entry->gradient_id, gradient_take, Moment{}, &entry->gradient_memory);
  return refusal == Refusal::kNone || AddRefused(refused, position, 1, refusal, gradient_take);
}

/// record_parameters(parameters: list, table: bytearray): records what is due of each parameter and
/// its gradient. None: done; False: the table is not of these parameters, nothing was recorded; a
/// list: what the caller has to see to.
PyObject* RecordParameters(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2 || PyList_Check(args[0]) == 0 || PyByteArray_Check(args[1]) == 0) {
    PyErr_SetString(PyExc_TypeError, "_probe.record_parameters takes a list and a bytearray");
    return nullptr;
  }
  if (g_recording != Recording::kOn) return None();
  PyObject* parameters = args[0];
  const Py_ssize_t bytes = PyByteArray_Size(args[1]);
  const Py_ssize_t count = bytes / static_cast<Py_ssize_t>(sizeof(Entry));
  auto* entries = reinterpret_cast<Entry*>(PyByteArray_AsString(args[1]));
  if (!Matches(parameters, entries, count)) return PyBool_FromLong(0);
  PyObject* refused = nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    // Another thread may change the list while a tensor is read.
    if (i >= PyList_Size(parameters)) break;
    PyObject* borrowed = PyList_GetItem(parameters, i);
    if (reinterpret_cast<std::uintptr_t>(borrowed) != entries[i].parameter) break;
    Py_INCREF(borrowed);
    const Ref parameter(borrowed);
    if (!RecordOne(parameter.get(), i, &entries[i], &refused)) {
      Py_XDECREF(refused);
      return nullptr;
    }
  }
  return refused != nullptr ? refused : None();
}

/// tell_optimizer(optimizer): what is due of it is recorded now.
PyObject* TellOptimizerFunction(PyObject*, PyObject* optimizer) {
  if (g_recording == Recording::kOn && AnythingDue()) TellOptimizer(optimizer);
  return None();
}

struct Slot {
  const char* name;
  PyObject** object;
};

/// configure_torch(**values): what the adapter gives us; see Torch.
PyObject* ConfigureTorch(PyObject*, PyObject*, PyObject* kwargs) {
  Torch& t = g_torch;
  const Slot slots[] = {
      {"types", &t.types},
      {"dtypes", &t.dtypes},
      {"strided", &t.strided},
      {"storage", &t.storage},
      {"on_forward", &t.on_forward},
      {"on_inputs", &t.on_inputs},
      {"on_module", &t.on_module},
      {"on_part", &t.on_part},
      {"on_loss", &t.on_loss},
      {"on_function", &t.on_function},
      {"on_backward", &t.on_backward},
      {"on_closure", &t.on_closure},
      {"set_eval_frame", &t.set_eval_frame},
  };
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (kwargs != nullptr && PyDict_Next(kwargs, &position, &key, &value) != 0) {
    const Slot* found = nullptr;
    for (const Slot& slot : slots) {
      if (PyUnicode_CompareWithASCIIString(key, slot.name) == 0) found = &slot;
    }
    const bool wrong = found == nullptr || (found->object == &t.types && !PyTuple_Check(value)) ||
                       (found->object == &t.dtypes && !PyDict_Check(value));
    if (wrong) {
      PyErr_Format(PyExc_TypeError, "_probe.configure_torch: cannot take %R", key);
      return nullptr;
    }
    Py_INCREF(value);
    PyObject* old = *found->object;
    *found->object = value == Py_None ? nullptr : value;
    Py_XDECREF(old);
  }
  g_last_dtype = {};
  return None();
}

/// Calls a callback of the adapter outside of torch.compile; what it took, apart from what the
/// records inside account for themselves, is ours. A failure of it disables us. May return null.
PyObject* Ask(PyObject* callback, const char* where, PyObject* const (&arguments)[4]) {
  ErrorGuard guard;
  const OwnTime own;
  PyObject* answer = nullptr;
  {
    const OutsideCompiler outside;
    answer = PyObject_CallFunctionObjArgs(callback, arguments[0], arguments[1], arguments[2],
                                          arguments[3], nullptr);
    if (answer == nullptr) DisableByException(where);
  }
  own.Account();
  return answer;
}

/// Hands a call to the adapter: (subject, positional arguments from `first` on, named ones,
/// result).
void TellCall(PyObject* callback, const char* where, PyObject* subject, const CallArguments& call,
              std::size_t first, PyObject* result) {
  if (callback == nullptr || g_recording != Recording::kOn) return;
  const std::size_t count = ArgCount(call.nargsf);
  if (count < first) return;
  const Ref positional(PyTuple_New(static_cast<Py_ssize_t>(count - first)));
  const Py_ssize_t named_count = call.kwnames == nullptr ? 0 : PyTuple_Size(call.kwnames);
  const Ref named(named_count > 0 ? PyDict_New() : nullptr);
  bool complete = positional && (named_count == 0 || named);
  for (std::size_t i = first; complete && i < count; ++i) {
    Py_INCREF(call.args[i]);
    PyTuple_SetItem(positional.get(), static_cast<Py_ssize_t>(i - first), call.args[i]);
  }
  for (Py_ssize_t i = 0; complete && i < named_count; ++i) {
    complete = PyDict_SetItem(named.get(), PyTuple_GetItem(call.kwnames, i),
                              call.args[count + static_cast<std::size_t>(i)]) == 0;
  }
  if (!complete) {
    DropError();
    return;
  }
  const Ref done(
      Ask(callback, where, {subject, positional.get(), named ? named.get() : Py_None, result}));
}

PyCFunction Fast(FastFunction function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace

OutsideCompiler::OutsideCompiler() {
  if (g_torch.set_eval_frame == nullptr) return;
  prior_ = PyObject_CallFunctionObjArgs(g_torch.set_eval_frame, Py_None, nullptr);
  if (prior_ == nullptr) {
    DropError();
  } else if (prior_ == Py_None) {
    Py_CLEAR(prior_);
  }
}

OutsideCompiler::~OutsideCompiler() {
  if (prior_ == nullptr) return;
  ErrorGuard guard;
  const Ref done(PyObject_CallFunctionObjArgs(g_torch.set_eval_frame, prior_, nullptr));
  if (!done) DropError();
  Py_DECREF(prior_);
}

int WatchForward(PyObject* module, bool train) {
  if (g_torch.on_forward == nullptr) return 0;
  // Of a training nothing else is to be done at a root's forward; an evaluation's parameters are.
  if (train && WasTold(module) && !g_outputs.Wanted() && !g_activations.Wanted() &&
      !g_losses.Wanted() && !g_inputs.Wanted() && !g_labels.Wanted()) {
    return 0;
  }
  const Ref answer(Ask(g_torch.on_forward, "on_forward",
                       {module, train ? Py_True : Py_False, nullptr, nullptr}));
  const long watch = answer ? PyLong_AsLong(answer.get()) : 0;
  if (watch == -1) DropError();
  return watch > 0 ? static_cast<int>(watch) : 0;
}

bool NamesParts() { return g_torch.on_part != nullptr; }

PyObject* PartName(PyObject* module) {
  return Ask(g_torch.on_part, "on_part", {module, nullptr, nullptr, nullptr});
}

void TellInputs(const CallArguments& call) {
  if (ArgCount(call.nargsf) == 0) return;
  TellCall(g_torch.on_inputs, "on_inputs", call.args[0], call, 1, Py_None);
}

void TellModule(const CallArguments& call, PyObject* result) {
  if (ArgCount(call.nargsf) == 0) return;
  TellCall(g_torch.on_module, "on_module", call.args[0], call, 1, result);
}

void TellLossModule(const CallArguments& call, PyObject* result) {
  if (ArgCount(call.nargsf) == 0 || (!g_losses.Wanted() && !g_labels.Wanted())) return;
  TellCall(g_torch.on_loss, "on_loss", call.args[0], call, 1, result);
}

void TellLossFunction(PyObject* function, const CallArguments& call, PyObject* result) {
  if (!g_losses.Wanted() && !g_labels.Wanted()) return;
  TellCall(g_torch.on_function, "on_function", function, call, 0, result);
}

bool WantsLossFunctions() { return g_torch.on_function != nullptr; }

void TellLoss(PyObject* tensor) {
  if (g_torch.on_backward == nullptr || !g_losses.Wanted()) return;
  const Ref done(Ask(g_torch.on_backward, "on_backward", {tensor, nullptr, nullptr, nullptr}));
}

PyObject* WatchClosure(const CallArguments& call, std::size_t* position) {
  const std::size_t count = ArgCount(call.nargsf);
  const Py_ssize_t named = call.kwnames == nullptr ? 0 : PyTuple_Size(call.kwnames);
  std::size_t at = 0;  // That of the optimizer itself.
  if (count > 1) at = 1;
  for (Py_ssize_t i = 0; at == 0 && i < named; ++i) {
    PyObject* name = PyTuple_GetItem(call.kwnames, i);
    if (PyUnicode_CompareWithASCIIString(name, "closure") == 0) {
      at = count + static_cast<std::size_t>(i);
    }
  }
  if (at == 0 || g_torch.on_closure == nullptr || PyCallable_Check(call.args[at]) == 0) {
    return nullptr;
  }
  *position = at;
  PyObject* watched =
      Ask(g_torch.on_closure, "on_closure", {call.args[0], call.args[at], nullptr, nullptr});
  if (watched != nullptr && PyCallable_Check(watched) == 0) Py_CLEAR(watched);
  return watched;
}

void TellOptimizer(PyObject* optimizer) {
  if (g_adapter.on_stats == nullptr) return;
  const Ref done(Ask(g_adapter.on_stats, "on_stats", {optimizer, nullptr, nullptr, nullptr}));
}

PyMethodDef g_torch_capture_functions[] = {
    {"record_torch", Fast(RecordTorch), METH_FASTCALL,
     "record_torch(tensor, id, take[, step, mode]) -> 0, or why it was refused"},
    {"record_parameters", Fast(RecordParameters), METH_FASTCALL,
     "record_parameters(parameters, table) -> None, False or what was refused"},
    {"tell_optimizer", TellOptimizerFunction, METH_O, "tell_optimizer(optimizer)"},
    {"configure_torch", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(ConfigureTorch)),
     METH_VARARGS | METH_KEYWORDS, "configure_torch(**values)"},
    {nullptr, nullptr, 0, nullptr},
};

bool InitTorchCapture() {
  Strings& s = g_strings;
  s.data_ptr = PyUnicode_InternFromString("data_ptr");
  s.dtype = PyUnicode_InternFromString("dtype");
  s.grad = PyUnicode_InternFromString("grad");
  s.is_conj = PyUnicode_InternFromString("is_conj");
  s.is_contiguous = PyUnicode_InternFromString("is_contiguous");
  s.is_cpu = PyUnicode_InternFromString("is_cpu");
  s.is_neg = PyUnicode_InternFromString("is_neg");
  s.layout = PyUnicode_InternFromString("layout");
  s.nbytes = PyUnicode_InternFromString("nbytes");
  s.numel = PyUnicode_InternFromString("numel");
  s.shape = PyUnicode_InternFromString("shape");
  s.storage_offset = PyUnicode_InternFromString("storage_offset");
  s.stride = PyUnicode_InternFromString("stride");
  return s.data_ptr && s.dtype && s.grad && s.is_conj && s.is_contiguous && s.is_cpu && s.is_neg &&
         s.layout && s.nbytes && s.numel && s.shape && s.storage_offset && s.stride;
}

}  // namespace telltale::native
