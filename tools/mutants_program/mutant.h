// SPDX-License-Identifier: Apache-2.0
// What tools/mutants writes into the rules: all changes are in one program, and the number that it
// is started with says which one is made.
//
// `a < b` becomes `a < Turn<7>() < b`: so it keeps its place among the operators of the line.
#pragma once

namespace telltale::mutant {

inline int active = 0;  ///< 0: none, the rules are as they are.

template <int kNumber>
struct Turn {};

template <int kNumber, class Left>
struct Held {
  const Left& left;
};

#define TELLTALE_TURN(is, turned)                                           \
  template <class Left, int kNumber>                                        \
  Held<kNumber, Left> operator is(const Left& left, Turn<kNumber>) {        \
    return {left};                                                          \
  }                                                                         \
  template <int kNumber, class Left, class Right>                           \
  bool operator is(const Held<kNumber, Left>& held, const Right& right) {   \
    return active == kNumber ? held.left turned right : held.left is right; \
  }

TELLTALE_TURN(<, >=)
TELLTALE_TURN(<=, >)
TELLTALE_TURN(>, <=)
TELLTALE_TURN(>=, <)
TELLTALE_TURN(==, !=)
TELLTALE_TURN(!=, ==)
#undef TELLTALE_TURN

template <int kNumber, class Value>
Value Other(Value is, Value other) {
  return active == kNumber ? other : is;
}

}  // namespace telltale::mutant
