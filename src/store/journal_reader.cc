// SPDX-License-Identifier: Apache-2.0
#include "store/journal_reader.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/crc32c.h"
#include "base/run_files.h"
#include "format/wire.h"

namespace telltale::store {
namespace {

constexpr std::size_t kReadBytes = 8 * kBlockBytes;

bool AllZero(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

}  // namespace

void RecordReader::Refresh() {
  struct stat st {};
  if (::fstat(fd_.get(), &st) != 0) return;
  const auto size = static_cast<std::uint64_t>(st.st_size);
  // Growth makes new bytes readable; a cut (the writer took back a failed append) makes old ones
  // wrong. In both cases what was buffered beyond the resume point is read again.
  if (size != file_size_) buffer_.clear();
  file_size_ = size;
  unlinked_ = st.st_nlink == 0;
}

std::string_view RecordReader::BytesAt(std::uint64_t offset, std::size_t n) {
  if (offset >= buffer_offset_ && offset + n <= buffer_offset_ + buffer_.size()) {
    return std::string_view(buffer_).substr(offset - buffer_offset_, n);
  }
  buffer_offset_ = offset - offset % kBlockBytes;
  const std::uint64_t want = std::min<std::uint64_t>(kReadBytes, file_size_ - buffer_offset_);
  buffer_.resize(want);
  std::size_t done = 0;
  while (done < want) {
    const ssize_t got = ::pread(fd_.get(), buffer_.data() + done, want - done,
                                static_cast<off_t>(buffer_offset_ + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) read_failed_ = true;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  buffer_.resize(done);
  if (offset + n > buffer_offset_ + done) return {};
  return std::string_view(buffer_).substr(offset - buffer_offset_, n);
}

void RecordReader::Report(std::uint64_t offset, std::uint64_t bytes, std::string what,
                          bool torn_tail) {
  if (offset + 1 <= reported_to_) return;
  reported_to_ = offset + 1;
  damage_.push_back({offset, bytes, std::move(what), torn_tail});
}

std::vector<Damage> RecordReader::TakeDamage() { return std::exchange(damage_, {}); }

void RecordReader::Rewind(std::uint64_t offset) {
  at_ = resume_offset_ = offset;
  joined_.clear();
  buffer_.clear();
  skipping_ = false;
}

/// The first block from `block` on, the begin of one, that the file system has bytes of. A file may
/// say that it is of any size: what was never written is not read.
std::uint64_t RecordReader::AfterHole(std::uint64_t block) const {
  if (block >= file_size_) return block;
  const off_t data = ::lseek(fd_.get(), static_cast<off_t>(block), SEEK_DATA);
  if (data < 0 && errno != ENXIO) return block;
  const std::uint64_t at = data < 0 ? file_size_ : static_cast<std::uint64_t>(data);
  return std::max(block, at - at % kBlockBytes);
}

bool RecordReader::Next(bool final, std::string_view* record) {
  if (NextInner(final, record)) return true;
  // What lies behind the resume point may be taken back and written anew before the next call.
  buffer_.clear();
  return false;
}

bool RecordReader::NextInner(bool final, std::string_view* record) {
  Refresh();
  at_ = resume_offset_;
  joined_.clear();
  bool joining = false;
  while (true) {
    const std::uint64_t block_end = at_ - at_ % kBlockBytes + kBlockBytes;
    const std::uint64_t left = block_end - at_;
    const std::uint64_t available = file_size_ > at_ ? file_size_ - at_ : 0;
    const bool last_block = block_end >= file_size_;

    // Leaves the loop at the end of the file: `rest` bytes are there and make no record.
    const auto end_of_file = [&](std::uint64_t rest) {
      if (final && (rest > 0 || joining)) {
        const std::uint64_t from = joining ? record_offset_ : at_;
        Report(from, file_size_ - from, "the file ends inside a record", true);
        resume_offset_ = file_size_;
      }
      return false;
    };
    const auto damaged = [&](const char* what) {
      const std::uint64_t from = joining ? record_offset_ : at_;
      const std::uint64_t next = AfterHole(block_end);
      Report(from, std::min(next, file_size_) - from, what);
      joined_.clear();
      joining = false;
      skipping_ = true;
      at_ = resume_offset_ = next;
    };

    if (available == 0) return end_of_file(0);
    if (left < kFragmentHeaderBytes) {
      const std::uint64_t n = std::min(left, available);
      if (!AllZero(BytesAt(at_, n))) {
        if (last_block && !final) return false;
        Report(at_, n, "the padding of the block is not zero");
      }
      if (n < left) return false;  // The file ends within the padding: nothing is lost.
      at_ = block_end;
      if (!joining) resume_offset_ = at_;
      continue;
    }
    if (available < kFragmentHeaderBytes) return end_of_file(available);

    const std::string_view header = BytesAt(at_, kFragmentHeaderBytes);
    if (header.empty()) return false;  // Cut or unreadable since fstat; the next call looks again.
    format::WireReader in(header);
    const auto masked_crc = in.Get<std::uint32_t>();
    const std::uint64_t length = in.Get<std::uint16_t>();
    const auto type = in.Get<std::uint8_t>();
    const std::uint64_t fragment = kFragmentHeaderBytes + length;
    if (fragment > left) {
      if (last_block && !final) return false;
      damaged("a length that does not fit the block");
      continue;
    }
    if (fragment > available) return end_of_file(available);
    const std::string_view bytes = BytesAt(at_, fragment);
    if (bytes.empty()) return false;
    const std::string_view payload = bytes.substr(kFragmentHeaderBytes);
    if (MaskCrc(Crc32c(payload.data(), payload.size(), Crc32c(&type, 1))) != masked_crc) {
      if (last_block && !final) return false;
      damaged("a checksum that does not match");
      continue;
    }
    const auto kind = static_cast<FragmentType>(type);
    const bool begins = kind == FragmentType::kFull || kind == FragmentType::kFirst;
    const bool continues = kind == FragmentType::kMiddle || kind == FragmentType::kLast;
    if (!begins && !continues) {
      damaged("a fragment of unknown type");
      continue;
    }
    if (begins && joining) {
      Report(record_offset_, at_ - record_offset_, "a record without its end");
      joined_.clear();
      joining = false;
    }
    if (continues && !joining) {
      // The head was lost with the damage before, which was reported, or never was there.
      if (!skipping_) Report(at_, fragment, "a record without its beginning");
      at_ += fragment;
      resume_offset_ = at_;
      continue;
    }
    skipping_ = false;
    if (begins) record_offset_ = at_;
    at_ += fragment;
    if (kind == FragmentType::kFull) {
      resume_offset_ = at_;
      *record = payload;
      return true;
    }
    joining = true;
    joined_.append(payload);
    if (joined_.size() > kMaxRecordBytes) {
      damaged("a record longer than any of ours");
      continue;
    }
    if (kind == FragmentType::kLast) {
      resume_offset_ = at_;
      *record = joined_;
      return true;
    }
  }
}

Result<std::unique_ptr<JournalFile>> JournalFile::Open(const std::filesystem::path& path,
                                                       std::uint64_t max_group_bytes) {
  UniqueFd fd = run_files::OpenToRead(run_files::OfFolder(path));
  if (!fd) {
    return {errno == ENOENT ? Code::kUnusable : Code::kIo,
            fmt::format("cannot open {}: {}", path.string(), run_files::WhyNot(errno))};
  }
  return std::unique_ptr<JournalFile>(new JournalFile(path, std::move(fd), max_group_bytes));
}

void JournalFile::DecodeInto(std::string_view record, std::uint64_t offset, StringPool* pool,
                             format::Batch* out) {
  // A batch that does not decode must leave no half rows behind.
  std::array<std::size_t, format::kTables.size()> before{};
  std::size_t i = 0;
  format::ForEachTable(out->rows, [&](auto& rows) { before[i++] = rows.size(); });
  const std::size_t positions = out->positions.size();
  const std::int64_t watermark = out->watermark_ns;
  const Status status = format::DecodeBatch(record, pool, out);
  if (status.ok()) {
    out->watermark_ns = std::max(out->watermark_ns, watermark);
    return;
  }
  i = 0;
  format::ForEachTable(out->rows, [&](auto& rows) { rows.resize(before[i++]); });
  out->positions.resize(positions);
  out->watermark_ns = watermark;
  Malformed(record, offset, status.message());
}

void JournalFile::Malformed(std::string_view record, std::uint64_t offset, const std::string& why) {
  if (offset < malformed_to_) return;
  malformed_to_ = offset + 1;
  damage_.push_back({offset, record.size(), why, false});
}

template <class T>
std::optional<T> JournalFile::Taken(Result<T> decoded, std::string_view record,
                                    std::uint64_t offset) {
  if (decoded.ok()) return std::move(decoded).value();
  Malformed(record, offset, decoded.status().message());
  return std::nullopt;
}

Status JournalFile::Read(bool final, std::uint64_t max_bytes, StringPool* pool, JournalChunk* out) {
  const std::uint64_t begin = commit_offset_;
  std::vector<std::pair<std::uint64_t, std::string>> parts;  // Of the group that is not ended yet.
  std::uint64_t group_bytes = 0;
  std::string_view record;
  while (reader_.resume_offset() - begin < max_bytes || !parts.empty()) {
    if (!reader_.Next(final, &record)) break;
    const std::uint64_t offset = reader_.record_offset();
    const auto kind = static_cast<format::JournalRecord>(record.empty() ? '\0' : record[0]);
    if (kind == format::JournalRecord::kBatchPart) {
      if (skips_group_) {
        commit_offset_ = reader_.resume_offset();
        continue;
      }
      parts.emplace_back(offset, record);
      group_bytes += record.size();
      if (group_bytes > max_group_bytes_) {
        damage_.push_back({parts.front().first, group_bytes,
                           "a group of batches longer than any of ours", false});
        parts.clear();
        skips_group_ = true;
        commit_offset_ = reader_.resume_offset();
      }
      continue;
    }
    ++out->records;
    if (kind == format::JournalRecord::kBatch) {
      group_bytes = 0;
      if (std::exchange(skips_group_, false)) {
        commit_offset_ = reader_.resume_offset();
        continue;
      }
      for (const auto& [at, part] : parts) DecodeInto(part, at, pool, &out->batch);
      parts.clear();
      DecodeInto(record, offset, pool, &out->batch);
    } else if (kind == format::JournalRecord::kHeader) {
      Result<JournalHeader> header = DecodeHeader(record);
      if (header.status().code() == Code::kVersion) {
        return {Code::kVersion, fmt::format("{}: {}", path_.string(), header.status().message())};
      }
      if (auto taken = Taken(std::move(header), record, offset)) out->header = *std::move(taken);
    } else if (kind == format::JournalRecord::kSealed) {
      auto sealed = Taken(DecodeSealed(record), record, offset);
      if (sealed) out->sealed.push_back(*std::move(sealed));
    } else if (kind == format::JournalRecord::kEnd) {
      if (auto end = Taken(DecodeEnd(record), record, offset)) out->end = *std::move(end);
    }
    if (parts.empty()) commit_offset_ = reader_.resume_offset();
  }
  if (!parts.empty()) {
    if (final) {
      damage_.push_back({parts.front().first, reader_.file_size() - parts.front().first,
                         "the file ends inside a group of batches", true});
      commit_offset_ = reader_.resume_offset();
    } else {
      reader_.Rewind(commit_offset_);
    }
  } else {
    commit_offset_ = reader_.resume_offset();
  }
  return {};
}

std::vector<Damage> JournalFile::TakeDamage() {
  std::vector<Damage> all = reader_.TakeDamage();
  all.insert(all.end(), std::make_move_iterator(damage_.begin()),
             std::make_move_iterator(damage_.end()));
  damage_.clear();
  return all;
}

}  // namespace telltale::store
