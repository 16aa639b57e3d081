// SPDX-License-Identifier: Apache-2.0
// Addresses of this machine, and whether one reaches beyond it.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace telltale::server {

/// Whether others than this machine can reach a server that listens there; none where it is no
/// address.
std::optional<bool> ReachesBeyond(const std::string& bind);

/// Where a server that listens there can be reached from other machines, those of IPv4 first; only
/// the address itself where that is one of an interface. Addresses of one link (fe80::) are left
/// out: a browser's address line takes none.
std::vector<std::string> AddressesOf(const std::string& bind);

}  // namespace telltale::server
