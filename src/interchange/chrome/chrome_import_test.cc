// SPDX-License-Identifier: Apache-2.0
// Chrome traces: cutting, what becomes of each kind of event, damage, steps, clocks.
#include "interchange/chrome/chrome_import.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>

#include "base/json.h"
#include "interchange/chrome/event_reader.h"
#include "interchange/chrome/intervals.h"
#include "interchange/chrome/trace_facts.h"
#include "interchange/import.h"
#include "store/reader.h"
#include "store/verify.h"

namespace telltale::interchange {
namespace {

class MemoryTrace final : public TraceInput {
 public:
  explicit MemoryTrace(std::string text) : text_(std::move(text)) {}
  Result<std::size_t> Read(char* to, std::size_t size) override {
    const std::size_t n = std::min(size, text_.size() - at_);
    std::memcpy(to, text_.data() + at_, n);
    at_ += n;
    return n;
  }
  const std::string& damage() const override { return damage_; }
  const std::string& trailing() const override { return damage_; }
  bool gzip() const override { return false; }

 private:
  const std::string text_;
  const std::string damage_;
  std::size_t at_ = 0;
};

struct ParsedTrace {
  std::uint64_t blocks = 0;
  std::uint64_t events = 0;
  std::uint64_t slices = 0;
  std::uint64_t damaged = 0;
  std::string around;
};

ParsedTrace ParseTraceText(const std::string& text, std::size_t block_bytes = 256) {
  MemoryTrace input(text);
  EventBlocks blocks(&input, 1 << 30, block_bytes);
  BlockParser parser;
  ParsedTrace out;
  while (true) {
    auto block = blocks.Next();
    EXPECT_TRUE(block.ok());
    if (!block.ok() || *block == nullptr) break;
    ++out.blocks;
    const auto parsed = parser.Parse(block->get(), "test");
    out.events += parsed->events;
    out.slices += parsed->slices.rows();
    out.damaged += parsed->counts[static_cast<std::size_t>(ChromeCount::kDamagedEvents)];
    EXPECT_EQ(parsed->slices.args_end.size(), parsed->slices.rows());
    EXPECT_EQ(parsed->slices.lanes.size(), parsed->lane_track.size());
    std::string args = "[null";
    std::size_t begin = 0;
    for (const std::int32_t end : parsed->slices.args_end) {
      const std::size_t size = static_cast<std::size_t>(end) - begin;
      if (size > 0) args += "," + parsed->slices.args.substr(begin, size);
      begin += size;
    }
    EXPECT_FALSE(ParseJson(args + "]").is_discarded()) << args;
  }
  out.damaged += blocks.damaged();
  out.around = blocks.Surroundings();
  return out;
}

std::string MmEvent(int i, const std::string& name = "aten::mm") {
  return R"({"ph": "X", "cat": "cpu_op", "name": ")" + name + R"(", "pid": 7, "tid": 8, "ts": )" +
         std::to_string(1000 + i * 10) + R"(, "dur": 5, "args": {"External id": )" +
         std::to_string(i + 1) + R"(, "Input Dims": [[2, 3], []]}})";
}

std::string MmTrace(int events, const std::string& name = "aten::mm") {
  std::string text = R"({"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceEvents": [)";
  for (int i = 0; i < events; ++i) text += (i == 0 ? "\n" : ",\n") + MmEvent(i, name);
  return text + "\n], \"traceName\": \"t.json\"}\n";
}

TEST(EventBlocksTest, BracketsInStringsDoNotCut) {
  for (const std::string name : {"plain", "a}]b{[", R"(quote \" and \\\\)", R"(]}, {\"ph\":)"}) {
    const ParsedTrace parsed = ParseTraceText(MmTrace(50, name));
    EXPECT_EQ(parsed.events, 50U) << name;
    EXPECT_EQ(parsed.slices, 50U) << name;
    EXPECT_EQ(parsed.damaged, 0U) << name;
    EXPECT_GT(parsed.blocks, 10U) << name;
  }
}

TEST(EventBlocksTest, WhatStandsAroundTheEventsIsKept) {
  const ParsedTrace parsed = ParseTraceText(MmTrace(5));
  const ChromeHeader header = ReadChromeHeader(parsed.around);
  EXPECT_FALSE(header.damaged);
  EXPECT_TRUE(header.kineto);
  EXPECT_EQ(header.rank, 3);
}

TEST(EventBlocksTest, AnArrayAloneIsATrace) {
  EXPECT_EQ(ParseTraceText("[" + MmEvent(0) + "," + MmEvent(1) + "]").events, 2U);
  EXPECT_EQ(ParseTraceText("[" + MmEvent(0) + ",\n" + MmEvent(1) + ",\n").events, 2U)
      << "without an end";
  EXPECT_EQ(ParseTraceText("\xef\xbb\xbf[" + MmEvent(0) + "]").events, 1U)
      << "with a byte order mark";
}

TEST(EventBlocksTest, CutAnywhereEveryWholeEventIsThere) {
  const std::string text = MmTrace(20);
  for (std::size_t size = 0; size < text.size(); ++size) {
    const std::string cut = text.substr(0, size);
    std::uint64_t whole = 0;
    for (std::size_t at = cut.find("[]]}}"); at != std::string::npos;
         at = cut.find("[]]}}", at + 1)) {
      ++whole;
    }
    EXPECT_EQ(ParseTraceText(cut).events, whole) << size;
  }
}

TEST(EventBlocksTest, EventsAroundDamageAreKept) {
  std::string text = MmTrace(100);
  const auto damage = [&](const std::string& from, const std::string& to) {
    std::string broken = text;
    const std::size_t at = broken.find(from);
    broken.replace(at, from.size(), to);
    return ParseTraceText(broken, 4096);
  };
  EXPECT_GE(damage(R"("ts": 1500)", R"("ts" 1500)").events, 99U);
  EXPECT_GE(damage(R"("dur": 5, "args": {"External id": 51,)", R"(@@@ "args": {"External id": 51,)")
                .events,
            99U);
  // A quote too many: all that follows seems to be in a string, and the reverse.
  EXPECT_GE(damage(R"("ts": 1500)", R"("ts": "1500)").events, 90U);
  EXPECT_GE(damage(R"([]]}},)", R"([]]}} rubbish [1, 2 ,)").events, 98U);
}

TEST(BlockParserTest, SurvivesWhatNoProgramWrites) {
  for (const std::string text :
       {"", "[", "{", "{}", "[]", "[1,2,3]", "[[[[", "{\"traceEvents\":", "{\"traceEvents\":[",
        "{\"traceEvents\":[{}]}", "[{\"ph\":\"X\"}]", "[{\"ph\":1,\"ts\":{},\"name\":[]}]",
        "[{\"ph\":\"X\",\"ts\":1e999,\"dur\":1}]",
        "[{\"ph\":\"X\",\"ts\":99999999999999999999999}]",
        "[{\"ph\":\"X\",\"ts\":\"12.5\",\"dur\":-3,\"pid\":\"p\"}]",
        "[{\"ph\":\"X\",\"ts\":1,\"args\":{\"a\":NaN,\"b\":-inf,\"c\":Infinity}}]"}) {
    ParseTraceText(text);
  }
  EXPECT_EQ(ParseTraceText("[" + std::string(200'000, '[') + "]").events, 0U);
  const ParsedTrace odd =
      ParseTraceText("[{\"ph\":\"X\",\"ts\":1,\"name\":\"tab\there\xff\",\"dur\":2}]");
  EXPECT_EQ(odd.slices, 1U) << "control characters and bytes that are no UTF-8 are replaced";
}

TEST(BlockParserTest, LongNamesAreCutBetweenCharacters) {
  const std::string short_name(255, 'n');
  const std::string long_name((64 << 10) - 1, 'n');
  const auto event = [](const std::string& phase, const std::string& name, const std::string& key) {
    return R"({"ph":")" + phase + R"(","pid":1,"tid":1,"ts":1,"name":")" + name + R"(","args":{")" +
           key + R"(":1,"b":2}})";
  };
  MemoryTrace input(
      "[" + event("C", short_name + "\u00e9", short_name + "\u00e9") + "," +
      event("C", short_name + R"(\u00e9)", "a") + "," + event("B", long_name + "\u00e9", "a") +
      "," + event("B", long_name + R"(\u00e9)", "a") + "," + event("X", long_name + "\u00e9", "a") +
      "," +
      event("X", std::string(20 << 10, 'n') + std::string(20 << 10, 'e') + R"(\u0041)" + long_name,
            "a") +
      "]");
  EventBlocks blocks(&input, 1 << 30);
  auto block = blocks.Next();
  ASSERT_TRUE(block.ok() && *block != nullptr);
  const auto parsed = BlockParser().Parse(block->get(), "test");
  ASSERT_EQ(parsed->counters.size(), 4U);
  EXPECT_EQ(parsed->counters[0].name, short_name + "." + short_name);
  EXPECT_EQ(parsed->counters[2].name, short_name + ".a") << "nor within an escape";
  ASSERT_EQ(parsed->loose.size(), 2U);
  EXPECT_EQ(parsed->loose[0].name, long_name);
  EXPECT_EQ(parsed->loose[1].name, long_name);
  ASSERT_EQ(parsed->slices.rows(), 2U);
  EXPECT_EQ(parsed->slices.names[parsed->slices.name[0]], long_name);
  EXPECT_EQ(parsed->slices.names[parsed->slices.name[1]].size(), 64U << 10);
}

/// What one block's events came to, as a text; without damage that is known.
std::string Described(const std::string& text, std::uint64_t known_damage) {
  MemoryTrace input(text);
  EventBlocks blocks(&input, 1 << 30);
  auto block = blocks.Next();
  EXPECT_TRUE(block.ok() && *block != nullptr);
  if (!block.ok() || *block == nullptr) return {};
  BlockParser parser;
  const auto parsed = parser.Parse(block->get(), "test");
  store::SliceBlock& s = parsed->slices;
  FillColumns(&s);
  std::ostringstream out;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < s.rows(); ++i) {
    const auto end = static_cast<std::size_t>(s.args_end[i]);
    const ChromeTrack& track = parsed->tracks[parsed->lane_track[s.lane[i]]];
    out << s.names[s.name[i]] << ' ' << s.kinds[s.kind[i]] << ' ' << s.categories[s.category[i]]
        << ' ' << s.time_ns[i] << ' ' << s.duration_ns[i] << ' ' << s.correlation[i] << ' '
        << s.external[i] << ' ' << s.flow[i] << ' ' << s.bytes[i] << ' ' << track.pid << ' '
        << track.tid << ' ' << s.args.substr(begin, end - begin) << '\n';
    begin = end;
  }
  for (const ChromeLoose& loose : parsed->loose) {
    out << loose.phase << loose.name << loose.kind << loose.id << loose.args << '\n';
  }
  for (const ChromeCounter& counter : parsed->counters) {
    out << counter.name << '=' << counter.value << '\n';
  }
  for (const ChromeNaming& naming : parsed->namings) out << naming.name << '\n';
  parsed->counts[static_cast<std::size_t>(ChromeCount::kDamagedEvents)] -= known_damage;
  for (const std::uint64_t count : parsed->counts) out << count << ' ';
  return out.str();
}

TEST(BlockParserTest, EventsAreTheSameInTheOnePassAndBySimdjson) {
  const std::string events[] = {
      MmEvent(1),
      MmEvent(2, R"(quote \" and \\ and }] {[)"),
      "{}",
      "{ }",
      R"({"name":"no time","ph":"X"})",
      R"({"ph":"X","ts":1,"name":"n","cat":"kernel","args":[1,{"a":2}]})",
      R"({"ph":"X","ts":2.5,"name":"n","args":"text","dur":1e+1})",
      R"({"ph":"X","ts":"3","name":"n","args":null,"other":{"ph":"Y"},"more":[[],"]"]})",
      ("{\n \"ph\" :\t\"X\" , \"ts\":4 ,\r\n\"name\": \"spaced\" , \"args\" : { \"a\" : [ 1 , 2 ] "
       ", "
       "\"b\":{ } } }"),
      R"({"ph":"X","ts":5,"name":"twice","name":"again","args":{"a":1},"args":{"b":1,"b":2}})",
      R"({"ph":"X","ts":6,"n\u0061me":"escaped key","args":{"\u0061":"\u00e9","x\\":"\\","e":{}}})",
      R"({"ph":"X","ts":7,"name":"odd","args":{"a":inf,"b":-inf,"c":nan,"d":1e999,"e":[NaN,-1.5E-7]}})",
      R"({"ph":"X","ts":8,"name":"é ü","pid":"host","tid":"a thread of a name that is long enough"})",
      R"({"ph":"s","id":"0x10","ts":8,"name":"f","pid":"host","tid":"a thread of a name that is long enough"})",
      R"({"ph":"C","ts":9,"name":"counter","args":{"a":1.5,"b":"2"}})",
      R"({"ph":"M","name":"process_name","args":{"name":"a process"}})",
      R"({"ph":"B","ts":10,"name":"loose","cat":"c","id":7,"scope":"s","args":{"k":{"l":[true,false]}}})",
      R"({"ph":"X","ts":11,"dur":-1,"name":"","args":{"correlation":5,"External id":6,"bytes":7,"":""}})",
      R"({"ph":"X","ts":12,"name":"n","args":{"a":[[64, 2.5,-0 ],[],["}]","\\u00e9"]],"b":[ "x" ,[ ] ],"c":[01]}})",
      R"({"ph":"X","ts":13,"name":"n","args":{"a":01,"b":-,"c":1.,"d":-1.25,"e":1.2.3,"f":0.0,"g":[1e999]}})",
      R"({"ph":"X","ts":14,"name":"n","args":{"a":)" + std::string(299, '9') + R"(,"b":)" +
          std::string(310, '9') + R"(,"c":[)" + std::string(310, '9') + "]}}",
      R"({"ph":"X","ts":15,"name":"n","args":{"a":)" + std::string(64, '[') + "1" +
          std::string(64, ']') + R"(,"b":)" + std::string(65, '[') + "1" + std::string(65, ']') +
          "}}",
      R"({"ph":"X","ts":16,"name":"n","args":{")" + std::string(130, 'k') + R"(":")" +
          std::string(1000, 'v') + R"(","a":[1],"b":true,"c":"x"}})",
  };
  // A word that no writer writes: from there on simdjson reads the block.
  const std::string odd = R"([{"x":1(},)";
  std::string all;
  for (const std::string& event : events) {
    EXPECT_EQ(Described("[" + event + "]", 0), Described(odd + event + "]", 1)) << event;
    all += (all.empty() ? "" : ",\n") + event;
  }
  EXPECT_EQ(Described("[" + all + "]", 0), Described(odd + all + "]", 1));
  // In the middle: what was read stays, what follows is read on.
  EXPECT_EQ(Described("[" + all + "," + odd.substr(1) + all + "]", 1),
            Described(odd + all + "," + all + "]", 1));
}

