// SPDX-License-Identifier: Apache-2.0
#include "query/expression.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <compare>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace telltale::query {
namespace {

constexpr int kMaxDepth = 200;

using Predicate = std::function<bool(const RowRef&)>;

class PredicateExpression final : public Expression {
 public:
  explicit PredicateExpression(Predicate predicate) : predicate_(std::move(predicate)) {}
  bool Matches(const RowRef& row) const override { return predicate_(row); }

 private:
  const Predicate predicate_;
};

enum class Kind { kNumber, kText, kBool };

Kind KindOf(format::ColumnType type) {
  if (type == format::ColumnType::kStr) return Kind::kText;
  return type == format::ColumnType::kBool ? Kind::kBool : Kind::kNumber;
}

const char* NameOf(Kind kind) {
  if (kind == Kind::kText) return "text";
  return kind == Kind::kBool ? "a bool" : "a number";
}

/// By value: every 64-bit integer and double is exact as long double on the machines we build for.
std::partial_ordering Compare(const Value& a, const Value& b) {
  return std::visit(
      [](const auto& x, const auto& y) -> std::partial_ordering {
        using X = std::remove_cvref_t<decltype(x)>;
        using Y = std::remove_cvref_t<decltype(y)>;
        constexpr bool texts = std::is_same_v<X, std::string_view>;
        if constexpr (texts != std::is_same_v<Y, std::string_view>) {
          return std::partial_ordering::unordered;
        } else if constexpr (texts) {
          return x <=> y;
        } else if constexpr (std::is_same_v<X, Y>) {
          return x <=> y;
        } else {
          return static_cast<long double>(x) <=> static_cast<long double>(y);
        }
      },
      a, b);
}

/// `pattern` split at its % signs.
bool Like(std::string_view text, const std::vector<std::string>& pieces) {
  if (pieces.size() == 1) return text == pieces[0];
  if (!text.starts_with(pieces.front())) return false;
  text.remove_prefix(pieces.front().size());
  for (std::size_t i = 1; i + 1 < pieces.size(); ++i) {
    const std::size_t at = text.find(pieces[i]);
    if (at == std::string_view::npos) return false;
    text.remove_prefix(at + pieces[i].size());
  }
  return text.ends_with(pieces.back());
}

struct Token {
  enum class Type { kEnd, kWord, kNumber, kText, kSymbol } type = Type::kEnd;
  std::size_t at = 0;
  std::string text;  ///< Words as written, strings unquoted.
};

struct Operand {
  Kind kind{};
  std::function<Value(const RowRef&)> get;
};

class Parser {
 public:
  Parser(std::string_view text, const Table& table) : text_(text), table_(table) { Next(); }

  Result<std::unique_ptr<Expression>> Run() {
    Predicate predicate = Or();
    if (error_.empty() && token_.type != Token::Type::kEnd) {
      Fail(token_.at, fmt::format("'{}' was not expected here", token_.text));
    }
    if (!error_.empty()) return {Code::kUsage, error_};
    return std::unique_ptr<Expression>(std::make_unique<PredicateExpression>(std::move(predicate)));
  }

 private:
  void Fail(std::size_t at, std::string_view what) {
    if (!error_.empty()) return;  // The first is the cause.
    error_ = fmt::format("--where '{}': character {}: {}", text_, at + 1, what);
    token_.type = Token::Type::kEnd;
    at_ = text_.size();
  }

  void Next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    token_ = {.at = at_};
    if (!error_.empty() || at_ == text_.size()) return;
    const char c = text_[at_];
    const auto is_word = [](char w) {
      return std::isalnum(static_cast<unsigned char>(w)) != 0 || w == '_';
    };
    const auto is_number = [](char n) {
      return std::isalnum(static_cast<unsigned char>(n)) != 0 || n == '.';
    };
    if (c == '\'') {
      ReadText();
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' ||
               c == '+') {
      token_.type = Token::Type::kNumber;
      do {
        token_.text += text_[at_++];
        const char last = token_.text.back();
        const bool exponent_sign = at_ < text_.size() && (last == 'e' || last == 'E') &&
                                   (text_[at_] == '-' || text_[at_] == '+');
        if (exponent_sign) token_.text += text_[at_++];
      } while (at_ < text_.size() && is_number(text_[at_]));
    } else if (is_word(c)) {
      token_.type = Token::Type::kWord;
      while (at_ < text_.size() && is_word(text_[at_])) token_.text += text_[at_++];
    } else {
      token_.type = Token::Type::kSymbol;
      token_.text = c;
      ++at_;
      const std::string two = token_.text + (at_ < text_.size() ? text_[at_] : ' ');
      for (const char* symbol : {"<=", ">=", "!=", "<>", "=="}) {
        if (two != symbol) continue;
        token_.text = two;
        ++at_;
      }
    }
  }

