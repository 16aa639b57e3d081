// SPDX-License-Identifier: Apache-2.0
// What stood between two values of earlier events: comma, key, colon and blanks. Writers of traces
// write the same there for every event of a kind, so it is compared as a whole, before it is taken
// apart byte by byte.
//
// Thread safety: none. Memory: kMost keys of 112 bytes; what is beyond is not remembered.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace telltale::interchange {

class KnownKeys {
 public:
  struct Key;
  /// What was seen behind one place, in the order in which it was first seen.
  using Behind = std::array<Key*, 4>;

  /// A key as it stood behind a value or a brace.
  struct Key {
    std::array<char, 32> text{};  ///< From there to the next value.
    std::uint32_t mask = 0;       ///< A bit for each byte of the text.
    std::uint8_t size = 0;        ///< Of the text.
    std::uint8_t name_at = 0, name_size = 0;
    std::uint32_t code = 0;  ///< The caller's, of the name.
    Behind next{};           ///< Behind its value.
    Behind inner{};          ///< Behind its value's opening brace.

    std::string_view NameAt(const char* at) const { return {at + name_at, name_size}; }
  };
  /// So many bytes must be readable where is asked.
  static constexpr std::size_t kReadable = sizeof(Key::text) + 1;

  /// The key that stands at `at`, with a value right behind it; null where it is none that is
  /// known.
  static Key* Find(const Behind& behind, const char* at) {
    for (Key* const key : behind) {
      if (key == nullptr) return nullptr;
      if (Stands(*key, at) && static_cast<unsigned char>(at[key->size]) > ' ') return key;
    }
    return nullptr;
  }

  /// Remembers the text from `at` to the value, in which `name` stands; null where it is too long
  /// or there are too many.
  Key* Add(Behind* behind, const char* at, const char* value, std::string_view name,
           std::uint32_t code) {
    const auto size = static_cast<std::size_t>(value - at);
    if (size > sizeof(Key::text) || keys_ == kMost) return nullptr;
    for (Key*& place : *behind) {
      if (place != nullptr) continue;
      if (all_ == nullptr) all_ = std::make_unique<std::array<Key, kMost>>();
      Key& key = (*all_)[keys_++];
      std::memcpy(key.text.data(), at, size);
      key.mask = static_cast<std::uint32_t>((std::uint64_t{1} << size) - 1);
      key.size = static_cast<std::uint8_t>(size);
      key.name_at = static_cast<std::uint8_t>(name.data() - at);
      key.name_size = static_cast<std::uint8_t>(name.size());
      key.code = code;
      place = &key;
      return place;
    }
    return nullptr;
  }

 private:
  static constexpr std::size_t kMost = 256;

  static bool Stands(const Key& key, const char* at) {
#ifdef __SSE2__
    const auto equal = [&](std::size_t from) {
      const __m128i here = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + from));
      const __m128i known =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(key.text.data() + from));
      return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(here, known)));
    };
    return ((equal(0) | equal(16) << 16U) & key.mask) == key.mask;
#else
    return std::memcmp(key.text.data(), at, key.size) == 0;
#endif
  }

  std::unique_ptr<std::array<Key, kMost>> all_;
  std::size_t keys_ = 0;
};

}  // namespace telltale::interchange
