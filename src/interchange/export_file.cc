// SPDX-License-Identifier: Apache-2.0
#include "interchange/export_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/run_files.h"
#include "base/unique_fd.h"

namespace telltale::interchange {
namespace {

constexpr std::size_t kExportBufferBytes = 128 << 10;
/// So that zlib writes the header of a gzip file.
constexpr int kGzipWindowBits = 15 + 16;

class SinkFile final : public ExportFile {
 public:
  explicit SinkFile(Sink sink) : sink_(std::move(sink)) {}
  Status Append(std::string_view bytes) override {
    if (wanted_) wanted_ = sink_(bytes);
    return {};
  }
  Status Commit() override { return {}; }

 private:
  const Sink sink_;
  bool wanted_ = true;
};

class DiskFile final : public ExportFile {
 public:
  explicit DiskFile(std::filesystem::path path) : path_(std::move(path)) {}
  ~DiskFile() override {
    if (fd_) ::unlink(temporary_.c_str());
    if (gzip_) ::deflateEnd(&stream_);
  }

  Status Open(bool gzip) {
    temporary_ = path_.string() + ".XXXXXX";
    fd_.reset(::mkostemp(temporary_.data(), O_CLOEXEC));
    if (!fd_) return IoError("create");
    if (!gzip) return {};
    if (::deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindowBits, 8,
                       Z_DEFAULT_STRATEGY) != Z_OK) {
      return {Code::kLimit, "out of memory: the machine gave no more: free some and retry"};
    }
    gzip_ = true;
    return {};
  }

  Status Append(std::string_view bytes) override {
    buffer_ += bytes;
    return buffer_.size() < kExportBufferBytes ? Status() : Flush(false);
  }

  Status Commit() override {
    TELLTALE_RETURN_IF_ERROR(Flush(true));
    // As a file made by open() would be; in a run folder all is for its owner alone.
    const mode_t mask = ::umask(0);
    ::umask(mask);
    if (!run_files::LiesInARun(path_)) ::fchmod(fd_.get(), 0666 & ~mask);
    if (::fsync(fd_.get()) != 0 && errno != EINVAL) return IoError("write");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return IoError("write");
    fd_.reset();
    return {};
  }

 private:
  Status IoError(const char* what) const {
    return {Code::kIo, fmt::format("cannot {} {}: {}", what, path_.string(), std::strerror(errno))};
  }

  Status Flush(bool last) {
    if (!gzip_) {
      TELLTALE_RETURN_IF_ERROR(Write(buffer_));
      buffer_.clear();
      return {};
    }
    std::array<char, kExportBufferBytes> out;
    stream_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    stream_.avail_in = static_cast<uInt>(buffer_.size());
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(out.data());
      stream_.avail_out = static_cast<uInt>(out.size());
      ::deflate(&stream_, last ? Z_FINISH : Z_NO_FLUSH);
      TELLTALE_RETURN_IF_ERROR(Write({out.data(), out.size() - stream_.avail_out}));
    } while (stream_.avail_out == 0);
    buffer_.clear();
    return {};
  }

  Status Write(std::string_view bytes) {
    while (!bytes.empty()) {
      // zlib counts in 32 bits, and so large a piece helps nobody.
      const ssize_t n =
          ::write(fd_.get(), bytes.data(), std::min<std::size_t>(bytes.size(), 1 << 20));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return IoError("write");
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return {};
  }

  const std::filesystem::path path_;
  std::string temporary_;
  UniqueFd fd_;
  std::string buffer_;
  bool gzip_ = false;
  z_stream stream_{};
};

}  // namespace

Result<std::unique_ptr<ExportFile>> ExportFile::Create(const std::filesystem::path& path,
                                                       bool gzip) {
  auto file = std::make_unique<DiskFile>(path);
  TELLTALE_RETURN_IF_ERROR(file->Open(gzip));
  return std::unique_ptr<ExportFile>(std::move(file));
}

std::unique_ptr<ExportFile> ExportFile::To(Sink sink) {
  return std::make_unique<SinkFile>(std::move(sink));
}

}  // namespace telltale::interchange
