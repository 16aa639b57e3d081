// SPDX-License-Identifier: Apache-2.0
// Files of full values, docs/formats/tensors.md: what lies where in them, writing one, finishing
// what a dead writer has left, mapping one for reading.
//
// A file is safetensors. While it grows its name has ".part" added and the room for its header is
// empty: its values are found by their rows in the table `tensors`, as they are later.
// Thread safety: of the writing none; a TensorFile does not change and may be read from any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/string_pool.h"
#include "base/unique_fd.h"
#include "format/records.gen.h"

namespace telltale::store {

/// Room for the header: its length (8 bytes), its JSON and the spaces behind it.
inline constexpr std::uint64_t kTensorHeaderBytes = 256U << 10;
inline constexpr std::string_view kPartSuffix = ".part";
/// Name of the row that covers the header.
inline constexpr std::string_view kHeaderRow = "__header__";

/// "tensors/00000007.safetensors", as rows name it.
std::string TensorFileName(std::uint64_t number);
struct TensorFileNumber {
  std::uint64_t number = 0;
  bool part = false;
};
/// Of a name in the folder tensors/.
std::optional<TensorFileNumber> ParseTensorFileName(std::string_view name);

struct TensorDtype {
  std::string_view name;    ///< In the index, for example F32.
  std::string_view stored;  ///< In the header: complex numbers are pairs of real ones there.
  std::uint32_t bytes = 0;  ///< Of one element.
};
/// By tt_dtype, and by the name in the index; null where there is none.
const TensorDtype* FindTensorDtype(std::uint8_t tt_dtype);
const TensorDtype* FindTensorDtype(std::string_view name);

/// "[2,3]", and back: nothing where the text is no list of sizes.
std::string ShapeText(std::span<const std::int64_t> shape);
std::optional<std::vector<std::int64_t>> ParseShape(std::string_view text);
/// Bytes of a tensor; nothing where they are more than 64 bits can say.
std::optional<std::uint64_t> TensorBytes(std::span<const std::int64_t> shape,
                                         std::uint32_t element_bytes);

/// XXH3-128 in hexadecimal, as rows have it.
std::string DigestText(std::span<const std::byte> bytes);

/// Where in its file something lies.
struct Placed {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::string digest;
};

/// The header of a file as it grows. The same rows in the same order give the same bytes.
class TensorHeader {
 public:
  explicit TensorHeader(std::uint64_t header_bytes = kTensorHeaderBytes);

  /// Enters the tensor of the row, whose values follow those of the one before; false where the
  /// header has no room for it. Of a second one with the same key the key ends in "#2".
  bool Add(const format::TensorRow& row);
  /// Whether Add would enter it.
  bool HasRoom(const format::TensorRow& row) const;
  bool empty() const { return keys_.empty(); }
  /// The first bytes of the file.
  std::string Bytes() const;

 private:
  std::string KeyOf(const format::TensorRow& row) const;
  std::string EntryOf(const format::TensorRow& row, const std::string& key) const;

  std::uint64_t header_bytes_;
  std::uint64_t data_bytes_ = 0;
  std::string text_;
  std::map<std::string, std::uint32_t> keys_;  ///< And how often each was asked for.
};

/// Writes one file.
class TensorFileWriter {
 public:
  /// Begins `<number>.safetensors.part` in folder/tensors, which is made. `no_space` says whether a
  /// failure was for want of room.
  static Result<std::unique_ptr<TensorFileWriter>> Create(
      const std::filesystem::path& folder, std::uint64_t number, bool* no_space,
      std::uint64_t header_bytes = kTensorHeaderBytes);

  /// As rows name it.
  const std::string& file() const { return file_; }
  std::uint64_t size() const { return size_; }
  bool empty() const { return header_.empty(); }
  bool HasRoom(const format::TensorRow& row) const { return header_.HasRoom(row); }

