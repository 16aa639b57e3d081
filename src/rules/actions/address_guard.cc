// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/address_guard.h"

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace telltale::rules {
namespace {

struct Net4 {
  std::uint32_t net;
  int bits;
  Reach reach;
};

constexpr std::uint32_t V4(unsigned a, unsigned b, unsigned c, unsigned d) {
  return a << 24 | b << 16 | c << 8 | d;
}

// First the metadata of clouds that lies elsewhere than in a link-local network, then IANA's
// special-purpose registry.
constexpr std::array kNets = {
    Net4{V4(100, 100, 100, 200), 32, Reach::kForbidden},
    Net4{V4(168, 63, 129, 16), 32, Reach::kForbidden},
    Net4{V4(192, 0, 0, 192), 32, Reach::kForbidden},
    Net4{V4(0, 0, 0, 0), 8, Reach::kForbidden},
    Net4{V4(10, 0, 0, 0), 8, Reach::kPrivate},
    Net4{V4(100, 64, 0, 0), 10, Reach::kPrivate},
    Net4{V4(127, 0, 0, 0), 8, Reach::kPrivate},
    Net4{V4(169, 254, 0, 0), 16, Reach::kForbidden},
    Net4{V4(172, 16, 0, 0), 12, Reach::kPrivate},
    Net4{V4(192, 0, 0, 0), 24, Reach::kPrivate},
    Net4{V4(192, 0, 2, 0), 24, Reach::kPrivate},
    Net4{V4(192, 88, 99, 0), 24, Reach::kPrivate},
    Net4{V4(192, 168, 0, 0), 16, Reach::kPrivate},
    Net4{V4(198, 18, 0, 0), 15, Reach::kPrivate},
    Net4{V4(198, 51, 100, 0), 24, Reach::kPrivate},
    Net4{V4(203, 0, 113, 0), 24, Reach::kPrivate},
    Net4{V4(224, 0, 0, 0), 4, Reach::kForbidden},
    Net4{V4(240, 0, 0, 0), 4, Reach::kForbidden},
};

Reach Of4(std::uint32_t address) {
  for (const Net4& net : kNets) {
    if ((address >> (32 - net.bits)) == (net.net >> (32 - net.bits))) return net.reach;
  }
  return Reach::kPublic;
}

using Bytes6 = std::array<std::uint8_t, 16>;

std::uint32_t At(const Bytes6& b, std::size_t at) {
  return V4(b[at], b[at + 1], b[at + 2], b[at + 3]);
}

bool Zero(const Bytes6& b, std::size_t from, std::size_t to) {
  return std::all_of(b.begin() + static_cast<std::ptrdiff_t>(from),
                     b.begin() + static_cast<std::ptrdiff_t>(to), [](auto x) { return x == 0; });
}

Reach Of6(const Bytes6& b) {
  if (Zero(b, 0, 16)) return Reach::kForbidden;
  if (Zero(b, 0, 15) && b[15] == 1) return Reach::kPrivate;                     // ::1
  if (Zero(b, 0, 10) && b[10] == 0xff && b[11] == 0xff) return Of4(At(b, 12));  // mapped
  if (Zero(b, 0, 12)) return Of4(At(b, 12));                                    // compatible
  if (At(b, 0) == 0x0064ff9b && Zero(b, 4, 12)) return Of4(At(b, 12));          // NAT64
  if (At(b, 0) == 0x0064ff9b) return Reach::kPrivate;                           // local NAT64
  if (b[0] == 0x20 && b[1] == 0x02) return Of4(At(b, 2));                       // 6to4
  if (b[0] == 0xfe && (b[1] & 0xc0) == 0x80) return Reach::kForbidden;          // fe80::/10
  if (b[0] == 0xfe && (b[1] & 0xc0) == 0xc0) return Reach::kPrivate;            // fec0::/10
  if (b[0] == 0xff) return Reach::kForbidden;                                   // multicast
  // Metadata of clouds that lies in unique local networks.
  if (At(b, 0) == 0xfd000ec2) return Reach::kForbidden;
  if (At(b, 0) == 0xfd2000ce && Zero(b, 4, 14)) return Reach::kForbidden;
  if ((b[0] & 0xfe) == 0xfc) return Reach::kPrivate;                             // fc00::/7
  if (At(b, 0) == 0x20010000 || At(b, 0) == 0x20010db8) return Reach::kPrivate;  // Teredo, docs
  return (b[0] & 0xe0) == 0x20 ? Reach::kPublic : Reach::kPrivate;               // 2000::/3
}

}  // namespace

Reach ReachOf(const sockaddr* address, socklen_t size) {
  if (address == nullptr) return Reach::kForbidden;
  if (address->sa_family == AF_INET && size >= sizeof(sockaddr_in)) {
    sockaddr_in in;
    std::memcpy(&in, address, sizeof in);
    return Of4(ntohl(in.sin_addr.s_addr));
  }
  if (address->sa_family == AF_INET6 && size >= sizeof(sockaddr_in6)) {
    sockaddr_in6 in;
    std::memcpy(&in, address, sizeof in);
    Bytes6 bytes;
    std::memcpy(bytes.data(), in.sin6_addr.s6_addr, bytes.size());
    return Of6(bytes);
  }
  return Reach::kForbidden;
}

}  // namespace telltale::rules
