// SPDX-License-Identifier: Apache-2.0
#include "store/tensor_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/run_files.h"
#include "format/dtypes.h"
#include "format/wire.h"
#include "store/column_scan.h"
#include "store/folder.h"
#include "store/journal_writer.h"
#include "store/reader.h"
#include "store/segment.h"

namespace telltale::store {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::size_t kNumberDigits = 8;
/// Values are copied through a buffer of this size, small enough to stay in a cache.
constexpr std::size_t kCopyBytes = 256U << 10;
/// So often the kernel is asked to begin writing: the sync at the end then has little left to do.
constexpr std::uint64_t kFlushBytes = 8U << 20;
/// The least header: its length, braces, metadata; and the most that makes sense.
constexpr std::uint64_t kLeastHeaderBytes = 64;
constexpr std::uint64_t kMostHeaderBytes = 64U << 20;

/// By tt_dtype. Readers of safetensors know no complex128, and older ones no complex64.
constexpr auto kDtypes = [] {
  std::array<TensorDtype, format::kDtypeCount> out{};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const format::DtypeInfo& dtype = format::kDtypes[i];
    out[i] = {dtype.safetensors, dtype.safetensors, dtype.bytes};
    if (dtype.safetensors == "C64") out[i].stored = "F32";
    if (dtype.safetensors == "C128") out[i].stored = "F64";
  }
  return out;
}();

Status IoError(const char* what, const std::filesystem::path& path, int error) {
  return {Code::kIo,
          fmt::format("cannot {} {}: {}{}", what, path.string(), run_files::WhyNot(error),
                      IsNoSpace(error) ? "; free some space" : "; check the disk")};
}

std::string HexOf(const XXH3_state_t& state) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
  std::array<std::uint8_t, 16> digest{};
  static_assert(sizeof canonical.digest == digest.size());
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return ToHex(digest);
}

/// 0, or the errno of the write that failed.
int WriteAt(int fd, const char* data, std::size_t bytes, std::uint64_t offset) {
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd, data, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : ENOSPC;
    data += n;
    bytes -= static_cast<std::size_t>(n);
    offset += static_cast<std::uint64_t>(n);
  }
  return 0;
}

std::string Quoted(const std::string& text) { return JsonText(nlohmann::json(text)); }

bool IsHeaderRow(const format::TensorRow& row) {
  // A tensor may have that name, but never that place.
  return row.name == kHeaderRow && row.offset == 0;
}

std::string PartOf(const std::string& file) { return file + std::string(kPartSuffix); }

}  // namespace

std::string TensorFileName(std::uint64_t number) {
  return fmt::format("{}/{:08}{}", kTensorFolder, number, kSuffix);
}

std::optional<TensorFileNumber> ParseTensorFileName(std::string_view name) {
  TensorFileNumber out;
  if (name.ends_with(kPartSuffix)) {
    out.part = true;
    name.remove_suffix(kPartSuffix.size());
  }
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  if (name.size() < kNumberDigits) return std::nullopt;
  const char* const end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data(), end, out.number);
  if (error != std::errc() || at != end || out.number == 0) return std::nullopt;
  return out;
}

const TensorDtype* FindTensorDtype(std::uint8_t tt_dtype) {
  return tt_dtype < kDtypes.size() ? &kDtypes[tt_dtype] : nullptr;
}

const TensorDtype* FindTensorDtype(std::string_view name) {
  for (const TensorDtype& dtype : kDtypes) {
    if (dtype.name == name) return &dtype;
  }
  return nullptr;
}

std::string ShapeText(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    if (text.size() > 1) text += ',';
    text += std::to_string(size);
  }
  return text + "]";
}

std::optional<std::vector<std::int64_t>> ParseShape(std::string_view text) {
  const auto json = ParseJson(text);
  if (!json.is_array()) return std::nullopt;
  std::vector<std::int64_t> shape;
  for (const auto& size : json) {
    if (!size.is_number_unsigned()) return std::nullopt;
    const auto value = size.get<std::uint64_t>();
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return std::nullopt;
    }
    shape.push_back(static_cast<std::int64_t>(value));
  }
  return shape;
}

std::optional<std::uint64_t> TensorBytes(std::span<const std::int64_t> shape,
                                         std::uint32_t element_bytes) {
  // No elements at all, however large the other sizes are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::uint64_t bytes = element_bytes;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

std::string DigestText(std::span<const std::byte> bytes) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  if (!bytes.empty()) XXH3_128bits_update(&state, bytes.data(), bytes.size());
  return HexOf(state);
}

