// SPDX-License-Identifier: Apache-2.0
// A level that is made while a name looks for its place.
#include "channel/name_table.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace telltale::channel {

class NameTableTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kFirstLevel = 16'383;

  void SetUp() override {
    header_.name_limit = 1 << 20;
    header_.names_bytes = area_.size();
    ASSERT_TRUE(table_->Open(&header_, area_.data(), {-1, 0, area_.size()}));
  }
  void TearDown() override { table_->Close(); }

  /// As if a thread had been preempted in the kernel, growing the table.
  void HoldGrowth() { table_->growing_.store(1); }
  bool Grow() { return table_->AddLevel(false); }
  /// As Intern does under the lock; `between` comes between the look and the entry.
  std::uint32_t Enter(const std::string& text, const std::function<void()>& between) {
    NameTable::Place place;
    const std::uint32_t known = table_->Find(text.data(), text.size(), kHash, &place);
    between();
    return known != 0 ? known : table_->Add(text.data(), text.size(), kHash, place);
  }
  std::uint32_t Look(const std::string& text) {
    NameTable::Place place;
    return table_->Find(text.data(), text.size(), kHash, &place);
  }

  /// Of one whose place is none of the first.
  static constexpr std::uint32_t kHash = 12'345;
  format::ArenaHeader header_{};
  std::vector<char> area_ = std::vector<char>(1 << 20);
  const std::unique_ptr<NameTable> table_ = std::make_unique<NameTable>();
};

TEST_F(NameTableTest, ANameThatLooksWhileTheTableGrowsHasOneId) {
  HoldGrowth();
  for (std::uint32_t i = 1; i <= kFirstLevel; ++i) {
    const std::string name = std::to_string(i);
    ASSERT_EQ(table_->Intern(name.data(), name.size()), i);
  }
  const std::uint32_t early = Enter("late", [&] { ASSERT_TRUE(Grow()); });
  EXPECT_TRUE(early == 0 || Look("late") == early) << "it is where nobody looks for it";
  const std::uint32_t id = Enter("late", [] {});
  EXPECT_EQ(id, kFirstLevel + 1);
  EXPECT_EQ(Look("late"), id);
  EXPECT_EQ(table_->Text(id), "late");
  EXPECT_EQ(table_->count(), kFirstLevel + 1);
}

}  // namespace telltale::channel
