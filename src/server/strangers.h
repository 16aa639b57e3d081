// SPDX-License-Identifier: Apache-2.0
// Connections that have shown neither token nor session yet. There are few of them at once, of one
// address and in all: where one too many comes another one has to go, and which, is decided here.
// So one address, or one user of this machine, cannot take the connections of all others; who has
// signed in is not counted and loses nothing. And how often somebody may guess.
//
// Thread safety: none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace telltale::server {

class Strangers {
 public:
  using Id = std::uint64_t;
  /// A browser opens six at once.
  static constexpr std::size_t kMostOfAddress = 64;
  static constexpr std::size_t kMost = 256;

  struct Entered {
    Id id = 0;
    std::optional<Id> leaves;  ///< This one is to be closed, and has left already.
  };
  /// A new connection. Beyond a limit one of its address leaves, or one of the address with the
  /// most: the oldest of those that have not sent a whole request, else the oldest of all.
  Entered Enter(const std::string& address);
  /// A whole request has come from it, or it waits for one.
  void SetAsked(Id id, bool asked);
  /// It has ended or signed in. Nothing where it has left before.
  void Leave(Id id);
  std::size_t size() const { return strangers_.size(); }

 private:
  struct One {
    std::string address;
    bool asked = false;
  };
  Id WhoLeaves(const std::string& address, Id newcomer) const;

  std::map<Id, One> strangers_;  ///< The oldest first.
  std::map<std::string, std::size_t> of_address_;
  Id next_ = 1;
};

/// Wrong tokens, codes and sessions: a few are answered at once, more of them late. Who has the
/// right one is never kept waiting, so nobody can be shut out by the guesses of others.
class Guesses {
 public:
  static constexpr std::size_t kFree = 10;
  static constexpr std::int64_t kDelayNs = 1'000'000'000;

  /// One was wrong. Whether it is one too many: each kDelayNs forgives one.
  bool Wrong(std::int64_t now_ns);

 private:
  std::size_t count_ = 0;
  std::int64_t since_ns_ = 0;
};

}  // namespace telltale::server
