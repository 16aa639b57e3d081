// SPDX-License-Identifier: Apache-2.0
#include "plan/window.h"

#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "format/channel_layout.h"
#include "plan/capture_plan.h"
#include "plan/plan_json.h"

namespace telltale::plan {
namespace {

TEST(Window, AnOptionSaysWhenAndWhat) {
  const auto window = ParseWindow("steps=100:105;detail=ops,shapes");
  ASSERT_TRUE(window.ok()) << window.status().message();
  EXPECT_EQ(window->name, "window");
  EXPECT_EQ(window->steps, (std::vector<StepRange>{{100, 105}}));
  EXPECT_EQ(window->detail, (std::vector<std::string>{"ops", "shapes"}));
  EXPECT_EQ(window->seconds, 60) << "a bound holds where nothing is said";
  EXPECT_GT(window->bytes, 0U);
}

TEST(Window, EveryKeyComesThroughAnOption) {
  const auto window = ParseWindow(
      "late: steps = 300, 7:9 ; every=1000;every_seconds=0.5;random=0.01;seed=3;"
      "start_time=1700000000;duration=2;first_graph=true;when=step % 5 == 0 and rank == 0;"
      "length=2;mode=eval;ranks=1,0;python,ops;timer=off_cpu;seconds=5;bytes=1024;count=3");
  ASSERT_TRUE(window.ok()) << window.status().message();
  EXPECT_EQ(window->name, "late");
  EXPECT_EQ(window->steps, (std::vector<StepRange>{{7, 9}, {300, 301}}));
  EXPECT_EQ(window->every, 1000U);
  EXPECT_EQ(window->every_seconds, 0.5);
  EXPECT_EQ(window->random, 0.01);
  EXPECT_EQ(window->when, "step % 5 == 0 and rank == 0");
  EXPECT_EQ(window->ranks, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(window->detail, (std::vector<std::string>{"ops", "python"}));
  EXPECT_TRUE(window->first_graph);
  EXPECT_EQ(window->mode, "eval");
  Window back;
  ASSERT_FALSE(WindowFromJson("late", WindowToJson(*window), "late", &back).has_value());
  EXPECT_EQ(back, *window);
}

TEST(Window, RangesThatTouchAreOne) {
  const auto window = ParseWindow("steps=10:12,12:15,3,4,11");
  ASSERT_TRUE(window.ok()) << window.status().message();
  EXPECT_EQ(window->steps, (std::vector<StepRange>{{3, 5}, {10, 15}}));
}

TEST(Window, WhatIsNoneSaysWhatToWrite) {
  const auto why = [](const char* text) {
    const auto window = ParseWindow(text);
    EXPECT_FALSE(window.ok()) << text;
    EXPECT_EQ(window.status().code(), Code::kUsage);
    return std::string(window.status().message());
  };
  EXPECT_NE(why("detail=ops").find("says no time"), std::string::npos);
  EXPECT_NE(why("steps=5:5").find("100:105"), std::string::npos);
  EXPECT_NE(why("steps=-1").find("100:105"), std::string::npos);
  EXPECT_NE(why("every=10;detail=everything").find("ops, kernels"), std::string::npos);
  EXPECT_NE(why("every=10;every=11").find("twice"), std::string::npos);
  EXPECT_NE(why("every=10;step=5").find("is no key"), std::string::npos);
  EXPECT_NE(why("../x:every=10").find("name that cannot be used"), std::string::npos);
  EXPECT_NE(why("every=10;length=0").find("write 1"), std::string::npos);
  EXPECT_NE(why("random=0.5;length=3").find("more than all steps"), std::string::npos);
  EXPECT_NE(why("every=10;seconds=0").find("seconds"), std::string::npos);
  EXPECT_NE(why("next=1;asked_ns=5").find("no key for people"), std::string::npos);
}

TEST(Window, APlanHasThemAsJsonAndAsToml) {
  const auto plan = FromToml(
      "[windows.begin]\nsteps = [7, \"100:105\"]\ndetail = ['ops', 'stacks']\n"
      "[windows.often]\nevery = 500\nlength = 2\n",
      "plan.toml");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->collections, DefaultPlan().collections) << "of tensors nothing was said";
  ASSERT_EQ(plan->windows.size(), 2U);
  EXPECT_EQ(plan->windows[0].steps, (std::vector<StepRange>{{7, 8}, {100, 105}}));
  EXPECT_EQ(FromJson(ToJson(*plan)).value(), *plan);
  EXPECT_EQ(FromToml(ToToml(*plan), "plan.toml")->windows, plan->windows);
  const auto slip = FromToml("[windows.begin]\nevery = 5\nlenght = 2\n", "plan.toml");
  ASSERT_FALSE(slip.ok());
  EXPECT_NE(slip.status().message().find("plan.toml:3"), std::string::npos)
      << slip.status().message();
}

TEST(Window, OneOfTheSameNameTakesItsPlace) {
  CapturePlan plan;
  plan.windows.push_back(ParseWindow("a:every=10").value());
  CapturePlan more;
  more.windows.push_back(ParseWindow("a:every=20").value());
  more.windows.push_back(ParseWindow("b:every=30").value());
  const CapturePlan both = Union(plan, more);
  ASSERT_EQ(both.windows.size(), 2U);
  EXPECT_EQ(both.windows[0].every, 20U);
  EXPECT_EQ(both.level, "custom");
}

TEST(Window, WhatTheControlPageCannotCarryIsALimit) {
  EXPECT_EQ(WindowsText({}).value(), "");
  std::vector<Window> windows{ParseWindow("a:steps=100:105").value()};
  const auto text = WindowsText(windows);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(ParseJson(*text)["a"]["steps"], "100:105");
  for (std::int64_t step = 0; step < 1500; ++step) {
    windows[0].steps.push_back({1'000'000'000'000 + 10 * step, 1'000'000'000'001 + 10 * step});
  }
  EXPECT_EQ(WindowsText(windows).status().code(), Code::kLimit);
}

}  // namespace
}  // namespace telltale::plan
