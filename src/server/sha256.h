// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it, for text of a few hundred bytes.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace telltale::server {

std::array<std::uint8_t, 32> Sha256(std::string_view bytes);
/// In hex.
std::string HmacSha256(std::string_view key, std::string_view message);

}  // namespace telltale::server