/// Keys that were seen before are known as a whole: also where others follow, begin alike or have
/// other blanks around.
TEST(BlockParserTest, KeysThatAreKnownAreThoseThatStand) {
  std::mt19937_64 random(11);
  const auto one_of = [&](const auto& all) { return all[random() % std::size(all)]; };
  const std::string keys[] = {"a",
                              "ab",
                              "abc",
                              "External id",
                              "correlation",
                              "k,",
                              "k:",
                              R"(\u0061)",
                              R"(x\\)",
                              "",
                              "a b",
                              "e]}",
                              "name",
                              "ph",
                              std::string(23, 'l'),
                              std::string(24, 'l'),
                              std::string(40, 'l')};
  const std::string values[] = {"1",    "-2.5", "\"v\"", "[1, 2]",    "{\"a\": 1}", "[]",
                                "true", "\"\"", "\"}\"", "\"q\\\"\"", "1e3",        "0123"};
  const std::string joins[] = {",", ", ", " ,", ",\n  "};
  const std::string colons[] = {":", ": ", " : ", ":\n"};
  const std::string heads[] = {R"({"ph":"X","ts":)", R"({"ph": "X", "ts": )",
                               R"({"cat":"kernel","ph":"X","ts":)", R"({ "ph":"X","ts":)"};
  const auto add_member = [&](const std::string& colon, std::string* to) {
    *to += '"';
    *to += one_of(keys);
    *to += '"';
    *to += colon;
    *to += one_of(values);
  };
  for (int round = 0; round < 20; ++round) {
    std::string all;
    for (int i = 0; i < 300; ++i) {
      // Few forms in a block, so that most keys are known, and now and then another.
      const bool strange = random() % 20 == 0;
      const std::string& join =
          strange ? one_of(joins) : joins[static_cast<std::size_t>(round) % 4];
      const std::string& colon = strange ? one_of(colons) : colons[round % 2];
      for (const std::string& part :
           {i == 0 ? std::string() : std::string(",\n"), one_of(heads), std::to_string(i), join,
            std::string("\"name\""), colon, std::string("\"n\""), join, std::string("\"args\""),
            colon, std::string("{")}) {
        all += part;
      }
      const std::size_t members = random() % 6;
      for (std::size_t m = 0; m < members; ++m) {
        if (m != 0) all += join;
        add_member(colon, &all);
      }
      all += strange ? " }" : "}";
      if (random() % 4 == 0) {
        all += join;
        add_member(colon, &all);
      }
      all += "}";
    }
    const std::string text = "[" + all + "]";
    ASSERT_EQ(Described(text, 0), Described(R"([{"x":1(},)" + all + "]", 1)) << all;
    // None of them was left to simdjson.
    const std::string padded = text + std::string(EventReader::kReadable, ' ');
    EventReader reader(std::string_view(padded).substr(0, text.size()));
    RawEvent event;
    std::size_t events = 0;
    while (reader.Next(&event)) ++events;
    ASSERT_EQ(events, 300U) << all.substr(reader.taken(), 200);
    ASSERT_EQ(reader.taken(), text.size());
  }
}

