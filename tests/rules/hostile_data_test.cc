// SPDX-License-Identifier: Apache-2.0
// Data as a bad day leaves it, through every rule there is: a gap of hours, a clock that was set
// back, metrics that are no numbers. A healthy training stays one: nothing fires that does not fire
// without that, no rule gives up, and whatever is said can be written down.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/units.h"
#include "rules/finding_json.h"
#include "rules/registry.h"
#include "rules/replay.h"
#include "rules/rule_set.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"

namespace telltale::rules {
namespace {

constexpr std::int64_t kHour = 3600 * kSecond;

RuleSet EveryRule() {
  RuleSet set;
  set.defaults = false;
  for (const RuleEntry& entry : Registry()) {
    RuleSpec spec;
    spec.name = spec.rule = std::string(entry.desc->name);
    set.rules.push_back(spec);
  }
  return set;
}

/// Rows from `from_ns` of the order on, `by_ns` later; `order`: in the order too.
void Shift(format::Rows* rows, std::int64_t from_ns, std::int64_t by_ns, bool order) {
  format::ForEachTable(*rows, [&](auto& table) {
    for (auto& row : table) {
      if (row.ord_ns < from_ns) continue;
      row.time_ns += by_ns;
      if (order) row.ord_ns += by_ns;
    }
  });
}

class HostileDataTest : public ::testing::Test {
 protected:
  HostileDataTest() {
    sample_.steps = 4000;  // 200 s.
    sample_.learns = true;
    sample_.wait_share = 0.02;
    middle_ns_ = sample_.start_ns + 100 * kSecond;
  }

  /// Rules that fire on the sample run with `change` done to its rows.
  std::set<std::string> Fired(const char* name,
                              const std::function<void(format::Rows*)>& change = {}) {
    SCOPED_TRACE(name);
    const std::filesystem::path run = folder_.path() / name;
    std::filesystem::create_directories(run);
    EXPECT_TRUE(store::WriteRunInfo(run, testing::MakeInfo(sample_, true)).ok());
    auto writer = store::Writer::Open(run / "agent-sample", "agent-sample");
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    if (!writer.ok()) return {};
    format::Rows rows = testing::MakeRows(sample_, &pool_);
    if (change) change(&rows);
    for (format::Batch& batch : testing::Cut(rows, 10 * kSecond)) {
      EXPECT_TRUE((*writer)->Append(std::move(batch)).ok());
    }
    EXPECT_TRUE((*writer)->Close(true).ok());
    ReplayOptions options;
    options.rules = EveryRule();
    const auto replay = ReplayRun(run, options);
    EXPECT_TRUE(replay.ok()) << replay.status().message();
    if (!replay.ok()) return {};
    EXPECT_EQ(replay->rules.size(), Registry().size());
    for (const RuleState& state : replay->rules) {
      EXPECT_NE(state.status, RuleStatus::kError) << state.name << ": " << state.error;
      EXPECT_NE(state.status, RuleStatus::kSuspended) << state.name << ": " << state.error;
    }
    std::set<std::string> fired;
    for (const Finding& finding : replay->findings) {
      fired.insert(finding.rule);
      EXPECT_TRUE(std::isfinite(finding.incident.cost_seconds)) << finding.rule;
      EXPECT_GE(finding.incident.cost_seconds, 0) << finding.rule;
      EXPECT_TRUE(std::isfinite(finding.incident.confidence)) << finding.rule;
      EXPECT_NO_THROW(static_cast<void>(JsonText(ToJson(finding)))) << finding.rule;
    }
    return fired;
  }

  /// Those of `fired` that do not fire where nothing is wrong with the data.
  std::set<std::string> Added(const std::set<std::string>& fired) {
    const std::set<std::string> healthy = Fired("healthy");
    std::set<std::string> added;
    for (const std::string& rule : fired) {
      if (!healthy.contains(rule)) added.insert(rule);
    }
    return added;
  }

  const testing::TempFolder folder_{"hostile"};
  testing::SampleRun sample_;
  std::int64_t middle_ns_ = 0;
  StringPool pool_;
};

TEST_F(HostileDataTest, AGapOfHoursIsNoData) {
  const auto fired = Fired("gap", [&](format::Rows* rows) {
    Shift(rows, middle_ns_, 3 * kHour, true);
    format::EventRow gap;
    gap.time_ns = gap.ord_ns = middle_ns_ + 3 * kHour;
    gap.kind = "gap";
    gap.severity = "info";
    gap.subject = "agent";
    gap.step = -1;
    gap.attempt = 1;
    gap.data = pool_.Intern("{\"from_ns\":" + std::to_string(middle_ns_) + ",\"to_ns\":" +
                            std::to_string(gap.ord_ns) + ",\"cause\":\"the agent had died\"}");
    for (auto at = rows->events.begin();; ++at) {
      if (at != rows->events.end() && at->ord_ns < gap.ord_ns) continue;
      rows->events.insert(at, gap);
      break;
    }
  });
  EXPECT_EQ(Added(fired), std::set<std::string>());
}

TEST_F(HostileDataTest, AClockThatIsSetBackOrAheadChangesNoVerdict) {
  for (const std::int64_t by_ns : {-kHour, kHour}) {
    const auto fired = Fired(by_ns < 0 ? "back" : "ahead",
                             [&](format::Rows* rows) { Shift(rows, middle_ns_, by_ns, false); });
    EXPECT_EQ(Added(fired), std::set<std::string>()) << by_ns;
  }
}

TEST_F(HostileDataTest, MetricsThatAreNoNumbersAreNoData) {
  constexpr double kBad[] = {std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity()};
  const auto fired = Fired("nan", [&](format::Rows* rows) {
    std::size_t i = 0;
    for (format::MetricRow& row : rows->metrics) {
      if (++i % 7 == 0) row.value = kBad[i % 3];
    }
    for (format::ScalarRow& row : rows->scalars) {
      if (row.name == "lr" && ++i % 5 == 0) row.value = kBad[i % 3];
    }
  });
  EXPECT_EQ(Added(fired), std::set<std::string>());
}

/// Here rules may fire, and do: a loss that is no number is one. But none gives up.
TEST_F(HostileDataTest, NothingButNaNAndInfIsBorne) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::max(), -std::numeric_limits<double>::max()}) {
    const auto fired = Fired(std::to_string(bad).substr(0, 9).c_str(), [&](format::Rows* rows) {
      for (format::MetricRow& row : rows->metrics) row.value = bad;
      for (format::ScalarRow& row : rows->scalars) row.value = bad;
    });
    if (!std::isfinite(bad)) {
      EXPECT_TRUE(fired.contains("LossNotDecreasing")) << bad;
    }
  }
}

}  // namespace
}  // namespace telltale::rules
