// SPDX-License-Identifier: Apache-2.0
#include "cli/junit.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace telltale::cli {
namespace {

rules::Finding Fired(const std::string& rule, rules::Severity severity) {
  rules::Finding out;
  out.rule = rule;
  out.incident.severity = severity;
  out.incident.message = "It is <bad> & \"worse\"";
  out.incident.subject = "rank 0";
  out.incident.cause = "because\x01";
  return out;
}

rules::RuleState State(const std::string& name, rules::RuleStatus status) {
  rules::RuleState out;
  out.name = name;
  out.status = status;
  return out;
}

TEST(JUnitTest, ARuleIsACaseAndAFindingAboveTheLimitAFailure) {
  report::RunData data;
  data.replay.findings = {Fired("A", rules::Severity::kHigh), Fired("A", rules::Severity::kMedium),
                          Fired("B", rules::Severity::kLow), Fired("X", rules::Severity::kMedium)};
  data.replay.rules = {
      State("A", rules::RuleStatus::kIssuesFound), State("B", rules::RuleStatus::kIssuesFound),
      State("C", rules::RuleStatus::kNoIssuesFound), State("D", rules::RuleStatus::kNoData),
      State("E", rules::RuleStatus::kError)};
  data.replay.rules[3].missing = "no loss was recorded";
  const std::vector<JUnitCase> cases = CasesOf(data, rules::Severity::kMedium);
  ASSERT_EQ(cases.size(), 6U);
  EXPECT_NE(cases[0].failure.find("and 1 more"), std::string::npos) << cases[0].failure;
  EXPECT_TRUE(cases[1].failure.empty());
  EXPECT_FALSE(cases[1].text.empty()) << "below the limit: told, not failed";
  EXPECT_TRUE(cases[2].failure.empty() && cases[2].text.empty());
  EXPECT_EQ(cases[3].skipped, "no data: no loss was recorded");
  EXPECT_FALSE(cases[4].error.empty());
  EXPECT_EQ(cases[5].name, "X") << "a rule without a state";
  EXPECT_TRUE(CasesOf(data, rules::Severity::kHigh)[5].failure.empty());

  const std::string xml = JUnitXml("check <train>", cases);
  EXPECT_NE(xml.find("tests=\"6\" failures=\"2\" errors=\"1\" skipped=\"1\""), std::string::npos)
      << xml;
  EXPECT_NE(xml.find("name=\"check &lt;train&gt;\""), std::string::npos) << xml;
  EXPECT_NE(xml.find("It is &lt;bad&gt; &amp; &quot;worse&quot;"), std::string::npos) << xml;
  EXPECT_EQ(xml.find('\x01'), std::string::npos);
}

TEST(JUnitTest, FindingsThatAreNotInTheListAreCounted) {
  report::RunData data;
  data.replay.findings = {Fired("A", rules::Severity::kHigh)};
  data.replay.rules = {State("A", rules::RuleStatus::kIssuesFound)};
  data.replay.rules[0].incidents = 8;
  EXPECT_EQ(CasesOf(data, rules::Severity::kMedium)[0].text.find("more"), std::string::npos)
      << "one list has them all";
  data.replay.findings_left_out = 7;
  const std::string text = CasesOf(data, rules::Severity::kMedium)[0].text;
  EXPECT_NE(text.find("and 7 more\n"), std::string::npos) << text;
}

TEST(JUnitTest, AFileThatCannotBeWrittenIsAnError) {
  EXPECT_EQ(WriteJUnit("/no/such/folder/x.xml", "<a/>").code(), Code::kIo);
}

}  // namespace
}  // namespace telltale::cli
