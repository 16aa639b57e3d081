// SPDX-License-Identifier: Apache-2.0
#include "cli/stack_flags.h"

#include <fmt/format.h>

#include <charconv>

#include "stacks/py_spy.h"

namespace telltale::cli {
namespace {

constexpr int kUsualRate = 20;
constexpr int kMostRate = 100;

}  // namespace

void AddStackFlags(CLI::App* command, StackFlags* flags) {
  AddOption(command, "--stacks", flags->rate,
            "Sample the Python stacks of the training and its workers by py-spy, so many times a "
            "second (1 to 100; 20 where no number is given)")
      .MayStandAlone();
  AddFlag(command, "--stacks-native", flags->native,
          "Frames of C and C++ too; the training stands still while a stack is read");
  AddFlag(command, "--stacks-pause", flags->pause,
          "Exact stacks: the training stands still while one is read");
}

Result<std::vector<std::string>> StackArguments(const StackFlags& flags, double overhead) {
  if (flags.rate == "off" && !flags.native && !flags.pause) return std::vector<std::string>();
  int rate = kUsualRate;
  if (flags.rate != "off" && !flags.rate.empty()) {
    const char* const end = flags.rate.data() + flags.rate.size();
    const auto read = std::from_chars(flags.rate.data(), end, rate);
    if (read.ec != std::errc() || read.ptr != end || rate < 1 || rate > kMostRate) {
      return {Code::kUsage, fmt::format("--stacks '{}' is not a number from 1 to {}: write for "
                                        "example --stacks 20",
                                        flags.rate, kMostRate)};
    }
  }
  std::vector<std::string> out = {"--rate", std::to_string(rate), "--overhead",
                                  fmt::format("{}", overhead)};
  if (flags.native) out.emplace_back("--native");
  if (flags.pause) out.emplace_back("--pause");
  return out;
}

std::string WhyNoStacks(const std::string& command) {
  if (stacks::FindPySpy(command).empty()) {
    return "py-spy was not found beside the training's Python, in VIRTUAL_ENV or PATH: pip install "
           "py-spy";
  }
  if (const std::string why = stacks::WhyNotReadable(); !why.empty()) {
    return fmt::format("processes may not be read here ({}): see `telltale doctor`", why);
  }
  return {};
}

}  // namespace telltale::cli
