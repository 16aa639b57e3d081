// SPDX-License-Identifier: Apache-2.0
#include "cli/analysis_print.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/printable.h"
#include "report/text.h"

namespace telltale::cli {
namespace {

using analysis::trace::Cell;
using analysis::trace::Table;
using analysis::trace::Tables;

/// Wider texts lose their middle: of a kernel's name both ends tell something.
constexpr std::size_t kWidestText = 60;

std::string PlainSpaces(std::string text) {
  for (auto at = text.find(report::kSpace); at != std::string::npos;
       at = text.find(report::kSpace, at)) {
    text.replace(at, report::kSpace.size(), " ");
  }
  return text;
}

std::string Shortened(std::string text) {
  if (text.size() <= kWidestText) return text;
  std::size_t head = kWidestText / 2;
  std::size_t tail = text.size() - (kWidestText - head - 3);
  // Not within a letter of several bytes.
  while (head > 0 && (static_cast<unsigned char>(text[head]) & 0xC0U) == 0x80U) --head;
  while (tail < text.size() && (static_cast<unsigned char>(text[tail]) & 0xC0U) == 0x80U) ++tail;
  return text.substr(0, head) + "..." + text.substr(tail);
}

/// Numbers that name something.
bool IsName(std::string_view column) {
  return column == "rank" || column == "device" || column == "stream" || column == "step" ||
         column == "correlation" || column == "time_ns" || column == "begin_ns";
}

std::string CellText(std::string_view column, const Cell& cell) {
  if (std::holds_alternative<std::monostate>(cell)) return "—";
  if (const auto* text = std::get_if<std::string>(&cell)) return Shortened(Printable(*text));
  const auto* whole = std::get_if<std::int64_t>(&cell);
  const double value = whole != nullptr ? static_cast<double>(*whole) : std::get<double>(cell);
  if (IsName(column) && whole != nullptr) return fmt::format("{}", *whole);
  if (column == "ns" || column.ends_with("_ns")) {
    // Durations have no sign of their own.
    const std::string text = report::Duration(value < 0 ? -value / 1e9 : value / 1e9);
    return PlainSpaces(value < 0 ? "−" + text : text);
  }
  if (column.ends_with("_bytes")) return PlainSpaces(report::Bytes(value));
  if (column.ends_with("share")) return PlainSpaces(report::Percent(value));
  return whole != nullptr ? report::Thousands(*whole) : report::Significant(value);
}

/// "mean_ns" as "mean", its unit stands beside each value.
std::string ColumnHeading(std::string_view column) {
  if (IsName(column)) return std::string(column);
  for (const std::string_view unit : {"_ns", "_bytes", "_share"}) {
    if (column.ends_with(unit)) column.remove_suffix(unit.size());
  }
  std::string out(column);
  std::replace(out.begin(), out.end(), '_', ' ');
  return out;
}

std::size_t Columns(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::string TableText(const Table& table) {
  std::string out = fmt::format("{}\n", table.title);
  const std::size_t shown =
      table.shown == 0 ? table.rows.size() : std::min(table.shown, table.rows.size());
  std::vector<std::vector<std::string>> lines(1);
  std::vector<bool> left(table.columns.size(), false);
  for (const std::string& column : table.columns) lines[0].push_back(ColumnHeading(column));
  for (std::size_t r = 0; r < shown; ++r) {
    auto& line = lines.emplace_back();
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      line.push_back(CellText(table.columns[c], table.rows[r][c]));
      left[c] = left[c] || std::holds_alternative<std::string>(table.rows[r][c]);
    }
  }
  std::vector<std::size_t> widths(table.columns.size(), 0);
  for (const auto& line : lines) {
    for (std::size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], Columns(line[c]));
  }
  for (const auto& line : lines) {
    std::string text;
    for (std::size_t c = 0; c < line.size(); ++c) {
      const std::string blanks(widths[c] - Columns(line[c]), ' ');
      text += "  " + (left[c] ? line[c] + blanks : blanks + line[c]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }
  if (shown < table.rows.size()) {
    out += fmt::format("  and {} more: --top, --json or --csv\n",
                       report::Thousands(static_cast<std::int64_t>(table.rows.size() - shown)));
  }
  return out;
}

nlohmann::ordered_json CellJson(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* whole = std::get_if<std::int64_t>(&cell)) return *whole;
  if (const auto* real = std::get_if<double>(&cell)) return *real;
  return nullptr;
}

std::string CsvField(const Cell& cell) {
  if (const auto* whole = std::get_if<std::int64_t>(&cell)) return fmt::format("{}", *whole);
  if (const auto* real = std::get_if<double>(&cell)) return fmt::format("{}", *real);
  const auto* text = std::get_if<std::string>(&cell);
  if (text == nullptr) return "";
  if (text->find_first_of(",\"\r\n") == std::string::npos) return *text;
  std::string quoted = "\"";
  for (const char c : *text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

std::string AnalysisText(const Tables& tables) {
  std::string out;
  for (const Table& table : tables.tables) {
    if (table.rows.empty()) continue;
    if (!out.empty()) out += "\n";
    out += TableText(table);
  }
  if (out.empty()) out = "nothing to show\n";
  for (const std::string& note : tables.notes) out += fmt::format("\n{}\n", Printable(note));
  return out;
}

std::string AnalysisJson(const Tables& tables, std::string_view analysis, std::string_view run) {
  nlohmann::ordered_json out = {
      {"analysis", analysis}, {"run", run}, {"tables", nlohmann::ordered_json::object()}};
  for (const Table& table : tables.tables) {
    auto& rows = out["tables"][table.name] = nlohmann::ordered_json::array();
    for (const auto& row : table.rows) {
      nlohmann::ordered_json line = nlohmann::ordered_json::object();
      for (std::size_t c = 0; c < table.columns.size(); ++c) {
        line[table.columns[c]] = CellJson(row[c]);
      }
      rows.push_back(std::move(line));
    }
  }
  out["notes"] = tables.notes;
  return JsonText(out);
}

std::string AnalysisCsv(const Table& table) {
  std::string out;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    out += (c == 0 ? "" : ",") + table.columns[c];
  }
  out += "\r\n";
  for (const auto& row : table.rows) {
    for (std::size_t c = 0; c < row.size(); ++c) out += (c == 0 ? "" : ",") + CsvField(row[c]);
    out += "\r\n";
  }
  return out;
}

}  // namespace telltale::cli
