// SPDX-License-Identifier: Apache-2.0
#include "cli/option.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <utility>

namespace telltale::cli {

Option Option::Required() { return Option(option_->required()); }
Option Option::Hidden() { return Option(option_->group("")); }
Option Option::OneOf(std::vector<std::string> words) {
  return Option(option_->check(CLI::IsMember(std::move(words))));
}
Option Option::Between(int lowest, int highest) {
  return Option(option_->check(CLI::Range(lowest, highest)));
}
Option Option::Between(unsigned lowest, unsigned highest) {
  return Option(option_->check(CLI::Range(lowest, highest)));
}
Option Option::Between(double lowest, double highest) {
  return Option(option_->check(CLI::Range(lowest, highest)));
}
Option Option::NotNegative() { return Option(option_->check(CLI::NonNegativeNumber)); }
Option Option::Default(std::string words) { return Option(option_->default_str(std::move(words))); }
Option Option::SeparatedBy(char mark) { return Option(option_->delimiter(mark)); }
Option Option::OneEach() { return Option(option_->take_all()->allow_extra_args(false)); }
Option Option::MayStandAlone() { return Option(option_->expected(0, 1)); }
bool Option::given() const { return option_->count() > 0; }

template <class T>
Option AddOption(CLI::App* command, std::string name, T& value, std::string help) {
  return Option(command->add_option(std::move(name), value, std::move(help)));
}

Option AddFlag(CLI::App* command, std::string name, bool& value, std::string help) {
  return Option(command->add_flag(std::move(name), value, std::move(help)));
}

Option AddFlag(CLI::App* command, std::string name, std::function<void()> given, std::string help) {
  return Option(command->add_flag_callback(std::move(name), std::move(given), std::move(help)));
}

#define TELLTALE_OPTION_OF(...) \
  template Option AddOption(CLI::App*, std::string, __VA_ARGS__&, std::string)
TELLTALE_OPTION_OF(bool);
TELLTALE_OPTION_OF(int);
TELLTALE_OPTION_OF(std::int64_t);
TELLTALE_OPTION_OF(std::uint64_t);
TELLTALE_OPTION_OF(std::uint16_t);
TELLTALE_OPTION_OF(std::optional<std::int64_t>);
TELLTALE_OPTION_OF(double);
TELLTALE_OPTION_OF(std::string);
TELLTALE_OPTION_OF(std::vector<std::string>);
#undef TELLTALE_OPTION_OF

}  // namespace telltale::cli
