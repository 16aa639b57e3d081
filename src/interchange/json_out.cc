// SPDX-License-Identifier: Apache-2.0
#include "interchange/json_out.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/utf8.h"

namespace telltale::interchange {

void AppendQuoted(std::string_view text, std::string* out) {
  std::string scratch;
  text = ToValidUtf8(text, &scratch);
  out->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(*out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

void AppendMicros(std::int64_t ns, std::string* out) {
  const bool negative = ns < 0;
  const std::uint64_t size =
      negative ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
  if (negative) out->push_back('-');
  fmt::format_to(std::back_inserter(*out), "{}", size / 1000);
  if (size % 1000 == 0) return;
  fmt::format_to(std::back_inserter(*out), ".{:03}", size % 1000);
  while (out->back() == '0') out->pop_back();
}

bool IsJsonObject(std::string_view text) {
  return text.starts_with('{') && nlohmann::json::accept(text);
}

ObjectOut::ObjectOut(std::string_view object, std::string* out) : out_(out) {
  out_->push_back('{');
  if (!IsJsonObject(object)) return;
  object_ = object;
  const std::string_view inner = object.substr(1, object.rfind('}') - 1);
  if (inner.find_first_not_of(" \t\r\n") == std::string_view::npos) return;
  *out_ += inner;
  empty_ = false;
}

bool ObjectOut::Begin(std::string_view name) {
  // A text that only looks like the name costs a member, no more.
  if (!object_.empty() && object_.find(fmt::format("\"{}\"", name)) != std::string_view::npos) {
    return false;
  }
  if (!empty_) out_->push_back(',');
  empty_ = false;
  AppendQuoted(name, out_);
  out_->push_back(':');
  return true;
}

void ObjectOut::Add(std::string_view name, std::int64_t value) {
  if (Begin(name)) fmt::format_to(std::back_inserter(*out_), "{}", value);
}

void ObjectOut::Add(std::string_view name, double value) {
  if (std::isfinite(value) && Begin(name)) fmt::format_to(std::back_inserter(*out_), "{}", value);
}

void ObjectOut::Add(std::string_view name, std::string_view value) {
  if (Begin(name)) AppendQuoted(value, out_);
}

void ObjectOut::Close() { out_->push_back('}'); }

}  // namespace telltale::interchange
