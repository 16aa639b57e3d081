// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli, iSCSI polynomial, RFC 3720 appendix B.4), by the SSE4.2 instruction where the
// processor has it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace telltale {

/// CRC32C of `size` bytes, continuing from `crc` (0 to begin).
std::uint32_t Crc32c(const void* data, std::size_t size, std::uint32_t crc = 0);

/// LevelDB's mask, for a CRC that is stored beside data which may itself hold CRCs.
constexpr std::uint32_t MaskCrc(std::uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

}  // namespace telltale
