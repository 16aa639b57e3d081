// SPDX-License-Identifier: Apache-2.0
// TFRecord framing: length, masked CRC-32C of the length, payload, masked CRC-32C of the payload.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace telltale::interchange {

inline constexpr std::size_t kRecordFrameBytes = 16;

/// Appends one record to `out`.
void AppendRecord(std::string_view payload, std::string* out);

/// The payload of the record that `bytes` begins with; nothing where it is cut or damaged.
/// SageMaker Debugger writes one constant instead of the payload's checksum: it is taken as if
/// there were none.
std::optional<std::string_view> RecordPayload(std::string_view bytes);

}  // namespace telltale::interchange
