// SPDX-License-Identifier: Apache-2.0
#include "interchange/chrome/args_text.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/json_depth.h"
#include "base/utf8.h"

namespace telltale::interchange {
namespace {

constexpr std::size_t kMaxArgsWordBytes = 64;
/// The arguments are an object around the value.
constexpr std::size_t kDeepestArgsValue = kDeepestJson - 1;
/// Below it a number without an exponent is no more than a double can be.
constexpr std::size_t kLongArgsNumber = 300;

bool IsArgsBlank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool IsArgsDigit(char c) { return c >= '0' && c <= '9'; }

const char* BehindArgsDigits(const char* at, const char* end) {
  while (at != end && IsArgsDigit(*at)) ++at;
  return at;
}

/// A number as JSON has them, which a double can hold.
bool IsArgsNumber(std::string_view word) {
  const char* const end = word.data() + word.size();
  const char* begin = word.data();
  if (begin != end && *begin == '-') ++begin;
  const char* at = BehindArgsDigits(begin, end);
  if (at == begin || (*begin == '0' && at - begin > 1)) return false;
  if (at != end && *at == '.') {
    begin = at + 1;
    at = BehindArgsDigits(begin, end);
    if (at == begin) return false;
  }
  bool exponent = false;
  if (at != end && (*at == 'e' || *at == 'E')) {
    exponent = true;
    begin = at + 1;
    if (begin != end && (*begin == '+' || *begin == '-')) ++begin;
    at = BehindArgsDigits(begin, end);
    if (at == begin) return false;
  }
  if (at != end) return false;
  if (!exponent && word.size() < kLongArgsNumber) return true;
  return !std::isinf(std::strtod(std::string(word).c_str(), nullptr));
}

bool IsArgsWord(std::string_view word) {
  return IsArgsNumber(word) || word == "true" || word == "false" || word == "null";
}

/// Four hexadecimal digits; -1 where they are none.
int ArgsHex4(const char* at, const char* end) {
  if (end - at < 4) return -1;
  int code = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = at[i];
    const int digit = IsArgsDigit(c)         ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    code = code * 16 + digit;
  }
  return code;
}

/// Bytes of the escape that a backslash begins here; 0 where it is none.
std::ptrdiff_t ArgsEscapeBytes(const char* at, const char* end) {
  if (end - at < 2) return 0;
  if (at[1] != 'u') return std::strchr("\"\\/bfnrt", at[1]) != nullptr && at[1] != '\0' ? 2 : 0;
  const int code = ArgsHex4(at + 2, end);
  if (code < 0) return 0;
  if (code < 0xD800 || code >= 0xE000) return 6;
  // Half of a character.
  if (code >= 0xDC00 || end - at < 12 || at[6] != '\\' || at[7] != 'u') return 0;
  const int low = ArgsHex4(at + 8, end);
  return low >= 0xDC00 && low < 0xE000 ? 12 : 0;
}

/// Copies one value, and mends it on the way.
class ArgsValueCopy {
 public:
  ArgsValueCopy(std::string_view text, std::string* out, ArgsFaults* faults)
      : at_(text.data()), kept_(at_), end_(at_ + text.size()), out_(out), faults_(faults) {}

  /// False where it is no value even so; what was appended is then a part of it.
  bool Value() {
    Blanks();
    kept_ = at_;
    if (!Member()) return false;
    while (depth_ > 0) {
      Blanks();
      if (at_ == end_) return false;
      if (*at_ == Closing()) {
        ++at_;
        --depth_;
      } else if (*at_ != ',') {
        return false;
      } else {
        ++at_;
        if (!Member()) return false;
      }
    }
    Copy(at_);
    Blanks();
    return at_ == end_;
  }

