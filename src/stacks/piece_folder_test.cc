// SPDX-License-Identifier: Apache-2.0
#include "stacks/piece_folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "store/store_testing.h"

namespace telltale::stacks {
namespace {

namespace fs = std::filesystem;

class PieceFolderTest : public ::testing::Test {
 protected:
  void Write(const fs::path& file) { std::ofstream(file) << "[]"; }
  std::vector<std::int64_t> Left(std::int64_t now_ns) {
    std::vector<std::int64_t> out;
    for (const RecordedPiece& piece : folder_.Left(now_ns, 50, &lost_)) {
      EXPECT_EQ(piece.due_ns, now_ns + 50);
      EXPECT_EQ(piece.rate, 20);
      out.push_back(piece.start_ns);
    }
    return out;
  }

  store::TempFolder temporary_;
  PieceFolder folder_{temporary_.path()};
  std::uint64_t lost_ = 0;
};

using Starts = std::vector<std::int64_t>;

TEST_F(PieceFolderTest, WhatIsLeftIsFoundWheneverItComesAndOnce) {
  Write(temporary_.path() / "piece-300-20.json");
  Write(temporary_.path() / "piece-100-20.json");
  EXPECT_EQ(Left(1000), (Starts{100, 300}));
  EXPECT_TRUE(Left(1001).empty());
  // A py-spy whose sampler has died wrote it when it ended, after we had begun.
  Write(temporary_.path() / "piece-700-20.json");
  EXPECT_EQ(Left(1002), Starts{700});
  EXPECT_TRUE(Left(1003).empty());
  EXPECT_EQ(lost_, 0U);
}

TEST_F(PieceFolderTest, OursAndOtherFilesAreNot) {
  Write(folder_.Begin(900, 20));
  for (const char* name : {"py-spy.log", "piece-5.json", "piece-5-0.json", "piece-5-2000.json"}) {
    Write(temporary_.path() / name);
  }
  EXPECT_TRUE(Left(1000).empty());
  EXPECT_TRUE(fs::exists(temporary_.path() / "piece-900-20.json"));
}

TEST_F(PieceFolderTest, ThoseOfAnotherBootAreLost) {
  Write(temporary_.path() / "piece-5000-20.json");
  EXPECT_TRUE(Left(1000).empty());
  EXPECT_EQ(lost_, 1U);
  EXPECT_FALSE(fs::exists(temporary_.path() / "piece-5000-20.json"));
}

}  // namespace
}  // namespace telltale::stacks
