// SPDX-License-Identifier: Apache-2.0
#include "interchange/pstats_import.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "interchange/pstats_reader.h"
#include "interchange/recording_sink.h"

namespace telltale::interchange {
namespace {

/// What Python itself writes; empty where there is no Python.
std::string Dumped(const std::string& profiler) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("telltale-pstats-" + std::to_string(::getpid()) + "-" + profiler);
  const std::string command = "python3 -c \"import " + profiler + " as p, sys\n" +
                              "def leaf(n): return sum(range(n))\n"
                              "def outer(n):\n"
                              "    return leaf(n) + (outer(n - 1) if n > 0 else 0)\n"
                              "profile = p.Profile()\n"
                              "profile.runcall(outer, 9)\n"
                              "profile.dump_stats(sys.argv[1])\" '" +
                              path.string() + "' 2>/dev/null";
  std::string bytes;
  if (std::system(command.c_str()) == 0) {
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  std::filesystem::remove(path);
  return bytes;
}

TEST(PstatsImportTest, WhatCProfileSavesBecomesFunctions) {
  const std::string bytes = Dumped("cProfile");
  if (bytes.empty()) GTEST_SKIP() << "no python3 here";
  EXPECT_TRUE(LooksLikePstats(bytes));
  RecordingSink sink;
  {
    TraceSource source(&sink, "stats", 0);
    ASSERT_TRUE(ImportPstats(bytes, {.begin_ns = 1'000, .step = 5}, &source).ok());
  }
  EXPECT_EQ(sink.losses, 0U);
  const auto outer = sink.Named("<string>(3): outer");
  EXPECT_EQ(outer.category, "python");
  EXPECT_EQ(outer.step, 5);
  EXPECT_NE(outer.args.find(R"("calls":10,"primitive_calls":1,)"), std::string::npos) << outer.args;
  const auto leaf = sink.Named("<string>(2): leaf");
  EXPECT_NE(leaf.args.find(R"("callers":[{"function":"<string>(3): outer","calls":10,)"),
            std::string::npos)
      << leaf.args;
  EXPECT_FALSE(sink.Named("<built-in method builtins.sum>").name.empty());
  // One after the other, so that the lengths are the time of each by itself.
  std::int64_t at = 1'000;
  for (const auto& slice : sink.slices) {
    EXPECT_EQ(slice.time_ns, at);
    at += slice.duration_ns;
  }
}

TEST(PstatsImportTest, WhatProfileSavesHasCallersWithNumbersAlone) {
  const std::string bytes = Dumped("profile");
  if (bytes.empty()) GTEST_SKIP() << "no python3 here";
  RecordingSink sink;
  {
    TraceSource source(&sink, "stats", 0);
    ASSERT_TRUE(ImportPstats(bytes, {}, &source).ok());
  }
  const auto leaf = sink.Named("<string>(2): leaf");
  EXPECT_NE(leaf.args.find(R"("calls":10)"), std::string::npos) << leaf.args;
}

TEST(PstatsImportTest, ACutDictionaryGivesTheFunctionsBeforeTheCut) {
  const std::string bytes = Dumped("cProfile");
  if (bytes.empty()) GTEST_SKIP() << "no python3 here";
  RecordingSink sink;
  {
    TraceSource source(&sink, "stats", 0);
    ASSERT_TRUE(
        ImportPstats(std::string_view(bytes).substr(0, bytes.size() - 3), {}, &source).ok());
  }
  EXPECT_FALSE(sink.slices.empty());
  EXPECT_EQ(sink.counters["damaged"], 1U);
}

TEST(PstatsImportTest, OtherMarshalledValuesAreRefused) {
  for (const std::string& bytes :
       {std::string("{i\1\0\0\0N0", 8), std::string("N"), std::string()}) {
    RecordingSink sink;
    TraceSource source(&sink, "stats", 0);
    EXPECT_EQ(ImportPstats(bytes, {}, &source).code(), Code::kUnusable);
  }
}

TEST(PstatsImportTest, DamagedBytesAreNeverReadBeyond) {
  const std::string bytes = Dumped("cProfile");
  if (bytes.empty()) GTEST_SKIP() << "no python3 here";
  TryDamaged(bytes, [](std::string_view damaged, TraceSource* source) {
    static_cast<void>(ImportPstats(damaged, {}, source));
  });
}

}  // namespace
}  // namespace telltale::interchange
