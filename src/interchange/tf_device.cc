// SPDX-License-Identifier: Apache-2.0
#include "interchange/tf_device.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

namespace telltale::interchange {
namespace {

/// The number behind the last `key`, -1 where there is none.
std::int64_t NumberBehind(std::string_view text, std::string_view key) {
  const std::size_t at = text.rfind(key);
  if (at == std::string_view::npos) return -1;
  std::int64_t number = -1;
  std::from_chars(text.data() + at + key.size(), text.data() + text.size(), number);
  return number;
}

bool HasOneOf(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    return text.find(word) != std::string_view::npos;
  });
}

}  // namespace

TfDevice ParseTfDevice(std::string_view name) {
  TfDevice out;
  constexpr std::int64_t kMost = 1 << 20;
  out.task =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(NumberBehind(name, "/task:"), 0, kMost));
  out.copies = name.find("/memcpy") != std::string_view::npos;
  const bool streams = name.find("/stream:") != std::string_view::npos;
  if (!out.copies && !streams) return out;
  out.on_device = true;
  out.stream = streams ? NumberBehind(name, "/stream:") : -1;
  out.all_streams = streams && out.stream < 0;
  out.stream = std::max<std::int64_t>(out.stream, 0);
  for (const std::string_view key : {"GPU:", "gpu:", "TPU:", "tpu:", "device:"}) {
    const std::int64_t device = NumberBehind(name, key);
    if (device < 0) continue;
    out.device = static_cast<std::int32_t>(std::min(device, kMost));
    break;
  }
  out.device = std::max(out.device, 0);
  return out;
}

std::string_view TfOpCategory(std::string_view type, std::string_view node) {
  if (HasOneOf(type, {"RecvTensor", "_Recv", "_Send", "_HostRecv", "_HostSend", "Collective",
                      "Horovod", "NcclAll", "NcclReduce", "NcclBroadcast"}) ||
      HasOneOf(node, {"RecvTensor"})) {
    return "comm";
  }
  if (HasOneOf(type, {"IteratorGetNext", "Dataset", "ReaderRead", "QueueDequeue", "DecodeJpeg",
                      "ReadFile"})) {
    return "data";
  }
  return "op";
}

}  // namespace telltale::interchange
