// SPDX-License-Identifier: Apache-2.0
// What an expression rule is once it is parsed (docs/formats/expressions.md): a list of nodes in
// the order in which they can be computed, and the calls that read the run.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace telltale::rules::expression {

/// What a number is of, where that is known: seconds are not compared with bytes.
enum class Dimension : std::uint8_t { kAny, kSeconds, kBytes, kPercent };

/// Of time, or of training steps.
struct Window {
  bool steps = false;
  std::int64_t length = 0;  ///< Nanoseconds, or steps.
};

enum class Source : std::uint8_t { kMetric, kScalar, kStatistic, kStep, kSpan };

/// Which records a call reads. Names are globs (fnmatch).
struct Selector {
  Source source = Source::kMetric;
  std::string name;
  std::string subject = "*";                  ///< Of a metric.
  std::string field;                          ///< Of a statistic or a step.
  std::map<std::string, std::string> labels;  ///< Globs too.
};

enum class Function : std::uint8_t {
  kMean,
  kMin,
  kMax,
  kQuantile,
  kStd,
  kCount,
  kLast,
  kDelta,
  kRate,
};

struct Call {
  Function function = Function::kLast;
  double quantile = 0;  ///< Of kQuantile: 0.5, 0.95, 0.99.
  Selector selector;
  std::optional<Window> window;  ///< None: kLast alone.
  std::string text;              ///< As the user wrote it.
};

enum class Op : std::uint8_t {
  kNumber,
  kCall,
  kNegate,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kEqual,
  kNotEqual,
  kAnd,
  kOr,
  kNot,
  kFor,
};

struct Node {
  Op op = Op::kNumber;
  std::size_t at = 0;     ///< Byte of the text where it begins.
  std::size_t left = 0;   ///< Index of the node that it is computed from.
  std::size_t right = 0;  ///< Of an operator between two.
  double number = 0;      ///< Of kNumber.
  std::size_t call = 0;   ///< Of kCall: index of the call.
  Window window;          ///< Of kFor.
  bool truth = false;     ///< It is true or false, no number.
  Dimension dimension = Dimension::kAny;
};

struct Expression {
  std::string text;
  std::vector<Node> nodes;  ///< The last is the whole; each comes after what it is computed from.
  std::vector<Call> calls;
};

}  // namespace telltale::rules::expression
