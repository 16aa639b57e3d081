// SPDX-License-Identifier: Apache-2.0
#include "capture.h"

#include <dlfcn.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "state.h"
#include "telltale/probe.h"
#include "windows.h"

namespace telltale::native {
namespace {

// Above this the values are read without the GIL.
constexpr std::uint64_t kReleaseGilBytes = 64 * 1024;
constexpr Py_ssize_t kMaxNames = 65536;
/// A plan in an event's data: what is longer would be left out.
constexpr Py_ssize_t kMaxPlanBytes = 4096;

// ---- the buffer protocol ----

// Py_buffer and the two calls entered the stable ABI with 3.11, as they had been since 3.0 (PEP
// 3118, PEP 688): here they are by their layout, so that one file serves 3.9 too.
struct Buffer {
  void* data;
  PyObject* owner;
  Py_ssize_t bytes;
  Py_ssize_t item_bytes;
  int read_only;
  int ndim;
  char* format;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  Py_ssize_t* suboffsets;
  void* internal;
};
constexpr int kStridedWithFormat = 0x0004 | 0x0008 | 0x0010;  // PyBUF_RECORDS_RO.

using GetBuffer = int (*)(PyObject*, Buffer*, int);
using ReleaseBuffer = void (*)(Buffer*);
GetBuffer g_get_buffer = nullptr;
ReleaseBuffer g_release_buffer = nullptr;

/// tt_dtype of a format of the struct module, -1: none.
int DtypeOf(const char* format, Py_ssize_t item_bytes) {
  std::string_view text = format == nullptr ? "B" : format;
  if (!text.empty() && (text[0] == '@' || text[0] == '=' || text[0] == '<' || text[0] == '|')) {
    text.remove_prefix(1);
  }
  if (text == "Zf") return TT_DTYPE_C64;
  if (text == "Zd") return TT_DTYPE_C128;
  if (text.size() != 1) return -1;
  switch (text[0]) {
    case 'f':
      return TT_DTYPE_F32;
    case 'd':
      return TT_DTYPE_F64;
    case 'e':
      return TT_DTYPE_F16;
    case '?':
      return TT_DTYPE_BOOL;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return item_bytes == 1   ? TT_DTYPE_I8
             : item_bytes == 2 ? TT_DTYPE_I16
             : item_bytes == 4 ? TT_DTYPE_I32
             : item_bytes == 8 ? TT_DTYPE_I64
                               : -1;
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return item_bytes == 1   ? TT_DTYPE_U8
             : item_bytes == 2 ? TT_DTYPE_U16
             : item_bytes == 4 ? TT_DTYPE_U32
             : item_bytes == 8 ? TT_DTYPE_U64
                               : -1;
    default:
      return -1;
  }
}

// ---- arguments ----

PyObject* None() {
  Py_INCREF(Py_None);
  return Py_None;
}

/// The arguments of one call in the order of `names`; those not given are null. An argument that
/// is None counts as not given.
template <std::size_t n>
class Arguments {
 public:
  /// False with an exception set.
  bool Take(const char* function, const char* const (&names)[n], std::size_t required,
            PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
    const Py_ssize_t named = kwnames == nullptr ? 0 : PyTuple_Size(kwnames);
    if (count + named > static_cast<Py_ssize_t>(n)) return Wrong(function, "too many arguments");
    for (Py_ssize_t i = 0; i < count; ++i) values_[static_cast<std::size_t>(i)] = args[i];
    for (Py_ssize_t i = 0; i < named; ++i) {
      PyObject* key = PyTuple_GetItem(kwnames, i);
      std::size_t at = 0;
      while (at < n && PyUnicode_CompareWithASCIIString(key, names[at]) != 0) ++at;
      if (at == n || values_[at] != nullptr)
        return Wrong(function, "an argument is unknown or given twice");
      values_[at] = args[count + i];
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (values_[i] == nullptr && i < required) return Wrong(function, "an argument is missing");
      if (values_[i] == Py_None) values_[i] = nullptr;
    }
    return true;
  }
  /// Null: not given, or None.
  PyObject* operator[](std::size_t i) const { return values_[i]; }

