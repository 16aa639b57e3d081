// SPDX-License-Identifier: Apache-2.0
#include "rules/expression/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "rules/expression/lexer.h"

namespace telltale::rules::expression {
namespace {

struct Unit {
  std::string_view name;
  double factor;
  Dimension dimension;
};
constexpr std::array<Unit, 17> kUnits{{
    {"ns", 1e-9, Dimension::kSeconds},
    {"us", 1e-6, Dimension::kSeconds},
    {"ms", 1e-3, Dimension::kSeconds},
    {"s", 1, Dimension::kSeconds},
    {"m", 60, Dimension::kSeconds},
    {"h", 3600, Dimension::kSeconds},
    {"d", 86400, Dimension::kSeconds},
    {"B", 1, Dimension::kBytes},
    {"kB", 1e3, Dimension::kBytes},
    {"MB", 1e6, Dimension::kBytes},
    {"GB", 1e9, Dimension::kBytes},
    {"TB", 1e12, Dimension::kBytes},
    {"KiB", 1024.0, Dimension::kBytes},
    {"MiB", 1048576.0, Dimension::kBytes},
    {"GiB", 1073741824.0, Dimension::kBytes},
    {"TiB", 1099511627776.0, Dimension::kBytes},
    {"%", 1, Dimension::kPercent},
}};

struct FunctionName {
  std::string_view name;
  Function function;
  double quantile;
};
constexpr std::array<FunctionName, 11> kFunctions{{
    {"mean", Function::kMean, 0},
    {"min", Function::kMin, 0},
    {"max", Function::kMax, 0},
    {"p50", Function::kQuantile, 0.5},
    {"p95", Function::kQuantile, 0.95},
    {"p99", Function::kQuantile, 0.99},
    {"std", Function::kStd, 0},
    {"count", Function::kCount, 0},
    {"last", Function::kLast, 0},
    {"delta", Function::kDelta, 0},
    {"rate", Function::kRate, 0},
}};

constexpr std::array<std::string_view, 13> kStatisticFields = {
    "count",     "min",       "max",        "mean",    "std",     "l1",  "l2",
    "nan_count", "inf_count", "zero_count", "abs_min", "abs_std", "prod"};
constexpr std::array<std::string_view, 9> kStepFields = {"duration", "data_wait", "forward",
                                                         "backward", "optimizer", "comm_wait",
                                                         "other",    "probe",     "batch_size"};

constexpr double kLongestSeconds = 30 * 86400.0;
constexpr double kMostSteps = 1e9;

struct Comparison {
  std::string_view sign;
  Op op;
};
constexpr std::array<Comparison, 6> kComparisons{{{"<", Op::kLess},
                                                  {"<=", Op::kLessEqual},
                                                  {">", Op::kGreater},
                                                  {">=", Op::kGreaterEqual},
                                                  {"==", Op::kEqual},
                                                  {"!=", Op::kNotEqual}}};

std::string_view Name(Dimension dimension) {
  switch (dimension) {
    case Dimension::kSeconds:
      return "a time";
    case Dimension::kBytes:
      return "bytes";
    case Dimension::kPercent:
      return "percent";
    case Dimension::kAny:
      break;
  }
  return "a number";
}

const Unit* FindUnit(std::string_view name) {
  const auto* found =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == name; });
  return found == kUnits.end() ? nullptr : found;
}

template <std::size_t N>
bool Contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

class Parser {
 public:
  Parser(std::string_view text, std::vector<Token> tokens)
      : text_(text), tokens_(std::move(tokens)) {
    out_.text = text;
  }

  Result<Expression> Run() {
    TELLTALE_ASSIGN_OR_RETURN(const std::size_t root, Or());
    if (Now().kind != TokenKind::kEnd) {
      return Wrong(Now().at, "the expression should end here, or go on with and, or, for");
    }
    TELLTALE_RETURN_IF_ERROR(IsTruth(root));
    if (out_.calls.empty()) return Wrong(0, "nothing of the run is read");
    return std::move(out_);
  }

