// SPDX-License-Identifier: Apache-2.0
// Goes through JSON objects of a known form, one after the other, without making anything of them:
// for files of millions of small objects, in which a damaged one must cost itself alone.
//
// Thread safety: none. Memory: none; views into the text, which need not be valid beyond what is
// read.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

// Each is called in few places, for every member of every object.
#ifdef __GNUC__
#define TELLTALE_SCAN_INLINE [[gnu::always_inline]]
#else
#define TELLTALE_SCAN_INLINE
#endif

namespace telltale::interchange {

struct JsonValue {
  enum class Kind : std::uint8_t { kString, kNumber, kObject, kArray, kWord };
  Kind kind = Kind::kWord;
  std::string_view text;  ///< Of a string what stands between the quotes, escapes as they are.
  bool escaped = false;

  std::optional<double> Number() const;
  /// Also of a string that holds one.
  std::optional<std::int64_t> Integer() const;
  /// A decimal number times 10^digits, exactly; what is finer is cut off.
  std::optional<std::int64_t> Scaled(int digits) const;

 private:
  std::optional<std::int64_t> ShortScaled(int digits) const;
};

/// `text == word` of a literal: its length is known, so no function is called to compare.
template <std::size_t N>
bool JsonIs(std::string_view text, const char (&word)[N]) {
  return text.size() == N - 1 && std::memcmp(text.data(), word, N - 1) == 0;
}

/// The text with its escapes replaced, in `scratch` where there are any.
std::string_view JsonUnescape(const JsonValue& value, std::string* scratch);

class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : at_(text.data()), end_(at_ + text.size()) {}

  /// What is not read yet.
  std::string_view rest() const { return {at_, static_cast<std::size_t>(end_ - at_)}; }
  /// Over bytes of `rest` that the caller read.
  void Advance(std::size_t bytes) { at_ += bytes; }
  /// The number or word with which the text begins.
  static std::string_view WordAt(std::string_view text) {
    std::size_t size = 0;
    while (size < text.size() && !kEndsWord[static_cast<unsigned char>(text[size])]) ++size;
    return text.substr(0, size);
  }

  /// Whether a word that begins so is a number.
  static bool BeginsNumber(char c) { return (c >= '0' && c <= '9') || c == '-'; }

  /// To the next object's begin; false where there is none.
  bool FindObject() {
    if (at_ == end_) return false;
    const void* const found = std::memchr(at_, '{', static_cast<std::size_t>(end_ - at_));
    at_ = found == nullptr ? end_ : static_cast<const char*>(found);
    return found != nullptr;
  }

  /// Calls `take(key, value)` for each member of the object that begins here, and stands behind it.
  /// False where it is cut or damaged; the scanner then stands on the next line, as those who write
  /// such files begin each object on its own, or on what looks like the next object.
  template <class Take>
  bool ReadObject(const Take& take) {
    const char* const begin = at_;
    if (Members(take)) return true;
    const void* const line =
        last_line_ ? nullptr
                   : std::memchr(begin + 1, '\n', static_cast<std::size_t>(end_ - begin - 1));
    last_line_ = line == nullptr;
    if (line != nullptr) {
      at_ = static_cast<const char*>(line) + 1;
    } else {
      ToNextOfLine(begin);
    }
    return false;
  }

 private:
  template <class Take>
  bool Members(const Take& take) {
    ++at_;  // The brace.
    Space();
    if (Skip('}')) return true;
    while (true) {
      std::string_view key;
      bool escaped = false;
      if (!String(&key, &escaped)) return false;
      Space();
      if (!Skip(':')) return false;
      Space();
      JsonValue value;
      if (!Value(&value)) return false;
      take(key, value);
      Space();
      if (Skip('}')) return true;
      if (!Skip(',')) return false;
      Space();
    }
  }

