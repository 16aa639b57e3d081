// SPDX-License-Identifier: Apache-2.0
#include "patches.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "fuzz.h"

namespace telltale::fuzz {
namespace {

void WriteAt(int fd, std::string_view bytes, std::size_t place) {
  Require(::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(place)) ==
          static_cast<ssize_t>(bytes.size()));
}

}  // namespace

Patched::Patched(int fd) : fd_(fd) {
  struct stat info {};
  Require(::fstat(fd, &info) == 0);
  healthy_.resize(static_cast<std::size_t>(info.st_size));
  Require(::pread(fd, healthy_.data(), healthy_.size(), 0) ==
          static_cast<ssize_t>(healthy_.size()));
  used_ = healthy_.size();
  while (used_ > 0 && healthy_[used_ - 1] == 0) --used_;
}

void Patched::Apply(std::string_view patches) {
  WriteAt(fd_, {healthy_.data(), used_}, 0);
  for (const auto& [place, length] : dirty_) WriteAt(fd_, {&healthy_[place], length}, place);
  dirty_.clear();
  while (patches.size() >= 5) {
    std::uint32_t place = 0;
    std::memcpy(&place, patches.data(), sizeof place);
    const auto length = static_cast<unsigned char>(patches[4]);
    patches.remove_prefix(5);
    const std::string_view bytes = patches.substr(0, length);
    patches.remove_prefix(bytes.size());
    if (place >= healthy_.size() || bytes.empty()) continue;
    const std::size_t fits = std::min(bytes.size(), healthy_.size() - place);
    WriteAt(fd_, bytes.substr(0, fits), place);
    if (place + fits > used_) dirty_.emplace_back(place, fits);
  }
}

}  // namespace telltale::fuzz
