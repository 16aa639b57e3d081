// SPDX-License-Identifier: Apache-2.0
// What the adapter tells of the fetches of a data loader (docs/formats/events.md): what a fetch
// computes and for how long it waits, what it reads, which library holds it, and whether items cost
// the same again in a later epoch.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rules/builtin/event_data.h"
#include "rules/builtin/numbers.h"

namespace telltale::rules {

/// Sums of the newest events `dataloader.fetches`; older ones fade.
class FetchCosts {
 public:
  void Take(const nlohmann::json& data) {
    for (Sum& sum : sums_) sum.value *= kKept;
    const auto add = [&](What what, const char* key) {
      const double value = NumberIn(data, key, -1);
      Sum& sum = sums_[what];
      sum.known = value >= 0;
      if (sum.known) sum.value += value;
    };
    add(kFetches, "fetches");
    add(kItems, "items");
    add(kWall, "wall_ns");
    add(kCpu, "cpu_ns");
    add(kCollate, "collate_ns");
    add(kLooked, "looked");
    add(kLookedWall, "looked_wall_ns");
    add(kLookedCpu, "looked_cpu_ns");
    add(kProcessCpu, "process_cpu_ns");
    add(kRunDelay, "run_delay_ns");
    add(kReadCalls, "read_calls");
    add(kReadBytes, "read_bytes");
    add(kStorageBytes, "storage_bytes");
    add(kBatchBytes, "batch_bytes");
  }

  bool known() const { return sums_[kLooked].value > 0 && sums_[kLookedWall].value > 0; }
  /// Shares of a fetch's time; together 1.
  double computes() const {
    if (!known()) return 1;
    // Threads of a library compute too; no more than all of the time is lost to it.
    const double cpu = std::max(sums_[kLookedCpu].value, sums_[kProcessCpu].value);
    return std::clamp(cpu / sums_[kLookedWall].value, 0.0, 1.0);
  }
  /// Ready to run, without a core.
  double delayed() const {
    if (!known() || !sums_[kRunDelay].known) return 0;
    return std::clamp(sums_[kRunDelay].value / sums_[kLookedWall].value, 0.0, 1 - computes());
  }
  double waits() const { return std::max(0.0, 1 - computes() - delayed()); }
  /// Share of the time that goes into making a batch of the items.
  double collates() const { return Ratio(kCollate, kWall); }

  bool reads_known() const { return known() && sums_[kReadCalls].known; }
  /// Of one fetch.
  double items() const { return Ratio(kItems, kFetches); }
  double read_calls() const { return Ratio(kReadCalls, kLooked); }
  double read_bytes() const { return Ratio(kReadBytes, kLooked); }
  double storage_bytes() const { return Ratio(kStorageBytes, kLooked); }
  double batch_bytes() const { return Ratio(kBatchBytes, kLooked); }
  double mean_ns() const { return Ratio(kWall, kFetches); }

 private:
  enum What : std::size_t {
    kFetches,
    kItems,
    kWall,
    kCpu,
    kCollate,
    kLooked,
    kLookedWall,
    kLookedCpu,
    kProcessCpu,
    kRunDelay,
    kReadCalls,
    kReadBytes,
    kStorageBytes,
    kBatchBytes,
    kCount
  };
  struct Sum {
    double value = 0;
    bool known = false;
  };
  /// What an event leaves of those before it.
  static constexpr double kKept = 0.9;

  double Ratio(What what, What of) const {
    return sums_[of].value > 0 && sums_[what].known ? sums_[what].value / sums_[of].value : 0;
  }

  Sum sums_[kCount];
};

/// What the profiles of fetches say (`dataloader.held_by`): where their time goes.
class FetchHolders {
 public:
  struct Holder {
    std::string library;  ///< Empty: the user's own code.
    std::string function;
    std::string place;  ///< "train.py:12", or empty.
    std::string inner;  ///< A library that it calls, where that has much of its time.
    double share = 0;
  };