  std::uint32_t Id(std::size_t i) const {
    return static_cast<std::uint32_t>(PyLong_AsUnsignedLongMask(Or0(i)));
  }
  long Int(std::size_t i, long otherwise) const {
    return values_[i] == nullptr ? otherwise : PyLong_AsLong(values_[i]);
  }
  std::int64_t Step(std::size_t i) const {
    return values_[i] == nullptr ? TT_STEP_OPEN : PyLong_AsLongLong(values_[i]);
  }
  double Number(std::size_t i) const {
    return values_[i] == nullptr ? std::numeric_limits<double>::quiet_NaN()
                                 : PyFloat_AsDouble(values_[i]);
  }
  std::uint64_t Count(std::size_t i) const {
    return values_[i] == nullptr ? 0 : PyLong_AsUnsignedLongLong(values_[i]);
  }

 private:
  static bool Wrong(const char* function, const char* what) {
    PyErr_Format(PyExc_TypeError, "_probe.%s: %s", function, what);
    return false;
  }
  PyObject* Or0(std::size_t i) const { return values_[i] == nullptr ? Py_False : values_[i]; }

  std::array<PyObject*, n> values_{};
};

// ---- tensors ----

/// collection -> {name -> id}. A new process starts with an empty one.
PyObject* g_tensor_ids = nullptr;
Py_ssize_t g_tensor_count = 0;

/// Collections that the plan had not answered when they were asked for.
std::array<std::uint32_t, 64> g_unanswered{};
std::size_t g_unanswered_count = 0;
std::uint64_t g_answers = 0;

/// Bytes of a text. Not PyUnicode_AsUTF8AndSize: it is in the stable ABI only from 3.10. Surrogates
/// are kept legible.
PyObject* Encoded(PyObject* text) {
  return PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace");
}

/// The id that the cache has of a tensor, 0: none. False with an exception set.
bool KeptId(PyObject* collection, PyObject* name, std::uint32_t* id) {
  *id = 0;
  if (g_tensor_ids == nullptr) return true;
  PyObject* names = PyDict_GetItemWithError(g_tensor_ids, collection);  // Borrowed.
  PyObject* known = names == nullptr ? nullptr : PyDict_GetItemWithError(names, name);
  if (known == nullptr) return PyErr_Occurred() == nullptr;
  *id = static_cast<std::uint32_t>(PyLong_AsUnsignedLongMask(known));
  return true;
}

/// Bounded: a name made anew at each call must not grow the training's memory. False with an
/// exception set.
bool KeepId(PyObject* collection, PyObject* name, std::uint32_t id) {
  if (g_tensor_count >= kMaxNames) return true;
  if (g_tensor_ids == nullptr && (g_tensor_ids = PyDict_New()) == nullptr) return false;
  PyObject* names = PyDict_GetItemWithError(g_tensor_ids, collection);  // Borrowed.
  if (names == nullptr) {
    if (PyErr_Occurred() != nullptr) return false;
    const Ref made(PyDict_New());
    if (!made || PyDict_SetItem(g_tensor_ids, collection, made.get()) != 0) return false;
    names = made.get();  // The dict keeps it.
  }
  ++g_tensor_count;
  const Ref number(PyLong_FromUnsignedLong(id));
  return number && PyDict_SetItem(names, name, number.get()) == 0;
}

/// False with an exception set.
bool TensorId(PyObject* collection, PyObject* name, std::uint32_t* id) {
  if (PyUnicode_Check(collection) == 0 || PyUnicode_Check(name) == 0) {
    PyErr_SetString(PyExc_TypeError, "a tensor's collection and name must be str");
    return false;
  }
  const bool keep = MayKeep(collection) && MayKeep(name);
  if (keep && !KeptId(collection, name, id)) return false;
  if (keep && *id != 0) return true;
  const Ref collection_bytes(Encoded(collection));
  const Ref name_bytes(Encoded(name));
  if (!collection_bytes || !name_bytes) return false;
  *id = tt_tensor(PyBytes_AsString(collection_bytes.get()),
                  static_cast<std::size_t>(PyBytes_Size(collection_bytes.get())),
                  PyBytes_AsString(name_bytes.get()),
                  static_cast<std::size_t>(PyBytes_Size(name_bytes.get())));
  // None is not for ever: the table of names may only have been busy.
  return !keep || *id == 0 || KeepId(collection, name, *id);
}

PyObject* Tensor(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"collection", "name"};
  Arguments<2> a;
  if (!a.Take("tensor", kNames, 2, args, count, kwnames)) return nullptr;
  std::uint32_t id = 0;
  if (Ready(TT_PROCESS_TRAINER) &&
      !TensorId(a[0] != nullptr ? a[0] : Py_None, a[1] != nullptr ? a[1] : Py_None, &id)) {
    return nullptr;
  }
  return PyLong_FromUnsignedLong(id);
}

PyObject* Due(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"tensor_id", "step", "mode"};
  Arguments<3> a;
  if (!a.Take("due", kNames, 1, args, count, kwnames)) return nullptr;
  const std::uint32_t tensor = a.Id(0);
  const std::int64_t step = a.Step(1);
  const long mode = a.Int(2, TT_MODE_OPEN);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (g_recording != Recording::kOn) return PyLong_FromLong(0);
  return PyLong_FromUnsignedLong(tt_due(tensor, step, static_cast<int>(mode)));
}

