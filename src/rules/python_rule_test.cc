// SPDX-License-Identifier: Apache-2.0
// The side of a rule in Python that feeds it: what it says is taken at a place of the order, and
// one that does what none may is suspended and leaves nothing open. A shell script plays the host;
// tests/python/test_rule_host.py has the true one, tests/rules/python_*.test both together.
#include "rules/python_rule.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "base/units.h"
#include "format/records.gen.h"
#include "rules/engine.h"
#include "rules/rule_set.h"
#include "store/reader.h"
#include "store/store_testing.h"

namespace telltale::rules {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReady =
    R"(echo '{"ready":{"tables":["scalars"],"summary":"s","advice":"a"}}' >&3)";
/// Answers an end and takes what binds it.
constexpr const char* kRest = "*'\"end\"'*) echo '{\"done\":{}}' >&3;; *) ;;";

class PythonRuleTest : public ::testing::Test {
 protected:
  RuleSpec Spec(const std::string& script) {
    const fs::path file = folder_.path() / "python";
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(file, fs::perms::owner_all);
    RuleSpec spec{.name = "mine", .source = RuleSource::kPython, .rule = "mine.py:Mine"};
    spec.parameters["host_python"] = file.string();
    spec.parameters["host_seconds"] = "600";
    return spec;
  }

  /// A host that does `on_rows` with each batch of records.
  RuleSpec Host(const std::string& on_rows) {
    return Spec(std::string(kReady) +
                "\nn=0\nwhile IFS= read -r line <&3; do\ncase \"$line\" in\n" +
                "*'\"rows\"'*) n=$((n + 1)); " + on_rows + ";;\n" + kRest + "\nesac\ndone");
  }

  void Start(const RuleSpec& spec) {
    RuleSet set;
    set.defaults = false;
    set.rules.push_back(spec);
    auto engine = Engine::Create(set, [](const RuleSpec& one) { return MakePythonRule(one, {}); });
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::make_unique<Engine>(std::move(engine).value());
    engine_->Bind({nullptr, "the run"});
  }

  void Scalar(std::int64_t seconds, double value = 3.5) {
    format::ScalarRow row;
    row.ord_ns = row.time_ns = seconds * kSecond;
    row.name = "loss";
    row.value = value;
    row.step = seconds;
    row.mode = "TRAIN";
    row.attempt = 1;
    engine_->Feed({row.ord_ns, 0, format::ScalarRow::kTable, &row});
  }

  void Metric(std::int64_t seconds) {
    format::MetricRow row;
    row.ord_ns = row.time_ns = seconds * kSecond;
    row.subject = "node";
    row.name = "cpu.user";
    engine_->Feed({row.ord_ns, 0, format::MetricRow::kTable, &row});
  }

  RuleState State() const { return engine_->rule_states().at(0); }

  /// Feeds batches until it is suspended, and says why.
  std::string Suspension(std::int64_t from = 1) {
    for (std::int64_t s = from; s < from + 5; ++s) Scalar(s);
    EXPECT_EQ(State().status, RuleStatus::kSuspended) << State().error;
    for (const Finding& finding : engine_->findings()) EXPECT_FALSE(finding.open);
    const std::size_t findings = engine_->findings().size();
    // It is given nothing more, and says nothing.
    const auto records = State().records;
    Scalar(from + 10);
    engine_->End();
    EXPECT_EQ(State().records, records);
    EXPECT_EQ(engine_->findings().size(), findings);
    EXPECT_EQ(State().status, RuleStatus::kSuspended);
    return State().error;
  }

  static std::string Report(const std::string& subject, const std::string& more = {}) {
    return R"(echo '{"report":{"subject":")" + subject + "\"" + more + "}}' >&3; ";
  }
  static std::string Done() { return R"(echo '{"done":{}}' >&3)"; }