  void ReadText() {
    token_.type = Token::Type::kText;
    const std::size_t begin = at_++;
    while (at_ < text_.size()) {
      if (text_[at_] == '\'') {
        ++at_;
        if (at_ == text_.size() || text_[at_] != '\'') return;
      }
      token_.text += text_[at_++];
    }
    Fail(begin, "the text has no closing quote");
  }

  bool IsWord(std::string_view word) const {
    return token_.type == Token::Type::kWord &&
           std::equal(token_.text.begin(), token_.text.end(), word.begin(), word.end(),
                      [](char a, char b) { return std::tolower(a) == b; });
  }
  bool Take(std::string_view word_or_symbol) {
    const bool symbol = token_.type == Token::Type::kSymbol && token_.text == word_or_symbol;
    if (!symbol && !IsWord(word_or_symbol)) return false;
    Next();
    return true;
  }
  void Expect(std::string_view symbol) {
    if (!Take(symbol)) Fail(token_.at, fmt::format("'{}' was expected", symbol));
  }

  Predicate Or() {
    if (++depth_ > kMaxDepth) Fail(token_.at, "nested too deeply");
    Predicate left = And();
    while (error_.empty() && Take("or")) {
      left = [a = std::move(left), b = And()](const RowRef& row) { return a(row) || b(row); };
    }
    --depth_;
    return left;
  }

  Predicate And() {
    Predicate left = Not();
    while (error_.empty() && Take("and")) {
      left = [a = std::move(left), b = Not()](const RowRef& row) { return a(row) && b(row); };
    }
    return left;
  }

  Predicate Not() {
    bool negate = false;
    while (Take("not")) negate = !negate;
    Predicate inner;
    if (Take("(")) {
      inner = Or();
      if (error_.empty()) Expect(")");
    } else {
      inner = Comparison();
    }
    if (!negate) return inner;
    return [inner = std::move(inner)](const RowRef& row) { return !inner(row); };
  }

  Predicate Comparison() {
    const std::size_t begin = token_.at;
    const std::optional<Operand> left = ReadOperand();
    if (!left) return {};
    const bool negate = Take("not");
    if (Take("in")) return In(*left, negate);
    if (Take("like")) return LikePattern(*left, negate, begin);
    if (negate) {
      Fail(token_.at, "'in' or 'like' was expected after 'not'");
      return {};
    }
    using Test = bool (*)(std::partial_ordering);
    static constexpr std::pair<const char*, Test> kTests[] = {
        {"=", [](std::partial_ordering o) { return o == 0; }},
        {"==", [](std::partial_ordering o) { return o == 0; }},
        {"!=", [](std::partial_ordering o) { return o != 0; }},
        {"<>", [](std::partial_ordering o) { return o != 0; }},
        {"<=", [](std::partial_ordering o) { return o <= 0; }},
        {">=", [](std::partial_ordering o) { return o >= 0; }},
        {"<", [](std::partial_ordering o) { return o < 0; }},
        {">", [](std::partial_ordering o) { return o > 0; }},
    };
    const std::size_t at = token_.at;
    for (const auto& [symbol, test] : kTests) {
      if (!Take(symbol)) continue;
      const std::optional<Operand> right = ReadOperand();
      if (!right) return {};
      if (left->kind != right->kind) {
        Fail(at,
             fmt::format("{} cannot be compared with {}", NameOf(left->kind), NameOf(right->kind)));
      }
      return [a = left->get, b = right->get, t = test](const RowRef& row) {
        return t(Compare(a(row), b(row)));
      };
    }
    if (left->kind != Kind::kBool) {
      Fail(at, "a comparison was expected: =, !=, <, <=, >, >=, in or like");
    }
    return [get = left->get](const RowRef& row) {
      const Value value = get(row);
      const bool* const yes = std::get_if<bool>(&value);
      return yes != nullptr && *yes;
    };
  }

