// SPDX-License-Identifier: Apache-2.0
#include "torch_gradients.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "look_schedule.h"
#include "state.h"
#include "torch_capture.h"
#include "torch_optimizer.h"
#include "torch_read.h"

namespace telltale::native {
namespace {

PyObject* g_param_groups = nullptr;
PyObject* g_params = nullptr;
PyObject* g_parameters = nullptr;

constexpr std::uint32_t kElements = 16;  ///< Of a tensor that are looked at.
/// So many looks in a row say the same before it is told.
constexpr std::uint32_t kSure = 8;
/// Parameters of an optimizer among which those to look at are chosen.
constexpr std::size_t kChosenFrom = 1024;

PyObject* None() {
  Py_INCREF(Py_None);
  return Py_None;
}

/// No subclass, and no mode of the user's sees what is asked of it.
bool MayLook(PyObject* tensor) { return IsPlain(tensor) && !ModeEnabled(); }

/// What a tensor held when it was looked at.
struct Held {
  bool there = false;  ///< There was a tensor.
  bool read = false;   ///< `glance` is of its elements.
  std::int64_t version = -1;
  Glance glance;
};

Held Hold(PyObject* tensor, std::uint64_t* known) {
  Held held;
  if (tensor == nullptr || tensor == Py_None || !MayLook(tensor)) return held;
  held.there = true;
  held.version = VersionOf(tensor);
  held.read = LookInto(tensor, kElements, known, &held.glance);
  return held;
}

/// The gradient of a parameter; null where there is none. New reference.
PyObject* Gradient(PyObject* parameter) {
  PyObject* gradient = MayLook(parameter) ? GradientOf(parameter) : nullptr;
  if (gradient == nullptr) DropError();
  if (gradient == Py_None) Py_CLEAR(gradient);
  return gradient;
}

enum class Fate { kUnknown, kCleared, kStays };

/// What became of a gradient since it was looked at. Another tensor, or one that was changed in
/// place, is not the one that was used; of one whose elements are not in main memory only its
/// device knows whether they were changed behind its version (`.data`).
Fate FateOf(const Held& before, PyObject* gradient, std::uint64_t* known) {
  if (!before.there || ModeEnabled()) return Fate::kUnknown;
  const Held now = Hold(gradient, known);
  if (!now.there) return Fate::kCleared;
  if (now.version != before.version) return Fate::kCleared;
  if (!now.read || !before.read) return Fate::kUnknown;
  if (now.glance.zero || now.glance.memory != before.glance.memory ||
      now.glance.print != before.glance.print) {
    return Fate::kCleared;
  }
  return Fate::kStays;
}

/// Whether a parameter has another value than when it was looked at.
bool Changed(const Held& before, const Held& now) {
  if (!before.there || !now.there || before.version != now.version) return true;
  if (!before.read || !now.read) return before.read != now.read;
  return before.glance.print != now.glance.print;
}

// ---- optimizers ----

/// One parameter that is looked at.
struct Sample {
  Py_ssize_t group = 0, position = 0;
  const PyObject* parameter = nullptr;  ///< Only compared.
  std::uint64_t known = 0;              ///< Of its gradient; see LookInto.
  Held gradient;
};

struct Watched {
  PyObject* optimizer = nullptr;  ///< Owned weak reference; null: a free place.
  std::uint32_t steps = 0;
  LookSchedule schedule;
  std::array<Sample, 3> samples{};
  std::size_t sample_count = 0;
  std::uint64_t known_value = 0;
  // Since its last step, where that is looked at:
  bool looking = false;
  bool passed = false;  ///< A backward has ended.
  Fate fate = Fate::kUnknown;
  std::uint32_t asked = 0;  ///< Ticket of what a device was asked; 0: nothing.
  Fate answer = Fate::kUnknown;
  /// Ticket of what one was asked before the last step, nothing having spoken against it; 0: none.
  std::uint32_t late = 0;
  // What the looks have said:
  std::uint32_t looked = 0;
  std::uint32_t run = 0;  ///< Of the newest looks say the same,
  Fate says = Fate::kUnknown;
  std::int64_t since = 0;  ///< from this step on.
  Fate told = Fate::kUnknown;
};
std::array<Watched, 16> g_watched;
std::size_t g_next_place = 0;
std::uint32_t g_tickets = 0;

/// What each step looks at, in one line of the cache.
struct alignas(64) Hot {
  /// Of the optimizers the one that stepped last, else that came last; an index.
  std::size_t newest = 0;
  std::uint32_t looking = 0;  ///< Optimizers whose gradients are looked at before they step again.
  bool stepped = false;       ///< Any optimizer has, in this process.
  bool waits = false;         ///< A backward has ended, and neither fetch nor forward followed.
  bool forward_awaited = false;  ///< Whether its input takes part in the backward is to be seen.
  bool input_trains = false;     ///< That of the first forward since gradients were cleared did.
};
Hot g_hot;

void Drop(Watched* watched) {
  const Ref optimizer(watched->optimizer);
  if (watched->looking) --g_hot.looking;
  *watched = {};
}

bool IsOf(const Watched& watched, const PyObject* optimizer) {
  return watched.optimizer != nullptr && PyWeakref_GetObject(watched.optimizer) == optimizer;
}

[[gnu::hot]] Watched* Find(PyObject* optimizer) {
  if (IsOf(g_watched[g_hot.newest], optimizer)) return &g_watched[g_hot.newest];
  for (Watched& watched : g_watched) {
    if (IsOf(watched, optimizer)) return &watched;
  }
  return nullptr;
}

/// Null where it takes no weak reference.
[[gnu::hot]] Watched* FindOrAdd(PyObject* optimizer) {
  if (Watched* watched = Find(optimizer)) return watched;
  // It may collect garbage, whose code may come here too.
  PyObject* reference = PyWeakref_NewRef(optimizer, nullptr);
  if (reference == nullptr) {
    DropError();
    return nullptr;
  }
  Watched* place = nullptr;
  for (Watched& watched : g_watched) {
    if (watched.optimizer == nullptr || IsOf(watched, Py_None)) place = &watched;
  }
  if (place == nullptr) place = &g_watched[g_next_place++ % g_watched.size()];
  Drop(place);
  place->optimizer = reference;
  return place;
}

/// The list of parameters of a group; null where there is none. New reference.
PyObject* ListOf(PyObject* optimizer, Py_ssize_t group) {
  const Ref groups(PyObject_GetAttr(optimizer, g_param_groups));
  PyObject* list = nullptr;
  if (groups && PyList_Check(groups.get()) != 0 && group < PyList_Size(groups.get())) {
    PyObject* entry = PyList_GetItem(groups.get(), group);
    if (PyDict_Check(entry) != 0) list = PyDict_GetItemWithError(entry, g_params);
  }
  if (list != nullptr && PyList_Check(list) == 0) list = nullptr;
  Py_XINCREF(list);
  DropError();
  return list;
}

/// New reference, or null.
PyObject* ParameterAt(PyObject* optimizer, Py_ssize_t group, Py_ssize_t position) {
  const Ref list(ListOf(optimizer, group));
  if (!list || position >= PyList_Size(list.get())) return nullptr;
  PyObject* parameter = PyList_GetItem(list.get(), position);
  Py_INCREF(parameter);
  return parameter;
}

/// Chooses the first, the middle and the last of the parameters that have a gradient.
void Choose(PyObject* optimizer, Watched* watched) {
  struct Found {
    Py_ssize_t group, position;
    const PyObject* parameter;
  };
  std::array<Found, kChosenFrom> found;
  std::size_t count = 0;
  for (Py_ssize_t group = 0; count < found.size(); ++group) {
    const Ref list(ListOf(optimizer, group));
    if (!list) break;
    for (Py_ssize_t at = 0; at < PyList_Size(list.get()) && count < found.size(); ++at) {
      PyObject* borrowed = PyList_GetItem(list.get(), at);
      Py_INCREF(borrowed);
      const Ref parameter(borrowed);
      if (Ref(Gradient(borrowed))) found[count++] = {group, at, borrowed};
    }
  }
  watched->sample_count = std::min(count, watched->samples.size());
  for (std::size_t i = 0; i < watched->sample_count; ++i) {
    const Found& one = found[i == 0 ? 0 : i * (count - 1) / (watched->sample_count - 1)];
    watched->samples[i] =
        Sample{.group = one.group, .position = one.position, .parameter = one.parameter};
  }
}

/// Calls `with(sample, gradient or null)` for each sample that is still where it was. False where
/// one is not.
template <class F>
bool EachSample(PyObject* optimizer, Watched* watched, F&& with) {
  for (std::size_t i = 0; i < watched->sample_count; ++i) {
    Sample& sample = watched->samples[i];
    const Ref parameter(ParameterAt(optimizer, sample.group, sample.position));
    if (parameter.get() != sample.parameter || !parameter) return false;
    const Ref gradient(Gradient(parameter.get()));
    with(&sample, gradient.get());
  }
  return true;
}

void Remember(PyObject* optimizer, Watched* watched) {
  const auto hold = [](Sample* sample, PyObject* gradient) {
    sample->gradient = Hold(gradient, &sample->known);
  };
  if (!EachSample(optimizer, watched, hold)) watched->sample_count = 0;
}

/// Has a device say whether a gradient is zero: it answers later.
void Ask(Watched* watched, PyObject* gradient) {
  if (g_adapter.on_gradient == nullptr || watched->asked != 0 || watched->late != 0) return;
  watched->asked = ++g_tickets;
  watched->answer = Fate::kUnknown;
  const OutsideCompiler outside;
  const Ref ticket(PyLong_FromUnsignedLong(watched->asked));
  const Ref done(
      ticket ? PyObject_CallFunctionObjArgs(g_adapter.on_gradient, gradient, ticket.get(), nullptr)
             : nullptr);
  DropError();
}

void Look(PyObject* optimizer, Watched* watched) {
  bool cleared = false, stays = false;
  PyObject* unread = nullptr;
  const auto look = [&](Sample* sample, PyObject* gradient) {
    const Fate fate = FateOf(sample->gradient, gradient, &sample->known);
    cleared = cleared || fate == Fate::kCleared;
    stays = stays || fate == Fate::kStays;
    if (fate != Fate::kUnknown || gradient == nullptr || !sample->gradient.there ||
        unread != nullptr) {
      return;
    }
    Py_INCREF(gradient);
    unread = gradient;
  };
  if (!EachSample(optimizer, watched, look)) watched->sample_count = 0;
  const Ref kept(unread);
  if (cleared) {
    watched->fate = Fate::kCleared;
  } else if (stays) {
    watched->fate = Fate::kStays;
  } else if (unread != nullptr) {
    Ask(watched, unread);
  }
}

/// The class's own name as bytes, or null without an exception.
PyObject* ClassName(PyObject* object) {
  const Ref name(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__"));
  PyObject* bytes = name ? PyUnicode_AsUTF8String(name.get()) : nullptr;
  if (bytes == nullptr) DropError();
  return bytes;
}

void Tell(PyObject* optimizer, Watched* watched) {
  watched->told = watched->says;
  const Ref name(ClassName(optimizer));
  const char* text = name ? PyBytes_AsString(name.get()) : "";
  // An identifier may have any letter, but nothing that JSON has to escape.
  char data[400];
  const int length = std::snprintf(
      data, sizeof data, R"({"class":"%.200s","cleared":%s,"looked":%u,"since_step":%lld})", text,
      watched->told == Fate::kCleared ? "true" : "false", watched->looked,
      static_cast<long long>(watched->since));
  tt_event(tt_name("loop.gradients", 14), TT_INFO, tt_name(text, std::strlen(text)), nullptr, 0,
           data, static_cast<std::size_t>(length));
}

/// An optimizer steps again: what its looks have said.
void Judge(PyObject* optimizer, Watched* watched) {
  if (watched->fate == Fate::kUnknown && watched->asked != 0) {
    watched->fate = watched->answer;
    if (watched->fate == Fate::kUnknown) watched->late = watched->asked;
  }
  watched->asked = 0;
  if (watched->fate == Fate::kUnknown) return;
  ++watched->looked;
  if (watched->fate != watched->says) {
    watched->says = watched->fate;
    watched->run = 0;
    watched->since = tt_current_step();
  }
  if (++watched->run >= kSure && watched->told != watched->says) Tell(optimizer, watched);
}

// ---- gradients that are thrown away, or used by the program itself ----

/// So many of the first clearings are looked at, and so many behind one that threw gradients away.
constexpr int kFirstClearings = 16;
constexpr int kMoreClearings = 64;

int g_clearings = kFirstClearings;  ///< That are looked at yet.
bool g_all_clearings = false;       ///< All are: this program clears gradients that it has used.
Held g_at_clear;                    ///< A parameter when gradients were cleared last.
PyObject* g_root = nullptr;         ///< Owned weak reference to the newest root, or null.
int g_changes = 0;                  ///< Passes in a row behind which parameters had changed.
/// Parameters of the root that are looked at: of modules, by name.
struct Place {
  PyObject* module = nullptr;  ///< Owned weak reference.
  PyObject* name = nullptr;    ///< Owned.
  std::uint64_t known_value = 0, known_gradient = 0;
  Held value, gradient;
};
std::array<Place, 3> g_places;
std::size_t g_place_count = 0;
const void* g_places_of = nullptr;  ///< The root that they were chosen of; only compared.

bool AnyOptimizer() {
  return std::any_of(g_watched.begin(), g_watched.end(), [](const Watched& watched) {
    return watched.optimizer != nullptr && !IsOf(watched, Py_None);
  });
}

/// A parameter of the optimizer that stepped last.
Held HoldNewest() {
  Watched& watched = g_watched[g_hot.newest];
  if (watched.optimizer == nullptr) return {};
  PyObject* borrowed = PyWeakref_GetObject(watched.optimizer);
  if (borrowed == Py_None) return {};
  Py_INCREF(borrowed);
  const Ref optimizer(borrowed);
  const Sample first = watched.sample_count > 0 ? watched.samples[0] : Sample{};
  const Ref parameter(ParameterAt(borrowed, first.group, first.position));
  return Hold(parameter.get(), &watched.known_value);
}

void ForgetPlaces() {
  for (Place& place : g_places) {
    const Ref module(place.module), name(place.name);
    place = {};
  }
  g_place_count = 0;
}

/// Asks the adapter for places in a root: a list of (weak reference to a module, name).
void ChoosePlaces(PyObject* root) {
  ForgetPlaces();
  g_places_of = root;
  if (g_adapter.on_manual == nullptr) return;
  const OutsideCompiler outside;
  const Ref list(PyObject_CallFunctionObjArgs(g_adapter.on_manual, root, nullptr));
  if (!list || PyList_Check(list.get()) == 0) {
    DropError();
    return;
  }
  for (Py_ssize_t i = 0; i < PyList_Size(list.get()) && g_place_count < g_places.size(); ++i) {
    PyObject *module = nullptr, *name = nullptr;
    if (PyArg_ParseTuple(PyList_GetItem(list.get(), i), "OO", &module, &name) == 0) break;
    Py_INCREF(module);
    Py_INCREF(name);
    g_places[g_place_count].module = module;
    g_places[g_place_count++].name = name;
  }
  DropError();
}

/// The parameter at a place; null where it has gone. New reference.
PyObject* At(const Place& place) {
  PyObject* module = PyWeakref_GetObject(place.module);
  if (module == nullptr || module == Py_None) return nullptr;
  Py_INCREF(module);
  const Ref kept(module);
  const Ref parameters(PyObject_GetAttr(module, g_parameters));
  PyObject* parameter = parameters && PyDict_Check(parameters.get()) != 0
                            ? PyDict_GetItemWithError(parameters.get(), place.name)
                            : nullptr;
  Py_XINCREF(parameter);
  DropError();
  return parameter;
}

[[gnu::hot]] PyObject* Root() {
  PyObject* root = g_root != nullptr ? PyWeakref_GetObject(g_root) : nullptr;
  return root == Py_None ? nullptr : root;
}

/// A backward has ended where no optimizer has ever stepped.
[[gnu::cold]] void RememberManual() {
  PyObject* root = Root();
  if (root == nullptr) return;
  Py_INCREF(root);
  const Ref kept(root);
  if (g_places_of != root || g_place_count == 0) ChoosePlaces(root);
  for (std::size_t i = 0; i < g_place_count; ++i) {
    Place& place = g_places[i];
    const Ref parameter(At(place));
    if (!parameter) {
      ForgetPlaces();
      break;
    }
    place.value = Hold(parameter.get(), &place.known_value);
    place.gradient = Hold(Ref(Gradient(parameter.get())).get(), &place.known_gradient);
  }
}

/// Whether the program has used the gradients that it had, by changing parameters or clearing them.
/// Where it has neither they accumulate.
bool HasUsed() {
  bool changed = g_place_count == 0, cleared = changed;
  for (std::size_t i = 0; i < g_place_count; ++i) {
    Place& place = g_places[i];
    const Ref parameter(At(place));
    if (!parameter) {
      changed = true;
      break;
    }
    const Held now = Hold(parameter.get(), &place.known_value);
    // NaN stays what it is, however it is changed.
    changed = changed || Changed(place.value, now) || (now.read && !now.glance.finite);
    const Ref gradient(Gradient(parameter.get()));
    cleared =
        cleared || FateOf(place.gradient, gradient.get(), &place.known_gradient) == Fate::kCleared;
  }
  if (!AnyOptimizer()) return changed || cleared;
  // It may step yet: behind an accumulation, or behind a step aside (a sharpness-aware one).
  g_changes = changed && g_place_count > 0 ? g_changes + 1 : 0;
  return g_changes > 1;
}

/// A fetch or a forward follows a backward.
[[gnu::cold]] void EndPasses() {
  g_hot.waits = false;
  if (tt_owns_steps() == 0) return;
  const ErrorGuard guard;
  if (HasUsed()) tt_gradients_used();
}

}  // namespace

PyObject* WatchOptimizer(PyObject*, PyObject* optimizer) {
  if (g_recording == Recording::kOff) return None();
  tt_optimizer_made(OptimizerId(optimizer));
  Watched* watched = FindOrAdd(optimizer);
  if (watched != nullptr && !g_hot.stepped) {
    g_hot.newest = static_cast<std::size_t>(watched - g_watched.data());
  }
  return None();
}

PyObject* AnswerGradient(PyObject*, PyObject* args) {
  unsigned int ticket = 0;
  int stays = 0;
  if (PyArg_ParseTuple(args, "Ip:answer_gradient", &ticket, &stays) == 0) return nullptr;
  const Fate answer = stays != 0 ? Fate::kStays : Fate::kCleared;
  for (Watched& watched : g_watched) {
    if (ticket == 0 || watched.optimizer == nullptr) continue;
    if (watched.asked == ticket) {
      watched.answer = answer;
    } else if (watched.late == ticket) {
      watched.late = 0;
      PyObject* optimizer = PyWeakref_GetObject(watched.optimizer);
      if (optimizer == Py_None) continue;
      Py_INCREF(optimizer);
      const Ref kept(optimizer);
      // That of the steps since is another matter.
      const Fate now = watched.fate;
      const std::uint32_t asked = watched.asked;
      watched.fate = answer;
      watched.asked = 0;
      Judge(optimizer, &watched);
      watched.fate = now;
      watched.asked = asked;
    }
  }
  return None();
}

[[gnu::hot]] bool StepsOf(PyObject* optimizer, std::uint32_t* steps) {
  const Watched* watched = Find(optimizer);
  if (watched == nullptr) return false;
  *steps = watched->steps;
  return true;
}

[[gnu::hot]] void OptimizerSteps() {
  g_hot.stepped = true;
  g_hot.waits = false;
}

/// An optimizer has stepped whose gradients were looked at, or are from here on.
[[gnu::cold]] static void SteppedLooking(PyObject* optimizer, Watched* watched, bool looking) {
  const ErrorGuard guard;
  if (watched->looking && watched->passed) Judge(optimizer, watched);
  if (looking != watched->looking) g_hot.looking += looking ? 1U : -1U;
  watched->looking = looking;
  if (!looking) return;
  watched->passed = false;
  watched->fate = Fate::kUnknown;
  watched->asked = 0;
  if (watched->sample_count == 0) Choose(optimizer, watched);
  Remember(optimizer, watched);
}

[[gnu::hot]] void OptimizerStepped(PyObject* optimizer) {
  Watched* watched = Find(optimizer);
  if (watched == nullptr) [[unlikely]] {
    const ErrorGuard guard;
    watched = FindOrAdd(optimizer);
    if (watched == nullptr) return;
  }
  g_hot.newest = static_cast<std::size_t>(watched - g_watched.data());
  const bool looking = watched->schedule.Due(++watched->steps);
  if (looking || watched->looking) [[unlikely]]
    SteppedLooking(optimizer, watched, looking);
}

/// Looks whether the program has used the gradients that it is about to clear.
[[gnu::noinline]] static bool WereUsed() {
  const ErrorGuard guard;
  const Held now = HoldNewest();
  const bool used = g_hot.input_trains || Changed(g_at_clear, now);
  g_at_clear = now;
  if (g_clearings > 0) --g_clearings;
  return used;
}

[[gnu::cold]] static void SayCleared(PyObject* owner) {
  Watched* watched = Find(owner);
  if (watched != nullptr && watched->looking) watched->fate = Fate::kCleared;
}

[[gnu::hot]] void GradientsAreCleared(PyObject* owner) {
  if (g_hot.looking > 0) [[unlikely]]
    SayCleared(owner);
  if (g_machine_owned && tt_owns_steps() == 0) return;
  const bool any = g_watched[g_hot.newest].optimizer != nullptr;
  const bool look = any && (g_all_clearings || g_clearings > 0);
  // Where there is no optimizer, or the program has changed parameters by itself, gradients were
  // used. To look costs more than the rest of a step, so once a program is known it is not done.
  bool kept = !any;
  if (look) [[unlikely]]
    kept = WereUsed();
  // Gradients that no optimizer has used say why: what is due of them is recorded before they go.
  if (!kept && g_hot.waits && !g_hot.input_trains && AnythingDue() && Find(owner) != nullptr) {
    const ErrorGuard guard;
    TellOptimizer(owner);
  }
  g_hot.forward_awaited = look;
  g_hot.input_trains = false;
  if (tt_gradients_cleared(reinterpret_cast<std::uintptr_t>(owner), kept ? 1 : 0) == 0 || !any) {
    return;
  }
  if (kept) {
    g_all_clearings = true;
  } else {
    g_clearings = kMoreClearings;
    if (look) return;
    const ErrorGuard guard;
    g_at_clear = HoldNewest();
    g_hot.forward_awaited = true;
  }
}

/// Calls `with(optimizer, watched)` for each optimizer whose gradients are looked at.
template <class F>
static void EachLooking(F&& with) {
  const ErrorGuard guard;
  for (Watched& watched : g_watched) {
    if (!watched.looking) continue;
    PyObject* optimizer = PyWeakref_GetObject(watched.optimizer);
    if (optimizer == Py_None) {
      Drop(&watched);
      continue;
    }
    Py_INCREF(optimizer);
    const Ref kept(optimizer);
    with(optimizer, &watched);
  }
}

// What is done at few steps is cold, so that it lies apart from what is done at each.

[[gnu::cold]] static void LookBeforeBackward() {
  EachLooking([](PyObject* optimizer, Watched* watched) {
    if (watched->fate != Fate::kCleared) Look(optimizer, watched);
  });
}

[[gnu::cold]] static void RememberBehindBackward() {
  EachLooking([](PyObject* optimizer, Watched* watched) {
    watched->passed = true;
    if (watched->fate != Fate::kCleared) Remember(optimizer, watched);
  });
}

void BackwardBegins() {
  if (g_hot.looking > 0) [[unlikely]]
    LookBeforeBackward();
  // A loop without modules or loaders: one backward is one step.
  if (g_hot.waits && g_root == nullptr) EndPasses();
}

void BackwardEnded() {
  if (g_hot.looking > 0) [[unlikely]]
    RememberBehindBackward();
  if (g_hot.stepped || tt_owns_steps() == 0) [[likely]]
    return;
  const ErrorGuard guard;
  g_hot.waits = true;
  RememberManual();
}

[[gnu::hot]] bool IsNewestRoot(PyObject* module) { return Root() == module; }

[[gnu::hot]] bool RootForwardBegins(PyObject* const* args, std::size_t count) {
  if (g_hot.forward_awaited) {
    g_hot.forward_awaited = false;
    // An attack, or an input that is optimized, makes gradients that it does not need.
    g_hot.input_trains = count > 1 && MayLook(args[1]) && RequiresGradient(args[1]);
  }
  if (g_hot.stepped) [[likely]]
    return false;
  if (g_hot.waits) EndPasses();
  if (Root() == args[0]) return false;
  const ErrorGuard guard;
  PyObject* old = g_root;
  g_root = PyWeakref_NewRef(args[0], nullptr);
  if (g_root == nullptr) DropError();
  Py_XDECREF(old);
  return true;
}

void FetchBegins() {
  if (g_hot.waits) EndPasses();
}

void ForgetGradients() {
  // The optimizers are the child's too.
  for (Watched& watched : g_watched) {
    PyObject* optimizer = watched.optimizer;
    watched = {};
    watched.optimizer = optimizer;
  }
  g_hot = {.newest = g_hot.newest};
  g_at_clear = {};
  g_changes = 0;
  g_clearings = kFirstClearings;
  g_all_clearings = false;
}

bool InitTorchGradients() {
  g_param_groups = PyUnicode_InternFromString("param_groups");
  g_params = PyUnicode_InternFromString("params");
  g_parameters = PyUnicode_InternFromString("_parameters");
  return g_param_groups != nullptr && g_params != nullptr && g_parameters != nullptr;
}

}  // namespace telltale::native
