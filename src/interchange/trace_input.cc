// SPDX-License-Identifier: Apache-2.0
#include "interchange/trace_input.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <isa-l/igzip_lib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace telltale::interchange {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

class FileInput final : public TraceInput {
 public:
  FileInput(std::filesystem::path path, UniqueFd fd)
      : path_(std::move(path)), fd_(std::move(fd)), buffer_(kBufferBytes) {}

  Status Begin() {
    TELLTALE_RETURN_IF_ERROR(Refill());
    gzip_ = filled_ >= 2 && buffer_[0] == 0x1f && buffer_[1] == 0x8b;
    if (gzip_) BeginMember();
    return {};
  }

  Result<std::size_t> Read(char* to, std::size_t size) override {
    return gzip_ ? Inflate(to, size) : Copy(to, size);
  }
  const std::string& damage() const override { return damage_; }
  bool gzip() const override { return gzip_; }

 private:
  Status Refill() {
    ssize_t n = 0;
    do {
      n = ::read(fd_.get(), buffer_.data(), buffer_.size());
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
      return {Code::kIo, fmt::format("cannot read {}: {}", path_.string(), std::strerror(errno))};
    }
    at_ = 0;
    filled_ = static_cast<std::size_t>(n);
    offset_ += filled_;
    return {};
  }

  Result<std::size_t> Copy(char* to, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      if (at_ == filled_) {
        TELLTALE_RETURN_IF_ERROR(Refill());
        if (filled_ == 0) break;
      }
      const std::size_t n = std::min(size - done, filled_ - at_);
      std::memcpy(to + done, buffer_.data() + at_, n);
      at_ += n;
      done += n;
    }
    return done;
  }

  void BeginMember() {
    ::isal_inflate_init(&state_);
    state_.crc_flag = ISAL_GZIP;
    state_.next_in = buffer_.data() + at_;
    state_.avail_in = static_cast<std::uint32_t>(filled_ - at_);
    in_member_ = true;
  }

  Result<std::size_t> Inflate(char* to, std::size_t size) {
    state_.next_out = reinterpret_cast<std::uint8_t*>(to);
    std::size_t done = 0;
    while (done < size && !ended_) {
      if (at_ == filled_) {
        TELLTALE_RETURN_IF_ERROR(Refill());
        if (filled_ == 0) {
          if (in_member_) damage_ = fmt::format("cut off at byte {}", offset_);
          ended_ = true;
          break;
        }
        state_.next_in = buffer_.data();
        state_.avail_in = static_cast<std::uint32_t>(filled_);
      }
      if (!in_member_) {
        // Padding with zeros, as of tapes, says nothing.
        while (at_ < filled_ && buffer_[at_] == 0) ++at_;
        if (at_ == filled_) continue;
        if (buffer_[at_] != 0x1f) {
          damage_ = fmt::format("bytes that are no gzip follow before byte {}", offset_);
          ended_ = true;
          break;
        }
        BeginMember();
      }
      state_.next_out = reinterpret_cast<std::uint8_t*>(to) + done;
      state_.avail_out =
          static_cast<std::uint32_t>(std::min<std::size_t>(size - done, kBufferBytes * 64));
      const std::uint32_t before = state_.avail_out;
      const int result = ::isal_inflate(&state_);
      done += before - state_.avail_out;
      at_ = filled_ - state_.avail_in;
      if (result != ISAL_DECOMP_OK) {
        damage_ = result == ISAL_INCORRECT_CHECKSUM
                      ? fmt::format("the checksum before byte {} is another", offset_)
                      : fmt::format("damaged before byte {}", offset_);
        ended_ = true;
      } else if (state_.block_state == ISAL_BLOCK_FINISH) {
        in_member_ = false;
      }
    }
    return done;
  }

  const std::filesystem::path path_;
  const UniqueFd fd_;
  std::vector<std::uint8_t> buffer_;
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
  std::uint64_t offset_ = 0;  ///< Of the end of the buffer in the file.
  bool gzip_ = false;
  bool in_member_ = false;
  bool ended_ = false;
  inflate_state state_{};
  std::string damage_;
};

}  // namespace

Result<std::unique_ptr<TraceInput>> TraceInput::Open(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    return {errno == ENOENT ? Code::kUnusable : Code::kIo,
            fmt::format("cannot open {}: {}", path.string(), std::strerror(errno))};
  }
  auto input = std::make_unique<FileInput>(path, std::move(fd));
  TELLTALE_RETURN_IF_ERROR(input->Begin());
  return std::unique_ptr<TraceInput>(std::move(input));
}

Result<std::string> ReadTrace(const std::filesystem::path& path, std::uint64_t most_bytes,
                              std::string* damage) {
  TELLTALE_ASSIGN_OR_RETURN(const std::unique_ptr<TraceInput> input, TraceInput::Open(path));
  std::string out;
  while (true) {
    const std::size_t before = out.size();
    out.resize(before + kBufferBytes);
    TELLTALE_ASSIGN_OR_RETURN(const std::size_t n, input->Read(out.data() + before, kBufferBytes));
    out.resize(before + n);
    if (out.size() > most_bytes) {
      return {Code::kLimit, fmt::format("{} is larger than {} MiB, which is read of such a file at "
                                        "most",
                                        path.string(), most_bytes >> 20)};
    }
    if (n == 0) break;
  }
  *damage = input->damage();
  return out;
}

}  // namespace telltale::interchange
