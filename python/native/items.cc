// SPDX-License-Identifier: Apache-2.0
#include "items.h"

#include <algorithm>

#include "spans.h"
#include "state.h"
#include "torch_capture.h"

namespace telltale::native {
namespace {

constexpr std::uint64_t kLeastFetchNs = 1'000'000;
constexpr std::uint64_t kLeastItemNs = 5'000'000;
/// An item is told of that took so many times the mean of those before it.
constexpr double kFarLonger = 4;
constexpr std::uint64_t kFewestItems = 8;
/// And at most one in this time, unless it is by half longer than the longest so far.
constexpr std::uint64_t kTellEveryNs = 10'000'000'000;

/// Of a data set about so many items are compared from epoch to epoch, of those that cost at least
/// this.
constexpr std::uint64_t kCompared = 16;
constexpr std::uint64_t kLeastComparedNs = 200'000;

struct ItemsObject {
  PyObject_HEAD PyObject* source;  ///< Owned: what the items are taken of.
  PyObject* longest_key;           ///< Owned, or null: an iterator has none.
  std::uint64_t last, longest, longest_end;
  std::uint64_t count, longest_position;
  std::uint64_t size;  ///< Of the data set; 0: not known, none of its items is compared.
};

PyTypeObject* g_type = nullptr;

/// Of the items of this process so far.
struct Known {
  double mean = 0;  ///< Of the newest few hundred, in ticks.
  std::uint64_t count = 0;
  std::uint64_t longest = 0;
  std::uint64_t tell_at = 0;
};
Known g_known;

ItemsObject* AsItems(PyObject* self) { return reinterpret_cast<ItemsObject*>(self); }

/// Of the data set whose items were taken last: its size is asked once. Owned weak reference, or
/// null: another data set at the address of one that is gone has a size of its own.
PyObject* g_sized = nullptr;
std::uint64_t g_size = 0;

/// The adapter knows it without a call of the user's __len__, or not at all.
std::uint64_t SizeOf(PyObject* source) {
  if (g_sized != nullptr && PyWeakref_GetObject(g_sized) == source) return g_size;
  Py_CLEAR(g_sized);
  g_sized = PyWeakref_NewRef(source, nullptr);
  DropError();  // One that takes no weak reference is asked each time.
  g_size = 0;
  if (g_adapter.length_of == nullptr) return 0;
  const OutsideCompiler outside;
  const OwnTime own;
  const Ref length(PyObject_CallFunctionObjArgs(g_adapter.length_of, source, nullptr));
  const long long size =
      length && PyLong_Check(length.get()) != 0 ? PyLong_AsLongLong(length.get()) : 0;
  DropError();
  if (size > 0) g_size = static_cast<std::uint64_t>(size);
  own.Account();
  return g_size;
}

/// Whether an index is one of those that are compared: the same in each process and epoch.
bool IsCompared(std::uint64_t index, std::uint64_t size) {
  const std::uint64_t every = std::max<std::uint64_t>(1, size / kCompared);
  return (index * 0x9E3779B97F4A7C15u >> 32) % every == 0;
}

/// Whether a data set's key is a number that can be read without running a program's code: an int,
/// a tensor or a NumPy scalar.
bool IsNumber(PyObject* key) {
  if (PyLong_Check(key) != 0 || Py_TYPE(key) == g_adapter.tensor_type) return true;
  // A metaclass of the program's would be asked too.
  if (Py_TYPE(reinterpret_cast<PyObject*>(Py_TYPE(key))) != &PyType_Type) return false;
  const Ref module(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(key)), "__module__"));
  const bool numpys = module && PyUnicode_Check(module.get()) != 0 &&
                      PyUnicode_CompareWithASCIIString(module.get(), "numpy") == 0;
  DropError();
  return numpys;
}

/// Tells on_again of one of the few items that are compared.
void Compare(ItemsObject* items, PyObject* key, PyObject* item, std::uint64_t took) {
  ErrorGuard guard;
  if (!IsNumber(key)) return;
  const Ref index(PyNumber_Index(key));
  const long long number = index ? PyLong_AsLongLong(index.get()) : -1;
  if (PyErr_Occurred() != nullptr) DropError();
  if (number < 0 || !IsCompared(static_cast<std::uint64_t>(number), items->size)) return;
  const OwnTime own;
  const Ref facts(Py_BuildValue("(LOKK)", number, item,
                                static_cast<unsigned long long>(Nanoseconds(took)),
                                static_cast<unsigned long long>(items->size)));
  if (facts) {
    CallAdapter(g_adapter.on_again, facts.get(), "on_again");
  } else {
    DropError();
  }
  own.Account();
  items->last = tt_now();
}

