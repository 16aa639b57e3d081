// SPDX-License-Identifier: Apache-2.0
#include "query/query.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "store/store_testing.h"

namespace telltale::query {
namespace {

class QueryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store::MakeRun(run_);
    auto writer = store::Writer::Open(run_ / "agent-a", "agent-a").value();
    format::Batch batch = store::Scalars(0, 3);
    batch.rows.scalars[1].name = "odd,\"na\nme\"\x01\xff";
    batch.rows.scalars[2].value = std::numeric_limits<double>::quiet_NaN();
    ASSERT_TRUE(writer->Append(batch).ok());
    ASSERT_TRUE(writer->Close(true).ok());  // Sealed...
    writer = store::Writer::Open(run_ / "agent-a", "agent-a").value();
    batch = store::Scalars(3, 1);
    batch.rows.scalars[0].value = -std::numeric_limits<double>::infinity();
    ASSERT_TRUE(writer->Append(batch).ok());  // ...and journalled.
    ASSERT_TRUE(writer->Close(false).ok());
  }

  std::string Ask(Query query, Code code = Code::kOk) {
    std::string out;
    store::Salvage salvage;
    const Status status = RunQuery(
        run_, query,
        [&](std::string_view piece) {
          out += piece;
          return true;
        },
        &salvage);
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_FALSE(salvage.any());
    return status.ok() ? out : status.message();
  }

  store::TempFolder temp_;
  std::filesystem::path run_ = temp_.path() / "run";
};

TEST_F(QueryTest, CsvFollowsRfc4180) {
  EXPECT_EQ(Ask({.table = "scalars", .columns = {"seq", "name", "value"}}),
            "seq,name,value\r\n"
            "1,loss,0\r\n"
            "2,\"odd,\"\"na\nme\"\"\x01\xef\xbf\xbd\",1\r\n"
            "3,loss,NaN\r\n"
            "4,loss,-Inf\r\n");
}

TEST_F(QueryTest, JsonIsValidWhateverANameHolds) {
  const auto json = ParseJson(Ask({.table = "scalars", .format = Format::kJson}));
  ASSERT_EQ(json.size(), 4U);
  EXPECT_EQ(json[1]["name"], "odd,\"na\nme\"\x01\xef\xbf\xbd");
  EXPECT_EQ(json[0]["value"], 0.0);
  EXPECT_TRUE(json[2]["value"].is_null());
  EXPECT_TRUE(json[3]["value"].is_null());
  EXPECT_EQ(json[0]["writer"], "agent-a");
  EXPECT_EQ(json[0]["time_ns"], 0);
}

TEST_F(QueryTest, FiltersAndStopsAtTheLimit) {
  EXPECT_EQ(Ask({.table = "scalars", .columns = {"step"}, .where = "step >= 1", .limit = 2}),
            "step\r\n1\r\n2\r\n");
  EXPECT_EQ(Ask({.table = "scalars", .columns = {"step"}, .limit = 0}), "step\r\n");
  EXPECT_EQ(Ask({.table = "events", .format = Format::kJson}), "[]\n");
}

TEST_F(QueryTest, WrongNamesListTheRightOnes) {
  EXPECT_EQ(Ask({.table = "scalar"}, Code::kUsage),
            "no table 'scalar': choose one of metrics, spans, steps, scalars, statistics, tensors, "
            "events, findings, ledger, histograms, slices");
  EXPECT_EQ(Ask({.table = "metrics", .columns = {"x"}}, Code::kUsage),
            "no column 'x': choose among writer, seq, ord_ns, time_ns, node, subject, name, value, "
            "unit, pid");
}

}  // namespace
}  // namespace telltale::query
