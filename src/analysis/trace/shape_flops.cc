// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/shape_flops.h"

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace telltale::analysis::trace {
namespace {

using Shape = std::vector<double>;

/// No real operator has more; a hostile one is not read on.
constexpr std::size_t kMostInputs = 16;
constexpr std::size_t kMostSizes = 8;

void SkipBlanks(std::string_view text, std::size_t* at) {
  while (*at < text.size() && (text[*at] == ' ' || text[*at] == ',')) ++*at;
}

/// What follows `"key":`, from the bracket on; empty where it is not there.
std::string_view ListAfter(std::string_view json, std::string_view key) {
  const std::size_t at = json.find(key);
  if (at == std::string_view::npos) return {};
  const std::size_t open = json.find_first_not_of(" :", at + key.size());
  if (open == std::string_view::npos || json[open] != '[') return {};
  return json.substr(open);
}

/// [[8, 3], [3, 4], []]: the sizes of each input; those of lists within lists are left out.
std::vector<Shape> ShapesOf(std::string_view list) {
  std::vector<Shape> out;
  if (list.empty()) return out;
  std::size_t at = 1;
  while (out.size() < kMostInputs) {
    SkipBlanks(list, &at);
    if (at >= list.size() || list[at] == ']') break;
    if (list[at] != '[') break;
    ++at;
    Shape& shape = out.emplace_back();
    while (true) {
      SkipBlanks(list, &at);
      if (at >= list.size()) return out;
      if (list[at] == ']') {
        ++at;
        break;
      }
      double size = 0;
      const auto read = std::from_chars(list.data() + at, list.data() + list.size(), size);
      if (read.ec != std::errc() || shape.size() == kMostSizes) return {};
      at = static_cast<std::size_t>(read.ptr - list.data());
      shape.push_back(size);
    }
  }
  return out;
}

/// The input `index` of "Concrete Inputs", a list of texts such as "[1, 1]", as two sizes.
bool PairOf(std::string_view concrete, std::size_t index, double out[2]) {
  std::size_t at = 0;
  for (std::size_t i = 0; i <= index; ++i) {
    const std::size_t open = concrete.find('"', at);
    if (open == std::string_view::npos) return false;
    const std::size_t close = concrete.find('"', open + 1);
    if (close == std::string_view::npos) return false;
    if (i == index) {
      const std::string_view text = concrete.substr(open + 1, close - open - 1);
      if (text.empty() || text[0] != '[') return false;
      std::size_t in = 1;
      std::size_t read_sizes = 0;
      while (read_sizes < 2) {
        SkipBlanks(text, &in);
        if (in >= text.size() || text[in] == ']') break;
        const auto read =
            std::from_chars(text.data() + in, text.data() + text.size(), out[read_sizes]);
        if (read.ec != std::errc()) return false;
        in = static_cast<std::size_t>(read.ptr - text.data());
        ++read_sizes;
      }
      if (read_sizes == 1) out[1] = out[0];
      return read_sizes > 0;
    }
    at = close + 1;
  }
  return false;
}

/// Bytes of an element of the first operand, as torch names its type; 4 where it does not say.
double ElementBytes(std::string_view args) {
  const std::string_view list = ListAfter(args, "\"Input type\"");
  const std::size_t open = list.find('"');
  if (open == std::string_view::npos) return 4;
  const std::string_view type = list.substr(open + 1, list.find('"', open + 1) - open - 1);
  if (type == "c10::Half" || type == "c10::BFloat16") return 2;
  if (type == "double" || type == "long int") return 8;
  if (type.starts_with("c10::Float8") || type == "signed char" || type == "unsigned char") return 1;
  return 4;
}

double Product(const Shape& shape) {
  double out = 1;
  for (const double size : shape) out *= size;
  return out;
}

ShapeCost Convolution(const std::vector<Shape>& shapes, std::string_view args) {
  if (shapes.size() < 2 || shapes[0].size() != 4 || shapes[1].size() != 4) return {};
  const std::string_view concrete = ListAfter(args, "\"Concrete Inputs\"");
  double stride[2];
  double padding[2];
  double dilation[2];
  if (!PairOf(concrete, 3, stride) || !PairOf(concrete, 4, padding) ||
      !PairOf(concrete, 5, dilation)) {
    return {};
  }
  const Shape& input = shapes[0];
  const Shape& weight = shapes[1];
  double places = 1;
  for (std::size_t i = 0; i < 2; ++i) {
    if (stride[i] <= 0) return {};
    const double reach = dilation[i] * (weight[2 + i] - 1) + 1;
    const double size = (input[2 + i] + 2 * padding[i] - reach) / stride[i];
    if (size < 0) return {};
    places *= static_cast<double>(static_cast<std::int64_t>(size)) + 1;
  }
  // weight: outputs × inputs of a group × height × width.
  return {2 * input[0] * places * Product(weight),
          ElementBytes(args) * (Product(input) + Product(weight) + input[0] * places * weight[0])};
}

}  // namespace

ShapeCost ShapeCostOf(std::string_view name, std::string_view args) {
  constexpr std::string_view kPrefix = "aten::";
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(kPrefix.size());
  const bool plain = name == "mm" || name == "bmm";
  const bool added = name == "addmm" || name == "baddbmm";
  if (!plain && !added && name != "conv2d") return {};
  // "Input dims" in traces of before 2021.
  std::string_view list = ListAfter(args, "\"Input Dims\"");
  if (list.empty()) list = ListAfter(args, "\"Input dims\"");
  const std::vector<Shape> shapes = ShapesOf(list);
  if (name == "conv2d") return Convolution(shapes, args);
  const std::size_t first = added ? 1 : 0;
  const std::size_t sizes = name == "mm" || name == "addmm" ? 2 : 3;
  if (shapes.size() < first + 2) return {};
  const Shape& a = shapes[first];
  const Shape& b = shapes[first + 1];
  if (a.size() != sizes || b.size() != sizes) return {};
  const double columns = b.back();
  const double result = Product(a) / (a.back() > 0 ? a.back() : 1) * columns;
  return {2 * Product(a) * columns, ElementBytes(args) * (Product(a) + Product(b) + result)};
}

}  // namespace telltale::analysis::trace
