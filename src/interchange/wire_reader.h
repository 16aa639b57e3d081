// SPDX-License-Identifier: Apache-2.0
// Reads protocol buffers that may be cut or damaged. protozero, which the formats that must be
// whole are read with, refuses a message whose end is missing; here its beginning is read, and what
// does not fit is said.
//
// Thread safety: none. Memory: none; views into the bytes that it was given.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace telltale::interchange {

enum class Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  /// The next field; false at the end, and where what follows is no field (damaged() then).
  bool Next() {
    if (damaged_ || rest_.empty()) return false;
    std::uint64_t tag = 0;
    if (!TakeVarint(&tag) || (tag >> 3) == 0 || (tag >> 3) > kMaxField) return Damaged();
    field_ = static_cast<std::uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0:
        wire_ = Wire::kVarint;
        return TakeVarint(&number_) || Damaged();
      case 1:
        wire_ = Wire::kFixed64;
        return TakeFixed(8);
      case 2: {
        wire_ = Wire::kBytes;
        std::uint64_t size = 0;
        if (!TakeVarint(&size)) return Damaged();
        // What is there of it is read all the same.
        if (size > rest_.size()) {
          damaged_ = true;
          size = rest_.size();
        }
        bytes_ = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return true;
      }
      case 5:
        wire_ = Wire::kFixed32;
        return TakeFixed(4);
      default:
        return Damaged();
    }
  }

  std::uint32_t field() const { return field_; }
  Wire wire() const { return wire_; }
  bool Is(std::uint32_t field, Wire wire) const { return field_ == field && wire_ == wire; }

  /// Of varints and fixed numbers.
  std::uint64_t number() const { return number_; }
  std::int64_t integer() const { return static_cast<std::int64_t>(number_); }
  double real() const {
    return wire_ == Wire::kFixed32 ? std::bit_cast<float>(static_cast<std::uint32_t>(number_))
                                   : std::bit_cast<double>(number_);
  }
  /// Of strings, bytes and messages.
  std::string_view bytes() const { return bytes_; }

  /// The first number of a packed list of fixed ones. REQUIRES: at least 8 bytes.
  static void Fixed64(std::string_view bytes, std::int64_t* out) {
    std::memcpy(out, bytes.data(), sizeof *out);
  }

  /// A field was cut, or bytes follow that are no field.
  bool damaged() const { return damaged_; }
  /// Not read yet.
  std::string_view rest() const { return rest_; }

 private:
  static constexpr std::uint64_t kMaxField = (1U << 29) - 1;

  bool Damaged() {
    damaged_ = true;
    return false;
  }
  bool TakeVarint(std::uint64_t* out) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < rest_.size() && i < 10; ++i) {
      const auto byte = static_cast<std::uint8_t>(rest_[i]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << (7 * i);
      if ((byte & 0x80) != 0) continue;
      rest_.remove_prefix(i + 1);
      *out = value;
      return true;
    }
    return false;
  }
  bool TakeFixed(std::size_t size) {
    if (rest_.size() < size) return Damaged();
    number_ = 0;
    std::memcpy(&number_, rest_.data(), size);  // Little-endian, as this machine.
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
  std::string_view bytes_;
  std::uint64_t number_ = 0;
  std::uint32_t field_ = 0;
  Wire wire_ = Wire::kVarint;
  bool damaged_ = false;
};

}  // namespace telltale::interchange
