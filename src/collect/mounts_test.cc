// SPDX-License-Identifier: Apache-2.0
#include "collect/mounts.h"

#include <gtest/gtest.h>

namespace telltale::collect {
namespace {

TEST(Mounts, FieldsAreThoseOfTheKernel) {
  const auto mounts = ParseMountinfo(
      "36 35 98:0 /sub /mnt/my\\040data rw,noatime master:1 shared:2 - nfs4 "
      "server:/a\\011b rw,vers=4.2\n"
      "22 27 0:21 / /proc rw - proc proc rw\n");
  ASSERT_EQ(mounts.size(), 2U);
  EXPECT_EQ(mounts[0].device, "98:0");
  EXPECT_EQ(mounts[0].root, "/sub");
  EXPECT_EQ(mounts[0].point, "/mnt/my data");
  EXPECT_EQ(mounts[0].type, "nfs4");
  EXPECT_EQ(mounts[0].source, "server:/a\tb");
  EXPECT_EQ(mounts[0].options, "rw,vers=4.2");
  EXPECT_EQ(mounts[1].point, "/proc");
}

TEST(Mounts, NonsenseIsLeftOut) {
  EXPECT_TRUE(ParseMountinfo("").empty());
  EXPECT_TRUE(ParseMountinfo("\n1 2\n1 2 3:4 / mnt rw - ext4 x rw\n1 2 3:4 / /mnt rw ext4 x\n"
                             "\\\\\\0 \\08 - - - -")
                  .empty());
  EXPECT_EQ(UnescapedMount("a\\134b\\9\\04"), "a\\b\\9\\04");
}

}  // namespace
}  // namespace telltale::collect
