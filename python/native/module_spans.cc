// SPDX-License-Identifier: Apache-2.0
#include "module_spans.h"

#include <array>

#include "state.h"
#include "torch_capture.h"

namespace telltale::native {
namespace {

/// One call of so many measures what its record costs, for all of them.
constexpr std::uint32_t kSampleCalls = 16;
/// A program that makes its modules anew for each call would ask for names all the time.
constexpr std::uint32_t kMaxMisses = 50'000;

/// Names of the modules called lately, found in the time of a few comparisons. By weak references:
/// another object at the address of one that is gone is a new one. Lives as long as the process.
class PartNames {
 public:
  /// False: it has none.
  bool Find(PyObject* module, std::uint32_t* id, bool* missed) {
    if (epoch_ != g_epoch) Clear();
    Entry* set = sets_[(reinterpret_cast<std::uintptr_t>(module) >> 4) % kSets].data();
    for (std::size_t i = 0; i < kWays; ++i) {
      // A borrowed reference, None where the object is gone: only compared.
      if (set[i].reference != nullptr && PyWeakref_GetObject(set[i].reference) == module) {
        *id = set[i].id;
        return true;
      }
    }
    *missed = true;
    return Learn(module, set, id);
  }
  bool GaveUp() const { return epoch_ == g_epoch && misses_ >= kMaxMisses; }

 private:
  static constexpr std::size_t kSets = 1021;
  static constexpr std::size_t kWays = 4;
  struct Entry {
    PyObject* reference;  ///< Owned weak reference, or null.
    std::uint32_t id;
  };

  void Clear() {
    for (auto& set : sets_) {
      for (Entry& entry : set) {
        PyObject* old = entry.reference;
        entry.reference = nullptr;
        Py_XDECREF(old);
      }
    }
    epoch_ = g_epoch;
    misses_ = 0;
  }

  [[gnu::cold]] bool Learn(PyObject* module, Entry* set, std::uint32_t* id) {
    ++misses_;
    ErrorGuard guard;
    const Ref name(PartName(module));
    if (!name || PyUnicode_Check(name.get()) == 0 || PyUnicode_GetLength(name.get()) == 0) {
      return false;
    }
    PyObject* reference = nullptr;
    if (!NameId(name.get(), id) || (reference = PyWeakref_NewRef(module, nullptr)) == nullptr) {
      DropError();
      return false;
    }
    Entry& entry = set[misses_ % kWays];
    PyObject* old = entry.reference;
    entry = {reference, *id};
    Py_XDECREF(old);
    return true;
  }

  std::array<std::array<Entry, kWays>, kSets> sets_{};
  std::uint32_t epoch_ = 0;  ///< g_epoch for which they hold; 0: none.
  std::uint32_t misses_ = 0;
};

PartNames g_part_names;
std::uint32_t g_calls = 0;
std::uint64_t g_usual = 0;  ///< Ticks that a record costs; 0: not known.

}  // namespace

int WatchSpans() {
  return NamesParts() && !g_part_names.GaveUp() && tt_detail_pass() != 0 ? kWatchSpans : 0;
}

ModuleSpan::ModuleSpan(PyObject* module) {
  if (module == nullptr) return;
  bool sampled = ++g_calls % kSampleCalls == 0;
  const std::uint64_t first = sampled ? tt_now() : 0;
  bool missed = false;
  if (!g_part_names.Find(module, &name_, &missed)) return;
  if (missed) sampled = false;  // Has accounted for itself.
  epoch_ = g_epoch;
  begin_ = tt_now();
  if (sampled) own_ = begin_ - first + 1;
}

ModuleSpan::~ModuleSpan() {
  if (epoch_ == 0 || epoch_ != g_epoch || g_recording != Recording::kOn) return;
  const std::uint64_t end = tt_now();
  tt_detail_span(name_, begin_, end, TT_SPAN_MODULE);
  if (own_ == 0) return;
  const std::uint64_t now = tt_now();
  std::uint64_t cost = own_ + (now - end);
  // A long one was interrupted: that is no measure of the others.
  if (g_usual == 0 || cost < 8 * g_usual) {
    g_usual = g_usual == 0 ? cost : (7 * g_usual + cost) / 8;
    cost *= kSampleCalls;
  }
  tt_account(now > cost ? now - cost : now);
}

}  // namespace telltale::native
