// SPDX-License-Identifier: Apache-2.0
#include "interchange/chrome/event_reader.h"

#include <bit>

// Each is called in few places, for every member of every event.
#ifdef __GNUC__
#define TELLTALE_INLINE [[gnu::always_inline]] inline
#else
#define TELLTALE_INLINE inline
#endif

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace telltale::interchange {
namespace {

/// Shorter ones are no more than a double can be.
constexpr std::ptrdiff_t kLongNumber = 300;
constexpr int kDeepList = 64;

enum ByteClass : std::uint8_t { kPlainByte, kQuoteByte, kOpenByte, kCloseByte, kOddByte };
constexpr std::array<ByteClass, 256> kByteClasses = [] {
  std::array<ByteClass, 256> classes{};
  for (int c = 0; c < 0x20; ++c) classes[static_cast<std::size_t>(c)] = kOddByte;
  for (const char c : {'\t', '\n', '\r'}) classes[static_cast<unsigned char>(c)] = kPlainByte;
  classes['"'] = kQuoteByte;
  classes['\\'] = kOddByte;
  classes['['] = classes['{'] = kOpenByte;
  classes[']'] = classes['}'] = kCloseByte;
  return classes;
}();

#ifdef __SSE2__
/// The first of sixteen bytes of a string that is not only itself; 16 where none is.
TELLTALE_INLINE int FirstSpecial(const char* at) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  const __m128i control = _mm_set1_epi8(0x1f);
  const __m128i special = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')),
                                                    _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'))),
                                       _mm_cmpeq_epi8(_mm_min_epu8(bytes, control), bytes));
  return std::countr_zero(static_cast<std::uint32_t>(_mm_movemask_epi8(special)) | 0x10000U);
}

/// The first of sixteen bytes that no word has; 16 where all are of one.
TELLTALE_INLINE int FirstNoWord(const char* at) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  const __m128i lower = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
  const __m128i low = _mm_set1_epi8(',');
  // { and [, } and ] and | and \ differ in one bit.
  const __m128i none =
      _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(_mm_min_epu8(bytes, low), bytes),
                                _mm_cmpeq_epi8(bytes, _mm_set1_epi8(':'))),
                   _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(lower, _mm_set1_epi8('{')),
                                             _mm_cmpeq_epi8(lower, _mm_set1_epi8('|'))),
                                _mm_or_si128(_mm_cmpeq_epi8(lower, _mm_set1_epi8('}')), bytes)));
  return std::countr_zero(static_cast<std::uint32_t>(_mm_movemask_epi8(none)) | 0x10000U);
}
#else
TELLTALE_INLINE int FirstSpecial(const char* at) {
  for (int i = 0; i < 16; ++i) {
    if (at[i] == '"' || at[i] == '\\' || static_cast<unsigned char>(at[i]) < 0x20) return i;
  }
  return 16;
}
TELLTALE_INLINE int FirstNoWord(const char* at) {
  for (int i = 0; i < 16; ++i) {
    const auto c = static_cast<unsigned char>(at[i]);
    const int lower = c | 0x20;
    if (c <= ',' || c >= 0x80 || c == ':' || (lower >= '{' && lower <= '}')) return i;
  }
  return 16;
}
#endif

// What follows returns where it stands then; null where the text is of another form. `at` is below
// `end`, where a blank stands, unless it is said otherwise.

/// `at` may be `end`.
TELLTALE_INLINE const char* OverBlanks(const char* at, const char* end) {
  while (at != end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) ++at;
  return at;
}

/// From behind a string's first quote to its last. `plain` becomes false where escapes are between.
TELLTALE_INLINE const char* ToQuote(const char* at, const char* end, bool* plain) {
  while (at < end) {
    const int ordinary = FirstSpecial(at);
    at += ordinary;
    if (ordinary == 16) continue;
    if (at >= end) return nullptr;
    if (*at == '"') return at;
    // Control characters are none of a string's, behind a backslash neither.
    if (*at != '\\' || static_cast<unsigned char>(at[1]) < 0x20) return nullptr;
    *plain = false;
    at += 2;
  }
  return nullptr;
}

TELLTALE_INLINE const char* OverWord(const char* at, const char* end) {
  const char* const begin = at;
  while (at < end) {
    const int of_word = FirstNoWord(at);
    at += of_word;
    if (of_word == 16) continue;
    if (at >= end || at == begin) return nullptr;
    if (*at != '+') return at;
    ++at;  // Of an exponent.
  }
  return nullptr;
}

/// Over an object or list, by its brackets alone.
const char* OverNested(const char* at, const char* end) {
  std::size_t depth = 0;
  bool plain = true;
  for (; at < end; ++at) {
    switch (kByteClasses[static_cast<unsigned char>(*at)]) {
      case kPlainByte:
        break;
      case kQuoteByte:
        at = ToQuote(at + 1, end, &plain);
        if (at == nullptr) return nullptr;
        break;
      case kOpenByte:
        ++depth;
        break;
      case kCloseByte:
        if (--depth == 0) return at + 1;
        break;
      case kOddByte:
        return nullptr;
    }
  }
  return nullptr;
}

/// Over a key, its colon and the blanks behind it.
TELLTALE_INLINE const char* OverKey(const char* at, const char* end, std::string_view* key,
                                    bool* plain) {
  if (*at != '"') return nullptr;
  const char* const begin = at + 1;
  at = ToQuote(begin, end, plain);
  if (at == nullptr) return nullptr;
  *key = {begin, static_cast<std::size_t>(at - begin)};
  at = OverBlanks(at + 1, end);
  return *at == ':' ? OverBlanks(at + 1, end) : nullptr;
}