/// wanted(collection): what the plan asks of any tensor of the collection at some step.
PyObject* Wanted(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"collection"};
  Arguments<1> a;
  if (!a.Take("wanted", kNames, 1, args, count, kwnames)) return nullptr;
  if (!Ready(TT_PROCESS_TRAINER)) return PyLong_FromLong(0);
  const Ref empty(PyUnicode_FromString(""));
  std::uint32_t id = 0;
  if (!empty || !TensorId(a[0] != nullptr ? a[0] : Py_None, empty.get(), &id)) return nullptr;
  const std::uint32_t take = tt_wanted(id);
  if ((take & TT_TAKE_UNKNOWN) != 0) {
    std::size_t at = 0;
    while (at < g_unanswered_count && g_unanswered[at] != id) ++at;
    if (at == g_unanswered_count && at < g_unanswered.size())
      g_unanswered[g_unanswered_count++] = id;
  }
  return PyLong_FromUnsignedLong(take & ~TT_TAKE_UNKNOWN);
}

/// plan_epoch(): changes when wanted() may answer otherwise than before.
PyObject* PlanEpoch(PyObject*, PyObject*) {
  if (g_recording != Recording::kOn) return PyLong_FromLong(0);
  for (std::size_t at = 0; at < g_unanswered_count;) {
    if ((tt_wanted(g_unanswered[at]) & TT_TAKE_UNKNOWN) != 0) {
      ++at;
      continue;
    }
    g_unanswered[at] = g_unanswered[--g_unanswered_count];
    ++g_answers;
  }
  // Both only grow within a process.
  return PyLong_FromUnsignedLongLong(tt_plan_epoch() + g_answers);
}

/// Sizes of a tuple or list of integers into `out`; their number, or -1 with an exception set
/// (-2: too many, without one).
Py_ssize_t Sizes(PyObject* sequence, std::int64_t* out) {
  const Py_ssize_t length = PySequence_Size(sequence);
  if (length > TT_MAX_DIMS) return -2;
  for (Py_ssize_t i = 0; i < length; ++i) {
    const Ref item(PySequence_GetItem(sequence, i));
    if (!item) return -1;
    out[i] = PyLong_AsLongLong(item.get());
    if (out[i] == -1 && PyErr_Occurred() != nullptr) return -1;
  }
  return length;
}

/// About how many bytes are read; 0 for what is refused anyway.
std::uint64_t BytesOf(const tt_array& array) {
  double bytes = 8;
  for (std::uint32_t i = 0; i < array.ndim; ++i) bytes *= static_cast<double>(array.shape[i]);
  return bytes > 0 && bytes < 1e18 ? static_cast<std::uint64_t>(bytes) : 0;
}

