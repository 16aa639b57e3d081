// SPDX-License-Identifier: Apache-2.0
#include "analysis/profile/parameters.h"

#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/json.h"
#include "store/column_scan.h"

namespace telltale::analysis::profile {
namespace {

struct Parameter {
  std::string collection;
  std::string dtype;
  double count = 0;
  std::int64_t step = INT64_MIN;
  std::string value;
};
using Parameters = std::map<std::string, Parameter, std::less<>>;

/// Elements of a shape; 0 where the text is none.
double ElementsOf(std::string_view shape) {
  const auto json = ParseJson(shape);
  if (!json.is_array()) return 0;
  double product = 1;
  for (const auto& side : json) {
    if (!side.is_number()) return 0;
    product *= side.get<double>();
  }
  return product;
}

Parameter* Find(Parameters* all, const store::ScanPiece& piece, std::size_t row) {
  const std::string_view collection = piece.columns[1].Text(row);
  if (collection != "weights" && collection != "biases") return nullptr;
  const std::string_view name = piece.columns[0].Text(row);
  auto found = all->find(name);
  if (found == all->end()) {
    if (all->size() >= Tree::kMostNodes) return nullptr;
    found = all->emplace(std::string(name), Parameter()).first;
    found->second.collection = collection;
    found->second.dtype = piece.columns[2].Text(row);
  }
  return &found->second;
}

}  // namespace

Status AddParameters(const std::filesystem::path& run, bool values, Tree* tree,
                     store::Salvage* salvage) {
  Parameters all;
  store::ScanRequest statistics{.table = format::TableId::kStatistics,
                                .columns = {"name", "collection", "dtype", "step", "count"}};
  if (values) {
    for (const char* const column : {"mean", "std", "min", "max"}) {
      statistics.columns.emplace_back(column);
    }
  }
  TELLTALE_RETURN_IF_ERROR(store::ScanColumns(
      run, statistics,
      [&](store::ScanPiece& piece) {
        for (std::size_t row = 0; row < piece.rows; ++row) {
          Parameter* const one = Find(&all, piece, row);
          if (one == nullptr) continue;
          one->count = static_cast<double>(piece.columns[4].Int(row));
          const std::int64_t step = piece.columns[3].Int(row);
          if (!values || step < one->step) continue;
          one->step = step;
          one->value = fmt::format("step {}: mean {:.6g}, std {:.6g}, min {:.6g}, max {:.6g}", step,
                                   piece.columns[5].Real(row), piece.columns[6].Real(row),
                                   piece.columns[7].Real(row), piece.columns[8].Real(row));
        }
        return Status();
      },
      salvage));
  TELLTALE_RETURN_IF_ERROR(store::ScanColumns(
      run,
      {.table = format::TableId::kTensors, .columns = {"name", "collection", "dtype", "shape"}},
      [&](store::ScanPiece& piece) {
        for (std::size_t row = 0; row < piece.rows; ++row) {
          Parameter* const one = Find(&all, piece, row);
          if (one != nullptr && one->count == 0)
            one->count = ElementsOf(piece.columns[3].Text(row));
        }
        return Status();
      },
      salvage));
  for (const auto& [name, one] : all) {
    NodeId id = kRoot;
    for (std::string_view left = name; !left.empty();) {
      const std::size_t end = left.find_first_of("./");
      id = tree->Child(id, left.substr(0, end));
      left.remove_prefix(end == std::string_view::npos ? left.size() : end + 1);
    }
    tree->node(id).self.params += one.count;
    tree->node(id).self.definitions += 1;
    for (const std::string_view type :
         {std::string_view("Variable"), std::string_view("_trainable_variables"),
          std::string_view(one.collection), std::string_view(one.dtype)}) {
      tree->AddType(id, type);
    }
    if (!one.value.empty()) tree->SetValue(id, one.value);
  }
  return {};
}

}  // namespace telltale::analysis::profile