TEST(EventBlocksTest, BracketsAreTheSameOnAnyProcessor) {
  std::mt19937_64 random(13);
  constexpr std::size_t kGroups = 40;
  for (int round = 0; round < 500; ++round) {
    std::string text(kGroups * BracketScanner::kGroupBytes, ' ');
    for (char& c : text) c = "{}[]\"\\ab;{:}|\xfb"[random() % (round % 2 == 0 ? 14 : 4)];
    BracketScanner one;
    BracketScanner other;
    std::array<BracketScanner::Group, kGroups> found;
    std::array<BracketScanner::Group, kGroups> plain;
    const std::size_t first = random() % kGroups;
    one.Next(text.data(), first, found.data());
    one.Next(text.data() + first * BracketScanner::kGroupBytes, kGroups - first,
             found.data() + first);
    other.NextPlain(text.data(), kGroups, plain.data());
    for (std::size_t i = 0; i < kGroups; ++i) {
      ASSERT_EQ(found[i].opens, plain[i].opens) << i << ' ' << text;
      ASSERT_EQ(found[i].closes, plain[i].closes) << i << ' ' << text;
    }
  }
}

TEST(BlockParserTest, TimesOfAnyLengthAreExact) {
  const std::pair<std::string_view, std::int64_t> times[] = {
      {"0", 0},
      {"1234567", 1234567000},
      {"12345678", 12345678000},
      {"00000001", 1000},
      {"12345678.125", 12345678125},
      {"123456789", 123456789000},
      {"1669783687464181", 1669783687464181000},
      {"1669783687464181.1239", 1669783687464181123},
      {"-1669783687464181.5", -1669783687464181500},
      {"9999999999999.001", 9999999999999001},
      {"12345678e1", 123456780000},
  };
  std::string text;
  for (const auto& [word, ns] : times) {
    text += (text.empty() ? "[" : ",") + std::string(R"({"ph":"X","name":"n","ts":)");
    text += std::string(word) + "}";
  }
  // No numbers, and more than an import takes.
  for (const std::string word : {"1234567x", "12345678x", "1234567890123456789", "x2345678"}) {
    text += R"(,{"ph":"X","name":"n","ts":")" + word + "\"}";
  }
  MemoryTrace input(text + "]");
  EventBlocks blocks(&input, 1 << 30);
  auto block = blocks.Next();
  ASSERT_TRUE(block.ok() && *block != nullptr);
  const auto parsed = BlockParser().Parse(block->get(), "test");
  ASSERT_EQ(parsed->slices.rows(), std::size(times));
  for (std::size_t i = 0; i < std::size(times); ++i) {
    EXPECT_EQ(parsed->slices.time_ns[i], times[i].second) << times[i].first;
  }
  EXPECT_EQ(parsed->counts[static_cast<std::size_t>(ChromeCount::kDamagedEvents)], 4U);
}

