// SPDX-License-Identifier: Apache-2.0
// Thin C++ over the probe's C ABI. Header only; nothing throws. Without `telltale run` around the
// process, or before tt_init, everything here does nothing.
//
//   static const std::uint32_t kName = telltale::Name("load_batch");   // after Init
//   { telltale::Span span(kName); ... }
//   telltale::Log("accuracy", 0.93);
//   telltale::Step();
#pragma once
#include <cstdint>
#include <string_view>

#include "telltale/probe.h"

namespace telltale {

/// Registers the process; true when it records.
inline bool Init(tt_process_kind kind = TT_PROCESS_TRAINER, std::int32_t rank = -1) noexcept {
  return tt_init(kind, rank) != 0;
}

/// Id of a name. Keep it for hot places; asked before Init it is 0, "(folded)".
inline std::uint32_t Name(std::string_view text) noexcept {
  return tt_name(text.data(), text.size());
}

/// Records the interval from its construction to its destruction, on the thread that destroys it.
class [[nodiscard]] Span {
 public:
  explicit Span(std::uint32_t name, tt_span_category category = TT_SPAN_USER) noexcept
      : name_(name), category_(category), begin_(tt_now()) {}
  explicit Span(std::string_view name, tt_span_category category = TT_SPAN_USER) noexcept
      : Span(Name(name), category) {}
  ~Span() { tt_span(name_, begin_, tt_now(), category_); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  std::uint32_t name_;
  tt_span_category category_;
  std::uint64_t begin_;
};

/// A value of the training, at the open step.
inline void Log(std::string_view name, double value) noexcept { tt_scalar(Name(name), value); }

/// Closes the open step here.
inline void Step() noexcept { tt_step(); }

}  // namespace telltale