  /// Up to the quote that ends it, or the end.
  void Text() {
    const auto left = [this] { return static_cast<std::size_t>(end_ - at_); };
    const void* const quote = at_ == end_ ? nullptr : std::memchr(at_, '"', left());
    const char* const until = quote == nullptr ? end_ : static_cast<const char*>(quote);
    if (at_ == until || std::memchr(at_, '\\', static_cast<std::size_t>(until - at_)) == nullptr) {
      at_ = until;
      return;
    }
    while (at_ != end_ && *at_ != '"') {
      if (*at_ != '\\') {
        ++at_;
      } else if (const std::ptrdiff_t bytes = ArgsEscapeBytes(at_, end_); bytes > 0) {
        at_ += bytes;
      } else {
        Copy(++at_);
        *out_ += '\\';
        ++faults_->replaced;
      }
    }
  }
  void Copy(const char* until) {
    out_->append(kept_, until);
    kept_ = until;
  }
  const char* at() const { return at_; }

 private:
  /// The next member of what is open: with all that opens at its begin.
  bool Member() {
    while (true) {
      Blanks();
      if (depth_ > 0 && InObject() && !Key()) return false;
      if (at_ == end_) return false;
      const char c = *at_;
      if (c == '"') return String();
      if (c != '{' && c != '[') return Word();
      if (depth_ == kDeepestArgsValue) return false;
      ++at_;
      Open(c == '{');
      Blanks();
      if (at_ == end_) return false;
      if (*at_ != Closing()) continue;
      ++at_;
      --depth_;
      return true;
    }
  }

  bool Key() {
    if (at_ == end_ || *at_ != '"' || !String()) return false;
    Blanks();
    if (at_ == end_ || *at_ != ':') return false;
    ++at_;
    Blanks();
    return true;
  }

  bool String() {
    ++at_;
    Text();
    if (at_ == end_) return false;
    ++at_;
    return true;
  }

  bool Word() {
    const char* const begin = at_;
    while (at_ != end_ && !kEndsWord[static_cast<unsigned char>(*at_)]) ++at_;
    if (at_ == begin) return false;
    const std::string_view word(begin, static_cast<std::size_t>(at_ - begin));
    if (IsArgsWord(word)) return true;
    Copy(begin);
    *out_ += '"';
    const std::string_view most = word.substr(0, kMaxArgsWordBytes);
    for (const char c : most.substr(0, ValidUtf8Prefix(most))) {
      if (c != '\\' && static_cast<unsigned char>(c) >= 0x20) *out_ += c;
    }
    *out_ += '"';
    kept_ = at_;
    ++faults_->not_finite;
    return true;
  }

  void Blanks() {
    while (at_ != end_ && IsArgsBlank(*at_)) ++at_;
  }

  void Open(bool object) {
    std::uint64_t& group = objects_[depth_ / 64];
    const std::uint64_t bit = 1ULL << (depth_ % 64);
    group = object ? group | bit : group & ~bit;
    ++depth_;
  }
  bool InObject() const { return (objects_[(depth_ - 1) / 64] >> ((depth_ - 1) % 64) & 1) != 0; }
  char Closing() const { return InObject() ? '}' : ']'; }

  static constexpr std::array<bool, 256> kEndsWord = [] {
    std::array<bool, 256> ends{};
    for (const char c : {',', ':', '"', '[', ']', '{', '}', ' ', '\n', '\r', '\t'}) {
      ends[static_cast<unsigned char>(c)] = true;
    }
    return ends;
  }();

  const char* at_;
  const char* kept_;  ///< Up to here it is copied.
  const char* const end_;
  std::string* const out_;
  ArgsFaults* const faults_;
  std::size_t depth_ = 0;
  std::array<std::uint64_t, (kDeepestArgsValue + 63) / 64> objects_{};  ///< A bit a level: no list.
};

}  // namespace

void AppendArgsValue(std::string_view text, std::string* out, ArgsFaults* faults) {
  if (IsArgsWord(text)) {
    *out += text;
    return;
  }
  const std::size_t begin = out->size();
  const ArgsFaults before = *faults;
  if (ArgsValueCopy(text, out, faults).Value()) return;
  out->resize(begin);
  *out += "null";
  *faults = before;
  ++faults->cut;
}

void AppendArgsKey(std::string_view text, std::string* out, ArgsFaults* faults) {
  if (text.find('\\') == std::string_view::npos) {
    *out += text;
    return;
  }
  ArgsValueCopy copy(text, out, faults);
  copy.Text();
  copy.Copy(copy.at());
}

}  // namespace telltale::interchange
