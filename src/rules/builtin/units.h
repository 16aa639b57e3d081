// SPDX-License-Identifier: Apache-2.0
// Which units of a layer are active: the values that a layer gave, sample by sample, counted for
// each unit over as many captures as it takes to have seen enough samples.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace telltale::rules {

using Shape = std::vector<std::size_t>;

/// Of a row of `tensors`; nothing where it is no list of lengths.
inline std::optional<Shape> ShapeOf(std::string_view text) {
  const auto parsed = ParseJson(text);
  if (!parsed.is_array() || parsed.size() > 64) return std::nullopt;
  Shape shape;
  for (const nlohmann::json& length : parsed) {
    if (!length.is_number_unsigned()) return std::nullopt;
    shape.push_back(length.get<std::size_t>());
  }
  return shape;
}

/// 1 of a scalar; 0 where there are more than a size_t holds.
inline std::uint64_t ElementsOf(const Shape& shape) {
  std::uint64_t elements = 1;
  for (const std::size_t length : shape) {
    if (__builtin_mul_overflow(elements, length, &elements)) return 0;
  }
  return elements;
}

/// In how many samples each unit of one layer was active. A sample is one index of the first
/// dimension. A unit is a feature of (N, features) and (N, T, features), a channel of
/// (N, channels, H, W), or of (N, H, W, channels) where the names are Keras'; it is active in a
/// sample where any of its elements is.
class UnitActivity {
 public:
  struct Counted {
    std::size_t units = 0;
    std::size_t inactive = 0;
    std::uint64_t samples = 0;
    double share() const {
      return units == 0 ? 0 : static_cast<double>(inactive) / static_cast<double>(units);
    }
  };

  /// `values`: the first of a tensor of this shape; samples that are not whole are left out.
  /// `active(value)`: of one element.
  template <class Active>
  void Add(std::span<const double> values, const Shape& shape, bool channels_last,
           Active&& active) {
    const std::size_t dimensions = shape.size();
    std::size_t first = 0;  // Axis of the units; 0: the whole sample is one.
    std::size_t second = 0;
    if (dimensions == 2) {
      first = 1;
    } else if (dimensions >= 3) {
      const bool last = channels_last || dimensions == 3;
      first = last ? dimensions - 1 : 1;
      // Of (N, channels, L) and (N, H, W, channels) of torch the other one is.
      if (!channels_last) second = last ? 1 : dimensions - 1;
    }
    Begin(&first_, first, shape);
    Begin(&second_, second, shape);
    std::size_t of_sample = 1;
    for (std::size_t i = 1; i < dimensions; ++i) of_sample *= shape[i];
    if (of_sample == 0) return;
    for (std::size_t at = 0; at + of_sample <= values.size(); at += of_sample) {
      const auto sample = values.subspan(at, of_sample);
      for (std::size_t i = 0; i < of_sample; ++i) {
        if (!active(sample[i])) continue;
        Mark(&first_, i);
        if (second != 0) Mark(&second_, i);
      }
      EndSample(&first_);
      if (second != 0) EndSample(&second_);
    }
    ++captures_;
  }

  /// What was counted since the last call, where it says anything at all.
  std::optional<Counted> Rest(double least) {
    return Take(static_cast<double>(kLeastSamples), least);
  }

  /// What was counted since the last call, once it is of `samples` or of kMostCaptures. A unit is
  /// inactive where it was active in less than `least` (a share) of the samples.
  std::optional<Counted> Take(double samples, double least) {
    const bool enough = static_cast<double>(first_.samples) >= samples ||
                        (captures_ >= kMostCaptures && first_.samples >= kLeastSamples);
    if (!enough) return std::nullopt;
    Counted counted = CountOf(first_, least);
    // Of an axis of places a part at an end may be empty in every sample: padding, a margin.
    if (second_.samples == first_.samples) {
      const Counted other = CountOf(second_, least);
      if (other.share() > counted.share() && Scattered(second_, least)) counted = other;
    }
    captures_ = 0;
    first_ = second_ = Axis();
    return counted;
  }

