// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/secret.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/printable.h"
#include "rules/actions/kinds.h"

namespace telltale::rules {
namespace {

constexpr std::size_t kMaxBytes = 16U << 10;

}  // namespace

Result<std::string> Secret(const ActionSpec& spec, std::string_view prefix) {
  const std::string of_file = fmt::format("{}_file", prefix);
  const std::string of_variable = fmt::format("{}_env", prefix);
  std::string where;
  std::string text;
  if (const std::string file = ActionText(spec, of_file); !file.empty()) {
    where = fmt::format("{} '{}'", of_file, Printable(file));
    std::ifstream in(file, std::ios::binary);
    text.resize(kMaxBytes);
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (in.bad() || (in.fail() && !in.eof())) {
      return Status(Code::kUsage, fmt::format("action {}: {} cannot be read", spec.kind, where));
    }
    text.resize(static_cast<std::size_t>(in.gcount()));
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  } else if (const std::string variable = ActionText(spec, of_variable); !variable.empty()) {
    where = fmt::format("{} '{}'", of_variable, Printable(variable));
    const char* value = std::getenv(variable.c_str());
    if (value != nullptr) text = value;
  }
  if (std::any_of(text.begin(), text.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) {
    return Status(Code::kUsage,
                  fmt::format("action {}: what {} names holds a line break or another control "
                              "character",
                              spec.kind, where));
  }
  return text;
}

std::string TextOrVariable(const ActionSpec& spec, std::string_view name,
                           std::initializer_list<const char*> variables) {
  std::string text = ActionText(spec, name);
  for (const char* variable : variables) {
    if (!text.empty()) break;
    if (const char* value = std::getenv(variable)) text = value;
  }
  return text;
}

}  // namespace telltale::rules
