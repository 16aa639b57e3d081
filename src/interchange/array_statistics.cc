// SPDX-License-Identifier: Apache-2.0
#include "interchange/array_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace telltale::interchange {
namespace {

template <class T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// IEEE 754 half precision.
double FromHalf(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int fraction = bits & 0x3ff;
  double value = 0;
  if (exponent == 0x1f) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, -24);
  } else {
    value = std::ldexp(fraction + 0x400, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

/// Calls f(value) for each element; false where the type is unknown.
template <class F>
bool ForEachElement(std::string_view dtype, std::string_view content, F&& f) {
  const auto each = [&](std::size_t item, auto&& read) {
    if (content.size() % item != 0) return false;
    for (std::size_t at = 0; at < content.size(); at += item) f(read(content.data() + at));
    return true;
  };
  const auto number = [&]<class T>(T) {
    return each(sizeof(T), [](const char* at) { return static_cast<double>(Load<T>(at)); });
  };
  if (dtype == "F32") return number(float{});
  if (dtype == "F64") return number(double{});
  if (dtype == "I64") return number(std::int64_t{});
  if (dtype == "I32") return number(std::int32_t{});
  if (dtype == "I16") return number(std::int16_t{});
  if (dtype == "I8") return number(std::int8_t{});
  if (dtype == "U8" || dtype == "BOOL") return number(std::uint8_t{});
  if (dtype == "U16") return number(std::uint16_t{});
  if (dtype == "U32") return number(std::uint32_t{});
  if (dtype == "U64") return number(std::uint64_t{});
  if (dtype == "F16") {
    return each(2, [](const char* at) { return FromHalf(Load<std::uint16_t>(at)); });
  }
  if (dtype == "BF16") {
    return each(2, [](const char* at) {
      return static_cast<double>(
          std::bit_cast<float>(std::uint32_t{Load<std::uint16_t>(at)} << 16));
    });
  }
  if (dtype == "C64") {
    return each(8, [](const char* at) {
      return std::hypot(static_cast<double>(Load<float>(at)),
                        static_cast<double>(Load<float>(at + 4)));
    });
  }
  if (dtype == "C128") {
    return each(16,
                [](const char* at) { return std::hypot(Load<double>(at), Load<double>(at + 8)); });
  }
  return false;
}

}  // namespace

bool FillStatistics(std::string_view dtype, std::string_view content, format::StatisticRow* row) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::uint64_t count = 0;
  std::uint64_t nans = 0;
  std::uint64_t infs = 0;
  std::uint64_t zeros = 0;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  double abs_low = low;
  double sum = 0;
  double abs_sum = 0;
  double squares = 0;
  double product = 1;
  const bool known = ForEachElement(dtype, content, [&](double value) {
    ++count;
    if (std::isnan(value)) {
      ++nans;
    } else if (std::isinf(value)) {
      ++infs;
    } else {
      if (value == 0) ++zeros;
      low = std::min(low, value);
      high = std::max(high, value);
      abs_low = std::min(abs_low, std::fabs(value));
      sum += value;
      abs_sum += std::fabs(value);
      squares += value * value;
      product *= value;
    }
  });
  if (!known) return false;
  row->count = count;
  row->nan_count = nans;
  row->inf_count = infs;
  row->zero_count = zeros;
  row->l1 = abs_sum;
  row->l2 = std::sqrt(squares);
  row->prod = product;
  row->more = true;
  const std::uint64_t finite = count - nans - infs;
  if (finite == 0) {
    row->min = row->max = row->mean = row->std = row->abs_min = row->abs_std = kNone;
    return true;
  }
  const auto n = static_cast<double>(finite);
  const double mean = sum / n;
  const double abs_mean = abs_sum / n;
  double spread = 0;
  double abs_spread = 0;
  // The second pass keeps the digits that a difference of sums would lose.
  ForEachElement(dtype, content, [&](double value) {
    if (!std::isfinite(value)) return;
    spread += (value - mean) * (value - mean);
    abs_spread += (std::fabs(value) - abs_mean) * (std::fabs(value) - abs_mean);
  });
  row->min = low;
  row->max = high;
  row->mean = mean;
  row->std = std::sqrt(spread / n);
  row->abs_min = abs_low;
  row->abs_std = std::sqrt(abs_spread / n);
  return true;
}

bool FirstElement(std::string_view dtype, std::string_view content, double* value) {
  bool first = true;
  return ForEachElement(dtype, content,
                        [&](double element) {
                          if (std::exchange(first, false)) *value = element;
                        }) &&
         !first;
}

}  // namespace telltale::interchange