TensorHeader::TensorHeader(std::uint64_t header_bytes)
    : header_bytes_(header_bytes), text_(R"({"__metadata__":{"telltale":"1"})") {}

std::string TensorHeader::KeyOf(const format::TensorRow& row) const {
  std::string base = fmt::format("{}/{}/{}/{}", row.mode, row.step, row.rank, row.name);
  const auto found = keys_.find(base);
  if (found == keys_.end()) return base;
  // Two processes of a rank, two collections, or a module that ran twice in the step.
  std::uint32_t n = found->second + 1;
  std::string key;
  do {
    key = fmt::format("{}#{}", base, n++);
  } while (keys_.contains(key));
  return key;
}

std::string TensorHeader::EntryOf(const format::TensorRow& row, const std::string& key) const {
  const TensorDtype* const dtype = FindTensorDtype(row.dtype);
  std::string shape(row.shape);
  if (dtype != nullptr && dtype->stored != dtype->name && !shape.empty()) {
    shape.pop_back();
    shape += shape == "[" ? "2]" : ",2]";
  }
  return fmt::format(R"(,{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", Quoted(key),
                     dtype != nullptr ? dtype->stored : row.dtype, shape, data_bytes_,
                     data_bytes_ + row.bytes);
}

bool TensorHeader::HasRoom(const format::TensorRow& row) const {
  // The length, and the brace at the end.
  return 8 + text_.size() + EntryOf(row, KeyOf(row)).size() + 1 <= header_bytes_;
}

bool TensorHeader::Add(const format::TensorRow& row) {
  const std::string key = KeyOf(row);
  const std::string entry = EntryOf(row, key);
  if (8 + text_.size() + entry.size() + 1 > header_bytes_) return false;
  text_ += entry;
  data_bytes_ += row.bytes;
  ++keys_[fmt::format("{}/{}/{}/{}", row.mode, row.step, row.rank, row.name)];
  keys_.try_emplace(key, 1);
  return true;
}

std::string TensorHeader::Bytes() const {
  std::string bytes;
  format::Put(&bytes, header_bytes_ - 8);
  bytes += text_;
  bytes += '}';
  bytes.resize(header_bytes_, ' ');
  return bytes;
}

TensorFileWriter::TensorFileWriter(const std::filesystem::path& folder, std::uint64_t number,
                                   UniqueFd fd, std::uint64_t header_bytes)
    : path_(folder / PartOf(TensorFileName(number))),
      file_(TensorFileName(number)),
      fd_(std::make_shared<const UniqueFd>(std::move(fd))),
      header_bytes_(header_bytes),
      size_(header_bytes),
      flushed_(header_bytes),
      header_(header_bytes) {}

Result<std::unique_ptr<TensorFileWriter>> TensorFileWriter::Create(
    const std::filesystem::path& folder, std::uint64_t number, bool* no_space,
    std::uint64_t header_bytes) {
  *no_space = false;
  const std::filesystem::path tensors = folder / kTensorFolder;
  const std::filesystem::path path = folder / PartOf(TensorFileName(number));
  if (const int error = run_files::MakeFolder(run_files::OfFolder(tensors));
      error != 0 && error != EEXIST) {
    *no_space = IsNoSpace(error);
    return IoError("create", tensors, error);
  }
  UniqueFd fd = run_files::OpenToWrite(run_files::OfSubfolder(path), run_files::Writing::kNew);
  if (!fd) {
    *no_space = IsNoSpace(errno);
    return IoError("create", path, errno);
  }
  // Now, so that the header finds room also on a disk that is full by then.
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(header_bytes));
      error != 0) {
    *no_space = IsNoSpace(error);
    run_files::Remove(run_files::OfSubfolder(path));
    return IoError("write", path, error);
  }
  return std::unique_ptr<TensorFileWriter>(
      new TensorFileWriter(folder, number, std::move(fd), header_bytes));
}

Status TensorFileWriter::Fail(int error) {
  no_space_ = IsNoSpace(error);
  broken_ = broken_ || !no_space_;
  return IoError("write", path_, error);
}