  void Take(const nlohmann::json& data) {
    const double ns = NumberIn(data, "ns");
    const auto shares = data.find("shares");
    if (!(ns > 0) || shares == data.end() || !shares->is_object()) return;
    all_ns_ += ns;
    for (const auto& [library, share] : shares->items()) {
      if (!share.is_number() || (ns_.size() >= kMost && !ns_.contains(library))) continue;
      ns_[library].ns += ns * share.get<double>();
    }
    const std::string top = TextIn(data, "library");
    const auto found = ns_.find(top);
    if (found == ns_.end()) return;
    found->second.function = TextIn(data, "function");
    found->second.inner = TextIn(data, "inner");
    const std::string file = TextIn(data, "file");
    if (!file.empty()) {
      found->second.place = file + ":" + std::to_string(IntegerIn(data, "line"));
    }
  }
  bool known() const { return all_ns_ > 0; }
  Holder Top() const {
    Holder top;
    for (const auto& [library, of] : ns_) {
      const double share = of.ns / all_ns_;
      if (share > top.share) top = HolderOf(library, of);
    }
    return top;
  }
  /// What waits for a lock that workers share, where that is a good part of all: who holds one lets
  /// others wait.
  Holder Locks() const {
    for (const char* const library : {"fcntl", "multiprocessing.Lock"}) {
      const auto found = ns_.find(library);
      if (found == ns_.end() || found->second.ns < kLocks * all_ns_) continue;
      return HolderOf(found->first, found->second);
    }
    return {};
  }

 private:
  static constexpr std::size_t kMost = 64;
  static constexpr double kLocks = 0.25;
  struct Of {
    double ns = 0;
    std::string function, place, inner;
  };

  Holder HolderOf(const std::string& library, const Of& of) const {
    return {library, of.function, of.place, of.inner, of.ns / all_ns_};
  }
  std::map<std::string, Of> ns_;
  double all_ns_ = 0;
};

/// The few items that are compared from epoch to epoch (`dataloader.item`).
class RepeatedItems {
 public:
  void Take(const nlohmann::json& data) {
    const auto digest = data.find("digest");
    const double ns = NumberIn(data, "duration_ns");
    const std::pair key(IntegerIn(data, "of", -1), IntegerIn(data, "index", -1));
    if (digest == data.end() || !digest->is_number() || !(ns > 0) || key.second < 0) return;
    const std::int64_t value = IntegerOf(*digest);
    const double bytes = NumberIn(data, "bytes");
    const auto found = items_.find(key);
    if (found == items_.end()) {
      if (items_.size() < kMost) items_[key] = Item{value, ns, bytes, 0, 0, {}};
      return;
    }
    Item& item = found->second;
    (value == item.digest ? item.same : item.other) += 1;
    item.again_ns.push_back(ns);
    if (item.again_ns.size() > kKept) item.again_ns.erase(item.again_ns.begin());
  }

  /// Items that came at least twice and cost about the same again.
  std::size_t again() const {
    return Count([](const Item& item) { return item.Costs(); });
  }
  /// Of those, the ones whose result was the same each time.
  std::size_t same() const {
    return Count([](const Item& item) { return item.Costs() && item.other == 0; });
  }
  /// Enough of them to say that the work is done again, with the same result.
  bool SameWork() const {
    return again() >= kFewest && same() >= 0.9 * static_cast<double>(again());
  }
  /// The time is spent again, but results differ: a random transform.
  bool OtherResults() const { return again() >= kFewest && same() <= again() / 2; }
  /// Of an item, as a mean over those that came again.
  double bytes() const {
    double sum = 0;
    double count = 0;
    for (const auto& [key, item] : items_) {
      sum += item.bytes;
      ++count;
    }
    return count > 0 ? sum / count : 0;
  }

 private:
  static constexpr std::size_t kMost = 512;
  static constexpr std::size_t kKept = 3;
  static constexpr std::size_t kFewest = 3;
  struct Item {
    std::int64_t digest = 0;
    double first_ns = 0;
    double bytes = 0;
    int same = 0, other = 0;
    std::vector<double> again_ns;
    bool Costs() const { return !again_ns.empty() && MedianOf(again_ns) >= 0.5 * first_ns; }
  };

  template <class Is>
  std::size_t Count(Is is) const {
    return static_cast<std::size_t>(std::count_if(
        items_.begin(), items_.end(), [&](const auto& entry) { return is(entry.second); }));
  }

  std::map<std::pair<std::int64_t, std::int64_t>, Item> items_;  ///< By data set and index.
};

/// Of the makers of one kind: a training process, or the workers of a node.
struct FetchFacts {
  FetchCosts costs;
  FetchHolders holders;
};

}  // namespace telltale::rules