PyObject* Record(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"tensor_id", "address", "dtype", "shape",
                                           "strides",   "take",    "step",  "mode"};
  Arguments<8> a;
  // Strides may be None, so they are not required to the letter.
  if (!a.Take("record", kNames, 4, args, count, kwnames)) return nullptr;
  const std::uint32_t tensor = a.Id(0);
  const std::uint64_t address = a.Count(1);
  const long dtype = a.Int(2, -1);
  const auto take = static_cast<std::uint32_t>(a.Int(5, 0));
  const std::int64_t step = a.Step(6);
  const long mode = a.Int(7, TT_MODE_OPEN);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (g_recording != Recording::kOn || take == 0) return PyLong_FromLong(0);
  std::int64_t shape[TT_MAX_DIMS] = {};
  std::int64_t strides[TT_MAX_DIMS] = {};
  const Py_ssize_t ndim = a[3] == nullptr ? 0 : Sizes(a[3], shape);
  const Py_ssize_t stride_count = a[4] == nullptr || ndim < 0 ? ndim : Sizes(a[4], strides);
  if (ndim == -1 || stride_count == -1) {
    if (PyErr_Occurred() == nullptr)
      PyErr_SetString(PyExc_TypeError, "_probe.record: shape and strides");
    return nullptr;
  }
  if (ndim < 0 || stride_count != ndim || dtype < 0) {
    Skipped(dtype < 0 ? "capture.dtype" : "capture.array");
    return PyLong_FromLong(0);
  }
  tt_array array{};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a framework names memory by its address.
  array.data = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address));
  array.dtype = static_cast<tt_dtype>(dtype);
  array.ndim = static_cast<std::uint32_t>(ndim);
  array.shape = shape;
  array.strides = a[4] == nullptr ? nullptr : strides;
  return PyLong_FromUnsignedLong(
      Give(tensor, array, BytesOf(array), take, step, static_cast<int>(mode)));
}

/// Whether the buffer was an array that the probe reads; it is given then.
bool GiveBuffer(const Buffer& buffer, std::uint32_t tensor, std::uint32_t take, std::int64_t step,
                int mode) {
  const int dtype = DtypeOf(buffer.format, buffer.item_bytes);
  if (dtype < 0 || buffer.ndim < 0 || buffer.ndim > TT_MAX_DIMS || buffer.item_bytes <= 0 ||
      buffer.suboffsets != nullptr) {
    return false;
  }
  const auto ndim = static_cast<std::size_t>(buffer.ndim);
  std::int64_t shape[TT_MAX_DIMS] = {};
  std::int64_t strides[TT_MAX_DIMS] = {};
  for (std::size_t i = 0; i < ndim; ++i) {
    shape[i] = buffer.shape != nullptr ? buffer.shape[i] : buffer.bytes / buffer.item_bytes;
    if (buffer.strides == nullptr) continue;
    // Fields of a record: elements that lie between others.
    if (buffer.strides[i] % buffer.item_bytes != 0) return false;
    strides[i] = buffer.strides[i] / buffer.item_bytes;
  }
  tt_array array{};
  array.data = buffer.data;
  array.dtype = static_cast<tt_dtype>(dtype);
  array.ndim = static_cast<std::uint32_t>(ndim);
  array.shape = shape;
  array.strides = buffer.strides != nullptr ? strides : nullptr;
  Give(tensor, array, BytesOf(array), take, step, mode);
  return true;
}

PyObject* RecordBuffer(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"tensor_id", "obj", "take", "step", "mode"};
  Arguments<5> a;
  if (!a.Take("record_buffer", kNames, 3, args, count, kwnames)) return nullptr;
  const std::uint32_t tensor = a.Id(0);
  const auto take = static_cast<std::uint32_t>(a.Int(2, 0));
  const std::int64_t step = a.Step(3);
  const long mode = a.Int(4, TT_MODE_OPEN);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (a[1] == nullptr || g_get_buffer == nullptr || g_release_buffer == nullptr) {
    return PyBool_FromLong(0);
  }
  Buffer buffer;
  std::memset(&buffer, 0, sizeof buffer);
  if (g_get_buffer(a[1], &buffer, kStridedWithFormat) != 0) {
    DropError();
    return PyBool_FromLong(0);
  }
  const bool given = g_recording == Recording::kOn &&
                     GiveBuffer(buffer, tensor, take, step, static_cast<int>(mode));
  g_release_buffer(&buffer);
  return PyBool_FromLong(given ? 1 : 0);
}

PyObject* RecordComputed(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {
      "tensor_id", "dtype", "count", "nan",  "inf",  "zero",    "min",     "max", "mean",
      "std",       "l1",    "l2",    "step", "mode", "abs_min", "abs_std", "prod"};
  Arguments<17> a;
  if (!a.Take("record_computed", kNames, 12, args, count, kwnames)) return nullptr;
  const std::uint32_t tensor = a.Id(0);
  const long dtype = a.Int(1, -1);
  const tt_stats stats{a.Count(2),  a.Count(3),  a.Count(4),  a.Count(5),   a.Number(6),
                       a.Number(7), a.Number(8), a.Number(9), a.Number(10), a.Number(11)};
  const std::int64_t step = a.Step(12);
  const long mode = a.Int(13, TT_MODE_OPEN);
  const tt_more_stats more{a.Number(14), a.Number(15), a.Number(16)};
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (g_recording != Recording::kOn) return None();
  if (tensor == 0) {
    tt_count_skipped(0, 1);
  } else if (dtype < 0) {
    Skipped("capture.dtype");
  } else if (a[14] != nullptr) {
    tt_record_computed_more(tensor, &stats, &more, static_cast<tt_dtype>(dtype), step,
                            static_cast<int>(mode));
  } else {
    tt_record_computed(tensor, &stats, static_cast<tt_dtype>(dtype), step, static_cast<int>(mode));
  }
  return None();
}

