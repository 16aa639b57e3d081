// SPDX-License-Identifier: Apache-2.0
// Whether an address is one of the open internet: a URL in a rules file must not make the watcher
// talk to this machine, its network or a cloud's metadata. Asked of the very address that is about
// to be connected, so that no second answer of a name server matters. Thread safety: stateless.
#pragma once
#include <sys/socket.h>

#include <cstdint>

namespace telltale::rules {

enum class Reach : std::uint8_t {
  kPublic,
  kPrivate,    ///< This machine, private networks, those that are reserved or for documentation.
  kForbidden,  ///< Link-local (metadata of clouds), multicast, no address at all.
};

/// Of an IPv4 or IPv6 address; what is embedded in an IPv6 address counts as what it is. Any other
/// family is kForbidden.
Reach ReachOf(const sockaddr* address, socklen_t size);

}  // namespace telltale::rules
