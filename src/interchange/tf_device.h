// SPDX-License-Identifier: Apache-2.0
// Names of devices as TensorFlow's step statistics have them.
#pragma once
#include <cstdint>
#include <string_view>

namespace telltale::interchange {

/// "/job:worker/replica:0/task:1/device:GPU:0", "/gpu:0/stream:7", "/device:GPU:0/memcpy".
struct TfDevice {
  /// Work of the device itself. Without a stream it is the host's part of the operators that were
  /// placed on the device.
  bool on_device = false;
  bool all_streams = false;  ///< What the lines of the streams have, once more.
  bool copies = false;
  std::int32_t device = -1;  ///< -1 where `on_device` is false.
  std::int64_t stream = -1;
  std::int32_t task = 0;
};
TfDevice ParseTfDevice(std::string_view name);

/// Of an operator on the host, by its type ("Conv2D", "_Recv") or its node's name.
std::string_view TfOpCategory(std::string_view type, std::string_view node);

}  // namespace telltale::interchange
