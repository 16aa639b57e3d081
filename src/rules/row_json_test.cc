// SPDX-License-Identifier: Apache-2.0
// Records as Python's json reads them.
#include "rules/row_json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "format/records.gen.h"
#include "rules/rule.h"
#include "store/reader.h"

namespace telltale::rules {
namespace {

template <class Row>
std::string JsonOf(const Row& row) {
  Record record;
  record.ord_ns = row.ord_ns;
  record.table = Row::kTable;
  record.row = &row;
  std::string out;
  EXPECT_EQ(AppendRowJson(record, &out), (RowJsonTables() & store::MaskOf(Row::kTable)) != 0);
  return out;
}

format::ScalarRow Scalar(double value) {
  format::ScalarRow row;
  row.seq = 1;
  row.ord_ns = 5;
  row.time_ns = 4;
  row.name = "loss";
  row.value = value;
  row.step = 7;
  row.mode = "TRAIN";
  row.pid = 12;
  row.attempt = 1;
  return row;
}

std::string WithValue(const std::string& value) {
  return R"(["scalars",5,{"seq":1,"ord_ns":5,"time_ns":4,"name":"loss","value":)" + value +
         R"(,"step":7,"mode":"TRAIN","rank":0,"pid":12,"attempt":1}])";
}

TEST(RowJsonTest, NumbersAreThoseThatPythonReads) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(JsonOf(Scalar(0.5)), WithValue("0.5"));
  EXPECT_EQ(JsonOf(Scalar(-2.5e-300)), WithValue("-2.5e-300"));
  EXPECT_EQ(JsonOf(Scalar(std::numeric_limits<double>::quiet_NaN())), WithValue("NaN"));
  EXPECT_EQ(JsonOf(Scalar(kInf)), WithValue("Infinity"));
  EXPECT_EQ(JsonOf(Scalar(-kInf)), WithValue("-Infinity"));
}

TEST(RowJsonTest, AnyTextStaysOnItsLine) {
  format::ScalarRow row = Scalar(0.5);
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"a\nb", "a\\nb"},
      {"say \"x\"", "say \\\"x\\\""},
      {"back\\slash", "back\\\\slash"},
      {"\xc3\xbc", "\\u00fc"},
      {"\xff", "\\ufffd"},
  };
  for (const auto& [name, written] : texts) {
    row.name = name;
    EXPECT_NE(JsonOf(row).find("\"name\":\"" + written + "\""), std::string::npos) << JsonOf(row);
  }
}

TEST(RowJsonTest, TruthIsWrittenAsJsonHasIt) {
  format::StatisticRow row;
  row.more = true;
  EXPECT_NE(JsonOf(row).find("\"more\":true"), std::string::npos);
  row.more = false;
  EXPECT_NE(JsonOf(row).find("\"more\":false"), std::string::npos);
}

TEST(RowJsonTest, FindingsAndTheLedgerAreNoRulesBusiness) {
  EXPECT_EQ(JsonOf(format::FindingRow()), "");
  EXPECT_EQ(JsonOf(format::LedgerRow()), "");
  EXPECT_NE(JsonOf(format::EventRow()), "");
}

}  // namespace
}  // namespace telltale::rules
