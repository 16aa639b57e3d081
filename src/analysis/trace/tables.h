// SPDX-License-Identifier: Apache-2.0
// What an analysis says, as tables: the same figures for the terminal, JSON and CSV. Units are in
// the columns' names (_ns, _bytes); a share is between 0 and 1.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace telltale::analysis::trace {

/// Nothing: not known, or it has no meaning.
using Cell = std::variant<std::monostate, std::int64_t, double, std::string>;

struct Table {
  std::string name;   ///< One word with underscores: the member in JSON.
  std::string title;  ///< A sentence above it in the terminal.
  std::vector<std::string> columns;
  std::vector<std::vector<Cell>> rows;
  /// Of the rows above all, as many as a terminal shows; JSON and CSV have all. 0: all.
  std::size_t shown = 0;

  void Add(std::vector<Cell> row) { rows.push_back(std::move(row)); }
};

struct Tables {
  std::deque<Table> tables;        ///< References stay valid while tables are added.
  std::vector<std::string> notes;  ///< What was left out, or could not be said.

  Table& Add(std::string name, std::string title, std::vector<std::string> columns) {
    tables.push_back({std::move(name), std::move(title), std::move(columns), {}, 0});
    return tables.back();
  }
};

}  // namespace telltale::analysis::trace
