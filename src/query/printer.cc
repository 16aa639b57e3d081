// SPDX-License-Identifier: Apache-2.0
#include "query/printer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace telltale::query {
namespace {

using nlohmann::json;

/// A JSON string, quotes included.
std::string Quoted(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

void PutNumber(double value, std::string* out) {
  fmt::format_to(std::back_inserter(*out), "{}", value);
}

class CsvPrinter final : public Printer {
 public:
  explicit CsvPrinter(std::vector<const Column*> columns) : columns_(std::move(columns)) {}

  void Begin(std::string* out) override {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) *out += ',';
      PutText(columns_[i]->name, out);
    }
    *out += "\r\n";
  }
  void Row(const RowRef& row, std::string* out) override {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) *out += ',';
      std::visit([&](const auto& value) { Put(value, out); }, columns_[i]->get(row));
    }
    *out += "\r\n";
  }
  void End(std::string* /*out*/) override {}

 private:
  static void PutText(std::string_view text, std::string* out) {
    if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
      *out += text;
      return;
    }
    *out += '"';
    for (const char c : text) {
      if (c == '"') *out += '"';
      *out += c;
    }
    *out += '"';
  }
  template <class T>
  static void Put(const T& value, std::string* out) {
    if constexpr (std::is_same_v<T, std::string_view>) {
      PutText(value, out);
    } else if constexpr (std::is_same_v<T, bool>) {
      *out += value ? "true" : "false";
    } else if constexpr (std::is_same_v<T, double>) {
      if (std::isfinite(value)) {
        PutNumber(value, out);
      } else {
        *out += std::isnan(value) ? "NaN" : (value > 0 ? "Inf" : "-Inf");
      }
    } else {
      fmt::format_to(std::back_inserter(*out), "{}", value);
    }
  }

  const std::vector<const Column*> columns_;
};

class JsonPrinter final : public Printer {
 public:
  explicit JsonPrinter(std::vector<const Column*> columns) : columns_(std::move(columns)) {
    for (const Column* column : columns_) keys_.push_back(Quoted(column->name) + ":");
  }

  void Begin(std::string* out) override { *out += "["; }
  void Row(const RowRef& row, std::string* out) override {
    *out += first_ ? "\n{" : ",\n{";
    first_ = false;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) *out += ',';
      *out += keys_[i];
      std::visit([&](const auto& value) { Put(value, out); }, columns_[i]->get(row));
    }
    *out += '}';
  }
  void End(std::string* out) override { *out += first_ ? "]\n" : "\n]\n"; }

 private:
  template <class T>
  static void Put(const T& value, std::string* out) {
    if constexpr (std::is_same_v<T, std::string_view>) {
      *out += Quoted(value);
    } else if constexpr (std::is_same_v<T, bool>) {
      *out += value ? "true" : "false";
    } else if constexpr (std::is_same_v<T, double>) {
      if (std::isfinite(value)) {
        PutNumber(value, out);
      } else {
        *out += "null";
      }
    } else {
      fmt::format_to(std::back_inserter(*out), "{}", value);
    }
  }

  const std::vector<const Column*> columns_;
  std::vector<std::string> keys_;
  bool first_ = true;
};

}  // namespace

std::unique_ptr<Printer> NewCsvPrinter(std::vector<const Column*> columns) {
  return std::make_unique<CsvPrinter>(std::move(columns));
}
std::unique_ptr<Printer> NewJsonPrinter(std::vector<const Column*> columns) {
  return std::make_unique<JsonPrinter>(std::move(columns));
}

}  // namespace telltale::query