  /// Appends the values of the row's tensor and says where they lie. The bytes may change
  /// meanwhile: what the digest is of is what the file has. On failure the file is as before.
  Result<Placed> Append(format::TensorRow row, std::span<const std::byte> values);
  /// Writes the header in the room kept for it; nothing is appended after that. May be tried again.
  Result<Placed> WriteHeader();

  /// The last failure was for want of room; the file may be gone on with.
  bool no_space() const { return no_space_; }
  /// What the disk did with the last bytes is not known: nothing more should be appended.
  bool broken() const { return broken_; }
  std::shared_ptr<const UniqueFd> fd() const { return fd_; }

 private:
  TensorFileWriter(const std::filesystem::path& folder, std::uint64_t number, UniqueFd fd,
                   std::uint64_t header_bytes);
  Status Fail(int error);

  std::filesystem::path path_;
  std::string file_;
  std::shared_ptr<const UniqueFd> fd_;
  std::uint64_t header_bytes_;
  std::uint64_t size_;
  std::uint64_t flushed_ = 0;  ///< Up to where the kernel was asked to begin writing.
  TensorHeader header_;
  bool no_space_ = false;
  bool broken_ = false;
  std::string buffer_;
};

/// Makes a file whose header is written durable and takes ".part" from its name: once the header's
/// row is in the journal, so that a file with its own name has all its rows. `fd`: the file.
Status SealTensorFile(int fd, const std::filesystem::path& folder, std::string_view file);

/// Rows of a writer's index, by file, in the order of offsets, with what FinishPart needs of them:
/// no seq, ord_ns, collection, digest, pid. Their strings.
struct TensorIndex {
  StringPool pool;
  std::map<std::string, std::vector<format::TensorRow>, std::less<>> rows;
};
/// The rows of `files` that are in the writer's folder now, from journals and segments. kPartial:
/// not all can be read, so what they do not name is not for certain nobody's.
Result<std::unique_ptr<TensorIndex>> ReadTensorIndex(const std::filesystem::path& folder,
                                                     const std::set<std::string>& files);

/// What FinishPart did.
struct FinishedPart {
  /// The file, to be sealed; null where no row named it: its bytes were nobody's, it is gone.
  std::shared_ptr<const UniqueFd> fd;
  /// Where the header lies, to be journalled before the seal; none where the index has it already.
  std::optional<Placed> header;
};
/// Finishes the .part that a dead writer has left, from its rows: what no row names is cut off, the
/// header written. kUnusable: the rows do not describe it (it is left as it is), kIo: the disk
/// refuses.
Result<FinishedPart> FinishPart(const std::filesystem::path& folder, const std::string& file,
                                std::span<const format::TensorRow> rows);

/// A file, or its .part, mapped for reading: the bytes that it had when it was opened.
class TensorFile {
 public:
  /// `file` as in the row. kUnusable: there is none, or the name is none of ours.
  static Result<std::shared_ptr<const TensorFile>> Open(const std::filesystem::path& writer_folder,
                                                        std::string_view file);
  ~TensorFile();
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  /// Still being written, or left by a writer that died, when it was opened.
  bool part() const { return part_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// kPartial: the file ends before.
  Result<std::span<const std::byte>> Bytes(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  TensorFile(const std::byte* data, std::size_t size, bool part)
      : data_(data), size_(size), part_(part) {}

  const std::byte* data_;
  std::size_t size_;
  bool part_;
};

/// The values of one row.
struct MappedTensor {
  std::shared_ptr<const TensorFile> file;  ///< Holds them.
  std::span<const std::byte> values;
};
/// Finds and maps them. kUsage: of this tensor only the shape was taken; kUnusable: the row makes
/// no sense, or its file is gone; kPartial: the file ends before. Digests are for verify.
Result<MappedTensor> OpenTensor(const std::filesystem::path& run, std::string_view writer,
                                const format::TensorRow& row);

}  // namespace telltale::store
