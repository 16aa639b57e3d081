// SPDX-License-Identifier: Apache-2.0
// Messages of the registration sockets.
#include "channel/registration.h"

#include <array>

#include "fuzz.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(registration) {
  using channel::CheckMessage;
  using channel::MessageType;
  channel::Hello hello;
  if (CheckMessage(bytes.data(), bytes.size(), MessageType::kHello, &hello)) {
    std::array<char, 64> text{};
    static_cast<void>(channel::JudgeHello(hello, text.data(), text.size()));
    Require(text.back() == '\0');
  }
  channel::AddProducer add;
  channel::AttemptEnd end;
  channel::TerminalUndo undo;
  channel::AgentStatus status;
  static_cast<void>(CheckMessage(bytes.data(), bytes.size(), MessageType::kAddProducer, &add));
  static_cast<void>(CheckMessage(bytes.data(), bytes.size(), MessageType::kAttemptEnd, &end));
  static_cast<void>(CheckMessage(bytes.data(), bytes.size(), MessageType::kTerminalUndo, &undo));
  static_cast<void>(CheckMessage(bytes.data(), bytes.size(), MessageType::kAgentStatus, &status));
}

}  // namespace telltale::fuzz
