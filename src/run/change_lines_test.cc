// SPDX-License-Identifier: Apache-2.0
#include "run/change_lines.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace telltale::run {
namespace {

FindingChange Change(std::int64_t step) { return {0, step, "low", "It stalls", false}; }

TEST(ChangeLines, FewChangesHaveALineEach) {
  ChangeLines lines(0, "RUN");
  for (std::int64_t i = 0; i < 100; ++i) {
    const auto due = lines.Due(i * ChangeLines::kPeriodNs, {Change(i)}, 0, false, i == 99);
    ASSERT_EQ(due.size(), 1U) << i;
    EXPECT_NE(due.front().find("It stalls"), std::string::npos);
  }
}

TEST(ChangeLines, OfManyTheOthersAreCounted) {
  ChangeLines lines(0, "RUN");
  std::size_t printed = 0;
  std::string all;
  constexpr std::int64_t kSeconds = 60;
  for (std::int64_t i = 0; i <= 10 * kSeconds; ++i) {
    const std::vector<FindingChange> changes(100, Change(i));
    for (const std::string& line : lines.Due(i * kSecond / 10, changes, 5, false, i == 600)) {
      ++printed;
      all += line + "\n";
    }
  }
  const auto most = static_cast<std::size_t>(ChangeLines::kBurst) +
                    kSeconds * kSecond / ChangeLines::kPeriodNs +
                    kSeconds * kSecond / ChangeLines::kCountPeriodNs + 1;
  EXPECT_LE(printed, most) << all;
  EXPECT_NE(all.find("more changes of findings: `telltale check RUN` lists them"),
            std::string::npos)
      << all;
}

TEST(ChangeLines, WhatWasCountedIsToldAtTheEnd) {
  ChangeLines lines(0, "RUN");
  const std::vector<FindingChange> changes(ChangeLines::kBurst + 1, Change(1));
  EXPECT_EQ(lines.Due(kSecond, changes, 0, false, false).size(), std::size_t{ChangeLines::kBurst});
  const auto due = lines.Due(2 * kSecond, {}, 0, false, true);
  ASSERT_EQ(due.size(), 1U);
  EXPECT_NE(due.front().find(": 1 more change of findings"), std::string::npos) << due.front();
}

}  // namespace
}  // namespace telltale::run
