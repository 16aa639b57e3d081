// SPDX-License-Identifier: Apache-2.0
// The supervisor's and the agent's side of a control page: makes it, maps it, publishes answers.
// The probe maps the same page read-only and treats every word as a hint.
//
// Thread safety: none; one writer (the agent) at a time.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"
#include "format/channel_layout.h"
#include "format/control_collections.h"

namespace telltale::channel {

class ControlPage {
 public:
  /// A new page with room for names 0..name_limit (capped at format::kMaxNames), nothing wanted.
  /// The words of the first names have memory at once, further ones when they are first set.
  static Result<ControlPage> Create(std::uint32_t name_limit);
  /// Maps the page of a descriptor that Create's page gave (fd()), after a restart of the agent.
  static Result<ControlPage> Attach(UniqueFd fd);

  ControlPage(ControlPage&& other) noexcept;
  ControlPage& operator=(ControlPage&& other) noexcept;
  ~ControlPage();

  /// Read-write; dup it to hand it on.
  int fd() const { return fd_.get(); }
  /// A new description of the page that cannot write: what the probe is given.
  Result<UniqueFd> ReadOnlyFd() const;

  /// Begins an edit whose parts must appear together: names, then SetRules, which ends it. A probe
  /// goes by the rules, and their answers, that it has until then.
  void BeginRules();
  /// Answers a name: format::kNameNo, or kNameYes | mask << kNameMaskShift. Ids past the page are
  /// ignored (and so stay unanswered), as are those whose word finds no memory.
  void SetName(std::uint32_t name, std::uint32_t word);
  /// Publishes the rules (what is past kControlRules is left out): a probe takes them up where its
  /// next step begins. `unanswered_mask`: those that take every tensor, so also one without an
  /// answer. `slab_bytes`: bound on raw values on their way; 0: none are taken.
  /// `collections`: as format::kKnownCollections; of what it does not name nothing is known.
  void SetRules(std::span<const format::ControlRule> rules, std::uint32_t unanswered_mask,
                std::uint64_t slab_bytes,
                std::span<const format::ControlCollection> collections = {});
  /// How many spans of detail a second a probe may record (capped at format::kControlDetailMax; 0:
  /// none), or with `all` each of them. Holds from the next pass on, whatever rules are written.
  void SetDetail(std::uint32_t spans_per_second, bool all);
  /// Publishes the windows of detail: a JSON object, or nothing. Does nothing where they are as
  /// they were, and cuts nothing: what is longer than kMaxWindowsBytes is left out.
  void SetWindows(std::string_view text);
  /// A rule that takes `take` of each `interval`th step of every mode.
  static format::ControlRule EveryStep(std::uint32_t take, std::uint32_t interval);
  /// Says that a new plan is complete.
  void PublishEpoch();
  std::uint64_t epoch() const;

 private:
  ControlPage(UniqueFd fd, void* map, std::size_t bytes, std::uint32_t words)
      : fd_(std::move(fd)), map_(map), bytes_(bytes), words_(words) {}
  format::ControlHeader* header() const { return static_cast<format::ControlHeader*>(map_); }
  std::atomic<std::uint32_t>* words() const;
  std::uint64_t* rules() const;
  format::ControlWindows* windows() const;
  /// Memory for the words up to this one.
  bool MakeReady(std::uint32_t name);

  UniqueFd fd_;
  void* map_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint32_t words_ = 0;  ///< As checked; never read from the page again.
  std::uint32_t ready_ = 0;  ///< Words with memory; likewise.
};

}  // namespace telltale::channel