Result<Placed> TensorFileWriter::Append(format::TensorRow row, std::span<const std::byte> values) {
  row.bytes = values.size();
  if (!header_.HasRoom(row)) {
    return {Code::kLimit, fmt::format("{}: its header is full", path_.string())};
  }
  Placed placed{size_, values.size(), {}};
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (std::size_t done = 0; done < values.size();) {
    const std::size_t n = std::min(kCopyBytes, values.size() - done);
    buffer_.assign(reinterpret_cast<const char*>(values.data()) + done, n);
    XXH3_128bits_update(&state, buffer_.data(), n);
    if (const int error = WriteAt(fd_->get(), buffer_.data(), n, size_ + done); error != 0) {
      if (::ftruncate(fd_->get(), static_cast<off_t>(size_)) != 0) broken_ = true;
      return Fail(error);
    }
    done += n;
  }
  placed.digest = HexOf(state);
  header_.Add(row);
  size_ += values.size();
  no_space_ = false;
  if (size_ - flushed_ >= kFlushBytes) {
    ::sync_file_range(fd_->get(), static_cast<off_t>(flushed_),
                      static_cast<off_t>(size_ - flushed_), SYNC_FILE_RANGE_WRITE);
    flushed_ = size_;
  }
  return placed;
}

Result<Placed> TensorFileWriter::WriteHeader() {
  // Part of a tensor may lie behind the last one: no row would name its bytes.
  if (broken_ && ::ftruncate(fd_->get(), static_cast<off_t>(size_)) != 0) return Fail(errno);
  const std::string bytes = header_.Bytes();
  if (const int error = WriteAt(fd_->get(), bytes.data(), bytes.size(), 0); error != 0) {
    return Fail(error);
  }
  return Placed{0, header_bytes_, DigestText(std::as_bytes(std::span(bytes)))};
}

Status SealTensorFile(int fd, const std::filesystem::path& folder, std::string_view file) {
  const std::filesystem::path path = folder / file;
  const std::filesystem::path part = folder / PartOf(std::string(file));
  if (::fdatasync(fd) != 0) return IoError("sync", part, errno);
  const int error = run_files::Rename(run_files::OfSubfolder(part), run_files::OfSubfolder(path));
  if (error != 0) return IoError("rename", part, error);
  return SyncFolder(folder / kTensorFolder);
}

Result<std::unique_ptr<TensorIndex>> ReadTensorIndex(const std::filesystem::path& folder,
                                                     const std::set<std::string>& files) {
  auto index = std::make_unique<TensorIndex>();
  Salvage salvage;
  // A scan for each: they are one or none, and most of a long index cannot name them.
  for (const std::string& file : files) {
    const ScanRequest request{.table = format::TableId::kTensors,
                              .columns = {"time_ns", "name", "dtype", "shape", "step", "mode",
                                          "rank", "attempt", "offset", "bytes"},
                              .file = file};
    enum : std::size_t {
      kTime,
      kName,
      kDtype,
      kShape,
      kStep,
      kMode,
      kRank,
      kAttempt,
      kOffset,
      kBytes
    };
    const auto take = [&](ScanPiece& piece) {
      const auto& columns = piece.columns;
      std::vector<format::TensorRow>& rows = index->rows[file];
      for (std::size_t i = 0; i < piece.rows; ++i) {
        format::TensorRow& row = rows.emplace_back();
        row.time_ns = columns[kTime].Int(i);
        row.name = index->pool.Intern(columns[kName].Text(i));
        row.dtype = index->pool.Intern(columns[kDtype].Text(i));
        row.shape = index->pool.Intern(columns[kShape].Text(i));
        row.step = columns[kStep].Int(i);
        row.mode = index->pool.Intern(columns[kMode].Text(i));
        row.rank = static_cast<std::int32_t>(columns[kRank].Int(i));
        row.attempt = static_cast<std::uint32_t>(columns[kAttempt].Int(i));
        row.file = index->pool.Intern(file);
        row.offset = static_cast<std::uint64_t>(columns[kOffset].Int(i));
        row.bytes = static_cast<std::uint64_t>(columns[kBytes].Int(i));
      }
      return Status();
    };
    TELLTALE_RETURN_IF_ERROR(ScanWriterColumns(folder, request, take, &salvage));
  }
  if (salvage.any()) {
    return {Code::kPartial, fmt::format("{}: part of its index is damaged: {}", folder.string(),
                                        salvage.notes.empty() ? "" : salvage.notes.front())};
  }
  for (auto& [file, rows] : index->rows) {
    std::stable_sort(
        rows.begin(), rows.end(),
        [](const format::TensorRow& a, const format::TensorRow& b) { return a.offset < b.offset; });
  }
  return index;
}