/// Any bytes, whatever is done to them, end in counts and never in a crash.
TEST(BlockParserTest, MutatedTraces) {
  std::mt19937_64 random(7);
  const std::string whole = MmTrace(30, "na\\\"me");
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int round = 0; round < 3000; ++round) {
    std::string text = whole;
    for (std::size_t i = below(8) + 1; i > 0; --i) {
      const std::size_t at = below(text.size());
      switch (below(5)) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, below(40));
          break;
        case 2:
          text.insert(at, std::string(below(5), "\"{}[],:\\"[below(8)]));
          break;
        case 3:
          text.insert(at, text.substr(below(text.size()), below(300)));
          break;
        default:
          text.resize(std::max<std::size_t>(at, 1));
      }
      if (text.empty()) text = "[";
    }
    const ParsedTrace parsed = ParseTraceText(text, 512 << below(4));
    EXPECT_LE(parsed.slices, 200U);
  }
}

TEST(IntervalsTest, SetsAreExact) {
  const IntervalSet set = ToSet({{10, 20}, {0, 5}, {15, 30}, {40, 40}});
  EXPECT_EQ(set, (IntervalSet{{0, 5}, {10, 30}}));
  EXPECT_EQ(Within(set, 3, 12), (IntervalSet{{3, 5}, {10, 12}}));
  EXPECT_EQ(Without({{0, 50}}, set), (IntervalSet{{5, 10}, {30, 50}}));
  EXPECT_EQ(LengthOf(set), 25);
}

class ChromeImportTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "chrome-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  /// Imports the files into run `name` and reads all of it.
  Result<ImportSummary> Import(std::vector<std::filesystem::path> files,
                               const std::string& name = "run") {
    run_ = folder_ / name;
    auto summary = ImportFilesHere({.paths = std::move(files), .run = run_});
    if (!summary.ok()) return summary;
    auto reader = store::RunReader::Open(run_);
    EXPECT_TRUE(reader.ok());
    rows_ = {};
    store::Salvage salvage;
    EXPECT_TRUE((*reader)->ReadAll(~0U, &pool_, &rows_, &salvage).ok());
    EXPECT_FALSE(salvage.any());
    const auto verified = store::Verify(run_);
    EXPECT_TRUE(verified.ok() && verified->problems.empty());
    return summary;
  }
  const format::SliceRow& Slice(std::string_view name) {
    for (const auto& row : rows_.slices) {
      if (row.name == name) return row;
    }
    ADD_FAILURE() << "no slice " << name;
    static const format::SliceRow kNone;
    return kNone;
  }

  std::filesystem::path folder_, run_;
  StringPool pool_;
  format::Rows rows_;
};

constexpr const char* kTraceOfAllKinds = R"({"schemaVersion": 1, "baseTimeNanoseconds": 1000000000,
"distributedInfo": {"backend": "nccl", "rank": 2, "world_size": 4}, "traceEvents": [
{"ph":"M","name":"thread_name","pid":7,"tid":8,"args":{"name":"main thread "}},
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#5","pid":7,"tid":8,"ts":100.5,"dur":100},
{"ph":"X","cat":"cpu_op","name":"enumerate(DataLoader)#It.__next__","pid":7,"tid":8,"ts":101.5,"dur":20},
{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":7,"tid":8,"ts":130,"dur":10,
 "args":{"External id":11,"Ev Idx":3,"memory bandwidth":inf}},
{"ph":"s","id":4,"cat":"fwdbwd","name":"fwdbwd","pid":7,"tid":8,"ts":130},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":7,"tid":8,"ts":131,"dur":2,
 "args":{"External id":11,"correlation":42}},
{"ph":"s","id":42,"cat":"ac2g","name":"ac2g","pid":7,"tid":8,"ts":131},
{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":140.25,"dur":9.125,
 "args":{"External id":11,"correlation":42,"device":0,"stream":7,"grid":[1,2,3]}},
{"ph":"f","id":42,"cat":"ac2g","name":"ac2g","pid":0,"tid":7,"ts":140.25,"bp":"e"},
{"ph":"X","cat":"cpu_op","name":"MmBackward0","pid":7,"tid":9,"ts":150,"dur":20},
{"ph":"f","id":4,"cat":"fwdbwd","name":"fwdbwd","pid":7,"tid":9,"ts":150,"bp":"e"},
{"ph":"X","cat":"user_annotation","name":"Optimizer.step#SGD.step","pid":7,"tid":8,"ts":180,"dur":15},
{"ph":"i","cat":"cpu_instant_event","name":"[memory]","pid":7,"tid":8,"ts":150,"s":"t","args":{"Bytes":-512}},
{"ph":"C","name":"queue","pid":7,"ts":160,"args":{"size":3}},
{"ph":"B","name":"outer","cat":"x","pid":7,"tid":10,"ts":100},{"ph":"B","name":"inner","pid":7,"tid":10,"ts":110},
{"ph":"E","pid":7,"tid":10,"ts":120,"args":{"late":1}},{"ph":"E","pid":7,"tid":10,"ts":140},
{"ph":"b","cat":"net","name":"request","id":"0x1","pid":7,"tid":10,"ts":100},
{"ph":"e","cat":"net","name":"request","id":"0x1","pid":7,"tid":11,"ts":190}
], "traceName": "x"})";