 private:
  const Token& Now() const { return tokens_[at_]; }
  bool IsWord(std::string_view word) const {
    return Now().kind == TokenKind::kWord && Now().text == word;
  }
  bool IsSign(std::string_view sign) const {
    return Now().kind == TokenKind::kSign && Now().text == sign;
  }
  Status Wrong(std::size_t at, std::string_view message) const {
    return WrongAt(text_, at, message);
  }

  std::size_t Add(Node node) {
    out_.nodes.push_back(node);
    return out_.nodes.size() - 1;
  }

  Status IsTruth(std::size_t node) const {
    if (out_.nodes[node].truth) return Status();
    return Wrong(
        out_.nodes[node].at,
        "this is a number where something true or false is needed: compare it with < or >");
  }
  Status IsNumber(std::size_t node) const {
    if (!out_.nodes[node].truth) return Status();
    return Wrong(out_.nodes[node].at, "this is true or false where a number is needed");
  }

  Result<std::size_t> Or() {
    TELLTALE_ASSIGN_OR_RETURN(std::size_t left, And());
    while (IsWord("or")) {
      ++at_;
      TELLTALE_ASSIGN_OR_RETURN(const std::size_t right, And());
      TELLTALE_ASSIGN_OR_RETURN(left, Joined(Op::kOr, left, right));
    }
    return left;
  }

  Result<std::size_t> And() {
    TELLTALE_ASSIGN_OR_RETURN(std::size_t left, Not());
    while (IsWord("and")) {
      ++at_;
      TELLTALE_ASSIGN_OR_RETURN(const std::size_t right, Not());
      TELLTALE_ASSIGN_OR_RETURN(left, Joined(Op::kAnd, left, right));
    }
    return left;
  }

  Result<std::size_t> Joined(Op op, std::size_t left, std::size_t right) {
    TELLTALE_RETURN_IF_ERROR(IsTruth(left));
    TELLTALE_RETURN_IF_ERROR(IsTruth(right));
    Node node;
    node.op = op;
    node.at = out_.nodes[left].at;
    node.left = left;
    node.right = right;
    node.truth = true;
    return Add(node);
  }

  Result<std::size_t> Not() {
    if (!IsWord("not")) return For();
    const std::size_t place = Now().at;
    ++at_;
    TELLTALE_RETURN_IF_ERROR(Deeper(place));
    TELLTALE_ASSIGN_OR_RETURN(const std::size_t child, Not());
    --depth_;
    TELLTALE_RETURN_IF_ERROR(IsTruth(child));
    Node node;
    node.op = Op::kNot;
    node.at = place;
    node.left = child;
    node.truth = true;
    return Add(node);
  }

  Result<std::size_t> For() {
    TELLTALE_ASSIGN_OR_RETURN(const std::size_t child, Compared());
    if (!IsWord("for")) return child;
    TELLTALE_RETURN_IF_ERROR(IsTruth(child));
    ++at_;
    Node node;
    node.op = Op::kFor;
    node.at = out_.nodes[child].at;
    node.left = child;
    node.truth = true;
    TELLTALE_ASSIGN_OR_RETURN(node.window, ReadWindow());
    return Add(node);
  }

  const Comparison* ComparisonHere() const {
    if (Now().kind != TokenKind::kSign) return nullptr;
    for (const Comparison& comparison : kComparisons) {
      if (comparison.sign == Now().text) return &comparison;
    }
    return nullptr;
  }

  Result<std::size_t> Compared() {
    TELLTALE_ASSIGN_OR_RETURN(const std::size_t left, Sum());
    const Comparison* comparison = ComparisonHere();
    if (comparison == nullptr) return left;
    const std::size_t place = Now().at;
    ++at_;
    TELLTALE_ASSIGN_OR_RETURN(const std::size_t right, Sum());
    if (ComparisonHere() != nullptr) {
      return Wrong(Now().at, "two comparisons in a row: write a < x and x < b");
    }
    TELLTALE_ASSIGN_OR_RETURN(const std::size_t node, Computed(comparison->op, place, left, right));
    out_.nodes[node].truth = true;
    out_.nodes[node].dimension = Dimension::kAny;
    return node;
  }