  Predicate In(const Operand& left, bool negate) {
    Expect("(");
    std::vector<Operand> choices;
    do {
      const std::size_t at = token_.at;
      const std::optional<Operand> choice = ReadOperand();
      if (!choice) return {};
      if (choice->kind != left.kind) {
        Fail(at,
             fmt::format("{} cannot be compared with {}", NameOf(left.kind), NameOf(choice->kind)));
      }
      choices.push_back(*choice);
    } while (Take(","));
    if (error_.empty()) Expect(")");
    return [get = left.get, choices = std::move(choices), negate](const RowRef& row) {
      const Value value = get(row);
      const bool found = std::any_of(choices.begin(), choices.end(), [&](const Operand& choice) {
        return Compare(value, choice.get(row)) == 0;
      });
      return found != negate;
    };
  }

  Predicate LikePattern(const Operand& left, bool negate, std::size_t begin) {
    if (left.kind != Kind::kText) Fail(begin, "'like' needs a column that holds text");
    if (token_.type != Token::Type::kText) Fail(token_.at, "a pattern in quotes was expected");
    std::vector<std::string> pieces(1);
    for (const char c : token_.text) {
      if (c == '%') {
        pieces.emplace_back();
      } else {
        pieces.back() += c;
      }
    }
    Next();
    return [get = left.get, pieces = std::move(pieces), negate](const RowRef& row) {
      const Value value = get(row);
      return Like(std::get<std::string_view>(value), pieces) != negate;
    };
  }

  std::optional<Operand> ReadOperand() {
    const Token token = token_;
    if (token.type == Token::Type::kText) {
      Next();
      return Operand{Kind::kText,
                     [text = token.text](const RowRef&) { return Value(std::string_view(text)); }};
    }
    if (token.type == Token::Type::kNumber) return ReadNumber(token);
    if (token.type == Token::Type::kWord) {
      if (IsWord("true") || IsWord("false")) {
        const bool value = IsWord("true");
        Next();
        return Operand{Kind::kBool, [value](const RowRef&) { return Value(value); }};
      }
      if (const Column* column = table_.Find(token.text)) {
        Next();
        return Operand{KindOf(column->type), column->get};
      }
      Fail(token.at,
           fmt::format("no column '{}': choose among {}", token.text, table_.ColumnNames()));
      return std::nullopt;
    }
    Fail(token.at, token.type == Token::Type::kEnd
                       ? "a column or value was expected"
                       : fmt::format("a column or value was expected, not '{}'", token.text));
    return std::nullopt;
  }

  std::optional<Operand> ReadNumber(const Token& token) {
    std::string_view digits = token.text;
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const char* const end = digits.data() + digits.size();
    const auto parsed = [&](auto value) -> std::optional<Value> {
      const auto [at, error] = std::from_chars(digits.data(), end, value);
      if (error != std::errc() || at != end || digits.empty()) return std::nullopt;
      return Value(value);
    };
    std::optional<Value> value = parsed(std::int64_t{});
    if (!value) value = parsed(std::uint64_t{});
    if (!value) value = parsed(double{});
    if (!value) {
      Fail(token.at, fmt::format("'{}' is no number", token.text));
      return std::nullopt;
    }
    Next();
    return Operand{Kind::kNumber, [v = *value](const RowRef&) { return v; }};
  }

  const std::string_view text_;
  const Table& table_;
  std::size_t at_ = 0;
  Token token_;
  int depth_ = 0;
  std::string error_;
};

}  // namespace

Result<std::unique_ptr<Expression>> Expression::Parse(std::string_view text, const Table& table) {
  return Parser(text, table).Run();
}

}  // namespace telltale::query
