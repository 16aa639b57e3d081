// SPDX-License-Identifier: Apache-2.0
#include "server/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>

namespace telltale::server {
namespace {

bool IsLoopback(const in_addr& address) { return (ntohl(address.s_addr) >> 24U) == 127; }

bool IsLoopback(const in6_addr& address) {
  return IN6_IS_ADDR_LOOPBACK(&address) ||
         (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

std::string TextOf(int family, const void* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const char* const found = ::inet_ntop(family, address, text.data(), text.size());
  return found == nullptr ? std::string() : found;
}

}  // namespace

std::optional<bool> ReachesBeyond(const std::string& bind) {
  in_addr four{};
  in6_addr six{};
  if (::inet_pton(AF_INET, bind.c_str(), &four) == 1) return !IsLoopback(four);
  // An address of one link names its interface.
  if (::inet_pton(AF_INET6, bind.substr(0, bind.find('%')).c_str(), &six) == 1) {
    return !IsLoopback(six);
  }
  return std::nullopt;
}

std::vector<std::string> AddressesOf(const std::string& bind) {
  if (bind != "0.0.0.0" && bind != "::") return {bind};
  std::vector<std::string> four;
  std::vector<std::string> six;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return {};
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    if (one->ifa_addr->sa_family == AF_INET) {
      const in_addr& address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
      if (!IsLoopback(address)) four.push_back(TextOf(AF_INET, &address));
    } else if (one->ifa_addr->sa_family == AF_INET6 && bind == "::") {
      const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      if (IsLoopback(address) || IN6_IS_ADDR_LINKLOCAL(&address)) continue;
      six.push_back(TextOf(AF_INET6, &address));
    }
  }
  ::freeifaddrs(all);
  four.insert(four.end(), six.begin(), six.end());
  return four;
}

}  // namespace telltale::server