PyObject* SampleSize(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"tensor_id", "step", "mode"};
  Arguments<3> a;
  if (!a.Take("sample_size", kNames, 1, args, count, kwnames)) return nullptr;
  const std::uint32_t tensor = a.Id(0);
  const std::int64_t step = a.Step(1);
  const long mode = a.Int(2, TT_MODE_OPEN);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (g_recording != Recording::kOn) return PyLong_FromLong(0);
  return PyLong_FromUnsignedLong(tt_sample_size(tensor, step, static_cast<int>(mode)));
}

PyObject* RecordSample(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"tensor_id", "address", "dtype", "taken", "count",
                                           "min",       "max",     "step",  "mode"};
  Arguments<9> a;
  if (!a.Take("record_sample", kNames, 7, args, count, kwnames)) return nullptr;
  const std::uint32_t tensor = a.Id(0);
  const std::uint64_t address = a.Count(1);
  const long dtype = a.Int(2, -1);
  const auto taken = static_cast<std::int64_t>(a.Count(3));
  tt_stats stats{};
  stats.count = a.Count(4);
  stats.min = a.Number(5);
  stats.max = a.Number(6);
  const std::int64_t step = a.Step(7);
  const long mode = a.Int(8, TT_MODE_OPEN);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (g_recording != Recording::kOn) return PyBool_FromLong(0);
  if (dtype < 0) {
    Skipped("capture.dtype");
    return PyBool_FromLong(0);
  }
  tt_array sample{};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a framework names memory by its address.
  sample.data = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address));
  sample.dtype = static_cast<tt_dtype>(dtype);
  sample.ndim = 1;
  sample.shape = &taken;
  ThreadState& thread = ThisThread();
  const std::uint64_t begin = tt_now();
  const int given = tt_record_sample(tensor, &sample, &stats, step, static_cast<int>(mode));
  thread.recorded_ticks += tt_now() - begin;
  return PyBool_FromLong(given);
}

PyObject* SlabBytes(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(g_recording == Recording::kOn ? tt_slab_bytes() : 0);
}

// ---- scalars and plans ----

PyObject* ScalarAt(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"name", "value", "step", "mode"};
  Arguments<4> a;
  if (!a.Take("scalar_at", kNames, 4, args, count, kwnames)) return nullptr;
  const double value = a.Number(1);
  std::int64_t step = a.Step(2);
  long mode = a.Int(3, TT_MODE_OPEN);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (!Ready(TT_PROCESS_TRAINER)) return None();
  std::uint32_t name = 0;
  if (!NameId(a[0] != nullptr ? a[0] : Py_None, &name)) return nullptr;
  std::int64_t open_step = -1;
  const int open_mode = tt_current(&open_step);
  if (step == TT_STEP_OPEN) step = open_step;
  if (mode < 0) mode = open_mode;
  tt_scalar_at(name, value, step, static_cast<tt_mode>(mode & 3));
  return None();
}

/// request_plan(json_text) -> bool: asks the agent for another plan, as a live edit.
PyObject* RequestPlan(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"json_text"};
  Arguments<1> a;
  if (!a.Take("request_plan", kNames, 1, args, count, kwnames)) return nullptr;
  if (a[0] == nullptr || PyUnicode_Check(a[0]) == 0) {
    PyErr_SetString(PyExc_TypeError, "_probe.request_plan: the plan must be a str of JSON");
    return nullptr;
  }
  const Ref data(Encoded(a[0]));
  if (!data) return nullptr;
  const Py_ssize_t size = PyBytes_Size(data.get());
  if (size > kMaxPlanBytes) {
    PyErr_Format(PyExc_ValueError, "the plan has %zd bytes of JSON, at most %zd can be sent", size,
                 kMaxPlanBytes);
    return nullptr;
  }
  if (!Ready(TT_PROCESS_TRAINER)) return PyBool_FromLong(0);
  constexpr std::string_view kKind = "plan.request";
  tt_event(tt_name(kKind.data(), kKind.size()), TT_INFO, 0, nullptr, 0,
           PyBytes_AsString(data.get()), static_cast<std::size_t>(size));
  return PyBool_FromLong(1);
}

