// SPDX-License-Identifier: Apache-2.0
// That pprof itself reads the file is shown by tests/interchange/test_export.py.
#include "interchange/stack_samples.h"

#include <gtest/gtest.h>

#include <protozero/pbf_reader.hpp>
#include <string>
#include <vector>

#include "interchange/json_out.h"
#include "interchange/nested_lanes.h"
#include "interchange/python_frame.h"

namespace telltale::interchange {
namespace {

TEST(PythonFrame, IsTakenApart) {
  const FrameName frame = ParseFrame("torch/nn/functional.py(123): linear");
  EXPECT_EQ(frame.function, "linear");
  EXPECT_EQ(frame.file, "torch/nn/functional.py");
  EXPECT_EQ(frame.line, 123);
  for (const std::string_view other :
       {"aten::addmm", "void gemm<float>(int): x", "(12): f", "a.py(): f", "a.py(1"}) {
    EXPECT_EQ(ParseFrame(other).function, other);
    EXPECT_EQ(ParseFrame(other).file, "");
  }
}

TEST(Collapsed, DividersAreNoPartOfNames) {
  std::string out;
  const std::vector<std::string_view> frames{"train.py(3): main", "a;b", "c\nd"};
  AppendCollapsed(frames, 12, &out);
  AppendCollapsed(frames, 0, &out);
  EXPECT_EQ(out, "train.py(3): main;a:b;c d 12\n");
}

TEST(JsonOut, TimesAreExact) {
  const auto micros = [](std::int64_t ns) {
    std::string out;
    AppendMicros(ns, &out);
    return out;
  };
  EXPECT_EQ(micros(1500), "1.5");
  EXPECT_EQ(micros(2000), "2");
  EXPECT_EQ(micros(-1), "-0.001");
  EXPECT_EQ(micros(1'700'000'000'123'456'789), "1700000000123456.789");
}

TEST(JsonOut, MembersThatAreThereStay) {
  const auto object = [](std::string_view begin) {
    std::string out;
    ObjectOut args(begin, &out);
    args.Add("step", std::int64_t{3});
    args.Add("name", std::string_view("a\"\xff\n"));
    args.Close();
    return out;
  };
  EXPECT_EQ(object(""), R"({"step":3,"name":"a\")"
                        "\uFFFD"
                        R"(\u000a"})");
  EXPECT_EQ(object(R"({ })"), object(""));
  EXPECT_EQ(object("{\"step\": 9}"), R"({"step": 9,"name":"a\")"
                                     "\uFFFD"
                                     R"(\u000a"})");
  EXPECT_EQ(object("{broken"), object("")) << "what is no JSON is left out";
}

TEST(NestedLanes, WhatOverlapsGoesToAnotherRow) {
  NestedLanes lanes;
  std::vector<std::string> ended;
  const auto end = [&](std::size_t row, std::int64_t end_ns) {
    ended.push_back(std::to_string(row) + ":" + std::to_string(end_ns));
  };
  EXPECT_EQ(lanes.Put(0, 100'000, end).row, 0U);
  EXPECT_EQ(lanes.Put(10'000, 50'000, end).row, 0U);
  EXPECT_EQ(lanes.Put(40'000, 80'000, end).row, 1U) << "neither within nor after";
  EXPECT_EQ(lanes.Put(60'000, 100'900, end).end_ns, 100'000) << "the source rounds";
  lanes.Finish(end);
  EXPECT_EQ(ended, (std::vector<std::string>{"0:50000", "0:100000", "0:100000", "1:80000"}));
}

TEST(Pprof, EachTextAndFrameOnce) {
  PprofProfile profile({{"time", "nanoseconds"}, {"count", "count"}}, 0);
  const std::vector<std::string_view> outer{"train.py(3): main"};
  const std::vector<std::string_view> inner{"train.py(3): main", "aten::add"};
  profile.Add(outer, std::vector<std::int64_t>{5, 1});
  profile.Add(inner, std::vector<std::int64_t>{7, 2});
  profile.Add(inner, std::vector<std::int64_t>{0, 0});
  EXPECT_EQ(profile.samples(), 2U);
  std::string bytes;
  const auto file = ExportFile::To([&](std::string_view piece) {
    bytes += piece;
    return true;
  });
  ASSERT_TRUE(profile.Write(file.get()).ok());
  protozero::pbf_reader reader(bytes);
  std::vector<std::string> texts;
  std::vector<std::vector<std::uint64_t>> stacks;
  int functions = 0;
  while (reader.next()) {
    if (reader.tag() == 6) {
      texts.push_back(reader.get_string());
    } else if (reader.tag() == 2) {
      protozero::pbf_reader sample = reader.get_message();
      ASSERT_TRUE(sample.next(1));
      const auto ids = sample.get_packed_uint64();
      stacks.emplace_back(ids.begin(), ids.end());
    } else {
      functions += reader.tag() == 5;
      reader.skip();
    }
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"", "time", "nanoseconds", "count", "main", "train.py",
                                             "aten::add"}));
  EXPECT_EQ(stacks, (std::vector<std::vector<std::uint64_t>>{{1}, {2, 1}}))
      << "the innermost frame first";
  EXPECT_EQ(functions, 2);
}

}  // namespace
}  // namespace telltale::interchange