  /// An operator between two numbers; those that must be of one kind are.
  Result<std::size_t> Computed(Op op, std::size_t place, std::size_t left, std::size_t right) {
    TELLTALE_RETURN_IF_ERROR(IsNumber(left));
    TELLTALE_RETURN_IF_ERROR(IsNumber(right));
    const Dimension a = out_.nodes[left].dimension;
    const Dimension b = out_.nodes[right].dimension;
    const bool product = op == Op::kMultiply || op == Op::kDivide;
    if (!product && a != b && a != Dimension::kAny && b != Dimension::kAny) {
      return Wrong(place, fmt::format("{} on the left, {} on the right", Name(a), Name(b)));
    }
    Node node;
    node.op = op;
    node.at = out_.nodes[left].at;
    node.left = left;
    node.right = right;
    if (!product) node.dimension = a == Dimension::kAny ? b : a;
    return Add(node);
  }

  Result<std::size_t> Sum() {
    TELLTALE_ASSIGN_OR_RETURN(std::size_t left, Product());
    while (IsSign("+") || IsSign("-")) {
      const Op op = IsSign("+") ? Op::kAdd : Op::kSubtract;
      const std::size_t place = Now().at;
      ++at_;
      TELLTALE_ASSIGN_OR_RETURN(const std::size_t right, Product());
      TELLTALE_ASSIGN_OR_RETURN(left, Computed(op, place, left, right));
    }
    return left;
  }

  Result<std::size_t> Product() {
    TELLTALE_ASSIGN_OR_RETURN(std::size_t left, Signed());
    while (IsSign("*") || IsSign("/")) {
      const Op op = IsSign("*") ? Op::kMultiply : Op::kDivide;
      const std::size_t place = Now().at;
      ++at_;
      TELLTALE_ASSIGN_OR_RETURN(const std::size_t right, Signed());
      TELLTALE_ASSIGN_OR_RETURN(left, Computed(op, place, left, right));
    }
    return left;
  }

  Result<std::size_t> Signed() {
    if (!IsSign("-")) return Primary();
    const std::size_t place = Now().at;
    ++at_;
    TELLTALE_RETURN_IF_ERROR(Deeper(place));
    TELLTALE_ASSIGN_OR_RETURN(const std::size_t child, Signed());
    --depth_;
    TELLTALE_RETURN_IF_ERROR(IsNumber(child));
    Node node;
    node.op = Op::kNegate;
    node.at = place;
    node.left = child;
    node.dimension = out_.nodes[child].dimension;
    return Add(node);
  }

  Status Deeper(std::size_t place) {
    return ++depth_ > kDeepest ? Wrong(place, "this is nested too deeply") : Status();
  }

  Result<std::size_t> Primary() {
    const Token& token = Now();
    switch (token.kind) {
      case TokenKind::kNumber:
        return Number();
      case TokenKind::kSelector:
        return Bare();
      case TokenKind::kWord:
        if (IsReserved(token.text)) break;
        if (tokens_[at_ + 1].kind == TokenKind::kSign && tokens_[at_ + 1].text == "(") {
          return Called();
        }
        return Bare();
      case TokenKind::kSign:
        if (IsSign("(")) return Enclosed();
        break;
      case TokenKind::kEnd:
      case TokenKind::kSubject:
      case TokenKind::kLabels:
        break;
    }
    return Wrong(token.at, "a number, a function or a name is missing here");
  }

  static bool IsReserved(std::string_view word) {
    return word == "and" || word == "or" || word == "not" || word == "for" || word == "steps" ||
           word == "step";
  }

  Result<std::size_t> Enclosed() {
    const std::size_t place = Now().at;
    ++at_;
    TELLTALE_RETURN_IF_ERROR(Deeper(place));
    TELLTALE_ASSIGN_OR_RETURN(const std::size_t inside, Or());
    --depth_;
    if (!IsSign(")")) return Wrong(Now().at, "')' is missing");
    ++at_;
    return inside;
  }

  Result<std::size_t> Number() {
    const Token token = Now();
    Node node;
    node.at = token.at;
    node.number = token.number;
    if (!token.text.empty()) {
      const Unit* unit = FindUnit(token.text);
      if (unit == nullptr) return Wrong(token.at, UnknownUnit(token.text));
      node.number *= unit->factor;
      node.dimension = unit->dimension;
    }
    ++at_;
    return Add(node);
  }

