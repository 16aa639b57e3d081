// SPDX-License-Identifier: Apache-2.0
#include "torch_batches.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "spans.h"
#include "state.h"
#include "torch_capture.h"
#include "torch_read.h"

namespace telltale::native {
namespace {

PyObject* g_data = nullptr;
PyObject* g_on_loader =
    nullptr;                     ///< (loader, number) its first iterator -> how many workers it has
PyObject* g_on_epoch = nullptr;  ///< (number, facts) a pass is over

constexpr std::uint32_t kLooked = 512;  ///< Batches of a pass that are looked at.
constexpr std::uint32_t kSlots = 2048;  ///< Of a table of them.
constexpr std::uint32_t kElements = 64;
constexpr std::uint64_t kFirstPasses = 4;
constexpr std::uint64_t kFirstIterators = 64;
constexpr std::uint64_t kIteratorsEvery = 16;
constexpr std::uint64_t kMostEvents = 64;
constexpr int kMaxNesting = 4;

/// A batch of a pass, or none where `print` is 0: it could not be looked at.
struct Prints {
  std::uint64_t prints[kLooked];
  std::uint32_t count;
};

/// What is kept of the content of a loader's batches, in memory that is zero at first.
struct Content {
  Prints now, before;  ///< Of this pass, and of the one before it where that was looked at.
  std::uint64_t slots[kSlots];
  std::uint32_t positions[kSlots];  ///< Where in the pass a print was first; from 1.
};

struct Pass {
  PyObject* iterator = nullptr;  ///< Owned weak reference; null: none is open.
  std::uint64_t begin = 0;
  std::uint64_t batches = 0, samples = 0;
  std::uint64_t looked = 0, repeated = 0, across = 0, same = 0;
  std::uint64_t compared = 0;  ///< Of those looked at, with the pass before.
  bool looks = false;
};

struct Loader {
  PyObject* loader = nullptr;  ///< Owned weak reference; null: a free place.
  Content* content = nullptr;  ///< Owned; kept for whoever has the place next.
  std::uint64_t workers = 0;
  std::uint64_t iterators = 0;
  std::uint64_t first_print =
      0;                       ///< Of the first batch of the newest pass, where it was looked at.
  std::uint64_t first_of = 0;  ///< That pass.
  std::uint64_t first_looked = 0, first_repeats = 0;
  Pass pass;
};
std::array<Loader, 16> g_loaders;
std::size_t g_newest = 0;  ///< The one that gave the newest batch; an index.
std::uint64_t g_told = 0;

PyObject* None() {
  Py_INCREF(Py_None);
  return Py_None;
}

bool IsPowerOf2(std::uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }

bool IsOf(PyObject* reference, const PyObject* object) {
  return reference != nullptr && PyWeakref_GetObject(reference) == object;
}

/// Keys of a batch that are no input.
bool IsLabel(PyObject* key) {
  if (PyUnicode_Check(key) == 0) return false;
  for (const char* name : {"label", "labels", "target", "targets", "y", "index", "indices"}) {
    if (PyUnicode_CompareWithASCIIString(key, name) == 0) return true;
  }
  return false;
}

std::uint64_t PrintOf(PyObject* batch, int nesting);

std::uint64_t PrintOfDict(PyObject* batch, int nesting) {
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  for (int i = 0; i < 4 && PyDict_Next(batch, &position, &key, &value) != 0; ++i) {
    const std::uint64_t print = IsLabel(key) ? 0 : PrintOf(value, nesting + 1);
    if (print != 0) return print;
  }
  return 0;
}

/// Of the first tensor in a batch; 0 where it has none in main memory, or one that is like others.
std::uint64_t PrintOf(PyObject* batch, int nesting) {
  if (IsPlain(batch)) {
    Glance glance;
    if (!LookInto(batch, kElements, nullptr, &glance) || !glance.varied) return 0;
    return glance.print | 1;
  }
  if (nesting >= kMaxNesting) return 0;
  if (PyTuple_Check(batch) != 0 && PyTuple_Size(batch) > 0) {
    return PrintOf(PyTuple_GetItem(batch, 0), nesting + 1);
  }
  if (PyList_Check(batch) != 0 && PyList_Size(batch) > 0) {
    return PrintOf(PyList_GetItem(batch, 0), nesting + 1);
  }
  if (PyDict_Check(batch) != 0) return PrintOfDict(batch, nesting);
  PyTypeObject* user_dict = g_adapter.user_dict_type;
  if (user_dict != nullptr && PyType_IsSubtype(Py_TYPE(batch), user_dict) != 0) {
    const Ref data(PyObject_GetAttr(batch, g_data));
    if (data && PyDict_Check(data.get()) != 0) return PrintOfDict(data.get(), nesting);
    DropError();
  }
  return 0;
}

/// The position at which a print was first in this pass, from 1; 0: it is new, and has `position`
/// from now on.
std::uint32_t FirstPosition(Content* content, std::uint64_t print, std::uint32_t position) {
  std::uint32_t slot = static_cast<std::uint32_t>(print >> 32) % kSlots;
  while (content->slots[slot] != 0 && content->slots[slot] != print) slot = (slot + 1) % kSlots;
  if (content->slots[slot] == print) return content->positions[slot];
  content->slots[slot] = print;
  content->positions[slot] = position;
  return 0;
}

Loader* FindLoader(PyObject* loader) {
  for (Loader& each : g_loaders) {
    if (IsOf(each.loader, loader)) return &each;
  }
  return nullptr;
}

/// Null where there is no room.
Loader* AddLoader(PyObject* loader) {
  Loader* place = nullptr;
  for (Loader& each : g_loaders) {
    if (each.loader == nullptr || (IsOf(each.loader, Py_None) && each.pass.iterator == nullptr)) {
      place = &each;
    }
  }
  PyObject* reference = place != nullptr ? PyWeakref_NewRef(loader, nullptr) : nullptr;
  if (reference == nullptr) {
    DropError();
    return nullptr;
  }
  const Ref gone(place->loader);
  Content* content = place->content;
  *place = {};
  place->content = content;
  place->loader = reference;
  const OutsideCompiler outside;
  const Ref number(PyLong_FromSsize_t(place - g_loaders.data()));
  const Ref workers(g_on_loader != nullptr && number
                        ? PyObject_CallFunctionObjArgs(g_on_loader, loader, number.get(), nullptr)
                        : nullptr);
  const long count = workers && PyLong_Check(workers.get()) != 0 ? PyLong_AsLong(workers.get()) : 0;
  place->workers = count > 0 ? static_cast<std::uint64_t>(count) : 0;
  DropError();
  return place;
}

/// Whether a pass is to be told: each one that is complete, of others few; and few once there were
/// many.
bool IsTold(const Loader& loader, bool complete) {
  return IsPowerOf2(loader.iterators) || (complete && g_told < kMostEvents);
}

/// The newest pass of a loader is over. `last`: so is the process.
void EndPass(Loader* loader, bool complete, bool last) {
  Pass& pass = loader->pass;
  const Ref iterator(pass.iterator);
  pass.iterator = nullptr;
  if (g_on_epoch == nullptr || (!IsTold(*loader, complete) && !last)) return;
  ++g_told;
  const OwnTime own;
  const OutsideCompiler outside;
  const auto per_second = static_cast<double>(Ticks(1'000'000'000));
  const auto count = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
  const Ref done(PyObject_CallFunction(
      g_on_epoch, "n(KKKOKKKKKKKd)", static_cast<Py_ssize_t>(loader - g_loaders.data()),
      count(loader->iterators), count(pass.batches), count(pass.samples),
      complete ? Py_True : Py_False, count(pass.looked), count(pass.repeated), count(pass.across),
      count(pass.compared), count(pass.same), count(loader->first_looked),
      count(loader->first_repeats), static_cast<double>(tt_now() - pass.begin) / per_second));
  DropError();
  own.Account();
}

/// Whether the batches of a pass are looked at: of the first, and of two each time that there are
/// twice as many.
bool LooksAt(std::uint64_t pass) {
  return pass <= kFirstPasses || IsPowerOf2(pass) || IsPowerOf2(pass - 1);
}

/// The same of its first batch: loops that take one batch of each iterator have many of these.
bool LooksAtFirst(std::uint64_t pass) {
  return pass <= kFirstIterators || pass % kIteratorsEvery <= 1;
}

void LookAt(Loader* loader, PyObject* batch) {
  Pass& pass = loader->pass;
  Content* content = loader->content;
  if (content == nullptr) return;
  const OwnTime own;
  const std::uint64_t print = PrintOf(batch, 0);
  own.Account();
  if (pass.batches == 0) {
    if (print != 0 && loader->first_print != 0 && loader->first_of + 1 == loader->iterators) {
      ++loader->first_looked;
      if (print == loader->first_print) ++loader->first_repeats;
    }
    loader->first_print = print;
    loader->first_of = loader->iterators;
  }
  if (!pass.looks) return;
  const auto position = static_cast<std::uint32_t>(pass.batches);
  content->now.prints[position] = print;
  content->now.count = position + 1;
  if (print == 0) return;
  ++pass.looked;
  if (position < content->before.count && content->before.prints[position] != 0) {
    ++pass.compared;
    if (content->before.prints[position] == print) ++pass.same;
  }
  const std::uint32_t first = FirstPosition(content, print, position + 1);
  if (first == 0) return;
  ++pass.repeated;
  // Workers take turns.
  if (loader->workers > 1 && (position + 1 - first) % loader->workers != 0) ++pass.across;
}

/// finish_batches(): the process ends; passes that have not are told.
PyObject* FinishBatches(PyObject*, PyObject*) {
  if (g_recording != Recording::kOn) return None();
  for (Loader& loader : g_loaders) {
    if (loader.pass.iterator != nullptr) EndPass(&loader, false, true);
  }
  return None();
}

/// watch_batches(on_loader, on_epoch)
PyObject* WatchBatches(PyObject*, PyObject* args) {
  PyObject *on_loader = nullptr, *on_epoch = nullptr;
  if (PyArg_ParseTuple(args, "OO:watch_batches", &on_loader, &on_epoch) == 0) return nullptr;
  const Ref loader(g_on_loader), epoch(g_on_epoch);
  Py_INCREF(on_loader);
  Py_INCREF(on_epoch);
  g_on_loader = on_loader;
  g_on_epoch = on_epoch;
  return None();
}

}  // namespace

void LoaderIterates(PyObject* loader, PyObject* iterator) {
  const ErrorGuard guard;
  Loader* known = FindLoader(loader);
  if (known == nullptr) known = AddLoader(loader);
  if (known == nullptr) return;
  if (known->pass.iterator != nullptr) EndPass(known, false, false);
  PyObject* reference = PyWeakref_NewRef(iterator, nullptr);
  if (reference == nullptr) {
    DropError();
    return;
  }
  if (known->content == nullptr) {
    known->content = static_cast<Content*>(std::calloc(1, sizeof(Content)));
  }
  ++known->iterators;
  const bool follows = LooksAt(known->iterators - 1) && known->iterators > 1;
  known->pass = {};
  known->pass.iterator = reference;
  known->pass.begin = tt_now();
  known->pass.looks = LooksAt(known->iterators);
  if (Content* content = known->content; content != nullptr && known->pass.looks) {
    if (follows) {
      content->before = content->now;
    } else {
      content->before.count = 0;
    }
    content->now.count = 0;
    std::fill(std::begin(content->slots), std::end(content->slots), 0);
  }
}

void BatchComes(PyObject* iterator, PyObject* batch, std::int64_t samples, bool ended) {
  if (!IsOf(g_loaders[g_newest].pass.iterator, iterator)) {
    const auto found =
        std::find_if(g_loaders.begin(), g_loaders.end(),
                     [iterator](const Loader& each) { return IsOf(each.pass.iterator, iterator); });
    if (found == g_loaders.end()) return;
    g_newest = static_cast<std::size_t>(found - g_loaders.begin());
  }
  Loader& loader = g_loaders[g_newest];
  Pass& pass = loader.pass;
  if (batch == nullptr) {
    const ErrorGuard guard;
    if (ended) EndPass(&loader, true, false);
    return;
  }
  const bool looks =
      pass.batches == 0 ? LooksAtFirst(loader.iterators) : pass.looks && pass.batches < kLooked;
  if (looks || (pass.batches == 0 && pass.looks)) LookAt(&loader, batch);
  ++pass.batches;
  if (samples > 0) pass.samples += static_cast<std::uint64_t>(samples);
}

void ForgetBatches() {
  for (Loader& each : g_loaders) {
    const Ref loader(each.loader), iterator(each.pass.iterator);
    Content* content = each.content;
    each = {};
    each.content = content;
  }
  g_told = 0;
}

PyMethodDef g_torch_batches_functions[] = {
    {"watch_batches", WatchBatches, METH_VARARGS, "watch_batches(on_loader, on_epoch)"},
    {"finish_batches", FinishBatches, METH_NOARGS, "finish_batches(): the process ends"},
    {nullptr, nullptr, 0, nullptr},
};

bool InitTorchBatches() {
  g_data = PyUnicode_InternFromString("data");
  return g_data != nullptr;
}

}  // namespace telltale::native
