// SPDX-License-Identifier: Apache-2.0
// The words of an expression, each with its place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::rules::expression {

enum class TokenKind : std::uint8_t {
  kEnd,
  kNumber,    ///< `number` and the unit that stands directly behind it in `text`.
  kWord,      ///< A name: of a metric, a function, or a word of the language.
  kSelector,  ///< `text` is what stands before the colon, `name` what stands behind it.
  kSubject,   ///< What stands in [ ].
  kLabels,    ///< What stands in { }.
  kSign,      ///< ( ) , + - * / < <= > >= == !=
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::size_t at = 0;   ///< First byte.
  std::size_t end = 0;  ///< Behind the last.
  std::string text;
  std::string name;
  double number = 0;
};

/// The tokens, kEnd last. kUsage: what is no word of the language, with its place.
Result<std::vector<Token>> Lex(std::string_view text);

/// kUsage with the column, the line and a caret under the place:
///   column 4: no function 'avg': write mean, min, ...
///     avg(cpu.busy, 1m) > 3
///     ^
Status WrongAt(std::string_view text, std::size_t at, std::string_view message);

}  // namespace telltale::rules::expression
