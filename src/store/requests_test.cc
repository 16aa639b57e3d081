// SPDX-License-Identifier: Apache-2.0
#include "store/requests.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/clock.h"
#include "store/folder.h"
#include "store/store_testing.h"

namespace telltale::store {
namespace {

namespace fs = std::filesystem;

Request Plan(const std::string& who, std::int64_t time_ns = 0) {
  Request request;
  request.who = who;
  request.time_ns = time_ns;
  request.kind = "plan";
  request.body = R"({"base": "none"})";
  return request;
}

TEST(Requests, EachIsFoundOnceInTheOrderOfTime) {
  const TempFolder temp;
  RequestReader reader(temp.path());
  EXPECT_TRUE(reader.Poll().requests.empty()) << "there is no folder yet";
  ASSERT_TRUE(WriteRequest(temp.path(), Plan("n1:2", 2000)).ok());
  ASSERT_TRUE(WriteRequest(temp.path(), Plan("n2:9", 1000)).ok());
  auto found = reader.Poll();
  ASSERT_EQ(found.requests.size(), 2U);
  EXPECT_TRUE(found.damaged.empty());
  EXPECT_EQ(found.requests[0].who, "n2:9");
  EXPECT_EQ(found.requests[0].kind, "plan");
  EXPECT_EQ(found.requests[0].body, R"({"base":"none"})");
  EXPECT_EQ(found.requests[1].time_ns, 2000);
  EXPECT_TRUE(reader.Poll().requests.empty());
  // Into a folder that is known, at once.
  const auto third = WriteRequest(temp.path(), Plan("n1:2"));
  ASSERT_TRUE(third.ok());
  found = reader.Poll();
  ASSERT_EQ(found.requests.size(), 1U);
  EXPECT_EQ(found.requests[0].id, third->id);
  EXPECT_EQ(RequestReader(temp.path()).Poll().requests.size(), 3U) << "to another reader, all";
}

TEST(Requests, NamesTheAttemptThatItIsAskedOf) {
  const TempFolder temp;
  Request request = Plan("w", 1);
  ASSERT_TRUE(WriteRequest(temp.path(), request).ok());
  request = Plan("w", 2);
  request.attempt = 4'000'000'000;
  ASSERT_TRUE(WriteRequest(temp.path(), request).ok());
  const auto foreign = [&](const char* attempt, char name) {
    std::ofstream(temp.path() / "requests/w" / (std::string(32, name) + ".json"))
        << R"({"version": 1, "kind": "stop", "body": {}, "time_ns": 3, "attempt": )" << attempt
        << "}";
  };
  foreign("-1", 'a');
  foreign("4294967296", 'b');
  foreign("\"2\"", 'c');
  foreign("2.0", 'd');
  const auto found = RequestReader(temp.path()).Poll();
  ASSERT_EQ(found.requests.size(), 6U);
  EXPECT_EQ(found.requests[0].attempt, 0U);
  EXPECT_EQ(found.requests[1].attempt, 4'000'000'000U);
  for (std::size_t i = 2; i < 6; ++i) EXPECT_EQ(found.requests[i].attempt, 0U) << i;
}

TEST(Requests, AFolderWhoseTimeLiesAheadLosesNone) {
  // Of another machine's clock, or of this one's before it was set back.
  const TempFolder temp;
  ASSERT_TRUE(WriteRequest(temp.path(), Plan("w")).ok());
  const fs::path folder = temp.path() / "requests/w";
  const auto ahead = fs::file_time_type::clock::now() + std::chrono::hours(1);
  fs::last_write_time(folder, ahead);
  FakeClock clock;
  RequestReader reader(temp.path(), &clock);
  EXPECT_EQ(reader.Poll().requests.size(), 1U);
  ASSERT_TRUE(WriteRequest(temp.path(), Plan("w")).ok());
  fs::last_write_time(folder, ahead);  // Within the same tick of that clock.
  clock.Advance(500'000'000);
  EXPECT_EQ(reader.Poll().requests.size(), 1U);
  // It is not listed again and again where nothing changes.
  ASSERT_TRUE(WriteRequest(temp.path(), Plan("w")).ok());
  fs::last_write_time(folder, ahead);
  clock.Advance(600'000'000);
  EXPECT_TRUE(reader.Poll().requests.empty());
}

TEST(Requests, IdsGrowWithTimeAndDiffer) {
  const TempFolder temp;
  const auto a = WriteRequest(temp.path(), Plan("w", 5));
  const auto b = WriteRequest(temp.path(), Plan("w", 5));
  const auto c = WriteRequest(temp.path(), Plan("w", 6));
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_NE(a->id, b->id);
  EXPECT_LT(a->id, c->id);
  EXPECT_LT(b->id, c->id);
}

TEST(Requests, WhatIsNoneIsNamedOnce) {
  const TempFolder temp;
  const fs::path folder = temp.path() / "requests" / "w";
  fs::create_directories(folder);
  const std::string id(32, 'a');
  std::ofstream(folder / (id + ".json")) << "{\"version\": 99}";
  std::ofstream(folder / (std::string(32, 'b') + ".json")) << "no";
  std::ofstream(folder / "notes.txt") << "mine";
  std::ofstream(folder / "x.json") << "{}";
  std::ofstream(temp.path() / "requests" / "file") << "mine";
  RequestReader reader(temp.path());
  const auto found = reader.Poll();
  EXPECT_TRUE(found.requests.empty());
  ASSERT_EQ(found.damaged.size(), 2U);
  EXPECT_TRUE(reader.Poll().damaged.empty());
  for (const auto& damaged : found.damaged) {
    EXPECT_EQ(damaged.who, "w");
    EXPECT_FALSE(damaged.why.empty());
  }
}

TEST(Requests, OnlyTheOwnerOfTheRunAndRootAreListenedTo) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  constexpr uid_t kOwner = 4001;
  constexpr uid_t kOther = 4002;
  const TempFolder temp;
  ASSERT_EQ(::chown(temp.path().c_str(), kOwner, kOwner), 0);
  const auto ask = [&](const char* who, uid_t of_folder, uid_t of_file) {
    const auto written = WriteRequest(temp.path(), Plan(who));
    ASSERT_TRUE(written.ok());
    const fs::path file = RequestFile(temp.path(), who, written->id);
    ASSERT_EQ(::chown(file.c_str(), of_file, of_file), 0);
    ASSERT_EQ(::chown(file.parent_path().c_str(), of_folder, of_folder), 0);
  };
  ask("root", 0, 0);
  ask("owner", kOwner, kOwner);
  ask("mallory", kOther, kOther);
  ask("moved-file", kOwner, kOther);
  ask("moved-folder", kOther, kOwner);
  RequestReader reader(temp.path());
  const auto found = reader.Poll();
  ASSERT_EQ(found.requests.size(), 2U);
  EXPECT_EQ(found.requests[0].who, "root");
  EXPECT_EQ(found.requests[1].who, "owner");
  ASSERT_EQ(found.damaged.size(), 3U);
  for (const auto& damaged : found.damaged) {
    EXPECT_NE(damaged.why.find("of user 4002"), std::string::npos) << damaged.why;
    EXPECT_NE(damaged.why.find("user 4001"), std::string::npos) << damaged.why;
  }
  ask("mallory", kOther, kOther);
  EXPECT_EQ(reader.Poll().damaged.size(), 1U) << "each is named once";
}

TEST(Requests, WhoeverWritesOnAndOnIsNotToldOfForEver) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  const TempFolder temp;
  for (std::size_t i = 0; i < 300; ++i) {
    const auto written = WriteRequest(temp.path(), Plan("mallory"));
    ASSERT_TRUE(written.ok());
    const fs::path file = RequestFile(temp.path(), "mallory", written->id);
    ASSERT_EQ(::chown(file.c_str(), 4002, 4002), 0);
  }
  RequestReader reader(temp.path());
  EXPECT_LE(reader.Poll().damaged.size(), 100U);
  ASSERT_TRUE(WriteRequest(temp.path(), Plan("me")).ok());
  EXPECT_EQ(reader.Poll().requests.size(), 1U);
}

/// Of request number i in a folder that holds what is no file.
fs::path Planted(const fs::path& folder, std::size_t i) {
  return folder / fmt::format("{:032x}.json", i + 1);
}

TEST(Requests, LinksAndPipesOfAnotherUserAreAsHisFilesAre) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  const TempFolder temp;
  const fs::path folder = temp.path() / "requests/w";
  fs::create_directories(folder);
  for (std::size_t i = 0; i < 300; ++i) {
    const fs::path file = Planted(folder, i);
    if (i % 2 == 0) {
      fs::create_symlink("nowhere", file);
    } else {
      ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    }
    ASSERT_EQ(::lchown(file.c_str(), 4002, 4002), 0);
  }
  RequestReader reader(temp.path());
  const auto found = reader.Poll();
  EXPECT_TRUE(found.requests.empty());
  EXPECT_LE(found.damaged.size(), 100U);
  ASSERT_FALSE(found.damaged.empty());
  for (const auto& damaged : found.damaged) {
    ASSERT_NE(damaged.why.find("of user 4002"), std::string::npos) << damaged.why;
  }
  ASSERT_TRUE(WriteRequest(temp.path(), Plan("w")).ok());
  EXPECT_EQ(reader.Poll().requests.size(), 1U);
}

