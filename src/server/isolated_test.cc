// SPDX-License-Identifier: Apache-2.0
#include "server/isolated.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace telltale::server {
namespace {

using Number = Result<std::unique_ptr<int>>;

TEST(IsolatedTest, WhatItGivesComesThrough) {
  EXPECT_EQ(**IsolatedResult("runs/one", [] { return Number(std::make_unique<int>(7)); }), 7);
  const Number refused =
      IsolatedResult("runs/one", [] { return Number(Code::kUnusable, "no such run"); });
  EXPECT_EQ(refused.status().message(), "no such run");
}

TEST(IsolatedTest, WhatItThrowsNamesTheRun) {
  const Number damaged =
      IsolatedResult("runs/one", []() -> Number { throw std::length_error("too long a text"); });
  EXPECT_EQ(damaged.status().code(), Code::kUnusable);
  EXPECT_NE(damaged.status().message().find("runs/one: cannot be read: too long a text"),
            std::string::npos);
  const Number large = IsolatedResult("runs/one", []() -> Number { throw std::bad_alloc(); });
  EXPECT_EQ(large.status().code(), Code::kLimit);
  EXPECT_NE(large.status().message().find("runs/one"), std::string::npos);
}

}  // namespace
}  // namespace telltale::server