  store::TempFolder folder_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(PythonRuleTest, WhatItSaysOfABatchIsTakenWhenTheNextOneBegins) {
  Start(Host(Report("loss", R"(,"severity":"high","evidence":{"loss":3})") + Done()));
  EXPECT_EQ(State().status, RuleStatus::kNoData);
  Scalar(1);
  Scalar(2);  // The batch of the first second is sent.
  EXPECT_TRUE(engine_->findings().empty());
  Scalar(3);
  ASSERT_EQ(engine_->findings().size(), 1U);
  const Finding& finding = engine_->findings()[0];
  EXPECT_TRUE(finding.open);
  EXPECT_EQ(finding.rule, "mine");
  EXPECT_EQ(finding.incident.subject, "loss");
  EXPECT_EQ(finding.incident.severity, Severity::kHigh);
  EXPECT_EQ(finding.incident.message, "mine");
  EXPECT_EQ(finding.incident.cause, "cause not found");
  EXPECT_EQ(finding.incident.advice, "a");
  EXPECT_EQ(State().status, RuleStatus::kIssuesFound);
  engine_->End();
  EXPECT_FALSE(engine_->findings()[0].open);
  EXPECT_TRUE(engine_->findings()[0].until_end);
}

TEST_F(PythonRuleTest, WhatItSaysOfTheLastBatchAndAtTheEndIsTaken) {
  Start(Spec(std::string(kReady) + "\nwhile IFS= read -r line <&3; do\ncase \"$line\" in\n" +
             "*'\"rows\"'*) " + Report("rows") + Done() + ";;\n*'\"end\"'*) " + Report("end") +
             Done() + ";;\nesac\ndone"));
  Scalar(1);
  engine_->End();
  ASSERT_EQ(engine_->findings().size(), 2U);
  EXPECT_EQ(engine_->findings()[0].incident.subject, "rows");
  EXPECT_EQ(engine_->findings()[1].incident.subject, "end");
}

TEST_F(PythonRuleTest, ItSaysItselfWhetherTheResultIsWrong) {
  Start(Host(Report("loss") + Done()));
  EXPECT_FALSE(State().wrong_result);
  const std::string ready = R"({"ready":{"tables":["scalars"],"wrong_result":true}})";
  Start(Spec("echo '" + ready + "' >&3; exec sleep 1000"));
  EXPECT_TRUE(State().wrong_result);
}

TEST_F(PythonRuleTest, WhereItsTablesAreSilentMetricsAreTheClock) {
  Start(Host(Report("loss") + Done()));
  Scalar(1);
  Metric(2);
  EXPECT_TRUE(engine_->findings().empty());
  Metric(3);
  EXPECT_EQ(engine_->findings().size(), 1U);
}

TEST_F(PythonRuleTest, ItIsGivenNaNAsPythonReadsIt) {
  Start(Host("case \"$line\" in *'\"value\":NaN'*) " + Report("nan") + ":;; esac; " + Done()));
  Scalar(1);
  Scalar(2);
  Scalar(3);
  EXPECT_TRUE(engine_->findings().empty());
  Scalar(4, std::numeric_limits<double>::quiet_NaN());
  engine_->End();
  EXPECT_EQ(engine_->findings().size(), 1U);
}

TEST_F(PythonRuleTest, ManyReportsOfOneBatchAreOneRevision) {
  Start(Host(Report("loss", R"(,"cause":"one")") + Report("loss", R"(,"cause":"two")") +
             Report("loss", R"(,"cause":"three")") + Done()));
  Scalar(1);
  Scalar(2);
  Scalar(3);
  ASSERT_EQ(engine_->findings().size(), 1U);
  EXPECT_EQ(engine_->findings()[0].incident.cause, "three");
  EXPECT_EQ(engine_->findings()[0].revision, 2U);  // That it opened, and how it stands.
}

TEST_F(PythonRuleTest, WhatIsClosedStaysClosedAndMayComeAgain) {
  const std::string recover = R"(echo '{"recover":{"subject":"loss","end_ns":7}}' >&3; )";
  Start(Host(Report("loss") + Report("loss", R"(,"cause":"last")") + recover + recover + Done()));
  engine_->SettleAtOnce();
  Scalar(1);
  Scalar(2);
  Scalar(3);
  ASSERT_EQ(engine_->findings().size(), 1U);
  EXPECT_FALSE(engine_->findings()[0].open);
  EXPECT_EQ(engine_->findings()[0].incident.cause, "last");
  EXPECT_EQ(engine_->findings()[0].incident.end_ns, 7);
  engine_->End();
  // One a batch; each was over by itself.
  EXPECT_EQ(engine_->findings().size(), 3U);
  for (const Finding& finding : engine_->findings()) EXPECT_FALSE(finding.until_end);
}

TEST_F(PythonRuleTest, OneThatHangsIsSuspendedAndItsIncidentClosed) {
  RuleSpec spec = Host("[ $n -gt 1 ] && exec sleep 1000; " + Report("loss") + Done());
  spec.parameters["host_seconds"] = "5";
  Start(spec);
  EXPECT_NE(Suspension().find("longer than 5 s"), std::string::npos) << State().error;
  EXPECT_EQ(engine_->findings().size(), 1U);
}

TEST_F(PythonRuleTest, WhatItSaidOfTheBatchInWhichItWentWrongDoesNotCount) {
  for (const char* wrong : {"exit 3", R"(echo '{"error":{"text":"ValueError"}}' >&3)",
                            "echo hello >&3", "kill -9 $$"}) {
    Start(Host(Report("loss", R"(,"severity":"high")") + wrong));
    Suspension();
    EXPECT_TRUE(engine_->findings().empty()) << wrong;
    EXPECT_TRUE(engine_->TakeRevisions().empty()) << wrong;
  }
}

TEST_F(PythonRuleTest, OneThatEndsIsSuspendedWithItsExitCode) {
  Start(Host("exit 3"));
  EXPECT_NE(Suspension().find("exit code 3"), std::string::npos) << State().error;
}

TEST_F(PythonRuleTest, OneThatTheKernelEndsForItsProcessorTimeIsSuspended) {
  Start(Host("kill -XCPU $$"));
  EXPECT_NE(Suspension().find("processor time"), std::string::npos) << State().error;
}

TEST_F(PythonRuleTest, OneThatRaisesIsSuspendedWithItsWords) {
  Start(Host(R"sh(echo '{"error":{"text":"ValueError: no such tensor (mine.py:7)"}}' >&3)sh"));
  EXPECT_EQ(Suspension(), "ValueError: no such tensor (mine.py:7)");
}

TEST_F(PythonRuleTest, OneThatWritesWhatIsNoReportIsSuspended) {
  Start(Host("echo hello >&3"));
  EXPECT_NE(Suspension().find("no report: 'hello'"), std::string::npos) << State().error;
}

TEST_F(PythonRuleTest, OneThatReportsWithoutAnEndIsSuspended) {
  Start(Host("while :; do " + Report("loss") + "done"));
  EXPECT_NE(Suspension().find("without an end"), std::string::npos) << State().error;
}

TEST_F(PythonRuleTest, OneThatFillsTheWatchersMemoryIsSuspended) {
  // 300 incidents with 60 kB of evidence each.
  Start(
      Host("big=$(head -c 60000 /dev/zero | tr '\\0' x); i=0; while [ $i -lt 300 ]; do "
           "i=$((i + 1)); printf '{\"report\":{\"subject\":\"s%s\",\"evidence\":{\"x\":\"%s\"}}}"
           "\\n' $i $big >&3; done; " +
           Done()));
  EXPECT_NE(Suspension().find("MiB of text"), std::string::npos) << State().error;
  EXPECT_LT(engine_->findings().size(), 300U);
}

TEST_F(PythonRuleTest, OneThatCannotBeMadeIsInTheEngineWithItsError) {
  Start(Spec(R"(echo '{"error":{"text":"mine.py has no class Mine"}}' >&3)"));
  EXPECT_EQ(State().status, RuleStatus::kError);
  EXPECT_EQ(State().error, "mine.py has no class Mine");
  Scalar(1);
  engine_->End();
  EXPECT_TRUE(engine_->findings().empty());
}

TEST_F(PythonRuleTest, WhatMakesNoSenseIsAUsageError) {
  const auto error = [](const RuleSpec& spec) {
    const auto made = MakePythonRule(spec, {});
    EXPECT_EQ(made.status().code(), Code::kUsage);
    return made.status().message();
  };
  EXPECT_NE(error(Spec("exit 7")).find("exit code 7"), std::string::npos);
  EXPECT_NE(error(Spec(R"(echo '{"ready":{"tables":["ledger"]}}' >&3)")).find("no table 'ledger'"),
            std::string::npos);
  EXPECT_NE(error(Spec(R"(echo '{"done":{}}' >&3)")).find("before it was asked"),
            std::string::npos);
  for (const char* value : {"", "x", "0", "-1", "1e9", "nan"}) {
    RuleSpec spec = Host(Done());
    spec.parameters["host_seconds"] = value;
    EXPECT_NE(error(spec).find("host_seconds"), std::string::npos) << value;
  }
  RuleSpec unknown = Host(Done());
  unknown.parameters["host_memory"] = "5";
  EXPECT_NE(error(unknown).find("host_memory_mib"), std::string::npos);
  RuleSpec nowhere = Host(Done());
  nowhere.parameters["host_python"] = "/nowhere/python3";
  EXPECT_NE(error(nowhere).find("/nowhere/python3"), std::string::npos);
}

}  // namespace
}  // namespace telltale::rules
