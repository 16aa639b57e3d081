// SPDX-License-Identifier: Apache-2.0
// The options of subcommands. The parser's header alone costs a file nine seconds of the compiler's
// time: option.cc and what composes (commands.cc, main.cc) see it, subcommands do not.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace telltale::cli {

/// An option as the parser has it, and valid as long as the parser is.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option Required();
  /// Not in the help.
  Option Hidden();
  Option OneOf(std::vector<std::string> words);
  Option Between(int lowest, int highest);
  Option Between(unsigned lowest, unsigned highest);
  Option Between(double lowest, double highest);
  Option NotNegative();
  /// What the help calls its default.
  Option Default(std::string words);
  /// One argument holds several values.
  Option SeparatedBy(char mark);
  /// May be given without a value, which then is empty.
  Option MayStandAlone();
  /// Takes one argument each time that it is given; may be given again.
  Option OneEach();

  bool given() const;

 private:
  CLI::Option* option_;
};

/// Adds an option that writes to `value`, which outlives the parser. T: those listed in option.cc.
template <class T>
Option AddOption(CLI::App* command, std::string name, T& value, std::string help);
Option AddFlag(CLI::App* command, std::string name, bool& value, std::string help);
/// Calls `given` where it is given.
Option AddFlag(CLI::App* command, std::string name, std::function<void()> given, std::string help);

}  // namespace telltale::cli