TEST(Requests, HoweverMuchAnotherUserPlantsTheOwnersRequestIsFound) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  const TempFolder temp;
  const fs::path folder = temp.path() / "requests/m";
  fs::create_directories(folder);
  // As many as a reader keeps in mind.
  for (std::size_t i = 0; i < 100'000; ++i) {
    ASSERT_EQ(::symlink("nowhere", Planted(folder, i).c_str()), 0);
  }
  ASSERT_EQ(::lchown(folder.c_str(), 4002, 4002), 0);
  RequestReader reader(temp.path());
  EXPECT_LE(reader.Poll().damaged.size(), 100U);
  ASSERT_TRUE(WriteRequest(temp.path(), Plan("me")).ok());
  const auto found = reader.Poll();
  ASSERT_EQ(found.requests.size(), 1U);
  EXPECT_EQ(found.requests[0].who, "me");
}

TEST(Requests, FoldersOfAnotherUserKeepNoRequestBack) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  const TempFolder temp;
  RequestReader reader(temp.path());
  for (std::size_t i = 0; i < 300; ++i) {
    const fs::path folder = temp.path() / "requests" / fmt::format("m{}", i);
    fs::create_directories(folder);
    fs::create_symlink("nowhere", Planted(folder, i));
    ASSERT_EQ(::lchown(folder.c_str(), 4002, 4002), 0);
  }
  EXPECT_LE(reader.Poll().damaged.size(), 100U);
  ASSERT_TRUE(WriteRequest(temp.path(), Plan("me")).ok());
  auto found = reader.Poll();
  EXPECT_EQ(found.requests.size(), 1U);
  EXPECT_TRUE(found.damaged.empty());
  // One that comes to belong to the owner counts from then on.
  const auto written = WriteRequest(temp.path(), Plan("m299"));
  ASSERT_TRUE(written.ok());
  ASSERT_EQ(::lchown((temp.path() / "requests/m299").c_str(), 0, 0), 0);
  ASSERT_TRUE(WriteRequest(temp.path(), Plan("another")).ok());
  found = reader.Poll();
  EXPECT_EQ(found.requests.size(), 2U);
}

