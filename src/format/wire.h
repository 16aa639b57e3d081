// SPDX-License-Identifier: Apache-2.0
// Little-endian primitives of every format of ours, and the bounds-checked reader of foreign bytes.
#pragma once
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace telltale::format {

static_assert(std::endian::native == std::endian::little, "formats are written by memcpy");

template <class T>
concept Fixed = std::is_trivially_copyable_v<T>;

template <Fixed T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// u32 length, then the bytes.
inline void PutString(std::string* out, std::string_view text) {
  Put(out, static_cast<std::uint32_t>(text.size()));
  out->append(text);
}

/// Reads forward through a buffer; after the first read past its end `ok()` is false and every
/// value read is zero.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  template <Fixed T>
  T Get() {
    T value{};
    if (const std::string_view raw = Bytes(sizeof(T)); raw.size() == sizeof(T)) {
      std::memcpy(&value, raw.data(), sizeof(T));
    }
    return value;
  }
  std::string_view Bytes(std::size_t n) {
    if (!ok_ || n > bytes_.size() - at_) {
      ok_ = false;
      return {};
    }
    const std::string_view raw = bytes_.substr(at_, n);
    at_ += n;
    return raw;
  }
  std::string_view String() { return Bytes(Get<std::uint32_t>()); }

  bool ok() const { return ok_; }
  std::size_t remaining() const { return bytes_.size() - at_; }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace telltale::format