/// Over a value, which has its quotes in `text`, where it is a string. `at` may be `end`.
TELLTALE_INLINE const char* OverValue(const char* at, const char* end, std::string_view* text) {
  const char* const begin = at;
  bool plain = true;
  if (*at == '"') {
    at = ToQuote(at + 1, end, &plain);
    if (at != nullptr) ++at;
  } else if (*at == '{' || *at == '[') {
    at = OverNested(at, end);
  } else {
    at = OverWord(at, end);
  }
  if (at != nullptr) *text = {begin, static_cast<std::size_t>(at - begin)};
  return at;
}

TELLTALE_INLINE bool IsReaderDigit(char c) { return c >= '0' && c <= '9'; }

/// Over a number without exponent that nothing but its end follows; null where it is another.
TELLTALE_INLINE const char* OverPlainNumber(const char* at, const char* end) {
  const char* const begin = at;
  if (*at == '-') ++at;
  const char* const digits = at;
  while (IsReaderDigit(*at)) ++at;
  if (at == digits || (*digits == '0' && at - digits > 1)) return nullptr;
  if (*at == '.') {
    if (!IsReaderDigit(*++at)) return nullptr;
    while (IsReaderDigit(*at)) ++at;
  }
  const bool ends = *at == ',' || *at == '}' || *at == ']' || *at == ' ' || *at == '\n';
  return ends && at < end && at - begin < kLongNumber ? at : nullptr;
}

/// Over a list of such numbers, of strings without escapes and of such lists; null where it is
/// another.
const char* OverPlainList(const char* at, const char* end) {
  int depth = 0;
  bool plain = true;
  while (true) {
    if (*at == '[') {
      if (++depth > kDeepList) return nullptr;
      at = OverBlanks(at + 1, end);
      if (*at != ']') continue;
    } else if (*at == '"') {
      at = ToQuote(at + 1, end, &plain);
      if (at == nullptr || !plain) return nullptr;
      at = OverBlanks(at + 1, end);
    } else {
      at = OverPlainNumber(at, end);
      if (at == nullptr) return nullptr;
      at = OverBlanks(at, end);
    }
    while (*at == ']') {
      if (at >= end) return nullptr;
      ++at;
      if (--depth == 0) return at;
      at = OverBlanks(at, end);
    }
    if (*at != ',') return nullptr;
    at = OverBlanks(at + 1, end);
  }
}

/// Over an argument's value; `plain` becomes false where it is not known to be JSON as it stands.
TELLTALE_INLINE const char* OverArgument(const char* at, const char* end, std::string_view* text,
                                         bool* plain) {
  const char* const begin = at;
  if (*at == '"') {
    at = ToQuote(at + 1, end, plain);
    if (at != nullptr) ++at;
  } else {
    at = *at == '[' ? OverPlainList(at, end) : OverPlainNumber(at, end);
    if (at == nullptr) {
      *plain = false;
      return OverValue(begin, end, text);
    }
  }
  if (at != nullptr) *text = {begin, static_cast<std::size_t>(at - begin)};
  return at;
}

/// From a brace on over all members, of which `member(key, plain, at)` takes the value; `plain`: no
/// escapes are in the key.
template <class Member>
TELLTALE_INLINE const char* OverObject(const char* at, const char* end, const Member& member) {
  at = OverBlanks(at + 1, end);
  if (*at == '}') return at + 1;
  while (true) {
    std::string_view key;
    bool plain = true;
    at = OverKey(at, end, &key, &plain);
    if (at == nullptr) return nullptr;
    at = member(key, plain, at);
    if (at == nullptr) return nullptr;
    at = OverBlanks(at, end);
    if (*at == '}') return at + 1;
    if (*at != ',') return nullptr;
    at = OverBlanks(at + 1, end);
  }
}

}  // namespace

bool EventReader::Next(RawEvent* event) {
  const char* const end = end_;
  const char* at = OverBlanks(taken_, end);
  if (taken_ != begin_ && end - at == 1 && *at == ']') {
    taken_ = end;
    return false;
  }
  if (*at != (taken_ == begin_ ? '[' : ',')) return false;
  at = OverBlanks(at + 1, end);
  if (*at != '{') return false;
  event->Clear();
  at = OverObject(at, end, [&](std::string_view name, bool, const char* value) {
    const RawEvent::Key key = RawEvent::KeyOf(name);
    std::string_view text;
    if (key == RawEvent::kOther) return OverValue(value, end, &text);
    event->See(key);
    if (key != RawEvent::kArgs) {
      const char* const behind = OverValue(value, end, &text);
      if (behind == nullptr) return behind;
      if (text.front() == '"') text = text.substr(1, text.size() - 2);
      event->Set(key, text);
      return behind;
    }
    event->members.clear();
    if (*value != '{') return OverValue(value, end, &text);
    return OverObject(value, end, [&](std::string_view name_of, bool plain, const char* inner) {
      const char* const behind = OverArgument(inner, end, &text, &plain);
      if (behind != nullptr) event->members.push_back({name_of, text, plain});
      return behind;
    });
  });
  if (at == nullptr) return false;
  taken_ = at;
  return true;
}

}  // namespace telltale::interchange