void Took(ItemsObject* items, PyObject* key, PyObject* item) {
  const std::uint64_t now = tt_now();
  const std::uint64_t took = now - items->last;
  items->last = now;
  ++items->count;
  if (key != nullptr && items->size != 0 && took >= Ticks(kLeastComparedNs) &&
      g_adapter.on_again != nullptr) {
    Compare(items, key, item, took);
  }
  if (took <= items->longest) return;
  items->longest = took;
  items->longest_end = now;
  items->longest_position = items->count - 1;
  PyObject* old = items->longest_key;
  Py_XINCREF(key);
  items->longest_key = key;
  Py_XDECREF(old);
}

PyObject* Subscript(PyObject* self, PyObject* key) {
  PyObject* item = PyObject_GetItem(AsItems(self)->source, key);
  if (item != nullptr) Took(AsItems(self), key, item);
  return item;
}

PyObject* Next(PyObject* self) {
  // PyIter_Next calls what is not there.
  if (PyIter_Check(AsItems(self)->source) == 0) {
    PyErr_SetString(PyExc_TypeError, "the object is not an iterator");
    return nullptr;
  }
  PyObject* item = PyIter_Next(AsItems(self)->source);
  if (item != nullptr) Took(AsItems(self), nullptr, item);
  return item;
}

PyObject* Iter(PyObject* self) { return PyObject_GetIter(AsItems(self)->source); }
Py_ssize_t Length(PyObject* self) { return PyObject_Size(AsItems(self)->source); }
PyObject* Repr(PyObject* self) { return PyObject_Repr(AsItems(self)->source); }
Py_hash_t Hash(PyObject* self) { return PyObject_Hash(AsItems(self)->source); }

PyObject* RichCompare(PyObject* self, PyObject* other, int operation) {
  PyObject* compared = Py_TYPE(other) == g_type ? AsItems(other)->source : other;
  return PyObject_RichCompare(AsItems(self)->source, compared, operation);
}

PyObject* GetAttr(PyObject* self, PyObject* name) {
  return PyObject_GetAttr(AsItems(self)->source, name);
}

int SetAttr(PyObject* self, PyObject* name, PyObject* value) {
  return PyObject_SetAttr(AsItems(self)->source, name, value);
}

int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(AsItems(self)->source);
  Py_VISIT(AsItems(self)->longest_key);
  return 0;
}

int Clear(PyObject* self) {
  Py_CLEAR(AsItems(self)->source);
  Py_CLEAR(AsItems(self)->longest_key);
  return 0;
}

void Dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Clear(self);
  PyTypeObject* type = Py_TYPE(self);
  using Free = void (*)(void*);
  reinterpret_cast<Free>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyType_Slot kSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(Clear)},
    {Py_tp_getattro, reinterpret_cast<void*>(GetAttr)},
    {Py_tp_setattro, reinterpret_cast<void*>(SetAttr)},
    {Py_tp_repr, reinterpret_cast<void*>(Repr)},
    {Py_tp_hash, reinterpret_cast<void*>(Hash)},
    {Py_tp_richcompare, reinterpret_cast<void*>(RichCompare)},
    {Py_tp_iter, reinterpret_cast<void*>(Iter)},
    {Py_tp_iternext, reinterpret_cast<void*>(Next)},
    {Py_mp_subscript, reinterpret_cast<void*>(Subscript)},
    {Py_mp_length, reinterpret_cast<void*>(Length)},
    {0, nullptr},
};

PyType_Spec kSpec = {"telltale._probe.Items", sizeof(ItemsObject), 0,
                     static_cast<unsigned>(Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC), kSlots};

PyObject* Make(PyObject* source) {
  using Alloc = PyObject* (*)(PyTypeObject*, Py_ssize_t);
  static const auto alloc = reinterpret_cast<Alloc>(PyType_GetSlot(g_type, Py_tp_alloc));
  PyObject* self = alloc(g_type, 0);
  if (self == nullptr) return nullptr;
  Py_INCREF(source);
  AsItems(self)->source = source;
  AsItems(self)->last = tt_now();
  return self;
}

