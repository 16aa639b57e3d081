// SPDX-License-Identifier: Apache-2.0
// Reads a journal that may be growing, cut or damaged. Two layers: RecordReader joins fragments and
// resynchronises at block borders; JournalFile decodes records and applies the group rule (a part
// counts only once the batch that ends its group is there).
//
// pread, never mmap: another process may truncate the file at any time.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/string_pool.h"
#include "base/unique_fd.h"
#include "format/batch.h"
#include "store/journal_format.h"

namespace telltale::store {

/// Bytes that no checksum vouches for.
struct Damage {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::string what;
  bool torn_tail = false;  ///< The file ends inside a record or group: a crash, not a bad disk.
};

class RecordReader {
 public:
  explicit RecordReader(UniqueFd fd) : fd_(std::move(fd)) {}

  /// The next whole record, or false where there is none (yet). With `final` false the file may
  /// still grow, so what looks wrong in its last block is left for a later call; with `final` true
  /// it is reported as damage. `record` is valid until the next call.
  bool Next(bool final, std::string_view* record);

  /// Where the record that Next returned last begins, and where the next one is looked for.
  std::uint64_t record_offset() const { return record_offset_; }
  std::uint64_t resume_offset() const { return resume_offset_; }
  /// Goes (back) to a resume offset.
  void Rewind(std::uint64_t offset);
  /// Size of the file when it was last looked at, and whether it still has a name.
  std::uint64_t file_size() const { return file_size_; }
  bool unlinked() const { return unlinked_; }
  /// Damage found since the last call; each only once.
  std::vector<Damage> TakeDamage();
  /// True after a read error other than end of file.
  bool read_failed() const { return read_failed_; }

 private:
  bool NextInner(bool final, std::string_view* record);
  std::string_view BytesAt(std::uint64_t offset, std::size_t n);
  std::uint64_t AfterHole(std::uint64_t block) const;
  void Refresh();
  void Report(std::uint64_t offset, std::uint64_t bytes, std::string what, bool torn_tail = false);

  UniqueFd fd_;
  std::uint64_t at_ = 0;
  std::uint64_t record_offset_ = 0;
  std::uint64_t resume_offset_ = 0;
  std::uint64_t file_size_ = 0;
  bool unlinked_ = false;
  bool read_failed_ = false;
  bool skipping_ = false;  ///< After damage, until a record begins.
  std::string buffer_;     ///< File bytes from buffer_offset_ on.
  std::uint64_t buffer_offset_ = 0;
  std::string joined_;
  std::vector<Damage> damage_;
  std::uint64_t reported_to_ = 0;  ///< Damage before this offset has been reported.
};

/// What a call of JournalFile::Read found.
struct JournalChunk {
  format::Batch batch;  ///< Rows and positions of all groups; the newest watermark.
  std::optional<JournalHeader> header;
  std::vector<SealedRecord> sealed;
  std::optional<EndRecord> end;
  std::uint64_t records = 0;  ///< Zero: nothing new.
};

/// The parts of a group are held until its end is read. No append of ours is so large.
inline constexpr std::uint64_t kMaxGroupBytes = 256U << 20;

class JournalFile {
 public:
  /// Code::kUnusable when there is no such file, kIo when it cannot be opened. A group of more than
  /// `max_group_bytes` is damage: nothing of it is read.
  static Result<std::unique_ptr<JournalFile>> Open(const std::filesystem::path& path,
                                                   std::uint64_t max_group_bytes = kMaxGroupBytes);

  /// Reads about `max_bytes` of journal into `out`, strings into `pool`. `final` as for
  /// RecordReader::Next. Fails only with kVersion (a later format).
  Status Read(bool final, std::uint64_t max_bytes, StringPool* pool, JournalChunk* out);

  bool unlinked() const { return reader_.unlinked(); }
  std::uint64_t file_size() const { return reader_.file_size(); }
  const std::filesystem::path& path() const { return path_; }
  std::vector<Damage> TakeDamage();

 private:
  JournalFile(std::filesystem::path path, UniqueFd fd, std::uint64_t max_group_bytes)
      : path_(std::move(path)), max_group_bytes_(max_group_bytes), reader_(std::move(fd)) {}
  void DecodeInto(std::string_view record, std::uint64_t offset, StringPool* pool,
                  format::Batch* out);
  /// Takes what was decoded of the record at `offset`, or counts it as damaged.
  template <class T>
  std::optional<T> Taken(Result<T> decoded, std::string_view record, std::uint64_t offset);
  /// Once for each record, however often it is read.
  void Malformed(std::string_view record, std::uint64_t offset, const std::string& why);

  std::filesystem::path path_;
  std::uint64_t max_group_bytes_;
  RecordReader reader_;
  std::uint64_t commit_offset_ = 0;  ///< Everything before belongs to complete groups.
  bool skips_group_ = false;         ///< What comes is of a group that is too long.
  std::vector<Damage> damage_;
  std::uint64_t malformed_to_ = 0;
};

}  // namespace telltale::store
