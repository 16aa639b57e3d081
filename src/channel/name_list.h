// SPDX-License-Identifier: Apache-2.0
// The names of one producer by id, as the consumer keeps them: few bytes beside the text of each,
// so that a million of them are little more than their text.
//
// Thread safety: none.
#pragma once
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace telltale::channel {

class NameList {
 public:
  void Add(std::string_view text) {
    if (text.size() > left_) {
      const std::size_t bytes = text.size() > kPiece ? text.size() : kPiece;
      pieces_.push_back(std::make_unique_for_overwrite<char[]>(bytes));
      at_ = pieces_.back().get();
      left_ = bytes;
    }
    if (!text.empty()) std::memcpy(at_, text.data(), text.size());
    names_.emplace_back(at_, text.size());
    at_ += text.size();
    left_ -= text.size();
  }
  /// From 0. Valid as long as the list.
  std::string_view operator[](std::size_t i) const { return names_[i]; }
  std::size_t size() const { return names_.size(); }

 private:
  static constexpr std::size_t kPiece = 64 << 10;

  std::vector<std::unique_ptr<char[]>> pieces_;
  char* at_ = nullptr;
  std::size_t left_ = 0;
  std::vector<std::string_view> names_;
};

}  // namespace telltale::channel
