// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "base/given_name.h"
#include "base/printable.h"
#include "base/status.h"
#include "base/string_pool.h"
#include "base/utf8.h"

namespace telltale {
namespace {

TEST(Crc32cTest, MatchesRfc3720Vectors) {
  const std::string zeros(32, '\0');
  const std::string ones(32, '\xff');
  EXPECT_EQ(Crc32c(zeros.data(), zeros.size()), 0x8a9136aaU);
  EXPECT_EQ(Crc32c(ones.data(), ones.size()), 0x62a8ab43U);
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283U);
}

TEST(Crc32cTest, ContinuesInPieces) {
  const std::string text = "the strip of yarn on a sail";
  const std::uint32_t first = Crc32c(text.data(), 7);
  EXPECT_EQ(Crc32c(text.data() + 7, text.size() - 7, first), Crc32c(text.data(), text.size()));
}

TEST(Utf8Test, MendsWhatIsNoUtf8) {
  std::string scratch;
  const std::string good = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
  EXPECT_EQ(ToValidUtf8(good, &scratch).data(), good.data());
  const std::string mark = "\xef\xbf\xbd";
  EXPECT_EQ(ToValidUtf8("a\xff"
                        "b",
                        &scratch),
            "a" + mark + "b");
  EXPECT_EQ(ToValidUtf8("\xc0\x80", &scratch), mark + mark);             // Overlong.
  EXPECT_EQ(ToValidUtf8("\xed\xa0\x80", &scratch), mark + mark + mark);  // A surrogate.
  EXPECT_EQ(ToValidUtf8("\xf4\x90\x80\x80", &scratch), mark + mark + mark + mark);
  EXPECT_EQ(ToValidUtf8("x\xe2\x82", &scratch), "x" + mark + mark);  // Cut.
  for (std::size_t n = 0; n < 40; ++n) {
    const std::string plain(n, 'x');
    EXPECT_EQ(ValidUtf8Prefix(plain + "\xc3\xa9" + plain), 2 * n + 2);
    EXPECT_EQ(ValidUtf8Prefix(plain + "\xff" + plain), n);
  }
}

TEST(PrintableTest, ATerminalObeysNothingOfIt) {
  EXPECT_EQ(Printable("a\xc3\xa9 \xe2\x80\x94 <b>"), "a\xc3\xa9 \xe2\x80\x94 <b>");
  EXPECT_EQ(Printable("\x1b]0;owned\x07\n"), "\\x1b]0;owned\\x07\\n");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J\x7f"),
            "\\x9b2J\\x7f");
  EXPECT_EQ(Printable("\x9b"
                      "2J"),
            "\xef\xbf\xbd"
            "2J")
      << "C1 of eight bits";
  EXPECT_EQ(Printable("\xe2\x80\xaegnp"), "\\u202egnp");
  EXPECT_EQ(Printable("\xe2\x81\xa6x"), "\\u2066x");
  EXPECT_EQ(Printable("\xe2\x80\xaf\xe2\x80\xa6"), "\xe2\x80\xaf\xe2\x80\xa6") << "neighbours stay";
  EXPECT_EQ(Printable(std::string_view("a\0b", 3)), "a\\x00b");
}

TEST(PrintableTest, LinesStayLines) {
  EXPECT_EQ(PrintableLines("a\tb\r\nc\rd\n"), "a\tb\r\nc\\x0dd\n");
}

TEST(PrintableTest, JsonStaysTheSameJson) {
  EXPECT_EQ(PrintableJson("{\n  \"a\": \"\\u001b\x7f\xc2\x9b\xe2\x80\xae\"\n}"),
            "{\n  \"a\": \"\\u001b\\u007f\\u009b\\u202e\"\n}");
}

TEST(GivenNameTest, HoldsForAsLongAsItLives) {
  {
    const GivenName one("/tmp/x1/t", "t.json");
    const GivenName other("/tmp/x2/t", "/tmp/x2/t.gz");  // Begins with what it stands for.
    EXPECT_EQ(AsGiven("/tmp/x1/t"), "t.json");
    EXPECT_EQ(AsGiven("/tmp/x1"), "/tmp/x1");
    EXPECT_EQ(TextAsGiven("/tmp/x2/t: no ranks: see /tmp/x1/t, /tmp/x2/t"),
              "/tmp/x2/t.gz: no ranks: see t.json, /tmp/x2/t.gz");
  }
  EXPECT_EQ(AsGiven("/tmp/x1/t"), "/tmp/x1/t");
  EXPECT_EQ(TextAsGiven("/tmp/x1/t"), "/tmp/x1/t");
}

TEST(StringPoolTest, GivesTheSameViewForTheSameText) {
  StringPool pool;
  const std::string_view a = pool.Intern(std::string("loss"));
  EXPECT_EQ(a.data(), pool.Intern("loss").data());
  EXPECT_EQ(pool.bytes(), 4U);
}

Result<int> Half(int n) {
  if (n % 2 != 0) return Status(Code::kUsage, "odd");
  return n / 2;
}
Status Quarter(int n, int* out) {
  TELLTALE_ASSIGN_OR_RETURN(const int half, Half(n));
  TELLTALE_ASSIGN_OR_RETURN(*out, Half(half));
  return {};
}

TEST(StatusTest, MacrosPassErrorsOn) {
  int out = 0;
  EXPECT_TRUE(Quarter(12, &out).ok());
  EXPECT_EQ(out, 3);
  EXPECT_EQ(Quarter(6, &out).code(), Code::kUsage);
}

}  // namespace
}  // namespace telltale
