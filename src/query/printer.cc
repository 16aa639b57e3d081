// SPDX-License-Identifier: Apache-2.0
#include "query/printer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <variant>

#include "base/json.h"
#include "base/printable.h"

namespace telltale::query {
namespace {

using nlohmann::json;

/// A JSON string, quotes included.
std::string Quoted(std::string_view text) { return PrintableJson(JsonText(json(text))); }

/// A value, with the format's own words for text and for what is no finite number.
template <class Text, class NotFinite>
void Put(const Value& value, Text text, NotFinite not_finite, std::string* out) {
  if (const auto* t = std::get_if<std::string_view>(&value)) return text(*t);
  if (const auto* d = std::get_if<double>(&value); d && !std::isfinite(*d)) return not_finite(*d);
  std::visit([&](auto v) { fmt::format_to(std::back_inserter(*out), "{}", v); }, value);
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
      Put(
          columns_[i]->get(row), [&](std::string_view text) { PutText(text, out); },
          [&](double v) { *out += std::isnan(v) ? "NaN" : (v > 0 ? "Inf" : "-Inf"); }, out);
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
      Put(
          columns_[i]->get(row), [&](std::string_view text) { *out += Quoted(text); },
          [&](double) { *out += "null"; }, out);
    }
    *out += '}';
  }
  void End(std::string* out) override { *out += first_ ? "]\n" : "\n]\n"; }

 private:
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
