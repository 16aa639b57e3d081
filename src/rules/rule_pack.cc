// SPDX-License-Identifier: Apache-2.0
#include "rules/rule_pack.h"

#include <fmt/format.h>

#include <string>
#include <system_error>

#include "base/printable.h"
#include "rules/expression/parser.h"

namespace telltale::rules {
namespace {

namespace fs = std::filesystem;

/// FILE.py:Class with the file's absolute path; module:Class stays.
Status MakeAbsolute(const fs::path& folder, const fs::path& where, RuleSpec* spec) {
  const auto colon = spec->rule.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == spec->rule.size()) {
    return Status(
        Code::kUsage,
        fmt::format("{}: rules.{}.python '{}': write FILE.py:Class or module:Class",
                    Printable(where.string()), Printable(spec->name), Printable(spec->rule)));
  }
  const std::string file = spec->rule.substr(0, colon);
  if (!file.ends_with(".py")) return Status();
  std::error_code error;
  const fs::path path = fs::weakly_canonical(folder / file, error);
  if (error || !fs::is_regular_file(path, error)) {
    return Status(Code::kUsage,
                  fmt::format("{}: rules.{}.python: there is no file {}", Printable(where.string()),
                              Printable(spec->name), Printable((folder / file).string())));
  }
  spec->rule = path.string() + spec->rule.substr(colon);
  return Status();
}

}  // namespace

fs::path RulesFileOf(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) ? path / "rules.toml" : path;
}

Status CompleteRules(const fs::path& file, RuleSet* set) {
  std::error_code error;
  const fs::path folder = fs::absolute(file, error).parent_path();
  for (RuleSpec& spec : set->rules) {
    if (spec.source == RuleSource::kPython) {
      TELLTALE_RETURN_IF_ERROR(MakeAbsolute(folder, file, &spec));
    }
    if (spec.source != RuleSource::kExpression) continue;
    const auto parsed = expression::Parse(spec.rule);
    if (!parsed.ok()) {
      // An error is one line; its place is in the first, below it stand the expression and a caret.
      const std::string& what = parsed.status().message();
      return Status(
          parsed.status().code(),
          fmt::format("{}: rules.{}.expression: {}: {}", Printable(file.string()),
                      Printable(spec.name), what.substr(0, what.find('\n')), Printable(spec.rule)));
    }
  }
  return Status();
}

}  // namespace telltale::rules