  static std::string UnknownUnit(std::string_view unit) {
    return fmt::format(
        "no unit '{}': write ns, us, ms, s, m (minutes), h, d, B, kB, MB, GB, TB, "
        "KiB, MiB, GiB, TiB or %",
        Printable(unit));
  }

  Result<Window> ReadWindow() {
    const Token token = Now();
    const char* hint = "a time (500ms, 5m) or a number of steps (100 steps) is missing here";
    if (token.kind != TokenKind::kNumber) return Wrong(token.at, hint);
    ++at_;
    Window window;
    const bool spaced = token.text.empty() && (IsWord("steps") || IsWord("step"));
    if (spaced) ++at_;
    if (spaced || token.text == "steps" || token.text == "step") {
      if (token.number < 1 || token.number > kMostSteps ||
          token.number != std::floor(token.number)) {
        return Wrong(token.at, "is no number of steps: write one of 1 and more");
      }
      window.steps = true;
      window.length = static_cast<std::int64_t>(token.number);
      return window;
    }
    const Unit* unit = FindUnit(token.text);
    if (token.text.empty()) return Wrong(token.at, hint);
    if (unit == nullptr || unit->dimension != Dimension::kSeconds) {
      return Wrong(token.at, "is no time: write 500ms, 30s, 5m, 2h, or a number of steps");
    }
    const double seconds = token.number * unit->factor;
    if (!(seconds >= 1e-9) || seconds > kLongestSeconds) {
      return Wrong(token.at, "is no time between 1ns and 30d");
    }
    window.length = static_cast<std::int64_t>(std::llround(seconds * 1e9));
    return window;
  }

  /// A name alone: its newest value.
  Result<std::size_t> Bare() {
    Call call;
    const std::size_t place = Now().at;
    TELLTALE_RETURN_IF_ERROR(ReadSelector(&call.selector));
    call.text = std::string(text_.substr(place, tokens_[at_ - 1].end - place));
    return AddCall(place, std::move(call));
  }

  Result<std::size_t> Called() {
    const Token name = Now();
    const auto* found = std::find_if(kFunctions.begin(), kFunctions.end(),
                                     [&](const FunctionName& f) { return f.name == name.text; });
    if (found == kFunctions.end()) {
      std::vector<std::string_view> names;
      for (const FunctionName& f : kFunctions) names.push_back(f.name);
      return Wrong(name.at, fmt::format("no function '{}': write one of {}", Printable(name.text),
                                        fmt::join(names, ", ")));
    }
    at_ += 2;  // The name and its parenthesis.
    Call call;
    call.function = found->function;
    call.quantile = found->quantile;
    TELLTALE_RETURN_IF_ERROR(ReadSelector(&call.selector));
    if (IsSign(",")) {
      ++at_;
      TELLTALE_ASSIGN_OR_RETURN(call.window, ReadWindow());
    } else if (call.function != Function::kLast) {
      return Wrong(Now().at,
                   fmt::format("{} needs a window: write ', 5m' or ', 100 steps'", name.text));
    }
    if (!IsSign(")")) return Wrong(Now().at, "')' is missing");
    ++at_;
    call.text = std::string(text_.substr(name.at, tokens_[at_ - 1].end - name.at));
    return AddCall(name.at, std::move(call));
  }

  Result<std::size_t> AddCall(std::size_t place, Call call) {
    if (out_.calls.size() == kMostCalls) {
      return Wrong(place, fmt::format("more than {} functions and names", kMostCalls));
    }
    Node node;
    node.op = Op::kCall;
    node.at = place;
    node.call = out_.calls.size();
    const Selector& of = call.selector;
    const bool time =
        of.source == Source::kSpan || (of.source == Source::kStep && of.field != "batch_size");
    if (time && call.function != Function::kCount && call.function != Function::kRate) {
      node.dimension = Dimension::kSeconds;
    }
    out_.calls.push_back(std::move(call));
    return Add(node);
  }

