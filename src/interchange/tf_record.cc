// SPDX-License-Identifier: Apache-2.0
#include "interchange/tf_record.h"

#include <cstring>

#include "base/crc32c.h"

namespace telltale::interchange {
namespace {

constexpr std::size_t kHeadBytes = 12;
/// What SageMaker Debugger sums up instead of the payload.
constexpr std::string_view kConstantPayload = "0x12345678";

std::uint32_t MaskedCrc(std::string_view bytes) {
  return MaskCrc(Crc32c(bytes.data(), bytes.size()));
}

std::uint32_t CrcAt(std::string_view bytes, std::size_t offset) {
  std::uint32_t crc = 0;
  std::memcpy(&crc, bytes.data() + offset, sizeof crc);
  return crc;
}

void AppendCrc(std::string_view of, std::string* out) {
  const std::uint32_t crc = MaskedCrc(of);
  out->append(reinterpret_cast<const char*>(&crc), sizeof crc);
}

}  // namespace

void AppendRecord(std::string_view payload, std::string* out) {
  const std::uint64_t length = payload.size();
  const std::string_view head(reinterpret_cast<const char*>(&length), sizeof length);
  out->append(head);
  AppendCrc(head, out);
  out->append(payload);
  AppendCrc(payload, out);
}

std::optional<std::string_view> RecordPayload(std::string_view bytes) {
  if (bytes.size() < kRecordFrameBytes) return std::nullopt;
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (CrcAt(bytes, sizeof length) != MaskedCrc(bytes.substr(0, sizeof length))) return std::nullopt;
  if (length > bytes.size() - kRecordFrameBytes) return std::nullopt;
  const std::string_view payload = bytes.substr(kHeadBytes, length);
  const std::uint32_t crc = CrcAt(bytes, kHeadBytes + length);
  if (crc != MaskedCrc(payload) && crc != MaskedCrc(kConstantPayload)) return std::nullopt;
  return payload;
}

}  // namespace telltale::interchange
