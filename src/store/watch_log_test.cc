// SPDX-License-Identifier: Apache-2.0
#include "store/watch_log.h"

#include <gtest/gtest.h>

namespace telltale::store {
namespace {

TEST(SeenEndTest, AnEndThatNoClockShowsIsNone) {
  SeenEnd end;
  format::EventRow row;
  row.kind = "recording.lost";
  row.attempt = 1;
  for (const char* data : {R"({"ended_ns": 9223372036854775807})", R"({"ended_ns": "x"})", "[]",
                           R"({"ended_ns": -9223372036854775808})"}) {
    row.data = data;
    end.Take(row);
    EXPECT_EQ(end.ns, 0) << data;
  }
  row.data = R"({"ended_ns": 1800000000000000000})";
  end.Take(row);
  EXPECT_EQ(end.ns, 1'800'000'000'000'000'000);
}

}  // namespace
}  // namespace telltale::store
