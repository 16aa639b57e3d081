// SPDX-License-Identifier: Apache-2.0
#include "store/journal_writer.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/crc32c.h"
#include "base/run_files.h"
#include "format/wire.h"
#include "store/journal_format.h"

namespace telltale::store {
namespace {

Status WriteError(const std::filesystem::path& path, int error) {
  return {Code::kIo, fmt::format("cannot write {}: {}{}", path.string(), run_files::WhyNot(error),
                                 IsNoSpace(error) ? "; free some space, recording then resumes"
                                                  : "; check the disk")};
}

}  // namespace

bool IsNoSpace(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

void AppendFragments(std::string_view record, std::uint64_t offset, std::string* out) {
  const std::size_t begin = out->size();
  bool first = true;
  do {
    std::size_t left = kBlockBytes - (offset + out->size() - begin) % kBlockBytes;
    if (left < kFragmentHeaderBytes) {
      out->append(left, '\0');
      left = kBlockBytes;
    }
    const std::size_t n = std::min(record.size(), left - kFragmentHeaderBytes);
    const bool last = n == record.size();
    const FragmentType type = first ? (last ? FragmentType::kFull : FragmentType::kFirst)
                                    : (last ? FragmentType::kLast : FragmentType::kMiddle);
    const std::uint32_t crc = Crc32c(record.data(), n, Crc32c(&type, 1));
    format::Put(out, MaskCrc(crc));
    format::Put(out, static_cast<std::uint16_t>(n));
    format::Put(out, static_cast<std::uint8_t>(type));
    out->append(record.substr(0, n));
    record.remove_prefix(n);
    first = false;
    if (last) return;
  } while (true);
}

JournalWriter::JournalWriter(std::filesystem::path path, UniqueFd fd)
    : path_(std::move(path)), fd_(std::make_shared<const UniqueFd>(std::move(fd))) {}

Result<std::unique_ptr<JournalWriter>> JournalWriter::Create(const std::filesystem::path& path,
                                                             std::span<const std::string> records,
                                                             bool* no_space) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  UniqueFd fd = run_files::OpenToWrite(run_files::OfFolder(temporary), run_files::Writing::kFresh);
  if (!fd) {
    *no_space = IsNoSpace(errno);
    return WriteError(path, errno);
  }
  std::unique_ptr<JournalWriter> journal(new JournalWriter(path, std::move(fd)));
  Status status = journal->Append(records);
  *no_space = journal->no_space();
  if (status.ok()) {
    const int error = run_files::Rename(run_files::OfFolder(temporary), run_files::OfFolder(path));
    *no_space = IsNoSpace(error);
    if (error != 0) status = WriteError(path, error);
  }
  if (!status.ok()) {
    run_files::Remove(run_files::OfFolder(temporary));
    return status;
  }
  return journal;
}

Status JournalWriter::Append(std::span<const std::string> records) {
  buffer_.clear();
  for (const std::string& record : records)
    AppendFragments(record, size_ + buffer_.size(), &buffer_);
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = ::pwrite(fd_->get(), buffer_.data() + done, buffer_.size() - done,
                               static_cast<off_t>(size_ + done));
    if (n > 0) {
      done += static_cast<std::size_t>(n);
      continue;
    }
    const int error = n < 0 ? errno : ENOSPC;
    if (error == EINTR) continue;
    no_space_ = IsNoSpace(error);
    broken_ = !no_space_;  // What the disk did with the pages is unknown.
    if (::ftruncate(fd_->get(), static_cast<off_t>(size_)) != 0) broken_ = true;
    return WriteError(path_, error);
  }
  size_ += buffer_.size();
  return {};
}

}  // namespace telltale::store
