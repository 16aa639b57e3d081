// SPDX-License-Identifier: Apache-2.0
// Rows that say where in a safetensors file values lie: offset and length (8 bytes each), then the
// dtype, a line's end and the shape. The file is a small one.
#include <algorithm>
#include <cstring>

#include "fuzz.h"
#include "store/tensor_file.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(tensor_rows) {
  static const auto file = WriteInput(std::string(256, 'x'), "agent/tensors/00000001.safetensors");
  format::TensorRow row;
  if (bytes.size() < 2 * sizeof(std::uint64_t)) return;
  std::memcpy(&row.offset, bytes.data(), sizeof row.offset);
  std::memcpy(&row.bytes, bytes.data() + sizeof row.offset, sizeof row.bytes);
  bytes.remove_prefix(2 * sizeof(std::uint64_t));
  row.dtype = bytes.substr(0, bytes.find('\n'));
  row.shape = bytes.substr(std::min(bytes.size(), row.dtype.size() + 1));
  row.file = "tensors/00000001.safetensors";
  const auto values = store::OpenTensor(ScratchRoot(), "agent", row);
  if (values.ok()) Require(values->values.size() <= 256);
  static_cast<void>(store::ParseTensorFileName(bytes));
  row.file = bytes;
  static_cast<void>(store::OpenTensor(ScratchRoot(), "agent", row));
}

}  // namespace telltale::fuzz
