// SPDX-License-Identifier: Apache-2.0
// Rules files and packs: what they name is found beside them, and what is wrong is refused at once.
#include "rules/rule_pack.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "rules/rule_set.h"
#include "store/store_testing.h"

namespace telltale::rules {
namespace {

namespace fs = std::filesystem;

class RulePackTest : public ::testing::Test {
 protected:
  /// The set of a pack's rules.toml with this text, completed.
  Result<RuleSet> Complete(const std::string& text) {
    const fs::path file = RulesFileOf(folder_.path());
    std::ofstream(file) << text;
    TELLTALE_ASSIGN_OR_RETURN(RuleSet set, RuleSetFromToml(text, file.string()));
    TELLTALE_RETURN_IF_ERROR(CompleteRules(file, &set));
    return set;
  }

  store::TempFolder folder_;
};

TEST_F(RulePackTest, AFolderMeansItsRulesFileAndAFileItself) {
  EXPECT_EQ(RulesFileOf(folder_.path()), folder_.path() / "rules.toml");
  EXPECT_EQ(RulesFileOf(folder_.path() / "mine.toml"), folder_.path() / "mine.toml");
}

TEST_F(RulePackTest, PythonFilesAreThoseBesideTheRulesFile) {
  std::ofstream(folder_.path() / "mine.py") << "class Mine: pass\n";
  const auto set = Complete(
      "[rules.a]\npython = \"mine.py:Mine\"\n"
      "[rules.b]\npython = \"pack.module:Other\"\n");
  ASSERT_TRUE(set.ok()) << set.status().message();
  for (const RuleSpec& spec : set->rules) {
    EXPECT_EQ(spec.rule, spec.name == "a"
                             ? (fs::canonical(folder_.path()) / "mine.py").string() + ":Mine"
                             : std::string("pack.module:Other"));
  }
  EXPECT_EQ(set->rules.size(), 2U);
}

TEST_F(RulePackTest, WhatCannotBeFoundIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"other.py:Mine", "other.py"},
      {"mine.py", "FILE.py:Class"},
      {"mine.py:", "FILE.py:Class"},
      {":Mine", "FILE.py:Class"},
  };
  for (const auto& [python, word] : cases) {
    const auto set = Complete("[rules.own]\npython = \"" + python + "\"\n");
    ASSERT_FALSE(set.ok()) << python;
    EXPECT_EQ(set.status().code(), Code::kUsage) << python;
    EXPECT_NE(set.status().message().find("own"), std::string::npos) << set.status().message();
    EXPECT_NE(set.status().message().find(word), std::string::npos) << set.status().message();
  }
}

TEST_F(RulePackTest, AWrongExpressionIsRefusedWithItsPlace) {
  const auto set = Complete("[rules.idle]\nexpression = \"avg(cpu.busy, 1m) > 3\"\n");
  ASSERT_FALSE(set.ok());
  EXPECT_EQ(set.status().code(), Code::kUsage);
  EXPECT_NE(set.status().message().find("idle"), std::string::npos) << set.status().message();
  EXPECT_NE(set.status().message().find("column 1"), std::string::npos) << set.status().message();
  EXPECT_NE(set.status().message().find("avg(cpu.busy, 1m) > 3"), std::string::npos);
  EXPECT_EQ(set.status().message().find('\n'), std::string::npos) << "it is one line";
  EXPECT_TRUE(Complete("[rules.idle]\nexpression = \"mean(cpu.busy, 1m) > 3\"\n").ok());
}

}  // namespace
}  // namespace telltale::rules
