// SPDX-License-Identifier: Apache-2.0
// Messages of the two registration sockets (SOCK_SEQPACKET, one struct a message):
//   probe <-> supervisor   HELLO + arena; ACCEPT + control page (read-only), or REFUSE
//   supervisor <-> agent   producers' descriptors, attempts, end; the agent's status
// docs/formats/channel.md describes them. Fixed widths, values permanent. A receiver checks magic,
// type and size before it reads on (CheckMessage); bytes past the struct that it knows are ignored.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "format/channel_layout.h"

namespace telltale::channel {

inline constexpr std::uint32_t kMessageMagic = 0x47525454;  // "TTRG"

enum class MessageType : std::uint16_t {
  kHello = 1,  ///< probe → supervisor, fds: arena.
  /// supervisor → probe, fds: control page, read-only; for a trainer then the slab.
  kAccept = 2,
  kRefuse = 3,  ///< supervisor → probe.

  /// supervisor → agent, fds: arena, control page (read-write), pidfd, and for a trainer the slab.
  kAddProducer = 10,
  kReleaseProducer = 11,  ///< agent → supervisor: dead, drained and journalled; close its fds.
  kAttemptStart = 12,     ///< supervisor → agent.
  kAttemptEnd = 13,       ///< supervisor → agent.
  kEndRun = 14,           ///< supervisor → agent: seal and exit.
  kAgentStatus = 15,      ///< agent → supervisor, about once a second.
  kRefused = 16,          ///< supervisor → agent: how many HELLOs of this attempt were refused.
  kTerminalUndo = 17,  ///< supervisor → agent, fds: terminal, where there is something to undo.
};

enum class RefuseReason : std::uint32_t {
  kMalformed = 1,
  kMajorDiffers = 2,
  kMinorTooOld = 3,
  kMinorTooNew = 4,
  kLayoutDiffers = 5,
  kTooManyProducers = 6,
  kForeignUser = 7,
};

struct MessageHeader {
  std::uint32_t magic;
  std::uint16_t type;   ///< MessageType.
  std::uint16_t bytes;  ///< Of the whole message.
};

struct Hello {
  MessageHeader header;
  std::uint16_t abi_major;
  std::uint16_t abi_minor;
  std::uint32_t arena_header_bytes;
  std::uint32_t ring_entry_bytes;
  std::uint32_t name_limit;  ///< The control page needs this + 1 words.
  std::uint64_t arena_bytes;
  std::uint64_t features;  ///< None defined: 0.
  std::uint64_t start_time_ticks;
  std::int32_t pid;
  std::uint32_t process_kind;
  std::uint8_t uuid[16];
  std::uint8_t parent_uuid[16];
};

struct Accept {
  MessageHeader header;
  std::uint16_t abi_major;  ///< The supervisor's.
  std::uint16_t abi_minor;
  std::uint32_t attempt;
  std::uint64_t features;
};

struct Refuse {
  MessageHeader header;
  std::uint16_t abi_major;  ///< The supervisor's.
  std::uint16_t abi_minor;
  std::uint32_t reason;  ///< RefuseReason.
  char text[240];        ///< One line for people, zero-terminated.
};

struct AddProducer {
  MessageHeader header;
  std::uint32_t attempt;
  std::int32_t pid;
  std::uint8_t uuid[16];
};

struct ReleaseProducer {
  MessageHeader header;
  std::uint8_t uuid[16];
};

struct AttemptStart {
  MessageHeader header;
  std::uint32_t attempt;
  std::int32_t pid;               ///< Of CMD.
  std::int64_t start_time_ticks;  ///< Of CMD.
};

struct AttemptEnd {
  MessageHeader header;
  std::uint32_t attempt;
  std::int32_t exit_code;  ///< -1 where a signal ended it.
  std::int32_t signal;     ///< 0 where it exited.
  std::uint32_t reserved0;
};

struct EndRun {
  MessageHeader header;
};

struct Refused {
  MessageHeader header;
  std::uint64_t count;  ///< Since the attempt began.
};

/// What the agent writes to the terminal should the supervisor die without doing so itself; the
/// newest counts.
struct TerminalUndo {
  MessageHeader header;
  std::uint32_t bytes;  ///< Of `text`; 0: nothing to undo, no descriptor.
  char text[52];
};

struct AgentStatus {
  MessageHeader header;
  std::uint32_t disk_full;  ///< 1: the journal refuses rows for want of space.
  std::uint32_t producers;  ///< Attached now.
  std::uint64_t rows;       ///< Appended since the agent started.
  std::uint64_t cpu_ns;     ///< CPU time of the agent process.
  std::uint64_t dropped;    ///< Records that its producers dropped.
};

static_assert(sizeof(MessageHeader) == 8 && sizeof(Hello) == 88 && sizeof(Accept) == 24 &&
              sizeof(Refuse) == 256 && sizeof(AddProducer) == 32 && sizeof(ReleaseProducer) == 24 &&
              sizeof(AttemptStart) == 24 && sizeof(AttemptEnd) == 24 && sizeof(EndRun) == 8 &&
              sizeof(Refused) == 16 && sizeof(TerminalUndo) == 64 && sizeof(AgentStatus) == 40);

/// A message of type T, zeroed but for its header.
template <class T>
T MakeMessage(MessageType type) {
  T message{};
  message.header = {kMessageMagic, static_cast<std::uint16_t>(type),
                    static_cast<std::uint16_t>(sizeof(T))};
  return message;
}

/// Copies a received message of `size` bytes into `out` where it is a whole T of that type.
template <class T>
bool CheckMessage(const void* bytes, std::size_t size, MessageType type, T* out) {
  MessageHeader header;
  if (size < sizeof(T)) return false;
  std::memcpy(&header, bytes, sizeof header);
  if (header.magic != kMessageMagic || header.type != static_cast<std::uint16_t>(type) ||
      header.bytes < sizeof(T) || header.bytes > size) {
    return false;
  }
  std::memcpy(out, bytes, sizeof(T));
  return true;
}

/// What a supervisor of version `major.minor` answers to a HELLO: 0 to accept (same major, minor N
/// or N-1, sizes as that version has them), else the RefuseReason, and `text` says it to people
/// with both versions named.
std::uint32_t JudgeHello(const Hello& hello, std::uint16_t major, std::uint16_t minor, char* text,
                         std::size_t text_bytes);
inline std::uint32_t JudgeHello(const Hello& hello, char* text, std::size_t text_bytes) {
  return JudgeHello(hello, format::kChannelMajor, format::kChannelMinor, text, text_bytes);
}

/// Largest number of descriptors in one message.
inline constexpr int kMaxMessageFds = 4;

/// Sends one message with `fd_count` descriptors, never blocking. 0, or errno.
int SendMessage(int socket, const void* bytes, std::size_t size, const int* fds, int fd_count);

/// Takes one message, never blocking. Returns its length, 0 at end of file, -errno (EAGAIN: none
/// yet). Descriptors (close-on-exec) go to `fds[kMaxMessageFds]`, their number to `fd_count`; more
/// than that are closed. The caller owns those returned, also with a malformed message.
std::ptrdiff_t ReceiveMessage(int socket, void* bytes, std::size_t capacity, int* fds,
                              int* fd_count);

}  // namespace telltale::channel
