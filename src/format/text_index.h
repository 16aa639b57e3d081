// SPDX-License-Identifier: Apache-2.0
// The texts of one batch, numbered in the order of their first use. Most come from a pool, again
// and again from the same place: those are known by it, without a look at their characters.
//
// Thread safety: none. Ownership: the texts are the caller's, and must live until Clear().
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace telltale::format {

class TextIndex {
 public:
  std::uint32_t Of(std::string_view text) {
    Known& known = known_[reinterpret_cast<std::uintptr_t>(text.data()) * kSpread >> kShift];
    if (known.round == round_ && known.data == text.data() && known.size == text.size()) {
      return known.index;
    }
    known = {text.data(), text.size(), OfCharacters(text), round_};
    return known.index;
  }
  const std::vector<std::string_view>& texts() const { return texts_; }

  /// Forgets all texts and keeps the room. Nothing is touched: what is of an earlier round is not
  /// known any more.
  void Clear() {
    texts_.clear();
    if (++round_ != 0) return;
    known_.fill({});
    slots_.assign(slots_.size(), {});
    round_ = 1;
  }

 private:
  struct Known {
    const char* data = nullptr;
    std::size_t size = 0;
    std::uint32_t index = 0;
    std::uint32_t round = 0;
  };
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t index = 0;
    std::uint32_t round = 0;
  };
  static constexpr int kKnownBits = 10;
  static constexpr int kShift = 64 - kKnownBits;
  static constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15U;
  static constexpr std::size_t kFirstSlots = 512;

  /// The slot of that text, or the free one where it belongs.
  Slot* Find(std::uint32_t hash, std::string_view text) {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
      Slot& slot = slots_[at];
      if (slot.round != round_ || (slot.hash == hash && texts_[slot.index] == text)) return &slot;
    }
  }
  std::uint32_t OfCharacters(std::string_view text) {
    const auto hash = static_cast<std::uint32_t>(std::hash<std::string_view>{}(text));
    Slot* slot = Find(hash, text);
    if (slot->round == round_) return slot->index;
    const auto index = static_cast<std::uint32_t>(texts_.size());
    texts_.push_back(text);
    *slot = {hash, index, round_};
    if (2 * texts_.size() > slots_.size()) Grow();
    return index;
  }
  void Grow() {
    std::vector<Slot> before(2 * slots_.size());
    before.swap(slots_);
    for (const Slot& slot : before) {
      if (slot.round == round_) *Find(slot.hash, texts_[slot.index]) = slot;
    }
  }

  std::uint32_t round_ = 1;
  std::array<Known, 1U << kKnownBits> known_{};
  std::vector<Slot> slots_{kFirstSlots};
  std::vector<std::string_view> texts_;
};

}  // namespace telltale::format
