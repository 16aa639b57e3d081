// SPDX-License-Identifier: Apache-2.0
#include "interchange/trace_input.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <isa-l/igzip_lib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/unique_fd.h"

namespace telltale::interchange {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::size_t kSmallBytes = 64 << 10;
constexpr std::size_t kMostOutput = 64 * kBufferBytes;
/// Of a file that is held whole.
constexpr std::uint64_t kWholeBombBytes = 256ULL << 20;
constexpr std::uint64_t kBombRatio = 200;

std::atomic<void (*)(std::uint64_t)> g_report = nullptr;
std::atomic<std::uint64_t> g_input_bytes = 0;

class FileInput final : public TraceInput {
 public:
  /// `bytes`: the file's size, 0 where it has none.
  FileInput(std::filesystem::path path, UniqueFd fd, std::uint64_t bytes, std::uint64_t bomb_bytes)
      : path_(std::move(path)),
        fd_(std::move(fd)),
        bomb_bytes_(bomb_bytes),
        file_bytes_(bytes),
        capacity_(bytes > 0 && bytes < kBufferBytes ? bytes + 1 : kBufferBytes),
        buffer_(new std::uint8_t[capacity_]) {}

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
  const std::string& trailing() const override { return trailing_; }
  bool gzip() const override { return gzip_; }
  std::uint64_t file_bytes() const override { return file_bytes_; }

 private:
  Result<std::size_t> ReadFile(void* to, std::size_t size) {
    ssize_t n = 0;
    do {
      n = ::read(fd_.get(), to, size);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
      return {Code::kIo, fmt::format("cannot read {}: {}", path_.string(), std::strerror(errno))};
    }
    const auto bytes = static_cast<std::size_t>(n);
    offset_ += bytes;
    if (auto* const report = g_report.load(); report != nullptr) {
      report(g_input_bytes.fetch_add(bytes) + bytes);
    }
    return bytes;
  }

  Status Refill() {
    TELLTALE_ASSIGN_OR_RETURN(filled_, ReadFile(buffer_.get(), capacity_));
    at_ = 0;
    return {};
  }

  Result<std::size_t> Copy(char* to, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      if (at_ == filled_ && size - done >= capacity_) {
        TELLTALE_ASSIGN_OR_RETURN(const std::size_t n, ReadFile(to + done, size - done));
        if (n == 0) break;
        done += n;
        continue;
      }
      if (at_ == filled_) {
        TELLTALE_RETURN_IF_ERROR(Refill());
        if (filled_ == 0) break;
      }
      const std::size_t n = std::min(size - done, filled_ - at_);
      std::memcpy(to + done, buffer_.get() + at_, n);
      at_ += n;
      done += n;
    }
    return done;
  }

  void BeginMember() {
    if (state_ == nullptr) state_.reset(new inflate_state);
    ::isal_inflate_init(state_.get());
    state_->crc_flag = ISAL_GZIP;
    state_->next_in = buffer_.get() + at_;
    state_->avail_in = static_cast<std::uint32_t>(filled_ - at_);
    in_member_ = true;
  }

  Result<std::size_t> Inflate(char* to, std::size_t size) {
    state_->next_out = reinterpret_cast<std::uint8_t*>(to);
    std::size_t done = 0;
    while (done < size && !ended_) {
      if (at_ == filled_) {
        TELLTALE_RETURN_IF_ERROR(Refill());
        if (filled_ == 0) {
          if (in_member_) damage_ = fmt::format("cut off at byte {}", offset_);
          ended_ = true;
          break;
        }
        state_->next_in = buffer_.get();
        state_->avail_in = static_cast<std::uint32_t>(filled_);
      }
      if (!in_member_) {
        // Padding with zeros, as of tapes, says nothing.
        while (at_ < filled_ && buffer_[at_] == 0) ++at_;
        if (at_ == filled_) continue;
        if (buffer_[at_] != 0x1f) {
          trailing_ = fmt::format("bytes that are no gzip follow its gzip stream from byte {} on",
                                  offset_ - (filled_ - at_));
          ended_ = true;
          break;
        }
        BeginMember();
      }
      state_->next_out = reinterpret_cast<std::uint8_t*>(to) + done;
      state_->avail_out =
          static_cast<std::uint32_t>(std::min<std::size_t>(size - done, kMostOutput));
      const std::uint32_t before = state_->avail_out;
      const int result = ::isal_inflate(state_.get());
      done += before - state_->avail_out;
      at_ = filled_ - state_->avail_in;
      inflated_ += before - state_->avail_out;
      if (inflated_ > bomb_bytes_ && inflated_ / kBombRatio > offset_) {
        return {Code::kLimit,
                fmt::format("{} grows to more than {} times its size: what no recording does is "
                            "not inflated beyond {} MiB; inflate it yourself (gunzip) if it is one",
                            path_.string(), kBombRatio, bomb_bytes_ >> 20)};
      }
      if (result != ISAL_DECOMP_OK) {
        damage_ = result == ISAL_INCORRECT_CHECKSUM
                      ? fmt::format("the checksum before byte {} is another", offset_)
                      : fmt::format("damaged before byte {}", offset_);
        ended_ = true;
      } else if (state_->block_state == ISAL_BLOCK_FINISH) {
        in_member_ = false;
      }
    }
    return done;
  }

