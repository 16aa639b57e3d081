// SPDX-License-Identifier: Apache-2.0
// JSON of traces, appended piece by piece.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace telltale::interchange {

/// In quotes, as UTF-8: bytes that are none become U+FFFD.
void AppendQuoted(std::string_view text, std::string* out);

/// Nanoseconds as microseconds with up to three decimals, exact: 1500 is 1.5.
void AppendMicros(std::int64_t ns, std::string* out);

/// Whether `text` is a JSON object, for what is passed on as it is.
bool IsJsonObject(std::string_view text);

/// Members of a JSON object, one after the other.
class ObjectOut {
 public:
  /// Begins with the members of `object`, where that is a JSON object.
  ObjectOut(std::string_view object, std::string* out);
  void Add(std::string_view name, std::int64_t value);
  void Add(std::string_view name, double value);
  void Add(std::string_view name, std::string_view value);
  void Close();

 private:
  /// False where the object that it began with has a member of that name.
  bool Begin(std::string_view name);

  std::string_view object_;
  std::string* out_;
  bool empty_ = true;
};

}  // namespace telltale::interchange
