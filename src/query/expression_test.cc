// SPDX-License-Identifier: Apache-2.0
#include "query/expression.h"

#include <gtest/gtest.h>

#include <limits>

namespace telltale::query {
namespace {

class ExpressionTest : public ::testing::Test {
 protected:
  bool Matches(std::string_view text) {
    const auto expression = Expression::Parse(text, table_);
    EXPECT_TRUE(expression.ok()) << expression.status().message();
    return expression.ok() && (*expression)->Matches({"agent-a", &row_});
  }
  std::string Error(std::string_view text) {
    const auto expression = Expression::Parse(text, table_);
    EXPECT_FALSE(expression.ok()) << text;
    EXPECT_EQ(expression.status().code(), Code::kUsage);
    return expression.status().message();
  }

  Table table_{format::TableId::kSteps};
  format::StepRow row_{.seq = 18'446'744'073'709'551'615U,
                       .duration_ns = 250,
                       .step = -3,
                       .mode = "TRAIN",
                       .skipped = true};
};

TEST_F(ExpressionTest, ComparesNumbersByValue) {
  EXPECT_TRUE(Matches("duration_ns = 250"));
  EXPECT_TRUE(Matches("duration_ns == 2.5e2"));
  EXPECT_TRUE(Matches("duration_ns<>251 and duration_ns!=249"));
  EXPECT_TRUE(Matches("duration_ns > 249.5"));
  EXPECT_FALSE(Matches("duration_ns >= 250.5"));
  EXPECT_TRUE(Matches("step < 0"));
  EXPECT_TRUE(Matches("step < seq"));  // Signed against unsigned.
  EXPECT_TRUE(Matches("seq = 18446744073709551615"));
  EXPECT_FALSE(Matches("seq = 18446744073709551614"));
  EXPECT_TRUE(Matches("step = -3"));
  EXPECT_TRUE(Matches("250 <= duration_ns"));
}

TEST_F(ExpressionTest, ComparesTextsAndBools) {
  EXPECT_TRUE(Matches("mode = 'TRAIN'"));
  EXPECT_FALSE(Matches("mode = 'it''s'"));
  EXPECT_TRUE(Matches("writer = 'agent-a'"));
  EXPECT_TRUE(Matches("skipped"));
  EXPECT_TRUE(Matches("skipped = TRUE"));
  EXPECT_FALSE(Matches("not skipped"));
}

TEST_F(ExpressionTest, CombinesWithPrecedence) {
  EXPECT_TRUE(Matches("step = 1 and step = 2 or skipped"));
  EXPECT_FALSE(Matches("step = 1 and (step = 2 or skipped)"));
  EXPECT_TRUE(Matches("NOT step = 1 AND NOT NOT skipped"));
}

TEST_F(ExpressionTest, KnowsInAndLike) {
  EXPECT_TRUE(Matches("mode in ('EVAL', 'TRAIN')"));
  EXPECT_TRUE(Matches("mode not in ('EVAL')"));
  EXPECT_TRUE(Matches("step in (1, -3.0)"));
  EXPECT_TRUE(Matches("mode like 'TR%'"));
  EXPECT_TRUE(Matches("mode like '%'"));
  EXPECT_TRUE(Matches("mode like '%A%N'"));
  EXPECT_FALSE(Matches("mode like '%N%N'"));  // A piece counts once.
  EXPECT_FALSE(Matches("mode like 'TRAI_'"));
  EXPECT_TRUE(Matches("mode not like 'EVAL'"));
}

TEST_F(ExpressionTest, NanIsUnequalToAll) {
  const Table scalars(format::TableId::kScalars);
  const format::ScalarRow row{.value = std::numeric_limits<double>::quiet_NaN()};
  for (const auto& [text, expected] : {std::pair{"value != value", true},
                                       {"value = value", false},
                                       {"value < 1", false},
                                       {"value >= 1", false}}) {
    EXPECT_EQ((*Expression::Parse(text, scalars))->Matches({"w", &row}), expected) << text;
  }
}

TEST_F(ExpressionTest, SaysWhatIsWrongAndWhere) {
  EXPECT_EQ(Error("step = "), "--where 'step = ': character 8: a column or value was expected");
  EXPECT_NE(Error("stepp = 1").find("character 1: no column 'stepp': choose among writer, seq"),
            std::string::npos);
  EXPECT_NE(Error("step = 'a'").find("character 6: a number cannot be compared with text"),
            std::string::npos);
  EXPECT_NE(Error("mode = 'a").find("character 8: the text has no closing quote"),
            std::string::npos);
  EXPECT_NE(Error("step = 1 step").find("character 10: 'step' was not expected"),
            std::string::npos);
  EXPECT_NE(Error("(step = 1").find("')' was expected"), std::string::npos);
  EXPECT_NE(Error("step").find("a comparison was expected"), std::string::npos);
  EXPECT_NE(Error("step like 'x'").find("'like' needs a column that holds text"),
            std::string::npos);
  EXPECT_NE(Error("step = 1e").find("'1e' is no number"), std::string::npos);
  EXPECT_NE(Error("mode in ()").find("a column or value was expected, not ')'"), std::string::npos);
  EXPECT_NE(Error(std::string(100'000, '(')).find("nested too deeply"), std::string::npos);
  Error("");
  Error("and");
  Error("mode not = 'x'");
  Error(";drop");
}

}  // namespace
}  // namespace telltale::query