/// Whether an item stands out; learns of the batch either way.
bool StandsOut(const ItemsObject& items, std::uint64_t begin, double* mean) {
  Known& known = g_known;
  *mean = known.mean;
  const bool out = known.count >= kFewestItems && items.longest >= Ticks(kLeastItemNs) &&
                   static_cast<double>(items.longest) >= kFarLonger * known.mean;
  // The first item counts from a little before `begin`.
  const std::uint64_t all = items.last - begin;
  const auto rest = static_cast<double>(all > items.longest ? all - items.longest : 0);
  // Without the longest one, so that those that stand out do not become the measure.
  const std::uint64_t others = items.count - 1;
  const double own = others > 0 ? rest / static_cast<double>(others)
                     : out      ? known.mean
                                : static_cast<double>(items.longest);
  known.count += items.count;
  const double weight =
      std::max(1.0 / 16, static_cast<double>(items.count) / static_cast<double>(known.count));
  known.mean += weight * (own - known.mean);
  const std::uint64_t longest = known.longest;
  known.longest = std::max(known.longest, items.longest);
  if (!out) return false;
  if (items.longest_end < known.tell_at && items.longest < longest + longest / 2) return false;
  known.tell_at = items.longest_end + Ticks(kTellEveryNs);
  return true;
}

}  // namespace

bool InitItems() {
  if (g_type == nullptr) g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kSpec));
  return g_type != nullptr;
}

void ForgetItems() {
  g_known = {};
  Py_CLEAR(g_sized);
}

WatchedItems::WatchedItems(PyObject* fetcher, PyObject* name)
    : fetcher_(fetcher), name_(name), items_(nullptr) {
  if (name == nullptr) return;
  Ref source(PyObject_GetAttr(fetcher, name));
  // One that is there already is of a fetch that has not ended: nothing is put over it.
  if (source && source.get() != Py_None && Py_TYPE(source.get()) != g_type) {
    items_ = Make(source.get());
    if (items_ != nullptr && g_adapter.on_again != nullptr) {
      AsItems(items_)->size = SizeOf(source.get());
    }
  }
  if (items_ != nullptr && PyObject_SetAttr(fetcher, name, items_) != 0) Py_CLEAR(items_);
  DropError();
}

WatchedItems::~WatchedItems() {
  if (items_ == nullptr) return;
  ErrorGuard guard;
  {
    Ref now(PyObject_GetAttr(fetcher_, name_));
    // What the fetch itself has put there stays.
    if (now.get() == items_) PyObject_SetAttr(fetcher_, name_, AsItems(items_)->source);
  }
  Py_DECREF(items_);
  DropError();
}

std::uint64_t WatchedItems::count() const { return items_ == nullptr ? 0 : AsItems(items_)->count; }
std::uint64_t WatchedItems::last() const { return items_ == nullptr ? 0 : AsItems(items_)->last; }

void WatchedItems::Tell(std::uint64_t begin, std::uint64_t end) {
  if (items_ == nullptr) return;
  const ItemsObject& items = *AsItems(items_);
  if (items.count == 0) return;
  double mean = 0;
  const bool out = StandsOut(items, begin, &mean);
  if (end - begin < Ticks(kLeastFetchNs)) return;
  if (items.count > 1) {
    tt_span(g_names.sample, items.longest_end - items.longest, items.longest_end, TT_SPAN_DATA);
  }
  if (!out || g_adapter.on_item == nullptr) return;
  const auto per_ns = static_cast<double>(Ticks(1'000'000)) / 1e6;
  const auto ns = [&](double ticks) { return static_cast<long long>(ticks / per_ns); };
  ErrorGuard guard;
  // (source, key or None, position, items, duration, mean, of the whole fetch)
  Ref facts(Py_BuildValue(
      "(OOKKLLL)", items.source, items.longest_key != nullptr ? items.longest_key : Py_None,
      static_cast<unsigned long long>(items.longest_position),
      static_cast<unsigned long long>(items.count), ns(static_cast<double>(items.longest)),
      ns(mean), ns(static_cast<double>(end - begin))));
  if (facts) {
    CallAdapter(g_adapter.on_item, facts.get(), "on_item");
  } else {
    DropError();
  }
}

}  // namespace telltale::native
