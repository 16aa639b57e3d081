// SPDX-License-Identifier: Apache-2.0
#include "rules/expression/evaluator.h"

#include <cmath>

namespace telltale::rules::expression {
namespace {

std::optional<double> Truth(bool value) { return value ? 1.0 : 0.0; }

std::optional<double> And(std::optional<double> a, std::optional<double> b) {
  if ((a && *a == 0) || (b && *b == 0)) return 0.0;
  return a && b ? std::optional(1.0) : std::nullopt;
}

std::optional<double> Or(std::optional<double> a, std::optional<double> b) {
  if ((a && *a != 0) || (b && *b != 0)) return 1.0;
  return a && b ? std::optional(0.0) : std::nullopt;
}

std::optional<double> Between(Op op, double a, double b) {
  double value = 0;
  switch (op) {
    case Op::kAdd:
      value = a + b;
      break;
    case Op::kSubtract:
      value = a - b;
      break;
    case Op::kMultiply:
      value = a * b;
      break;
    case Op::kDivide:
      if (b == 0) return std::nullopt;
      value = a / b;
      break;
    case Op::kLess:
      return Truth(a < b);
    case Op::kLessEqual:
      return Truth(a <= b);
    case Op::kGreater:
      return Truth(a > b);
    case Op::kGreaterEqual:
      return Truth(a >= b);
    case Op::kEqual:
      return Truth(a == b);
    case Op::kNotEqual:
      return Truth(a != b);
    default:
      return std::nullopt;
  }
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

}  // namespace

Evaluator::Evaluator(const Expression* expression)
    : expression_(expression),
      call_values_(expression->calls.size()),
      values_(expression->nodes.size()),
      held_(expression->nodes.size()) {
  windows_.reserve(expression->calls.size());
  for (const Call& call : expression->calls) windows_.emplace_back(&call);
}

void Evaluator::Restart() {
  for (Held& held : held_) held = Held();
}

std::size_t Evaluator::cost() const {
  std::size_t cost = values_.size();
  for (const SampleWindow& window : windows_) cost += window.size();
  return cost;
}

std::optional<bool> Evaluator::Evaluate(const Moment& now) {
  for (std::size_t i = 0; i < windows_.size(); ++i) call_values_[i] = windows_[i].Value(now);
  for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = Compute(i, now);
  const std::optional<double>& whole = values_.back();
  if (!whole) return std::nullopt;
  const Held& held = held_.back();
  since_ = held.since.value_or(now);
  return *whole != 0;
}

std::optional<double> Evaluator::Compute(std::size_t index, const Moment& now) {
  const Node& node = expression_->nodes[index];
  const std::optional<double> left = values_[node.left];
  switch (node.op) {
    case Op::kNumber:
      return node.number;
    case Op::kCall:
      return call_values_[node.call];
    case Op::kNegate:
      return left ? std::optional(-*left) : std::nullopt;
    case Op::kNot:
      return left ? Truth(*left == 0) : std::nullopt;
    case Op::kAnd:
      return And(left, values_[node.right]);
    case Op::kOr:
      return Or(left, values_[node.right]);
    case Op::kFor:
      return HeldFor(node, &held_[index], now);
    default:
      break;
  }
  const std::optional<double> right = values_[node.right];
  return left && right ? Between(node.op, *left, *right) : std::nullopt;
}

std::optional<double> Evaluator::HeldFor(const Node& node, Held* held, const Moment& now) {
  const std::optional<double> child = values_[node.left];
  if (!child || *child == 0) {
    held->since.reset();
    return child;
  }
  const Window& window = node.window;
  // Nobody saw whether it held in a gap.
  const bool gap = !window.steps && now.ns - held->seen_ns > window.length / 2 &&
                   now.ns - held->seen_ns > 1'000'000'000;
  held->seen_ns = now.ns;
  if (!held->since || gap) held->since = now;
  return Truth(window.steps ? now.step - held->since->step >= window.length
                            : now.ns - held->since->ns >= window.length);
}

}  // namespace telltale::rules::expression
