// SPDX-License-Identifier: Apache-2.0
#include "torch_optimizer.h"

#include <pthread.h>

#include <array>

#include "collection.h"
#include "torch_read.h"

namespace telltale::native {
namespace {

PyObject* g_param_groups = nullptr;
PyObject* g_params = nullptr;
PyObject* g_grad_scale = nullptr;
PyObject* g_getattr = nullptr;       ///< The builtin: it makes no exception of what is not there.
PyObject* g_mode_enabled = nullptr;  ///< () -> bool, of the adapter; null: never.

constinit Collection g_state{"optimizer_state"};

PyObject* None() {
  Py_INCREF(Py_None);
  return Py_None;
}

/// One parameter of an optimizer, as Python packs it (struct "=QIIQQ").
struct Entry {
  std::uint64_t parameter;  ///< Address of the object.
  std::uint32_t value_id, gradient_id;
  std::uint64_t value_memory, gradient_memory;  ///< Where each was last found whole.
};
static_assert(sizeof(Entry) == 32);

/// The entries of a table, a bytearray.
struct Table {
  explicit Table(PyObject* packed)
      : entries(reinterpret_cast<Entry*>(PyByteArray_AsString(packed))),
        count(PyByteArray_Size(packed) / static_cast<Py_ssize_t>(sizeof(Entry))) {}
  Entry* entries;
  Py_ssize_t count;
};

/// Whether a table is of the parameters in this list.
bool Matches(PyObject* parameters, const Table& table) {
  if (PyList_Size(parameters) != table.count) return false;
  for (Py_ssize_t i = 0; i < table.count; ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(PyList_GetItem(parameters, i));
    if (static_cast<std::uint64_t>(address) != table.entries[i].parameter) return false;
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
        RecordTensor(parameter, entry->value_id, take, Moment{}, &entry->value_memory);
    if (refusal != Refusal::kNone && !AddRefused(refused, position, 0, refusal, take)) return false;
  }
  const std::uint32_t gradient_take = due(entry->gradient_id);
  if (gradient_take == 0) return true;
  if (!IsPlain(parameter)) {
    return AddRefused(refused, position, 1, Refusal::kType, gradient_take);
  }
  const Ref gradient(GradientOf(parameter));
  if (!gradient) {
    DropError();
    return true;
  }
  if (gradient.get() == Py_None) return true;
  const Refusal refusal = RecordTensor(gradient.get(), entry->gradient_id, gradient_take, Moment{},
                                       &entry->gradient_memory);
  return refusal == Refusal::kNone || AddRefused(refused, position, 1, refusal, gradient_take);
}

/// Records what is due of the parameters of a table that matches, and their gradients. False with
/// an exception set.
bool RecordEach(PyObject* parameters, const Table& table, PyObject** refused) {
  for (Py_ssize_t i = 0; i < table.count; ++i) {
    // Another thread may change the list while a tensor is read.
    if (i >= PyList_Size(parameters)) break;
    PyObject* borrowed = PyList_GetItem(parameters, i);
    if (reinterpret_cast<std::uintptr_t>(borrowed) != table.entries[i].parameter) break;
    Py_INCREF(borrowed);
    const Ref parameter(borrowed);
    if (!RecordOne(parameter.get(), i, &table.entries[i], refused)) return false;
  }
  return true;
}

// ---- optimizers that the adapter need not be told of ----

struct Kept {
  PyObject* optimizer = nullptr;  ///< Owned weak reference; null: a free place.
  PyObject* tables = nullptr;     ///< Owned: a tuple of one bytearray for each group.
  std::uint32_t epoch = 0;        ///< g_epoch for which the ids in the tables hold.
  pthread_t thread{};             ///< The one whose calls make the steps.
};
std::array<Kept, 13> g_kept;

Kept& PlaceOf(PyObject* optimizer) {
  return g_kept[(reinterpret_cast<std::uintptr_t>(optimizer) >> 4) % g_kept.size()];
}

void Drop(Kept* kept) {
  const Ref optimizer(kept->optimizer);
  const Ref tables(kept->tables);
  *kept = {};
}

void ForgetAll() {
  for (Kept& kept : g_kept) Drop(&kept);
}

/// An attribute that few optimizers have is there, and not None.
bool IsScaled(PyObject* optimizer) {
  PyObject* args[] = {optimizer, g_grad_scale, Py_None};
  const Ref scale(CallVector(g_getattr, args, 3, nullptr));
  return scale.get() != Py_None;
}

/// The lists of parameters of an optimizer's groups, a tuple; null, maybe with an exception set,
/// where they are not those of the tables.
PyObject* ListsOf(PyObject* optimizer, PyObject* tables) {
  const Ref groups(PyObject_GetAttr(optimizer, g_param_groups));
  const Py_ssize_t count = PyTuple_Size(tables);
  if (!groups || PyList_Check(groups.get()) == 0 || PyList_Size(groups.get()) != count) {
    return nullptr;
  }
  PyObject* lists = PyTuple_New(count);
  for (Py_ssize_t i = 0; lists != nullptr && i < count; ++i) {
    PyObject* group = PyList_GetItem(groups.get(), i);
    PyObject* list = PyDict_Check(group) != 0 ? PyDict_GetItemWithError(group, g_params) : nullptr;
    if (list == nullptr || PyList_Check(list) == 0 ||
        !Matches(list, Table(PyTuple_GetItem(tables, i)))) {
      Py_DECREF(lists);
      return nullptr;
    }
    Py_INCREF(list);
    PyTuple_SetItem(lists, i, list);
  }
  return lists;
}

/// Records all groups; what was refused goes to `*refused`, a list of (group, what
/// record_parameters gives), made when first needed. False with an exception set.
bool RecordGroups(PyObject* lists, PyObject* tables, PyObject** refused) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(tables); ++i) {
    PyObject* here = nullptr;
    const bool done =
        RecordEach(PyTuple_GetItem(lists, i), Table(PyTuple_GetItem(tables, i)), &here);
    const Ref kept(here);
    if (!done) return false;
    if (here == nullptr) continue;
    if (*refused == nullptr && (*refused = PyList_New(0)) == nullptr) return false;
    const Ref row(Py_BuildValue("(nO)", i, here));
    if (!row || PyList_Append(*refused, row.get()) != 0) return false;
  }
  return true;
}

}  // namespace

