// SPDX-License-Identifier: Apache-2.0
#include "rules/expression/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <utility>

#include "base/printable.h"

namespace telltale::rules::expression {
namespace {

constexpr std::size_t kMostBytes = 4096;

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// Ends a name behind scalar:, stat:, step:, span:. All else may stand in it: names of tensors and
/// of scalars hold points, slashes, colons and hyphens.
bool EndsName(char c) {
  return IsSpace(c) || std::string_view("{}()[],<>=!\"").find(c) != std::string_view::npos;
}

std::size_t CodePoints(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  Result<std::vector<Token>> Run() {
    if (text_.size() > kMostBytes) {
      return Status(Code::kUsage, fmt::format("the expression has {} bytes, {} are allowed",
                                              text_.size(), kMostBytes));
    }
    std::vector<Token> out;
    while (true) {
      while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
      Token token;
      token.at = at_;
      if (at_ < text_.size()) TELLTALE_RETURN_IF_ERROR(Next(&token));
      token.end = at_;
      const bool end = token.kind == TokenKind::kEnd;
      out.push_back(std::move(token));
      if (end) return out;
    }
  }

 private:
  char Peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  Status Next(Token* token) {
    const char c = Peek();
    if (IsDigit(c) || (c == '.' && IsDigit(Peek(1)))) return Number(token);
    if (IsLetter(c)) return Word(token);
    if (c == '[') return Enclosed(']', TokenKind::kSubject, token);
    if (c == '{') return Enclosed('}', TokenKind::kLabels, token);
    return Sign(token);
  }

  Status Number(Token* token) {
    token->kind = TokenKind::kNumber;
    const char* begin = text_.data() + at_;
    const char* end = text_.data() + text_.size();
    const auto [last, error] = std::from_chars(begin, end, token->number);
    if (error != std::errc()) return WrongAt(text_, at_, "this number cannot be held");
    at_ += static_cast<std::size_t>(last - begin);
    if (Peek() == '%') {
      token->text = "%";
      ++at_;
    } else {
      while (IsLetter(Peek())) token->text += text_[at_++];
    }
    if (IsDigit(Peek()) || Peek() == '.') {
      return WrongAt(text_, token->at, "is neither a number nor a number with a unit");
    }
    return Status();
  }

  Status Word(Token* token) {
    token->kind = TokenKind::kWord;
    while (IsLetter(Peek()) || IsDigit(Peek()) || (Peek() == '.' && IsLetter(Peek(1))) ||
           (Peek() == '.' && IsDigit(Peek(1)))) {
      token->text += text_[at_++];
    }
    if (Peek() != ':') return Status();
    constexpr std::array<std::string_view, 4> kSources = {"scalar", "stat", "step", "span"};
    if (std::find(kSources.begin(), kSources.end(), token->text) == kSources.end()) {
      return WrongAt(text_, token->at,
                     fmt::format("nothing is called '{}:': write scalar:, stat:, step: or span:, "
                                 "or a metric's name with its subject in [ ]",
                                 token->text));
    }
    ++at_;
    token->kind = TokenKind::kSelector;
    if (Peek() == '"') {
      const std::size_t open = at_++;
      while (at_ < text_.size() && text_[at_] != '"') token->name += text_[at_++];
      if (at_ == text_.size()) return WrongAt(text_, open, "this quotation mark is not closed");
      ++at_;
    }
    while (at_ < text_.size() && !EndsName(text_[at_])) token->name += text_[at_++];
    if (token->name.empty()) return WrongAt(text_, token->at, "a name is missing behind the colon");
    return Status();
  }

  Status Enclosed(char close, TokenKind kind, Token* token) {
    token->kind = kind;
    const std::size_t end = text_.find(close, at_);
    if (end == std::string_view::npos) {
      return WrongAt(text_, at_, fmt::format("'{}' is missing", close));
    }
    token->text = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return Status();
  }

  Status Sign(Token* token) {
    token->kind = TokenKind::kSign;
    for (const std::string_view sign : {"<=", ">=", "==", "!="}) {
      if (text_.substr(at_, 2) != sign) continue;
      token->text = sign;
      at_ += 2;
      return Status();
    }
    const char c = text_[at_];
    if (c == '=') return WrongAt(text_, at_, "write == to compare");
    if (c == '!') return WrongAt(text_, at_, "write != or not");
    if (c == '&' || c == '|') return WrongAt(text_, at_, "write and, or");
    if (std::string_view("(),+-*/<>").find(c) == std::string_view::npos) {
      return WrongAt(text_, at_, "this character has no meaning here");
    }
    token->text = std::string(1, c);
    ++at_;
    return Status();
  }

  const std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

Status WrongAt(std::string_view text, std::size_t at, std::string_view message) {
  at = std::min(at, text.size());
  const std::size_t before = text.substr(0, at).rfind('\n');
  const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
  const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
  const std::string_view left = text.substr(begin, at - begin);
  std::string place = fmt::format("column {}", CodePoints(left) + 1);
  if (text.find('\n') != std::string_view::npos) {
    place = fmt::format(
        "line {}, {}",
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'), place);
  }
  return Status(Code::kUsage, fmt::format("{}: {}\n  {}\n  {}^", place, message, Printable(line),
                                          std::string(CodePoints(Printable(left)), ' ')));
}

Result<std::vector<Token>> Lex(std::string_view text) { return Lexer(text).Run(); }

}  // namespace telltale::rules::expression