TEST(Requests, WhoMayAskIsSaidWithNames) {
  const std::uint32_t own = ::geteuid();
  const std::string of_another = WhoMayAsk(own + 4001);
  EXPECT_NE(of_another.find(fmt::format("run folder (user {})", own + 4001)), std::string::npos)
      << of_another;
  EXPECT_NE(of_another.find("root"), std::string::npos) << of_another;
  const std::string of_own = WhoMayAsk(own);
  EXPECT_EQ(of_own.find("who records it"), std::string::npos) << "it is the owner: " << of_own;
}

TEST(Requests, NoLinkIsFollowedAndNoPipeIsWaitedFor) {
  const TempFolder temp;
  const TempFolder elsewhere;
  ASSERT_TRUE(WriteRequest(elsewhere.path(), Plan("w")).ok());
  fs::create_directories(temp.path() / "requests/w");
  fs::create_symlink(elsewhere.path() / "requests/w", temp.path() / "requests/link");
  const fs::path pipe = temp.path() / "requests/w" / (std::string(32, 'a') + ".json");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const fs::path link = temp.path() / "requests/w" / (std::string(32, 'b') + ".json");
  fs::create_symlink(*fs::directory_iterator(elsewhere.path() / "requests/w"), link);
  const auto found = RequestReader(temp.path()).Poll();
  EXPECT_TRUE(found.requests.empty());
  ASSERT_EQ(found.damaged.size(), 2U);
}

TEST(Requests, AFolderIsNamedAsFilesCanBe) {
  EXPECT_EQ(RequestFolderName("n1.lan:42"), "n1.lan_42");
  EXPECT_EQ(RequestFolderName("../x"), "_.._x");
  EXPECT_EQ(RequestFolderName(""), "_");
  EXPECT_EQ(RequestFolderName(std::string(1000, 'a')).size(), 100U);
}

TEST(Requests, ABodyMustBeAnObject) {
  const TempFolder temp;
  Request request = Plan("w");
  request.body = "[]";
  EXPECT_EQ(WriteRequest(temp.path(), request).status().code(), Code::kUsage);
  request.body = "{\"a\": \"" + std::string(1 << 20, 'x') + "\"}";
  EXPECT_EQ(WriteRequest(temp.path(), request).status().code(), Code::kLimit);
  EXPECT_EQ(WriteRequest(temp.path() / "nowhere", Plan("w")).status().code(), Code::kIo);
}

TEST(Requests, ThePageShowsWhatIsWritten) {
  std::ifstream in(std::string(TELLTALE_SOURCE_DIR) + "/docs/formats/requests.md");
  const std::string page((std::istreambuf_iterator<char>(in)), {});
  const auto begin = page.find("```json\n") + 8;
  const std::string shown = page.substr(begin, page.find("```", begin) - begin);
  const TempFolder temp;
  Request request;
  for (std::size_t i = 0; i < request.id.size(); ++i) {
    request.id[i] = static_cast<std::uint8_t>(i + 16);
  }
  request.who = "n1:4711";
  request.time_ns = 1'700'000'000'000'000'000;
  request.attempt = 1;
  request.kind = "plan";
  request.body = R"({"base": "current", "plan": {"collections": {"losses": {"interval": 1}}}})";
  ASSERT_TRUE(WriteRequest(temp.path(), request).ok());
  const fs::path file =
      temp.path() / "requests" / "n1_4711" / "101112131415161718191a1b1c1d1e1f.json";
  EXPECT_EQ(ReadWholeFile(file).value(), shown);
}

}  // namespace
}  // namespace telltale::store
