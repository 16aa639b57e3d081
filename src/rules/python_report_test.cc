// SPDX-License-Identifier: Apache-2.0
// What a rule in another process may say, and what is no report.
#include "rules/python_report.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "rules/rule.h"

namespace telltale::rules {
namespace {

using Kind = PythonReport::Kind;

TEST(PythonReportTest, AReportIsAnIncident) {
  const auto report = ParsePythonReport(
      R"({"report": {"subject": "loss", "severity": "high", "message": "m", "cause": "c",
          "advice": "a", "first_step": 3, "last_step": 9, "start_ns": 10, "end_ns": 20,
          "cost_seconds": 1.5, "confidence": 0.25, "evidence": {"loss": 3, "of": "NaN"}}})");
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->kind, Kind::kReport);
  const Incident& incident = report->incident;
  EXPECT_EQ(incident.subject, "loss");
  EXPECT_EQ(incident.severity, Severity::kHigh);
  EXPECT_EQ(incident.message, "m");
  EXPECT_EQ(incident.cause, "c");
  EXPECT_EQ(incident.advice, "a");
  EXPECT_EQ(incident.first_step, 3);
  EXPECT_EQ(incident.last_step, 9);
  EXPECT_EQ(incident.start_ns, 10);
  EXPECT_EQ(incident.end_ns, 20);
  EXPECT_EQ(incident.cost_seconds, 1.5);
  EXPECT_EQ(incident.confidence, 0.25);
  EXPECT_EQ(incident.evidence, R"({"loss":3,"of":"NaN"})");
}

TEST(PythonReportTest, WhatIsLeftOutHasItsDefaultAndNumbersStayWhereTheyMakeSense) {
  const auto report =
      ParsePythonReport(R"({"report":{"subject":"s","cost_seconds":-4,"confidence":7}})");
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->incident.severity, Severity::kLow);
  EXPECT_EQ(report->incident.evidence, "{}");
  EXPECT_EQ(report->incident.cost_seconds, 0);
  EXPECT_EQ(report->incident.confidence, 1);
  EXPECT_EQ(report->incident.first_step, -1);
  const auto beyond = ParsePythonReport(
      R"({"report":{"subject":"s","first_step":-9,"last_step":9223372036854775807,
          "start_ns":-9223372036854775808,"end_ns":18446744073709551615}})");
  ASSERT_TRUE(beyond.ok()) << beyond.status().message();
  EXPECT_EQ(beyond->incident.first_step, format::kStepBound.least);
  EXPECT_EQ(beyond->incident.last_step, format::kStepBound.most);
  EXPECT_EQ(beyond->incident.start_ns, format::kTimeBound.least);
  EXPECT_EQ(beyond->incident.end_ns, format::kTimeBound.most);
}

TEST(PythonReportTest, TheOtherKinds) {
  EXPECT_EQ(ParsePythonReport(R"({"done":{}})")->kind, Kind::kDone);
  const auto close = ParsePythonReport(R"({"close":{"subject":"s"}})");
  ASSERT_TRUE(close.ok());
  EXPECT_EQ(close->kind, Kind::kClose);
  EXPECT_EQ(close->incident.subject, "s");
  EXPECT_EQ(ParsePythonReport(R"({"recover":{"subject":"s"}})")->kind, Kind::kRecover);
  const auto error = ParsePythonReport(R"({"error":{"text":"ValueError: no"}})");
  ASSERT_TRUE(error.ok());
  EXPECT_EQ(error->kind, Kind::kError);
  EXPECT_EQ(error->error, "ValueError: no");
  const auto ready = ParsePythonReport(
      R"({"ready":{"tables":["steps","spans"],"summary":"s","advice":"a","wrong_result":true}})");
  ASSERT_TRUE(ready.ok());
  EXPECT_EQ(ready->kind, Kind::kReady);
  EXPECT_EQ(ready->tables, (std::vector<std::string>{"steps", "spans"}));
  EXPECT_EQ(ready->summary, "s");
  EXPECT_EQ(ready->advice, "a");
  EXPECT_TRUE(ready->wrong_result);
}

TEST(PythonReportTest, WhatIsNoReportIsSaidSo) {
  for (const char* line : {
           "",
           "hello",
           "[]",
           "{}",
           "null",
           R"({"report":{"subject":"s"},"done":{}})",
           R"({"report":[]})",
           R"({"report":{}})",
           R"({"report":{"subject":""}})",
           R"({"report":{"subject":7}})",
           R"({"report":{"subject":"s","severity":"awful"}})",
           R"({"report":{"subject":"s","first_step":1.5}})",
           R"({"report":{"subject":"s","cost_seconds":"much"}})",
           R"({"report":{"subject":"s","cost_seconds":NaN}})",
           R"({"report":{"subject":"s","evidence":[1]}})",
           R"({"close":{}})",
           R"({"ready":{}})",
           R"({"ready":{"tables":[1]}})",
           R"({"stop":{"subject":"s"}})",
           R"({"report":{"subject":"s"})",
       }) {
    const auto report = ParsePythonReport(line);
    ASSERT_FALSE(report.ok()) << line;
    EXPECT_EQ(report.status().code(), Code::kUnusable) << line;
    EXPECT_NE(report.status().message().find("no report"), std::string::npos) << line;
  }
}

TEST(PythonReportTest, TextsHaveAnEnd) {
  const auto with = [](const std::string& key, std::size_t bytes) {
    const std::string text(bytes, 'x');
    const std::string subject = key == "subject" ? text : std::string("s");
    const std::string more = key == "subject"    ? std::string()
                             : key == "evidence" ? R"(,"evidence":{"x":")" + text + "\"}"
                                                 : ",\"" + key + "\":\"" + text + "\"";
    return ParsePythonReport(R"({"report":{"subject":")" + subject + "\"" + more + "}}").ok();
  };
  EXPECT_TRUE(with("subject", 200));
  EXPECT_FALSE(with("subject", 201));
  for (const char* key : {"message", "cause", "advice"}) {
    EXPECT_TRUE(with(key, 4096)) << key;
    EXPECT_FALSE(with(key, 4097)) << key;
  }
  EXPECT_TRUE(with("evidence", 65'000));
  EXPECT_FALSE(with("evidence", 65'600));
}

}  // namespace
}  // namespace telltale::rules