TEST_F(ChromeImportTest, EachKindOfEventHasItsPlace) {
  const auto summary = Import({Write("a.json", kTraceOfAllKinds)});
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->ranks, std::vector<std::int32_t>{2});
  EXPECT_TRUE(summary->partial()) << "infinity is no JSON";
  const auto& op = Slice("aten::mm");
  EXPECT_EQ(op.time_ns, 1'000'130'000);
  EXPECT_EQ(op.duration_ns, 10'000);
  EXPECT_EQ(op.category, "op");
  EXPECT_EQ(op.kind, "cpu_op");
  EXPECT_EQ(op.step, 5);
  EXPECT_EQ(op.rank, 2);
  EXPECT_EQ(op.lane, "main thread");
  EXPECT_EQ(op.external, 11);
  EXPECT_EQ(op.device, -1);
  EXPECT_EQ(op.window, "a.json");
  EXPECT_EQ(op.args, R"({"Ev Idx":3,"memory bandwidth":"inf"})");
  EXPECT_EQ(op.flow, 4);
  EXPECT_EQ(Slice("MmBackward0").flow, 4);
  const auto& kernel = Slice("gemm");
  EXPECT_EQ(kernel.time_ns, 1'000'140'250);
  EXPECT_EQ(kernel.duration_ns, 9'125);
  EXPECT_EQ(kernel.category, "kernel");
  EXPECT_EQ(kernel.device, 0);
  EXPECT_EQ(kernel.stream, 7);
  EXPECT_EQ(kernel.tid, 0);
  EXPECT_EQ(kernel.lane, "stream 7");
  EXPECT_EQ(kernel.correlation, 42);
  EXPECT_EQ(Slice("cudaLaunchKernel").correlation, 42);
  EXPECT_EQ(Slice("cudaLaunchKernel").flow, 0) << "ac2g says what the correlation says";
  EXPECT_EQ(kernel.args, R"({"grid":[1,2,3]})");
  EXPECT_EQ(Slice("[memory]").category, "memory");
  EXPECT_EQ(Slice("[memory]").bytes, -512);
  EXPECT_EQ(Slice("enumerate(DataLoader)#It.__next__").category, "data");
  EXPECT_EQ(Slice("ProfilerStep#5").category, "step");
  EXPECT_EQ(Slice("outer").duration_ns, 40'000);
  EXPECT_EQ(Slice("inner").duration_ns, 10'000);
  EXPECT_EQ(Slice("inner").args, R"({"late":1})");
  EXPECT_EQ(Slice("request").duration_ns, 90'000);
  ASSERT_EQ(rows_.metrics.size(), 1U);
  EXPECT_EQ(rows_.metrics[0].name, "queue");
  EXPECT_EQ(rows_.metrics[0].value, 3);
  EXPECT_EQ(rows_.metrics[0].subject, "proc:7");
}

TEST_F(ChromeImportTest, ArgumentsThatAreNoJsonBecomeSome) {
  const auto summary = Import({Write(
      "a.json", R"({"traceEvents": [{"ph":"X","name":"op","pid":1,"tid":1,"ts":1,"dur":2,"args":)"
                R"({"a":[nan\],"b":"C:\q","c":[1 2],"d":{"e":-inf},"f":12ab,"g":["int"]}}]})")});
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(Slice("op").args, R"({"a":["nan"],"b":"C:\\q","c":null,"d":{"e":"-inf"},"f":"12ab",)"
                              R"("g":["int"]})");
  std::map<std::string, std::uint64_t> counters;
  for (const auto& counter : summary->counters) counters[counter.name] = counter.value;
  EXPECT_EQ(counters["import.values_not_finite"], 3U);
  EXPECT_EQ(counters["import.bytes_replaced"], 1U);
  EXPECT_EQ(counters["import.arguments_cut"], 1U);
}

TEST_F(ChromeImportTest, StepsHaveTheirPhases) {
  ASSERT_TRUE(Import({Write("a.json", kTraceOfAllKinds)}).ok());
  ASSERT_EQ(rows_.steps.size(), 1U);
  const format::StepRow& step = rows_.steps[0];
  EXPECT_EQ(step.step, 5);
  EXPECT_EQ(step.rank, 2);
  EXPECT_EQ(step.pid, 7);
  EXPECT_EQ(step.time_ns, 1'000'100'500);
  EXPECT_EQ(step.duration_ns, 100'000);
  EXPECT_EQ(step.data_wait_ns, 20'000);
  EXPECT_EQ(step.forward_ns, 20'000) << "from the first operator to the backward pass";
  EXPECT_EQ(step.backward_ns, 20'000);
  EXPECT_EQ(step.optimizer_ns, 15'000);
  EXPECT_EQ(step.other_ns, 25'000);
}

TEST_F(ChromeImportTest, ARunIsMadeWholeOrNotAtAll) {
  EXPECT_EQ(Import({Write("empty.json", R"({"traceEvents": []})")}).status().code(),
            Code::kUnusable);
  EXPECT_EQ(Import({Write("none.json", "")}).status().code(), Code::kUnusable);
  EXPECT_EQ(Import({Write("other.json", "{}")}).status().code(), Code::kUnusable);
  EXPECT_EQ(Import({folder_ / "missing.json"}).status().code(), Code::kUnusable);
  EXPECT_EQ(Import({"/dev/zero"}).status().code(), Code::kUsage);
  EXPECT_EQ(Import({folder_}).status().code(), Code::kUsage);
  std::size_t left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    left += entry.is_directory() ? 1 : 0;
  }
  EXPECT_EQ(left, 0U);
  const auto trace = Write("a.json", MmTrace(3));
  EXPECT_TRUE(Import({trace}).ok());
  EXPECT_EQ(Import({trace}).status().code(), Code::kUsage) << "it is there already";
}

TEST_F(ChromeImportTest, TheSameFileGivesTheSameBytes) {
  const auto trace = Write("a.json", MmTrace(2000));
  ASSERT_TRUE(Import({trace}, "one").ok());
  ASSERT_TRUE(Import({trace}, "two").ok());
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "one")) {
    if (!entry.is_regular_file() || entry.path().filename() == "run.json") continue;
    const auto other = folder_ / "two" / std::filesystem::relative(entry.path(), folder_ / "one");
    const auto bytes = [](const std::filesystem::path& path) {
      std::ifstream in(path, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(in), {});
    };
    EXPECT_EQ(bytes(entry.path()), bytes(other)) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 3U);
}

/// Ranks whose collectives end `offset_us` apart.
std::string RankTrace(int rank, int offset_us) {
  std::string text = R"({"schemaVersion": 1, "distributedInfo": {"rank": )" + std::to_string(rank) +
                     R"(}, "traceEvents": [
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":1,"tid":1,"ts":)" +
                     std::to_string(1000 + offset_us) + R"(,"dur":1000})";
  for (int i = 0; i < 8; ++i) {
    text += R"(,{"ph":"X","cat":"kernel","name":"ncclKernel_AllReduce","pid":0,"tid":7,"ts":)" +
            std::to_string(1100 + 100 * i + offset_us - rank * 20 - (i % 3)) + R"(,"dur":)" +
            std::to_string(30 + rank * 20 + (i % 2)) +
            R"(,"args":{"device":0,"stream":7,"correlation":1}})";
  }
  return text + "]}";
}

TEST_F(ChromeImportTest, RanksAreBroughtToOneClock) {
  const auto a = Write("a.json", RankTrace(0, 0));
  const auto b = Write("b.json", RankTrace(1, 5000));
  const auto summary = Import({b, a});
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->ranks, (std::vector<std::int32_t>{0, 1}));
  ASSERT_EQ(rows_.steps.size(), 2U);
  EXPECT_NEAR(static_cast<double>(rows_.steps[0].time_ns),
              static_cast<double>(rows_.steps[1].time_ns), 3000.0);
  ASSERT_EQ(rows_.events.size(), 2U);
  EXPECT_NE(rows_.events[1].data.find("\"shift_ns\":-5000000"), std::string::npos)
      << rows_.events[1].data;
  EXPECT_NE(rows_.events[1].data.find("uncertainty_ns"), std::string::npos);
}

}  // namespace
}  // namespace telltale::interchange
