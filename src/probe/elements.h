// SPDX-License-Identifier: Apache-2.0
// What the bytes of one element mean, for every dtype: types to load them as, and their value.
#pragma once
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "telltale/probe.h"

namespace telltale::probe {

struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};
struct Float8E4M3 {
  std::uint8_t bits;
};
struct Float8E5M2 {
  std::uint8_t bits;
};
template <class T>
struct Complex {
  T real, imaginary;
};

inline double ToDouble(Half h) {
  const unsigned exponent = (h.bits >> 10) & 31;
  const unsigned fraction = h.bits & 1023;
  double value;
  if (exponent == 31) {
    value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity();
  } else {
    value = exponent == 0 ? fraction * 0x1p-24
                          : (fraction + 1024) * 0x1p-25 * static_cast<double>(1U << exponent);
  }
  return (h.bits & 0x8000) != 0 ? -value : value;
}

/// The 256 values of an 8-bit format with `fraction_bits` bits of fraction. With infinity the
/// largest exponent is that of NaN and Inf, without only its last fraction is NaN.
template <int fraction_bits, bool has_infinity>
constexpr std::array<float, 256> Float8Table() {
  constexpr int kExponents = 1 << (7 - fraction_bits);
  constexpr int kBias = kExponents / 2 - 1;
  constexpr unsigned kOne = 1U << fraction_bits;
  std::array<float, 256> table{};
  for (unsigned bits = 0; bits < 256; ++bits) {
    const int exponent = static_cast<int>((bits & 0x7F) >> fraction_bits);
    const unsigned fraction = bits & (kOne - 1);
    float value = static_cast<float>(exponent == 0 ? fraction : fraction + kOne);
    for (int e = (exponent == 0 ? 1 : exponent) - kBias - fraction_bits; e != 0;
         e += e < 0 ? 1 : -1) {
      value *= e < 0 ? 0.5f : 2.0f;
    }
    if (exponent == kExponents - 1) {
      if (has_infinity) {
        value = fraction == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
      } else if (fraction == kOne - 1) {
        value = std::numeric_limits<float>::quiet_NaN();
      }
    }
    table[bits] = (bits & 0x80) != 0 ? -value : value;
  }
  return table;
}
inline constexpr std::array<float, 256> kFloat8E4M3 = Float8Table<3, false>();
inline constexpr std::array<float, 256> kFloat8E5M2 = Float8Table<2, true>();

inline float ToFloat(Bfloat b) {
  const std::uint32_t bits = std::uint32_t{b.bits} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline float ToFloat(Half h) { return static_cast<float>(ToDouble(h)); }
inline float ToFloat(Float8E4M3 f) { return kFloat8E4M3[f.bits]; }
inline float ToFloat(Float8E5M2 f) { return kFloat8E5M2[f.bits]; }
template <class T>
float ToFloat(T value) {
  return static_cast<float>(value);
}
template <class T>
double ToDouble(Complex<T> z);
template <class T>
float ToFloat(Complex<T> z) {
  return static_cast<float>(ToDouble(z));
}

inline double ToDouble(Bfloat b) { return static_cast<double>(ToFloat(b)); }
inline double ToDouble(Float8E4M3 f) { return static_cast<double>(ToFloat(f)); }
inline double ToDouble(Float8E5M2 f) { return static_cast<double>(ToFloat(f)); }
/// The absolute value, as hypot has it: Inf where a part is. Without errno.
template <class T>
double ToDouble(Complex<T> z) {
  const double a = std::fabs(static_cast<double>(z.real));
  const double b = std::fabs(static_cast<double>(z.imaginary));
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (a == kInf || b == kInf) return kInf;
  if (a != a || b != b) return std::numeric_limits<double>::quiet_NaN();
  const double large = a > b ? a : b;
  const double small = a > b ? b : a;
  if (large == 0) return 0;
  const double ratio = small / large;
  return large * std::sqrt(1 + ratio * ratio);
}
template <class T>
double ToDouble(T value) {
  return static_cast<double>(value);
}

/// An element at any address.
template <class T>
T Load(const unsigned char* data, std::size_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}

/// Whether float32 holds every value of the dtype.
constexpr bool FitsFloat(tt_dtype dtype) {
  switch (dtype) {
    case TT_DTYPE_F64:
    case TT_DTYPE_I64:
    case TT_DTYPE_I32:
    case TT_DTYPE_U32:
    case TT_DTYPE_U64:
    case TT_DTYPE_C64:
    case TT_DTYPE_C128:
      return false;
    default:
      return true;
  }
}

/// Calls f.template operator()<T>() with the type of the dtype's elements; false: no such dtype.
template <class F>
bool WithElementType(tt_dtype dtype, F&& f) {
  switch (dtype) {
    case TT_DTYPE_F32:
      f.template operator()<float>();
      return true;
    case TT_DTYPE_F64:
      f.template operator()<double>();
      return true;
    case TT_DTYPE_F16:
      f.template operator()<Half>();
      return true;
    case TT_DTYPE_BF16:
      f.template operator()<Bfloat>();
      return true;
    case TT_DTYPE_I64:
      f.template operator()<std::int64_t>();
      return true;
    case TT_DTYPE_I32:
      f.template operator()<std::int32_t>();
      return true;
    case TT_DTYPE_I16:
      f.template operator()<std::int16_t>();
      return true;
    case TT_DTYPE_I8:
      f.template operator()<std::int8_t>();
      return true;
    case TT_DTYPE_U8:
    case TT_DTYPE_BOOL:
      f.template operator()<std::uint8_t>();
      return true;
    case TT_DTYPE_C64:
      f.template operator()<Complex<float>>();
      return true;
    case TT_DTYPE_C128:
      f.template operator()<Complex<double>>();
      return true;
    case TT_DTYPE_F8E4M3:
      f.template operator()<Float8E4M3>();
      return true;
    case TT_DTYPE_F8E5M2:
      f.template operator()<Float8E5M2>();
      return true;
    case TT_DTYPE_U16:
      f.template operator()<std::uint16_t>();
      return true;
    case TT_DTYPE_U32:
      f.template operator()<std::uint32_t>();
      return true;
    case TT_DTYPE_U64:
      f.template operator()<std::uint64_t>();
      return true;
  }
  return false;
}

/// Values as double; false: no such dtype.
inline bool WidenToDouble(const void* data, std::size_t count, tt_dtype dtype, double* out) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  return WithElementType(dtype, [&]<class T>() {
    for (std::size_t i = 0; i < count; ++i) out[i] = ToDouble(Load<T>(bytes, i));
  });
}

}  // namespace telltale::probe