 private:
  static constexpr std::uint64_t kMostCaptures = 32;
  static constexpr std::uint64_t kLeastSamples = 32;

  struct Axis {
    std::size_t length = 0;
    std::size_t stride = 1;
    std::uint64_t samples = 0;
    std::vector<std::uint64_t> active;  ///< Samples, by unit.
    std::vector<char> now;              ///< In the present sample.
  };

  /// Another number of units begins anew: that of sequences changes from batch to batch.
  static void Begin(Axis* axis, std::size_t dimension, const Shape& shape) {
    axis->stride = 1;
    for (std::size_t i = dimension + 1; i < shape.size(); ++i) axis->stride *= shape[i];
    const std::size_t length = dimension == 0 ? 1 : shape[dimension];
    if (axis->length == length) return;
    axis->length = length;
    axis->samples = 0;
    axis->active.assign(length, 0);
    axis->now.assign(length, 0);
  }
  static void Mark(Axis* axis, std::size_t element) {
    axis->now[element / axis->stride % axis->length] = 1;
  }
  static void EndSample(Axis* axis) {
    for (std::size_t i = 0; i < axis->length; ++i) {
      axis->active[i] += static_cast<std::uint64_t>(axis->now[i]);
      axis->now[i] = 0;
    }
    ++axis->samples;
  }
  static bool Inactive(const Axis& axis, std::size_t unit, double least) {
    return static_cast<double>(axis.active[unit]) < least * static_cast<double>(axis.samples);
  }
  static Counted CountOf(const Axis& axis, double least) {
    Counted counted;
    counted.units = axis.length;
    counted.samples = axis.samples;
    for (std::size_t i = 0; i < axis.length; ++i) {
      counted.inactive += Inactive(axis, i, least) ? 1 : 0;
    }
    return counted;
  }
  /// Some inactive ones lie between active ones.
  static bool Scattered(const Axis& axis, double least) {
    std::size_t begin = 0;
    std::size_t end = axis.length;
    while (begin < end && Inactive(axis, begin, least)) ++begin;
    while (end > begin && Inactive(axis, end - 1, least)) --end;
    for (std::size_t i = begin; i < end; ++i) {
      if (Inactive(axis, i, least)) return true;
    }
    return false;
  }

  Axis first_, second_;
  std::uint64_t captures_ = 0;
};

/// The rows along the last dimension sum to 1: what a softmax gives.
inline bool IsSoftmax(std::span<const double> values, const Shape& shape) {
  if (shape.size() < 2 || shape.back() < 2) return false;
  const std::size_t length = shape.back();
  std::size_t rows = 0;
  for (std::size_t at = 0; at + length <= values.size() && rows < 64; at += length, ++rows) {
    double sum = 0;
    for (const double value : values.subspan(at, length)) sum += value;
    if (!(sum > 0.98 && sum < 1.02)) return false;
  }
  return rows > 0;
}

/// How many elements to read of a tensor: enough samples to judge by, and no more than 4 Mi. 0: the
/// samples are too large.
inline std::size_t ElementsToRead(const Shape& shape) {
  constexpr std::size_t kMost = std::size_t{4} << 20U;
  constexpr std::size_t kUsual = std::size_t{1} << 20U;
  if (shape.empty() || shape[0] == 0) return 0;
  const std::uint64_t elements = ElementsOf(shape);
  if (elements == 0) return 0;
  const std::uint64_t of_sample = elements / shape[0];
  if (of_sample > kMost) return 0;
  const std::uint64_t wanted = of_sample * 16 > kUsual ? of_sample * 16 : kUsual;
  const std::uint64_t limit = wanted < kMost ? wanted : kMost;
  return static_cast<std::size_t>(limit < elements ? limit : elements);
}

/// Keras' names have slashes, and its channels come last.
inline bool HasChannelsLast(std::string_view name) {
  return name.find('/') != std::string_view::npos;
}

}  // namespace telltale::rules
