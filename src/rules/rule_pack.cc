// SPDX-License-Identifier: Apache-2.0
#include "rules/rule_pack.h"

#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "base/printable.h"
#include "rules/expression/parser.h"

namespace telltale::rules {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostFileBytes = 1U << 20U;

Result<std::string> ReadFile(const fs::path& file) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(file, error);
  if (error) {
    return Status(Code::kUnusable, fmt::format("no rules in {}: {}", Printable(file.string()),
                                               error.message()));
  }
  if (bytes > kMostFileBytes) {
    return Status(Code::kUnusable,
                  fmt::format("{} has {} bytes: a rules file has at most {}",
                              Printable(file.string()), bytes, kMostFileBytes));
  }
  std::ifstream in(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) {
    return Status(Code::kUnusable, fmt::format("{} cannot be read", Printable(file.string())));
  }
  return text;
}

/// FILE.py:Class with the file's absolute path; module:Class stays.
Status MakeAbsolute(const fs::path& folder, const fs::path& where, RuleSpec* spec) {
  const auto colon = spec->rule.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == spec->rule.size()) {
    return Status(Code::kUsage,
                  fmt::format("{}: rule {}: python = \"{}\": write FILE.py:Class or module:Class",
                              Printable(where.string()), Printable(spec->name),
                              Printable(spec->rule)));
  }
  const std::string file = spec->rule.substr(0, colon);
  if (!file.ends_with(".py")) return Status();
  std::error_code error;
  const fs::path path = fs::weakly_canonical(folder / file, error);
  if (error || !fs::is_regular_file(path, error)) {
    return Status(Code::kUsage,
                  fmt::format("{}: rule {}: there is no file {}", Printable(where.string()),
                              Printable(spec->name), Printable((folder / file).string())));
  }
  spec->rule = path.string() + spec->rule.substr(colon);
  return Status();
}

}  // namespace

Result<RuleSet> LoadRules(const fs::path& path) {
  std::error_code error;
  const fs::path file = fs::is_directory(path, error) ? path / "rules.toml" : path;
  TELLTALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  TELLTALE_ASSIGN_OR_RETURN(RuleSet set, RuleSetFromToml(text, file.string()));
  const fs::path folder = fs::absolute(file, error).parent_path();
  for (RuleSpec& spec : set.rules) {
    if (spec.source == RuleSource::kPython) {
      TELLTALE_RETURN_IF_ERROR(MakeAbsolute(folder, file, &spec));
    }
    if (spec.source != RuleSource::kExpression) continue;
    const Status parsed = expression::Parse(spec.rule).status();
    if (!parsed.ok()) {
      return Status(parsed.code(),
                    fmt::format("{}: rule {}: {}", Printable(file.string()), Printable(spec.name),
                                parsed.message()));
    }
  }
  return set;
}

}  // namespace telltale::rules