  /// To an object that stands behind a comma, where all stand in one line.
  void ToNextOfLine(const char* begin) {
    while (FindObject()) {
      const char* before = at_ - 1;
      while (before > begin && (*before == ' ' || *before == '\t' || *before == '\r')) --before;
      if (before > begin && *before == ',') return;
      ++at_;
    }
  }

  TELLTALE_SCAN_INLINE void Space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }
  TELLTALE_SCAN_INLINE bool Skip(char c) {
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }

  TELLTALE_SCAN_INLINE bool String(std::string_view* out, bool* escaped) {
    if (!Skip('"')) return false;
    const char* const begin = at_;
    for (; at_ != end_; ++at_) {
      ToSpecial();
      if (at_ == end_) return false;
      const char c = *at_;
      if (c == '"') {
        *out = {begin, static_cast<std::size_t>(at_ - begin)};
        ++at_;
        return true;
      }
      if (c == '\\') {
        *escaped = true;
        if (++at_ == end_) return false;
      } else if (c == '\n') {
        return false;  // No string goes over a line: it is one that was cut.
      }
    }
    return false;
  }

  /// Over the characters of a string that are only themselves, sixteen at once.
  TELLTALE_SCAN_INLINE void ToSpecial() {
#ifdef __SSE2__
    while (end_ - at_ >= 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at_));
      const __m128i special = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')),
                                                        _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'))),
                                           _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\n')));
      const auto bits = static_cast<std::uint32_t>(_mm_movemask_epi8(special));
      if (bits != 0) {
        at_ += std::countr_zero(bits);
        return;
      }
      at_ += 16;
    }
#endif
  }

  TELLTALE_SCAN_INLINE bool Value(JsonValue* out) {
    if (at_ == end_) return false;
    const char* const begin = at_;
    const char c = *at_;
    if (c == '"') {
      out->kind = JsonValue::Kind::kString;
      return String(&out->text, &out->escaped);
    }
    if (c == '{' || c == '[') {
      out->kind = c == '{' ? JsonValue::Kind::kObject : JsonValue::Kind::kArray;
      if (!Nested()) return false;
      out->text = {begin, static_cast<std::size_t>(at_ - begin)};
      return true;
    }
    while (at_ != end_ && !kEndsWord[static_cast<unsigned char>(*at_)]) ++at_;
    if (at_ == begin || at_ == end_) return false;
    out->kind = BeginsNumber(c) ? JsonValue::Kind::kNumber : JsonValue::Kind::kWord;
    out->text = {begin, static_cast<std::size_t>(at_ - begin)};
    return true;
  }

  /// Over an object or list, by its brackets alone.
  bool Nested() {
    std::size_t depth = 0;
    const char* const begin = at_;
    // Each that nothing closes is read to the end, and again from its second line on.
    const char* const limit = in_vain_ < kMostInVain ? end_ : std::min(end_, begin + kShortNested);
    while (at_ < limit) {
      const char c = *at_;
      if (c == '"') {
        std::string_view ignored;
        bool escaped = false;
        if (!String(&ignored, &escaped)) return false;
        continue;
      }
      ++at_;
      if (c == '{' || c == '[') ++depth;
      if ((c == '}' || c == ']') && --depth == 0) return true;
    }
    in_vain_ += static_cast<std::uint64_t>(at_ - begin);
    return false;
  }

  static constexpr std::array<bool, 256> kEndsWord = [] {
    std::array<bool, 256> ends{};
    for (const char c : {',', '}', ']', ' ', '\n', '\r', '\t'}) {
      ends[static_cast<unsigned char>(c)] = true;
    }
    return ends;
  }();

  static constexpr std::uint64_t kMostInVain = 8ULL << 30;
  static constexpr std::ptrdiff_t kShortNested = 64 << 10;

  const char* at_;
  const char* end_;
  std::uint64_t in_vain_ = 0;  ///< Bytes of nested values that nothing closed.
  bool last_line_ = false;     ///< No line ends behind: damage after damage asks once.
};

}  // namespace telltale::interchange
