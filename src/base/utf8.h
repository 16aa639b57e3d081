// SPDX-License-Identifier: Apache-2.0
// Text from user programs may be any bytes; what leaves us (Parquet, JSON) must be UTF-8.
#pragma once
#include <string>
#include <string_view>

namespace telltale {

/// Length of the character at the begin of `text`, 0 where there is none.
std::size_t Utf8Length(std::string_view text);

/// Length of the longest prefix that is valid UTF-8 (RFC 3629: no surrogates, no overlong forms).
std::size_t ValidUtf8Prefix(std::string_view text);

/// `text` where it is valid, else a copy in `scratch` with U+FFFD for each byte that is not.
std::string_view ToValidUtf8(std::string_view text, std::string* scratch);

}  // namespace telltale
