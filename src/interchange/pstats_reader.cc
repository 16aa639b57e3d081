// SPDX-License-Identifier: Apache-2.0
// Python's documentation leaves the format of marshal open; it is as Python/marshal.c has it,
// versions 2 to 5, so that what Python 2.7 and later write is read.
#include "interchange/pstats_reader.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

namespace telltale::interchange {
namespace {

constexpr std::uint8_t kIsReferred = 0x80;  ///< The object gets the next number of references.
constexpr std::size_t kMaxReferences = 8U << 20;
constexpr int kMaxDepth = 8;  ///< Of what is skipped; the dictionary itself has 4.

/// A value as far as the dictionary of a profile holds it.
struct Value {
  enum class Kind : std::uint8_t { kNull, kOther, kInteger, kReal, kText, kFunction };
  Kind kind = Kind::kOther;
  std::int64_t integer = 0;
  double real = 0;
  std::string_view text;
  std::uint32_t function = 0;  ///< Index.

  double number() const {
    return kind == Kind::kInteger ? static_cast<double>(integer) : kind == Kind::kReal ? real : 0;
  }
};

class MarshalReader {
 public:
  MarshalReader(std::string_view bytes, const std::function<void(const PythonProfileEntry&)>& take)
      : bytes_(bytes), take_(take) {}

  Status Read() {
    std::uint8_t type = 0;
    if (!TakeType(&type) || type != '{') {
      return {Code::kUnusable, "these bytes are no statistics of cProfile: they begin otherwise"};
    }
    Settle(Reserve(), {});
    while (!failed_) {
      const Value key = Take(0);
      if (key.kind == Value::Kind::kNull) return {};
      if (failed_) break;
      if (key.kind != Value::Kind::kFunction) {
        if (read_ == 0) {
          return {Code::kUnusable,
                  "these bytes are no statistics of cProfile: what they hold are no functions"};
        }
        break;
      }
      TakeEntry(key.function);
    }
    return {read_ == 0 ? Code::kUnusable : Code::kPartial,
            fmt::format("the statistics of cProfile break off at byte {} of {}: {} functions were "
                        "read",
                        at_, bytes_.size(), read_)};
  }

 private:
  void Fail() { failed_ = true; }
  bool Has(std::size_t size) const { return size <= bytes_.size() - at_; }