PyObject* RecordParameters(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2 || PyList_Check(args[0]) == 0 || PyByteArray_Check(args[1]) == 0) {
    PyErr_SetString(PyExc_TypeError, "_probe.record_parameters takes a list and a bytearray");
    return nullptr;
  }
  if (g_recording != Recording::kOn) return None();
  const Table table(args[1]);
  if (!Matches(args[0], table)) return PyBool_FromLong(0);
  PyObject* refused = nullptr;
  if (!RecordEach(args[0], table, &refused)) {
    Py_XDECREF(refused);
    return nullptr;
  }
  return refused != nullptr ? refused : None();
}

PyObject* KeepOptimizer(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  bool right = nargs == 2 && PyTuple_Check(args[1]) != 0;
  for (Py_ssize_t i = 0; right && i < PyTuple_Size(args[1]); ++i) {
    right = PyByteArray_Check(PyTuple_GetItem(args[1], i)) != 0;
  }
  if (!right) {
    PyErr_SetString(PyExc_TypeError, "_probe.keep_optimizer takes an optimizer and its tables");
    return nullptr;
  }
  // It may collect garbage, whose code may come here too.
  PyObject* reference = PyWeakref_NewRef(args[0], nullptr);
  if (reference == nullptr) return nullptr;
  Py_INCREF(args[1]);
  Kept& kept = PlaceOf(args[0]);
  Drop(&kept);
  kept = {reference, args[1], g_epoch, pthread_self()};
  return None();
}

bool RecordKept(PyObject* optimizer, PyObject** refused) {
  *refused = nullptr;
  const Kept& kept = PlaceOf(optimizer);
  if (kept.optimizer == nullptr || PyWeakref_GetObject(kept.optimizer) != optimizer ||
      kept.epoch != g_epoch || pthread_equal(kept.thread, pthread_self()) == 0 ||
      g_state.Wanted()) {
    return false;
  }
  // Another thread may have all forgotten while a tensor is read.
  Py_INCREF(kept.tables);
  const Ref tables(kept.tables);
  if (ModeEnabled() || IsScaled(optimizer)) {
    DropError();
    return false;
  }
  const Ref lists(ListsOf(optimizer, tables.get()));
  if (!lists) {
    DropError();
    return false;
  }
  if (!RecordGroups(lists.get(), tables.get(), refused)) {
    DropError();
    Skipped("capture.failed");
  }
  if (*refused != nullptr) ForgetAll();
  return true;
}

PyObject* ForgetOptimizers(PyObject*, PyObject*) {
  ForgetAll();
  return None();
}

bool ModeEnabled() {
  if (g_mode_enabled == nullptr) return false;
  const Ref enabled(CallVector(g_mode_enabled, nullptr, 0, nullptr));
  if (!enabled) DropError();
  return enabled.get() != Py_False;
}

void SetModeEnabled(PyObject* callable) {
  PyObject* old = g_mode_enabled;
  Py_XINCREF(callable);
  g_mode_enabled = callable;
  Py_XDECREF(old);
}

bool InitTorchOptimizer() {
  g_param_groups = PyUnicode_InternFromString("param_groups");
  g_params = PyUnicode_InternFromString("params");
  g_grad_scale = PyUnicode_InternFromString("grad_scale");
  const Ref builtins(PyImport_ImportModule("builtins"));
  g_getattr = builtins ? PyObject_GetAttrString(builtins.get(), "getattr") : nullptr;
  return g_param_groups && g_params && g_grad_scale && g_getattr;
}

}  // namespace telltale::native