Result<FinishedPart> FinishPart(const std::filesystem::path& folder, const std::string& file,
                                std::span<const format::TensorRow> rows) {
  const std::filesystem::path path = folder / PartOf(file);
  FinishedPart out;
  if (rows.empty()) {
    const int error = run_files::Remove(run_files::OfSubfolder(path));
    if (error != 0 && error != ENOENT) return IoError("remove", path, error);
    return out;
  }
  UniqueFd fd = run_files::OpenToWrite(run_files::OfSubfolder(path), run_files::Writing::kExisting);
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return IoError("open", path, errno);
  // Rows lie in the order of their offsets; one of no bytes may share the next one's.
  const bool has_header = IsHeaderRow(rows.front());
  const std::span<const format::TensorRow> values = rows.subspan(has_header ? 1 : 0);
  const std::uint64_t header_bytes = values.empty() ? 0 : values.front().offset;
  std::uint64_t next = header_bytes;
  bool sound = header_bytes >= kLeastHeaderBytes && header_bytes <= kMostHeaderBytes &&
               (!has_header || rows.front().bytes == header_bytes);
  TensorHeader header(std::max(header_bytes, kLeastHeaderBytes));
  for (const format::TensorRow& row : values) {
    sound = sound && row.offset == next && (has_header || header.Add(row));
    next += row.bytes;
  }
  if (!sound || static_cast<std::uint64_t>(info.st_size) < next) {
    return {Code::kUnusable,
            fmt::format("{}: its index does not describe it; it is left as it is", path.string())};
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(next)) != 0) return IoError("cut", path, errno);
  if (!has_header) {
    const std::string bytes = header.Bytes();
    if (const int error = WriteAt(fd.get(), bytes.data(), bytes.size(), 0); error != 0) {
      return IoError("write", path, error);
    }
    out.header = Placed{0, header_bytes, DigestText(std::as_bytes(std::span(bytes)))};
  }
  out.fd = std::make_shared<const UniqueFd>(std::move(fd));
  return out;
}

Result<std::shared_ptr<const TensorFile>> TensorFile::Open(
    const std::filesystem::path& writer_folder, std::string_view file) {
  const std::string prefix = std::string(kTensorFolder) + "/";
  const std::string name(file.starts_with(prefix) ? file.substr(prefix.size()) : "");
  if (name.empty() || name.find('/') != std::string::npos || !name.ends_with(kSuffix)) {
    return {Code::kUnusable, fmt::format("'{}' is no tensor file's name", file)};
  }
  const std::filesystem::path path = writer_folder / kTensorFolder / name;
  UniqueFd fd;
  bool part = false;
  // It may get its name between the two looks.
  for (int look = 0; look < 3 && !fd; ++look) {
    part = look == 1;
    fd = run_files::OpenToRead(
        run_files::OfSubfolder(part ? std::filesystem::path(PartOf(path.string())) : path));
    if (!fd && errno != ENOENT) break;
  }
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    return {Code::kUnusable,
            fmt::format("cannot open {}: {}", path.string(), run_files::WhyNot(errno))};
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* map = nullptr;
  if (size > 0) map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) return IoError("map", path, errno);
  return std::shared_ptr<const TensorFile>(
      new TensorFile(static_cast<const std::byte*>(map), size, part));
}

TensorFile::~TensorFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<std::span<const std::byte>> TensorFile::Bytes(std::uint64_t offset,
                                                     std::uint64_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) {
    return {Code::kPartial, fmt::format("the file ends at {}, before the {} bytes at offset {}",
                                        size_, bytes, offset)};
  }
  return std::span<const std::byte>(data_ + offset, bytes);
}

Result<MappedTensor> OpenTensor(const std::filesystem::path& run, std::string_view writer,
                                const format::TensorRow& row) {
  if (row.file.empty()) {
    return {Code::kUsage, fmt::format("of {} only shape and dtype were taken at step {}: ask for "
                                      "its raw values in the capture plan",
                                      row.name, row.step)};
  }
  const TensorDtype* const dtype = FindTensorDtype(row.dtype);
  const auto shape = ParseShape(row.shape);
  if (dtype == nullptr || !shape || TensorBytes(*shape, dtype->bytes) != row.bytes) {
    return {Code::kUnusable, fmt::format("the index row of {} at step {} makes no sense: {} bytes "
                                         "of {} in the shape {}",
                                         row.name, row.step, row.bytes, row.dtype, row.shape)};
  }
  if (writer.empty() || writer.starts_with('.') || writer.find('/') != std::string_view::npos) {
    return {Code::kUnusable, fmt::format("'{}' is no writer's name", writer)};
  }
  MappedTensor tensor;
  TELLTALE_ASSIGN_OR_RETURN(tensor.file, TensorFile::Open(run / writer, row.file));
  TELLTALE_ASSIGN_OR_RETURN(tensor.values, tensor.file->Bytes(row.offset, row.bytes));
  return tensor;
}

}  // namespace telltale::store