// ---- the step machine ----

bool MaySteps() { return Ready(TT_PROCESS_TRAINER) && !g_worker; }

/// As MaySteps, of a call that makes the steps the calling thread's.
bool Steps() {
  if (!MaySteps()) return false;
  g_machine_owned = true;
  return true;
}

PyObject* Current(PyObject*, PyObject*) {
  std::int64_t step = -1;
  const int mode = g_recording == Recording::kOn ? tt_current(&step) : TT_MODE_GLOBAL;
  return Py_BuildValue("(Li)", static_cast<long long>(step), mode);
}

PyObject* FetchBegin(PyObject*, PyObject*) {
  if (MayFetch() && MaySteps()) {
    tt_fetch_begin();
    StepBorder(Border::kFetch);
    PhaseBorder(TT_PHASE_DATA_WAIT, true);
  }
  return None();
}

PyObject* FetchEnd(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"batch"};
  Arguments<1> a;
  if (!a.Take("fetch_end", kNames, 0, args, count, kwnames)) return nullptr;
  const long batch = a.Int(0, 0);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (MayFetch() && g_recording == Recording::kOn && !g_worker) {
    PhaseBorder(TT_PHASE_DATA_WAIT, false);
    tt_fetch_end(batch);
  }
  return None();
}

PyObject* ForwardBegin(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"mode"};
  Arguments<1> a;
  if (!a.Take("forward_begin", kNames, 1, args, count, kwnames)) return nullptr;
  const long mode = a.Int(0, TT_MODE_TRAIN);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (!MaySteps()) return None();
  // Only the main thread's forward makes the steps its own; see StepMachine.
  if (MayFetch()) g_machine_owned = true;
  tt_forward_begin(static_cast<tt_mode>(mode & 3));
  StepBorder(Border::kForward, static_cast<int>(mode & 3));
  PhaseBorder(TT_PHASE_FORWARD, true);
  return None();
}

PyObject* ForwardEnd(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"batch"};
  Arguments<1> a;
  if (!a.Take("forward_end", kNames, 0, args, count, kwnames)) return nullptr;
  const long batch = a.Int(0, 0);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (g_recording == Recording::kOn && !g_worker) {
    PhaseBorder(TT_PHASE_FORWARD, false);
    tt_forward_end(batch);
  }
  return None();
}

PyObject* BackwardBegin(PyObject*, PyObject*) {
  if (Steps()) {
    tt_backward_begin();
    PhaseBorder(TT_PHASE_BACKWARD, true);
  }
  return None();
}

PyObject* BackwardEnd(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"loss"};
  Arguments<1> a;
  if (!a.Take("backward_end", kNames, 0, args, count, kwnames)) return nullptr;
  const double loss = a.Number(0);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (g_recording == Recording::kOn && !g_worker) {
    PhaseBorder(TT_PHASE_BACKWARD, false);
    tt_backward_end(a[0] != nullptr ? 1 : 0, loss);
  }
  return None();
}

PyObject* OptimizerBegin(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"id"};
  Arguments<1> a;
  if (!a.Take("optimizer_begin", kNames, 1, args, count, kwnames)) return nullptr;
  const std::uint64_t id = a.Count(0);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (Steps()) {
    tt_optimizer_begin(id);
    PhaseBorder(TT_PHASE_OPTIMIZER, true);
  }
  return None();
}

PyObject* OptimizerEnd(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"id", "skipped", "lr"};
  Arguments<3> a;
  if (!a.Take("optimizer_end", kNames, 1, args, count, kwnames)) return nullptr;
  const std::uint64_t id = a.Count(0);
  const int skipped = a[1] == nullptr ? 0 : PyObject_IsTrue(a[1]);
  const double rate = a.Number(2);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (g_recording == Recording::kOn && !g_worker) {
    PhaseBorder(TT_PHASE_OPTIMIZER, false);
    tt_optimizer_end(id, skipped, rate);
  }
  return None();
}

