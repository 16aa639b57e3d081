// SPDX-License-Identifier: Apache-2.0
// What machines cost and what they have: the table that RightSize chooses from
// (docs/formats/prices.md). Thread safety: stateless; a table is a value.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::rules {

/// One kind of machine; 0 is "not said" where nothing else stands.
struct MachinePrice {
  std::string name;
  double price_per_hour = 0;
  double cores = 0;
  double memory_bytes = 0;
  double gpus = 0;              ///< 0: it has none.
  std::string gpu;              ///< Kind.
  double gpu_memory_bytes = 0;  ///< Of one.
  double gpu_speed = 0;         ///< Of one, in any unit that the whole table shares.
  double core_speed = 1;        ///< The same of one core.
  double disk_bytes_per_second = 0;
  double network_bytes_per_second = 0;
  bool current = false;  ///< The run is on such a one.
};

struct PriceTable {
  static constexpr std::size_t kMostMachines = 1000;

  std::string currency = "USD";
  std::vector<MachinePrice> machines;
};

/// `where`: what messages call the text. kUsage names the key, its line and what to write.
Result<PriceTable> PriceTableFromToml(std::string_view text, std::string_view where);

/// The parameter `prices` of RightSize: a table itself (it has a "="), or the path of a file.
/// kUnusable: the file cannot be read.
Result<PriceTable> LoadPriceTable(const std::string& prices);

}  // namespace telltale::rules
