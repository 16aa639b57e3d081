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
constexpr std::ptrdiff_t kReadableKey = KnownKeys::kReadable;

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

/// The first of sixteen bytes that is no digit; 16 where all are.
TELLTALE_INLINE int FirstNoDigit(const char* at) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  const __m128i digits = _mm_sub_epi8(bytes, _mm_set1_epi8('0'));
  const __m128i yes = _mm_cmpeq_epi8(_mm_min_epu8(digits, _mm_set1_epi8(9)), digits);
  return std::countr_one(static_cast<std::uint32_t>(_mm_movemask_epi8(yes)));
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
TELLTALE_INLINE int FirstNoDigit(const char* at) {
  int i = 0;
  while (i < 16 && at[i] >= '0' && at[i] <= '9') ++i;
  return i;
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

TELLTALE_INLINE const char* OverDigits(const char* at) {
  while (true) {
    const int digits = FirstNoDigit(at);
    at += digits;
    if (digits != 16) return at;
  }
}

/// Over a number without exponent that nothing but its end follows; null where it is another.
TELLTALE_INLINE const char* OverPlainNumber(const char* at, const char* end) {
  const char* const begin = at;
  if (*at == '-') ++at;
  const char* const digits = at;
  at = OverDigits(at);
  if (at == digits || (*digits == '0' && at - digits > 1)) return nullptr;
  if (*at == '.') {
    const char* const fraction = at + 1;
    at = OverDigits(fraction);
    if (at == fraction) return nullptr;
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

/// What a member is known by.
struct MemberName {
  std::string_view text;
  RawEvent::Key key = RawEvent::kOther;
  bool plain = true;  ///< No escapes are in it.
  KnownKeys::Behind* inner = nullptr;
};

/// From a brace on over all members, of which `member(name, at)` takes the value. `behind`: what is
/// known to stand behind the brace, null where nothing shall be remembered.
template <class Member>
TELLTALE_INLINE const char* OverObject(const char* at, const char* end, KnownKeys* keys,
                                       KnownKeys::Behind* behind, const Member& member) {
  const char* before = at;  // The brace, or behind a value.
  bool first = true;
  while (true) {
    const bool known_may_be = behind != nullptr && end - before > kReadableKey;
    KnownKeys::Key* key = known_may_be ? KnownKeys::Find(*behind, before) : nullptr;
    MemberName name;
    if (key != nullptr) {
      name = {key->NameAt(before), static_cast<RawEvent::Key>(key->code), true, &key->inner};
      at = before + key->size;
    } else {
      at = first ? OverBlanks(before + 1, end) : OverBlanks(before, end);
      if (*at == '}') return at + 1;
      if (!first) {
        if (*at != ',') return nullptr;
        at = OverBlanks(at + 1, end);
      }
      bool plain = true;
      at = OverKey(at, end, &name.text, &plain);
      if (at == nullptr) return nullptr;
      name.plain = plain;
      name.key = RawEvent::KeyOf(name.text);
      if (behind != nullptr && plain) key = keys->Add(behind, before, at, name.text, name.key);
      name.inner = key == nullptr ? nullptr : &key->inner;
    }
    behind = key == nullptr ? nullptr : &key->next;
    at = member(name, at);
    if (at == nullptr) return nullptr;
    if (*at == '}') return at + 1;
    before = at;
    first = false;
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
  at = OverObject(at, end, &keys_, &first_, [&](const MemberName& name, const char* value) {
    std::string_view text;
    if (name.key == RawEvent::kOther) return OverValue(value, end, &text);
    event->See(name.key);
    if (name.key != RawEvent::kArgs) {
      const char* const behind = OverValue(value, end, &text);
      if (behind == nullptr) return behind;
      if (text.front() == '"') text = text.substr(1, text.size() - 2);
      event->Set(name.key, text);
      return behind;
    }
    event->members.clear();
    if (*value != '{') return OverValue(value, end, &text);
    return OverObject(value, end, &keys_, name.inner,
                      [&](const MemberName& name_of, const char* inner) {
                        bool plain = name_of.plain;
                        const char* const behind = OverArgument(inner, end, &text, &plain);
                        if (behind != nullptr)
                          event->members.push_back({name_of.text, text, plain});
                        return behind;
                      });
  });
  if (at == nullptr) return false;
  taken_ = at;
  return true;
}

}  // namespace telltale::interchange
