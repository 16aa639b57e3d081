// SPDX-License-Identifier: Apache-2.0
#include "server/addresses.h"

#include <gtest/gtest.h>

namespace telltale::server {
namespace {

TEST(AddressesTest, LoopbackStaysHere) {
  for (const char* text : {"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_EQ(ReachesBeyond(text), false) << text;
  }
  for (const char* text : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "fe80::1%eth0", "2001:db8::1",
                           "::ffff:10.0.0.1"}) {
    EXPECT_EQ(ReachesBeyond(text), true) << text;
  }
  for (const char* text : {"", "localhost", "127.0.0.1:80", "[::1]"}) {
    EXPECT_EQ(ReachesBeyond(text), std::nullopt) << text;
  }
}

TEST(AddressesTest, OfAllInterfacesNoneIsLoopback) {
  EXPECT_EQ(AddressesOf("10.1.2.3"), std::vector<std::string>{"10.1.2.3"});
  for (const std::string& address : AddressesOf("::")) {
    EXPECT_EQ(ReachesBeyond(address), true) << address;
  }
}

}  // namespace
}  // namespace telltale::server
