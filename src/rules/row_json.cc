// SPDX-License-Identifier: Apache-2.0
#include "rules/row_json.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>

#include "format/records.gen.h"
#include "store/reader.h"

namespace telltale::rules {
namespace {

void AppendText(std::string_view text, std::string* out) {
  bool plain = true;
  for (const char c : text) plain = plain && c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
  if (plain) {
    *out += '"';
    *out += text;
    *out += '"';
    return;
  }
  *out += nlohmann::json(std::string(text))
              .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

template <class T>
void AppendValue(const T& value, std::string* out) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    AppendText(value, out);
  } else if constexpr (std::is_same_v<T, bool>) {
    *out += value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, double>) {
    if (std::isfinite(value)) {
      fmt::format_to(std::back_inserter(*out), "{}", value);
    } else {
      *out += std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
    }
  } else {
    fmt::format_to(std::back_inserter(*out), "{}", value);
  }
}

template <class Row>
bool Append(const Record& record, std::string* out) {
  const Row* row = record.As<Row>();
  if (row == nullptr) return false;
  bool first = true;
  format::ForEachColumn<Row>([&](const format::ColumnDesc& column, auto member) {
    *out += first ? "{\"" : ",\"";
    *out += column.name;
    *out += "\":";
    AppendValue(row->*member, out);
    first = false;
  });
  *out += "}]";
  return true;
}

template <class... Rows>
struct Tables {
  static std::uint32_t Mask() { return (store::MaskOf(Rows::kTable) | ...); }
  static bool AppendAny(const Record& record, std::string* out) {
    return (Append<Rows>(record, out) || ...);
  }
};
using Written =
    Tables<format::MetricRow, format::SpanRow, format::StepRow, format::ScalarRow,
           format::StatisticRow, format::TensorRow, format::EventRow, format::HistogramRow>;

std::string_view NameOf(format::TableId id) {
  for (const format::TableDesc& table : format::kTables) {
    if (table.id == id) return table.name;
  }
  return {};
}

}  // namespace

std::uint32_t RowJsonTables() { return Written::Mask(); }

bool AppendRowJson(const Record& record, std::string* out) {
  if ((RowJsonTables() & store::MaskOf(record.table)) == 0) return false;
  fmt::format_to(std::back_inserter(*out), "[\"{}\",{},", NameOf(record.table), record.ord_ns);
  return Written::AppendAny(record, out);
}

}  // namespace telltale::rules