  const std::filesystem::path path_;
  const UniqueFd fd_;
  const std::uint64_t bomb_bytes_;
  const std::uint64_t file_bytes_;
  const std::size_t capacity_;
  const std::unique_ptr<std::uint8_t[]> buffer_;
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
  std::uint64_t offset_ = 0;  ///< Of the end of the buffer in the file.
  std::uint64_t inflated_ = 0;
  bool gzip_ = false;
  bool in_member_ = false;
  bool ended_ = false;
  std::unique_ptr<inflate_state> state_;  ///< 90 KB, for gzip alone.
  std::string damage_;
  std::string trailing_;
};

}  // namespace

Result<std::unique_ptr<TraceInput>> TraceInput::Open(const InputFile& file,
                                                     std::uint64_t bomb_bytes) {
  UniqueFd fd(file.held < 0
                  ? ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
                  : ::fcntl(file.held, F_DUPFD_CLOEXEC, 0));
  if (!fd || (file.held >= 0 && ::lseek(fd.get(), 0, SEEK_SET) != 0)) {
    return {errno == ENOENT ? Code::kUnusable : Code::kIo,
            fmt::format("cannot open {}: {}", file.path.string(), std::strerror(errno))};
  }
  struct stat of {};
  const bool sized = ::fstat(fd.get(), &of) == 0 && S_ISREG(of.st_mode);
  auto input = std::make_unique<FileInput>(
      file.path, std::move(fd), sized ? static_cast<std::uint64_t>(of.st_size) : 0, bomb_bytes);
  TELLTALE_RETURN_IF_ERROR(input->Begin());
  return std::unique_ptr<TraceInput>(std::move(input));
}

Result<std::string_view> ReadTraceInto(const InputFile& file, std::uint64_t most_bytes,
                                       std::string* damage, std::string* buffer,
                                       std::string* trailing) {
  TELLTALE_ASSIGN_OR_RETURN(const std::unique_ptr<TraceInput> input,
                            TraceInput::Open(file, kWholeBombBytes));
  const Status too_large = {Code::kLimit,
                            fmt::format("{} is larger than {} MiB (inflated), the most that is "
                                        "read of a file of this kind: record less at once, or see "
                                        "--max-memory",
                                        file.path.string(), most_bytes >> 20)};
  if (!input->gzip() && input->file_bytes() > most_bytes) return too_large;
  // What is packed grows eight times, or the buffer does.
  const std::uint64_t expected = input->file_bytes() * (input->gzip() ? 8 : 1) + 1;
  std::size_t size = 0;
  while (true) {
    if (size == buffer->size()) {
      const std::uint64_t more = std::max<std::uint64_t>(expected, size * 2ULL + kSmallBytes);
      // One byte more than is allowed shows that there is more.
      buffer->resize(std::max<std::uint64_t>(size + 1, std::min(more, most_bytes + 1)));
    }
    TELLTALE_ASSIGN_OR_RETURN(const std::size_t n,
                              input->Read(buffer->data() + size, buffer->size() - size));
    if (n == 0) break;
    size += n;
    if (size > most_bytes) return too_large;
  }
  *damage = input->damage();
  if (trailing != nullptr) *trailing = input->trailing();
  return std::string_view(buffer->data(), size);
}

Result<std::string> ReadTrace(const InputFile& file, std::uint64_t most_bytes, std::string* damage,
                              std::string* trailing) {
  std::string out;
  TELLTALE_ASSIGN_OR_RETURN(const std::string_view text,
                            ReadTraceInto(file, most_bytes, damage, &out, trailing));
  out.resize(text.size());
  return out;
}

void ReportInput(void (*report)(std::uint64_t bytes)) {
  g_input_bytes = 0;
  g_report = report;
}

}  // namespace telltale::interchange
