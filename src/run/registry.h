// SPDX-License-Identifier: Apache-2.0
// Where producers register: a socket in a private folder, and the descriptors of every process that
// has registered. They outlive the process and the agent, so committed records survive both.
//
// Trust: a peer is not trusted. Another user's process and what is no HELLO is dropped; a HELLO
// that cannot be served is refused with its reason. Nothing here waits for a peer. Thread safety:
// none; the supervisor's thread.
#pragma once
#include <poll.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "channel/control_page.h"
#include "channel/registration.h"

namespace telltale::run {

inline constexpr std::size_t kMaxProducers = 256;
/// Of the slab of a trainer, at least, so that a later plan finds room; but for its table it takes
/// memory only where raw values are asked for.
inline constexpr std::uint64_t kSlabBytes = 256U << 20;
inline constexpr std::uint64_t kMaxSlabBytes = 16ULL << 30;

struct HeldProducer {
  std::array<std::uint8_t, 16> uuid{};
  std::int32_t pid = 0;
  UniqueFd arena;
  channel::ControlPage control;
  UniqueFd pidfd;
  UniqueFd slab;        ///< Of a trainer, for raw values; invalid where there is none.
  bool handed = false;  ///< The present agent has it.
};

class Registry {
 public:
  /// Writes a new control page before its producer is accepted, so that a plan holds from the first
  /// step on, whenever the agent comes.
  using FirstPage = std::function<void(channel::ControlPage* page)>;

  /// Makes the private folder and the socket in it. `slab_bytes`: what the plan asks for.
  static Result<Registry> Create(std::uint32_t attempt, FirstPage first_page = {},
                                 std::uint64_t slab_bytes = kSlabBytes);
  Registry(Registry&&) noexcept = default;
  Registry& operator=(Registry&&) = delete;
  ~Registry();

  const std::string& socket_path() const { return socket_path_; }
  std::vector<HeldProducer>& producers() { return producers_; }
  std::uint64_t refused() const { return refused_; }

  /// Adds what must be polled.
  void AddTo(std::vector<pollfd>* fds) const;
  struct Callbacks {
    std::function<void(const std::string&)> note;  ///< A line for people; the first refusals only.
    /// A producer has come to producers() and is not told yet: who gets it now has what it records
    /// from the first step on, even where supervisor and producer are killed the next moment.
    std::function<void()> held;
  };
  /// Serves whoever has come.
  void Serve(std::int64_t now_ns, const Callbacks& callbacks);
  /// Who comes from now on finds nobody, and is not kept waiting. Needs no memory. No call of Serve
  /// after it.
  void Close();
  /// The agent needs this producer no more.
  void Release(const std::array<std::uint8_t, 16>& uuid);

 private:
  struct Pending {
    UniqueFd socket;
    std::int64_t since_ns;
  };
  Registry() = default;
  /// True when the peer has been answered or dropped.
  bool ServeOne(const UniqueFd& socket, const Callbacks& callbacks);
  void Refuse(const UniqueFd& socket, channel::RefuseReason reason, const std::string& text,
              const std::function<void(const std::string&)>& note);

  std::uint32_t attempt_ = 1;
  FirstPage first_page_;
  std::uint64_t slab_bytes_ = kSlabBytes;
  std::filesystem::path folder_;
  std::string socket_path_;
  UniqueFd listener_;
  std::vector<Pending> pending_;
  std::vector<HeldProducer> producers_;
  std::uint64_t refused_ = 0;
};

}  // namespace telltale::run
