// SPDX-License-Identifier: Apache-2.0
// Rows as text, for other programs.
//   csv   RFC 4180: a header line, lines end in CR LF, a field with a comma, quote or line break is
//         quoted. Doubles as NaN, Inf, -Inf where they are that.
//   json  An array of objects, one a line. NaN and the infinities, which JSON has no word for, are
//         null; bytes that are no UTF-8 become U+FFFD.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "query/table.h"

namespace telltale::query {

class Printer {
 public:
  virtual ~Printer() = default;
  virtual void Begin(std::string* out) = 0;
  virtual void Row(const RowRef& row, std::string* out) = 0;
  virtual void End(std::string* out) = 0;
};

/// The columns outlive the printer.
std::unique_ptr<Printer> NewCsvPrinter(std::vector<const Column*> columns);
std::unique_ptr<Printer> NewJsonPrinter(std::vector<const Column*> columns);

}  // namespace telltale::query
