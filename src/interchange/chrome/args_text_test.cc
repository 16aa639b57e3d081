// SPDX-License-Identifier: Apache-2.0
// Arguments of events: what is JSON stays as it is, what is none becomes some.
#include "interchange/chrome/args_text.h"

#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <string>

#include "base/json.h"
#include "base/json_depth.h"

namespace telltale::interchange {
namespace {

std::string Mended(std::string_view text, ArgsFaults* faults = nullptr) {
  ArgsFaults ignored;
  std::string out = "before";
  AppendArgsValue(text, &out, faults == nullptr ? &ignored : faults);
  EXPECT_TRUE(out.starts_with("before"));
  return out.substr(6);
}

TEST(ArgsTextTest, ValuesOfJsonStayAsTheyAre) {
  for (const std::string_view text :
       {"0", "-1.5e-3", "1e308", "true", "null", R"("a \"b\" \\ \u00e9 \ud83d\ude00")", "[]", "{}",
        R"([[64, 256], [], {"a": [1, {"b": null}], "": "]"}])", R"(["int", "long int", ""])"}) {
    ArgsFaults faults;
    EXPECT_EQ(Mended(text, &faults), text);
    EXPECT_EQ(faults.not_finite + faults.replaced + faults.cut, 0U) << text;
  }
}

TEST(ArgsTextTest, WordsThatAreNoJsonAreTexts) {
  ArgsFaults faults;
  EXPECT_EQ(Mended("nan", &faults), R"("nan")");
  EXPECT_EQ(Mended("[1, NaN, -inf]", &faults), R"([1, "NaN", "-inf"])");
  EXPECT_EQ(Mended("[nan\\]", &faults), R"(["nan"])") << "a backslash escapes no quote of ours";
  EXPECT_EQ(Mended(R"({"a": 1e999, "b": 012, "c": tru})", &faults),
            R"({"a": "1e999", "b": "012", "c": "tru"})");
  EXPECT_EQ(faults.not_finite, 7U);
  EXPECT_EQ(faults.cut, 0U);
  EXPECT_EQ(Mended("a\x01"), R"("a")");
  EXPECT_EQ(Mended(std::string(1000, 'x')), "\"" + std::string(64, 'x') + "\"");
  EXPECT_EQ(Mended("1" + std::string(400, '0')), "\"1" + std::string(63, '0') + "\"");
  EXPECT_EQ(Mended(std::string(63, 'x') + "\u00e9"), "\"" + std::string(63, 'x') + "\"")
      << "a character is whole or not there";
}

TEST(ArgsTextTest, BackslashesThatEscapeNothingAreDoubled) {
  ArgsFaults faults;
  EXPECT_EQ(Mended(R"("C:\qt")", &faults), R"("C:\\qt")");
  EXPECT_EQ(Mended(R"(["\u12", "\ud800", "\udc00x", "\ud800\u0041"])", &faults),
            R"(["\\u12", "\\ud800", "\\udc00x", "\\ud800\u0041"])");
  EXPECT_EQ(faults.replaced, 5U);
  std::string key;
  AppendArgsKey(R"(a\"\x)", &key, &faults);
  EXPECT_EQ(key, R"(a\"\\x)");
}

TEST(ArgsTextTest, WhatIsNoValueAtAllIsNull) {
  for (const std::string_view text :
       {"", " ", "[1 2]", "{1: 2}", "{\"a\" 1}", "[,]", "[1,]", "]", "[}", "{\"a\":}", "[\"a",
        "\"a", "[\\\"a]", "1 2", "nan\"x\""}) {
    ArgsFaults faults;
    EXPECT_EQ(Mended(text, &faults), "null") << text;
    EXPECT_EQ(faults.cut, 1U) << text;
    EXPECT_EQ(faults.not_finite + faults.replaced, 0U) << text;
  }
  const std::string deep(kDeepestJson - 1, '[');
  const std::string close(kDeepestJson - 1, ']');
  EXPECT_EQ(Mended(deep + close), deep + close);
  EXPECT_EQ(Mended("[" + deep + close + "]"), "null");
  EXPECT_EQ(Mended(std::string(1 << 20, '[')), "null");
}

TEST(ArgsTextTest, WhateverItIsItIsJsonAfterwards) {
  std::mt19937_64 random(11);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::string_view pieces[] = {"[",   "]",   "{",   "}",     ",",    ":", "\"", "\\",
                                     "nan", "-1.", "1e9", "\\u00", "true", " ", "a",  "\"k\":"};
  for (int round = 0; round < 5000; ++round) {
    std::string text = below(2) == 0 ? "[" : "{\"k\":[";
    for (std::size_t i = below(12); i > 0; --i) text += pieces[below(std::size(pieces))];
    text += text.front() == '[' ? "]" : "]}";
    const std::string mended = Mended(text);
    EXPECT_FALSE(ParseJson(mended).is_discarded()) << text << " became " << mended;
  }
}

}  // namespace
}  // namespace telltale::interchange