using FastKeywords = PyObject* (*)(PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                                   PyObject* kwnames);

PyCFunction Fast(FastKeywords function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

constexpr int kFast = METH_FASTCALL | METH_KEYWORDS;

PyMethodDef g_functions[] = {
    {"tensor", Fast(Tensor), kFast, "tensor(collection, name) -> id, 0: none to be had"},
    {"due", Fast(Due), kFast, "due(tensor_id, step=None, mode=-1) -> TAKE bits; id 0: of any"},
    {"wanted", Fast(Wanted), kFast, "wanted(collection) -> TAKE bits at some step or other"},
    {"plan_epoch", PlanEpoch, METH_NOARGS, "Changes when wanted() may."},
    {"record", Fast(Record), kFast,
     "record(tensor_id, address, dtype, shape, strides, take, step=None, mode=-1) -> TAKE bits of "
     "what found room"},
    {"record_buffer", Fast(RecordBuffer), kFast,
     "record_buffer(tensor_id, obj, take, step=None, mode=-1) -> bool: could be read"},
    {"record_computed", Fast(RecordComputed), kFast,
     "record_computed(tensor_id, dtype, count, nan, inf, zero, min, max, mean, std, l1, l2, "
     "step=None, mode=-1, abs_min=None, abs_std=None, prod=None)"},
    {"sample_size", Fast(SampleSize), kFast,
     "sample_size(tensor_id, step=None, mode=-1) -> elements that a histogram is made of at most"},
    {"record_sample", Fast(RecordSample), kFast,
     "record_sample(tensor_id, address, dtype, taken, count, min, max, step=None, mode=-1) -> "
     "bool: the histogram of `taken` elements at `address` has room"},
    {"slab_bytes", SlabBytes, METH_NOARGS, "slab_bytes() -> bound of raw values on their way"},
    {"scalar_at", Fast(ScalarAt), kFast, "scalar_at(name, value, step, mode)"},
    {"request_plan", Fast(RequestPlan), kFast, "request_plan(json_text) -> bool: was sent"},
    {"current", Current, METH_NOARGS, "current() -> (step, mode) of the open step"},
    {"fetch_begin", FetchBegin, METH_NOARGS, "The next batch is being fetched."},
    {"fetch_end", Fast(FetchEnd), kFast, "fetch_end(batch=0); -1: the epoch ended"},
    {"forward_begin", Fast(ForwardBegin), kFast, "forward_begin(mode)"},
    {"forward_end", Fast(ForwardEnd), kFast, "forward_end(batch=0)"},
    {"backward_begin", BackwardBegin, METH_NOARGS, "A backward pass begins."},
    {"backward_end", Fast(BackwardEnd), kFast, "backward_end(loss=None)"},
    {"optimizer_begin", Fast(OptimizerBegin), kFast, "optimizer_begin(id)"},
    {"optimizer_end", Fast(OptimizerEnd), kFast, "optimizer_end(id, skipped=False, lr=None)"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

std::uint32_t Give(std::uint32_t tensor, const tt_array& array, std::uint64_t bytes,
                   std::uint32_t take, std::int64_t step, int mode) {
  ThreadState& thread = ThisThread();
  const std::uint64_t begin = tt_now();
  PyThreadState* state = bytes > kReleaseGilBytes ? PyEval_SaveThread() : nullptr;
  const std::uint32_t recorded = tt_record_tensor(tensor, &array, take, step, mode);
  // Without the wait for the GIL, which whoever called us accounts for.
  thread.recorded_ticks += tt_now() - begin;
  if (state != nullptr) PyEval_RestoreThread(state);
  return recorded;
}

void InitCapture() {
  g_get_buffer = reinterpret_cast<GetBuffer>(dlsym(RTLD_DEFAULT, "PyObject_GetBuffer"));
  g_release_buffer = reinterpret_cast<ReleaseBuffer>(dlsym(RTLD_DEFAULT, "PyBuffer_Release"));
}

bool AddCaptureFunctions(PyObject* module) {
  return PyModule_AddFunctions(module, g_functions) == 0;
}

void ForgetTensors() {
  if (g_tensor_ids != nullptr) PyDict_Clear(g_tensor_ids);
  g_tensor_count = 0;
  g_unanswered_count = 0;
}

}  // namespace telltale::native