  Status ReadSelector(Selector* out) {
    const Token token = Now();
    if (token.kind == TokenKind::kSelector) {
      TELLTALE_RETURN_IF_ERROR(ReadPrefixed(token, out));
      ++at_;
    } else if (token.kind == TokenKind::kWord && !IsReserved(token.text)) {
      out->name = token.text;
      ++at_;
      if (Now().kind == TokenKind::kSubject) {
        out->subject = std::string(Trimmed(Now().text));
        if (out->subject.empty()) return Wrong(Now().at, "no subject: write [*] for all");
        ++at_;
      }
    } else {
      return Wrong(token.at,
                   "the name of a metric, or scalar:NAME, stat:NAME.FIELD, step:FIELD, "
                   "span:NAME is missing here");
    }
    if (Now().kind != TokenKind::kLabels) return Status();
    TELLTALE_RETURN_IF_ERROR(ReadLabels(Now(), out));
    ++at_;
    return Status();
  }

  Status ReadPrefixed(const Token& token, Selector* out) const {
    out->name = token.name;
    if (token.text == "scalar") {
      out->source = Source::kScalar;
    } else if (token.text == "span") {
      out->source = Source::kSpan;
    } else if (token.text == "step") {
      out->source = Source::kStep;
      out->field = token.name;
      out->labels["mode"] = "TRAIN";
      if (!Contains(kStepFields, out->field)) {
        return Wrong(token.at, fmt::format("a step has no '{}': write step: and one of {}",
                                           Printable(out->field), fmt::join(kStepFields, ", ")));
      }
    } else {
      out->source = Source::kStatistic;
      const std::size_t point = token.name.rfind('.');
      out->field = point == std::string::npos ? "" : token.name.substr(point + 1);
      if (point == std::string::npos || point == 0 || !Contains(kStatisticFields, out->field)) {
        return Wrong(token.at,
                     fmt::format("no statistic is named: write stat:TENSOR and behind a point one "
                                 "of {}",
                                 fmt::join(kStatisticFields, ", ")));
      }
      out->name = token.name.substr(0, point);
    }
    return Status();
  }

  Status ReadLabels(const Token& token, Selector* out) const {
    std::string_view rest = token.text;
    while (true) {
      const std::size_t comma = rest.find(',');
      const std::string_view one = Trimmed(rest.substr(0, comma));
      const std::size_t equals = one.find('=');
      if (equals == std::string_view::npos) {
        return Wrong(token.at, "write {NAME=VALUE}, with commas between several");
      }
      const std::string name(Trimmed(one.substr(0, equals)));
      std::string_view value = Trimmed(one.substr(equals + 1));
      if (value.size() >= 2 && value.front() == '"' && value.back() == '"') {
        value = value.substr(1, value.size() - 2);
      }
      if (value.empty()) return Wrong(token.at, fmt::format("{} has no value", Printable(name)));
      const std::string_view known = LabelsOf(out->source);
      if (!IsOneOf(known, name)) {
        return Wrong(token.at,
                     fmt::format("no '{}' here: write one of {}", Printable(name), known));
      }
      out->labels[name] = std::string(value);
      if (comma == std::string_view::npos) return Status();
      rest.remove_prefix(comma + 1);
    }
  }

  static std::string_view LabelsOf(Source source) {
    switch (source) {
      case Source::kMetric:
        return "node";
      case Source::kScalar:
      case Source::kStep:
        return "mode, rank";
      case Source::kStatistic:
        return "collection, mode, rank";
      case Source::kSpan:
        break;
    }
    return "category, mode, rank";
  }

  /// `name` is one of the words between commas.
  static bool IsOneOf(std::string_view words, std::string_view name) {
    while (!words.empty()) {
      const std::size_t comma = words.find(", ");
      if (words.substr(0, comma) == name) return true;
      words = comma == std::string_view::npos ? std::string_view() : words.substr(comma + 2);
    }
    return false;
  }

  const std::string_view text_;
  const std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  Expression out_;
};

}  // namespace

Result<Expression> Parse(std::string_view text) {
  TELLTALE_ASSIGN_OR_RETURN(std::vector<Token> tokens, Lex(text));
  return Parser(text, std::move(tokens)).Run();
}

}  // namespace telltale::rules::expression