  bool TakeType(std::uint8_t* type) {
    if (!Has(1)) {
      Fail();
      return false;
    }
    const auto byte = static_cast<std::uint8_t>(bytes_[at_++]);
    *type = byte & static_cast<std::uint8_t>(~kIsReferred);
    referred_ = (byte & kIsReferred) != 0;
    return true;
  }
  template <class T>
  T TakeFixed() {
    T value{};
    if (!Has(sizeof(T))) {
      Fail();
      return value;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string_view TakeBytes(std::int64_t size) {
    if (size < 0 || !Has(static_cast<std::size_t>(size))) {
      Fail();
      return {};
    }
    const std::string_view out = bytes_.substr(at_, static_cast<std::size_t>(size));
    at_ += out.size();
    return out;
  }

  /// One function: (calls that are no recursion, calls, time, time with callees, {callers}).
  void TakeEntry(std::uint32_t function) {
    PythonProfileEntry entry;
    entry.function = functions_[function];
    if (!TakeTuple(5)) return Fail();
    const std::size_t reference = Reserve();
    Value values[4];
    for (Value& value : values) value = Take(0);
    entry.primitive_calls = values[0].integer;
    entry.calls = values[1].integer;
    entry.self_s = values[2].number();
    entry.cumulative_s = values[3].number();
    std::uint8_t type = 0;
    if (failed_ || !TakeType(&type) || type != '{') return Fail();
    Settle(Reserve(), {});
    while (!failed_) {
      const Value key = Take(0);
      if (key.kind == Value::Kind::kNull) break;
      if (key.kind != Value::Kind::kFunction) return Fail();
      TakeCaller(functions_[key.function], &entry);
    }
    if (failed_) return;
    Settle(reference, {});
    ++read_;
    if (std::isfinite(entry.self_s) && std::isfinite(entry.cumulative_s)) take_(entry);
  }

  /// cProfile: (calls, those that are no recursion, time, time with callees); profile: calls.
  void TakeCaller(const PythonFunction& function, PythonProfileEntry* entry) {
    PythonCaller caller;
    caller.function = function;
    if (!Has(1)) return Fail();
    const std::uint8_t next =
        static_cast<std::uint8_t>(bytes_[at_]) & static_cast<std::uint8_t>(~kIsReferred);
    if (next == '(' || next == ')') {
      if (!TakeTuple(4)) return Fail();
      const std::size_t reference = Reserve();
      Value values[4];
      for (Value& value : values) value = Take(0);
      Settle(reference, {});
      caller.calls = values[0].integer;
      caller.primitive_calls = values[1].integer;
      caller.self_s = values[2].number();
      caller.cumulative_s = values[3].number();
    } else {
      const Value calls = Take(0);
      caller.calls = caller.primitive_calls = calls.integer;
    }
    if (!failed_) entry->callers.push_back(caller);
  }

  bool TakeTuple(std::uint32_t size) {
    std::uint8_t type = 0;
    if (!TakeType(&type)) return false;
    if (type == ')') return TakeFixed<std::uint8_t>() == size && !failed_;
    if (type == '(') return TakeFixed<std::uint32_t>() == size && !failed_;
    return false;
  }

  /// Objects are numbered where they begin, so a tuple comes before what it holds.
  std::size_t Reserve() {
    if (!referred_) return kNoReference;
    if (references_.size() >= kMaxReferences) {
      Fail();
      return kNoReference;
    }
    references_.emplace_back();
    return references_.size() - 1;
  }
  void Settle(std::size_t reference, const Value& value) {
    if (reference != kNoReference) references_[reference] = value;
  }

  Value Take(int depth) {
    std::uint8_t type = 0;
    Value value;
    if (depth > kMaxDepth || !TakeType(&type)) {
      Fail();
      return value;
    }
    const std::size_t reference = Reserve();
    switch (type) {
      case '0':
        value.kind = Value::Kind::kNull;
        break;
      case 'N':
      case 'T':
      case 'F':
      case '.':
        break;
      case 'i':
        value.kind = Value::Kind::kInteger;
        value.integer = TakeFixed<std::int32_t>();
        break;
      case 'I':
        value.kind = Value::Kind::kInteger;
        value.integer = TakeFixed<std::int64_t>();
        break;
      case 'l':
        value = TakeLong();
        break;
      case 'g':
        value.kind = Value::Kind::kReal;
        value.real = TakeFixed<double>();
        break;
      case 'f':
        value = TakeWrittenReal();
        break;
      case 's':
      case 't':
      case 'u':
      case 'a':
      case 'A':
        value.kind = Value::Kind::kText;
        value.text = TakeBytes(TakeFixed<std::int32_t>());
        // Python 2 numbers its interned strings by themselves.
        if (type == 't' && !referred_) interned_.push_back(value.text);
        break;
      case 'z':
      case 'Z':
        value.kind = Value::Kind::kText;
        value.text = TakeBytes(TakeFixed<std::uint8_t>());
        break;
      case 'R': {
        const auto index = TakeFixed<std::uint32_t>();
        if (index >= interned_.size()) {
          Fail();
          break;
        }
        value.kind = Value::Kind::kText;
        value.text = interned_[index];
        break;
      }
      case 'r': {
        const auto index = TakeFixed<std::uint32_t>();
        if (index >= references_.size()) {
          Fail();
          break;
        }
        return references_[index];
      }
      case ')':
        value = TakeFunction(TakeFixed<std::uint8_t>(), depth);
        break;
      case '(':
        value = TakeFunction(TakeFixed<std::uint32_t>(), depth);
        break;
      default:
        Fail();
    }
    Settle(reference, value);
    return value;
  }

  Value TakeFunction(std::uint32_t size, int depth) {
    Value value;
    if (size != 3) {
      Fail();
      return value;
    }
    const Value file = Take(depth + 1);
    const Value line = Take(depth + 1);
    const Value name = Take(depth + 1);
    if (failed_ || file.kind != Value::Kind::kText || line.kind != Value::Kind::kInteger ||
        name.kind != Value::Kind::kText) {
      Fail();
      return value;
    }
    value.kind = Value::Kind::kFunction;
    value.function = static_cast<std::uint32_t>(functions_.size());
    functions_.push_back({file.text, line.integer, name.text});
    return value;
  }

  /// Digits of 15 bits, the smallest first; below zero where their number is.
  Value TakeLong() {
    const auto digits = TakeFixed<std::int32_t>();
    Value value;
    value.kind = Value::Kind::kInteger;
    const std::int64_t count = std::abs(static_cast<std::int64_t>(digits));
    const std::string_view bytes = TakeBytes(2 * count);
    double real = 0;
    for (std::size_t i = bytes.size() / 2; i-- > 0;) {
      std::uint16_t digit = 0;
      std::memcpy(&digit, bytes.data() + 2 * i, 2);
      real = real * 32768 + digit;
    }
    if (real >= 9.2e18) real = 9.2e18;
    value.integer = static_cast<std::int64_t>(digits < 0 ? -real : real);
    return value;
  }
  Value TakeWrittenReal() {
    const std::string_view text = TakeBytes(TakeFixed<std::uint8_t>());
    Value value;
    value.kind = Value::Kind::kReal;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value.real);
    if (error != std::errc() || end != text.data() + text.size()) Fail();
    return value;
  }

  static constexpr std::size_t kNoReference = static_cast<std::size_t>(-1);

  const std::string_view bytes_;
  const std::function<void(const PythonProfileEntry&)>& take_;
  std::size_t at_ = 0;
  bool referred_ = false;  ///< Of the type that was taken last.
  bool failed_ = false;
  std::uint64_t read_ = 0;
  std::vector<PythonFunction> functions_;
  std::vector<Value> references_;
  std::vector<std::string_view> interned_;
};

}  // namespace

bool LooksLikePstats(std::string_view bytes) {
  if (bytes.size() < 2) return false;
  const auto at = [&](std::size_t i) {
    return static_cast<std::uint8_t>(bytes[i]) & static_cast<std::uint8_t>(~kIsReferred);
  };
  return at(0) == '{' && (at(1) == '(' || at(1) == ')' || bytes.substr(1) == "0");
}

Status ReadPstats(std::string_view bytes,
                  const std::function<void(const PythonProfileEntry&)>& take) {
  return MarshalReader(bytes, take).Read();
}

}  // namespace telltale::interchange
