// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/address_guard.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/un.h>

namespace telltale::rules {
namespace {

Reach Of(const char* text) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  if (::inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
    return ReachOf(reinterpret_cast<const sockaddr*>(&v4), sizeof v4);
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  EXPECT_EQ(::inet_pton(AF_INET6, text, &v6.sin6_addr), 1) << text;
  return ReachOf(reinterpret_cast<const sockaddr*>(&v6), sizeof v6);
}

TEST(AddressGuard, TheOpenInternetIsPublic) {
  for (const char* text : {"1.1.1.1", "172.15.255.255", "172.32.0.1", "100.63.0.1", "100.128.0.1",
                           "192.167.0.1", "223.255.255.254", "2606:4700::1111", "2a00:1450::1",
                           "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:0808:0808::1"}) {
    EXPECT_EQ(Of(text), Reach::kPublic) << text;
  }
}

TEST(AddressGuard, ThisMachineAndItsNetworksArePrivate) {
  for (const char* text :
       {"127.0.0.1", "127.255.255.255", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
        "100.64.0.1", "198.18.0.1", "::1", "fd12::1", "fc00::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:7f00:0001::1", "::127.0.0.1", "2001:db8::1"}) {
    EXPECT_EQ(Of(text), Reach::kPrivate) << text;
  }
}

TEST(AddressGuard, LinkLocalAndMulticastAreForbiddenHoweverWritten) {
  for (const char* text : {"169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255", "::",
                           "fe80::1", "ff02::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe",
                           "2002:a9fe:a9fe::1", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200",
                           "::ffff:100.100.100.200", "168.63.129.16", "192.0.0.192"}) {
    EXPECT_EQ(Of(text), Reach::kForbidden) << text;
  }
}

TEST(AddressGuard, OtherFamiliesAreForbidden) {
  sockaddr_un local{};
  local.sun_family = AF_UNIX;
  EXPECT_EQ(ReachOf(reinterpret_cast<const sockaddr*>(&local), sizeof local), Reach::kForbidden);
  EXPECT_EQ(ReachOf(nullptr, 0), Reach::kForbidden);
}

}  // namespace
}  // namespace telltale::rules
