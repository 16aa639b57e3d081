// SPDX-License-Identifier: Apache-2.0
#include "store/verify.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <compare>
#include <map>
#include <set>
#include <string_view>
#include <type_traits>

#include "base/run_files.h"
#include "base/unique_fd.h"
#include "format/bounds.h"
#include "store/folder.h"
#include "store/hole_budget.h"
#include "store/impossible_row.h"
#include "store/journal_reader.h"
#include "store/run_info.h"
#include "store/segment.h"
#include "store/tensor_file.h"

namespace telltale::store {
namespace {

constexpr std::uint64_t kVerifyReadBytes = 1 << 20;
/// Rows of a writer that are named.
constexpr std::uint64_t kMostImpossible = 20;

using Digest = std::array<std::uint8_t, 16>;

/// Sequence numbers of one table that were found, as ranges [first, last].
class SeqSet {
 public:
  void Add(std::uint64_t seq) { Add(seq, seq); }
  void Add(std::uint64_t first, std::uint64_t last) {
    if (!ranges_.empty() && ranges_.back().second + 1 == first) {
      ranges_.back().second = last;
    } else {
      ranges_.emplace_back(first, last);
    }
  }
  /// Ranges within [1, end) that are not there.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> MissingBefore(std::uint64_t end) {
    std::sort(ranges_.begin(), ranges_.end());
    std::vector<std::pair<std::uint64_t, std::uint64_t>> missing;
    std::uint64_t next = 1;
    for (const auto& [first, last] : ranges_) {
      if (first > next) missing.emplace_back(next, first - 1);
      next = std::max(next, last + 1);
    }
    if (end > next) missing.emplace_back(next, end - 1);
    return missing;
  }

 private:
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges_;
};

/// Where the index says a tensor's bytes lie. Small: all of a writer's are in memory at once.
struct TensorPlace {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  Digest digest{};
  friend auto operator<=>(const TensorPlace&, const TensorPlace&) = default;
};

/// What ToHex gave; zeros, which are no bytes' digest, where the text is none.
Digest ParseDigest(std::string_view hex) {
  Digest digest{};
  if (hex.size() != 2 * digest.size()) return digest;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const char* const at = hex.data() + 2 * i;
    const auto [end, error] = std::from_chars(at, at + 2, digest[i], 16);
    if (error != std::errc() || end != at + 2) return {};
  }
  return digest;
}

/// "tensors/00000001.safetensors": nothing outside of that folder.
bool IsTensorPath(std::string_view file) {
  if (!file.starts_with(kTensorFolder)) return false;
  file.remove_prefix(kTensorFolder.size());
  return file.size() > 1 && file.front() == '/' && file.find('/', 1) == std::string_view::npos &&
         file != "/." && file != "/..";
}

class WriterVerifier {
 public:
  WriterVerifier(const std::filesystem::path& run, std::string name, bool over, bool finished,
                 HoleBudget* holes, VerifyReport* report)
      : folder_(run / name),
        name_(std::move(name)),
        over_(over),
        finished_(finished),
        holes_(holes),
        report_(report) {}

  Status Run() {
    TELLTALE_ASSIGN_OR_RETURN(const FolderListing listing, ListFolder(folder_));
    ++report_->writers;
    for (const std::string& file : listing.foreign) {
      report_->notes.push_back(fmt::format("{}/{}: not ours, left alone", name_, file));
    }
    for (const std::string& file : listing.temporaries) {
      if (over_) Say(file, {}, "left by a crash while it was being written");
    }
    for (const std::uint64_t number : listing.journals) {
      const bool newest = number == listing.journals.back();
      TELLTALE_RETURN_IF_ERROR(CheckJournal(number, newest));
    }
    for (const SegmentName& segment : listing.segments) {
      TELLTALE_RETURN_IF_ERROR(CheckSegment(segment));
    }
    for (const auto& [file, sealed] : sealed_) {
      const bool there =
          std::any_of(listing.segments.begin(), listing.segments.end(),
                      [&name = file](const SegmentName& segment) { return segment.file == name; });
      if (!there) Say(file, {}, "is missing, though the journal says it was sealed");
    }
    CheckSequences();
    CheckTensors();
    if (finished_ && !ended_) {
      Say(listing.journals.empty() ? "" : JournalFileName(listing.journals.back()), {},
          "no end record, though the run is finished: its end was lost or never written");
    }
    return {};
  }

 private:
  void Say(const std::string& file, std::optional<std::uint64_t> offset, std::string what) {
    report_->problems.push_back(
        {file.empty() ? name_ : name_ + "/" + file, offset, std::move(what)});
  }

  /// Bytes that nobody has written, in such numbers that they are left out.
  void SayUnread(const std::string& file, std::optional<std::uint64_t> offset, std::uint64_t bytes,
                 const struct stat& info) {
    report_->unread_bytes += bytes;
    Say(file, offset,
        fmt::format("{} bytes are not read: the file says that it has {} bytes and takes up {} of "
                    "the disk",
                    bytes, info.st_size, info.st_blocks * 512));
  }

  void SayUncovered(const std::string& file, std::uint64_t offset, std::uint64_t bytes) {
    report_->unread_bytes += bytes;
    Say(file, offset, fmt::format("{} bytes that the index does not name: not read", bytes));
  }

  /// Of forged rows there may be millions.
  template <class Row>
  void SayImpossible(const Row& row) {
    if (++impossible_ <= kMostImpossible) Say("", {}, ImpossibleRow(name_, row));
    if (impossible_ == kMostImpossible) Say("", {}, "further rows with such numbers are not named");
  }

  void TakeRows(const format::Rows& rows) {
    format::ForEachTable(rows, [&](const auto& table) {
      using Row = typename std::remove_cvref_t<decltype(table)>::value_type;
      for (const Row& row : table) {
        found_[static_cast<std::uint8_t>(Row::kTable)].Add(row.seq);
        if (!format::InBounds(row)) SayImpossible(row);
      }
      report_->rows += table.size();
    });
    for (const format::TensorRow& row : rows.tensors) {
      if (row.file.empty()) continue;  // Shape and dtype alone.
      tensors_[std::string(row.file)].push_back({row.offset, row.bytes, ParseDigest(row.digest)});
    }
  }

  void TakeSeqs(const NextSeqs& seqs) {
    for (std::size_t i = 0; i < seqs.size(); ++i) next_seq_[i] = std::max(next_seq_[i], seqs[i]);
  }

  Status CheckJournal(std::uint64_t number, bool newest) {
    const std::string name = JournalFileName(number);
    auto file = JournalFile::Open(folder_ / name);
    if (!file.ok()) {
      // Deleted since it was listed, when the run is live.
      if (over_ || file.status().code() != Code::kUnusable) Say(name, {}, file.status().message());
      return {};
    }
    ++report_->journals;
    journals_.insert(number);
    bool has_header = false;
    ended_ = false;  // Only the newest journal's end counts.
    while (true) {
      StringPool pool;
      JournalChunk chunk;
      TELLTALE_RETURN_IF_ERROR((*file)->Read(over_ || !newest, kVerifyReadBytes, &pool, &chunk));
      if (chunk.records == 0) break;
      if (chunk.header) {
        has_header = true;
        TakeSeqs(chunk.header->next_seq);
        if (chunk.header->number != number) {
          Say(name, 0, fmt::format("its header says it is journal {}", chunk.header->number));
        }
      }
      for (SealedRecord& sealed : chunk.sealed) sealed_[sealed.file] = std::move(sealed);
      if (chunk.end) {
        ended_ = true;
        TakeSeqs(chunk.end->next_seq);
      }
      TakeRows(chunk.batch.rows);
    }
    report_->bytes += (*file)->file_size();
    for (const Damage& damage : (*file)->TakeDamage()) {
      Say(name, damage.offset, fmt::format("{} bytes: {}", damage.bytes, damage.what));
    }
    if (!has_header) Say(name, 0, "no header");
    return {};
  }

  Status CheckSegment(const SegmentName& segment) {
    ++report_->segments;
    const std::filesystem::path path = folder_ / segment.file;
    const auto sealed = sealed_.find(segment.file);
    const bool vouched = sealed != sealed_.end();
    const UniqueFd fd = run_files::OpenToRead(run_files::OfFolder(path));
    struct stat file {};
    if (!fd || ::fstat(fd.get(), &file) != 0) {
      Say(segment.file, {},
          fmt::format("cannot open {}: {}", path.string(), run_files::WhyNot(errno)));
      return {};
    }
    const auto size = static_cast<std::uint64_t>(file.st_size);
    report_->bytes += size;
    if (vouched && !CheckDigest(segment.file, fd.get(), file, sealed->second)) {
      // What it holds is not looked at; its rows are not reported a second time as missing.
      found_[static_cast<std::uint8_t>(segment.table)].Add(segment.first_seq, segment.last_seq);
      return {};
    }
    StringPool pool;
    format::Rows rows;
    const Result<SegmentInfo> info = ReadSegment(path, &pool, &rows);
    if (!info.ok()) {
      if (info.status().code() == Code::kVersion) return info.status();
      Say(segment.file, {}, info.status().message());
      return {};
    }
    if (!vouched && (over_ || !journals_.contains(info->journal))) {
      Say(segment.file, {}, "no sealed record vouches for it");
    }
    if (info->table != segment.table || info->first_seq != segment.first_seq ||
        info->last_seq != segment.last_seq || info->writer != name_) {
      Say(segment.file, {}, "its metadata say something else than its name and folder");
    }
    TakeRows(rows);
    return {};
  }

  /// Whether a segment is what was sealed; where it is not, that is said. One of another size,
  /// which may be any, is not read.
  bool CheckDigest(const std::string& name, int fd, const struct stat& file,
                   const SealedRecord& sealed) {
    const auto size = static_cast<std::uint64_t>(file.st_size);
    if (size != sealed.bytes) {
      report_->unread_bytes += size;
      Say(name, {},
          fmt::format("{} bytes, was sealed as {} bytes: it is not read", size, sealed.bytes));
      return false;
    }
    holes_->Begin(file);
    if (!holes_->Take(fd, file, 0, size)) {
      SayUnread(name, {}, size, file);
      return false;
    }
    const Result<FileDigest> digest = DigestFile(fd, folder_ / name, 0, size);
    if (!digest.ok()) {
      Say(name, {}, digest.status().message());
      return false;
    }
    if (digest->digest == sealed.digest) return true;
    Say(name, {},
        fmt::format("{} bytes with digest {}, was sealed with digest {}", size,
                    ToHex(digest->digest), ToHex(sealed.digest)));
    return false;
  }

  void CheckSequences() {
    for (const format::TableDesc& table : format::kTables) {
      const auto id = static_cast<std::uint8_t>(table.id);
      for (const auto& [first, last] : found_[id].MissingBefore(next_seq_[id])) {
        Say("", {}, fmt::format("rows {} to {} of table {} are missing", first, last, table.name));
      }
    }
  }

  void CheckTensors() {
    std::set<std::string> files;
    std::set<std::string> parts;
    for (const auto& [file, places] : tensors_) files.insert(file);
    std::vector<run_files::Entry> entries;
    const int error = run_files::List(run_files::OfFolder(folder_ / kTensorFolder), &entries);
    if (error != 0 && error != ENOENT) {
      Say(std::string(kTensorFolder), {},
          fmt::format("cannot be listed: {}", run_files::WhyNot(error)));
    }
    for (const run_files::Entry& entry : entries) {
      const std::string& name = entry.name;
      std::string file = fmt::format("{}/{}", kTensorFolder, name);
      const bool part = file.ends_with(kPartSuffix);
      if (part) file.resize(file.size() - kPartSuffix.size());
      if (!tensors_.contains(file) && !ParseTensorFileName(name)) {
        report_->notes.push_back(
            fmt::format("{}/{}/{}: not ours, left alone", name_, kTensorFolder, name));
        continue;
      }
      if (part) parts.insert(file);
      files.insert(std::move(file));
    }
    for (const std::string& file : files) {
      if (!IsTensorPath(file)) {
        Say("", {}, fmt::format("the index names '{}', which is no tensor file's place", file));
        continue;
      }
      // While it is given its name a live one may be listed under both.
      if (over_ && parts.contains(file) &&
          run_files::IsFile(run_files::OfSubfolder(folder_ / file))) {
        Say(file + std::string(kPartSuffix), {}, "lies beside the finished file of that name");
      }
      CheckTensorFile(file);
    }
  }

  /// The file, or its .part: it may get its name between the two looks.
  UniqueFd OpenTensorFile(const std::string& file, bool* part, int* error) const {
    UniqueFd fd;
    for (int look = 0; look < 3 && !fd; ++look) {
      *part = look == 1;
      const std::string name = *part ? file + std::string(kPartSuffix) : file;
      fd = run_files::OpenToRead(run_files::OfSubfolder(folder_ / name));
      *error = fd ? 0 : errno;
      if (*error != ENOENT) break;
    }
    return fd;
  }

  /// Every byte must lie in a range of the index, each once, and have its digest. Of a .part the
  /// header may be missing, and what its writer had no time to index.
  void CheckTensorFile(const std::string& file) {
    std::vector<TensorPlace>& places = tensors_[file];
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    bool part = false;
    int error = 0;
    const UniqueFd fd = OpenTensorFile(file, &part, &error);
    const std::string name = part ? file + std::string(kPartSuffix) : file;
    struct stat info {};
    if (!fd || ::fstat(fd.get(), &info) != 0) {
      if (places.empty() && error != ENOENT) {
        report_->notes.push_back(fmt::format("{}/{}: not ours, left alone", name_, name));
      } else if (!places.empty()) {
        Say(name, {},
            error == ENOENT ? "is missing, though the index names it"
                            : fmt::format("cannot be read: {}", run_files::WhyNot(error)));
      }
      return;
    }
    ++report_->tensor_files;
    const auto size = static_cast<std::uint64_t>(info.st_size);
    report_->bytes += size;
    holes_->Begin(info);
    std::uint64_t next = 0;
    if (part && !places.empty()) next = places.front().offset;
    std::uint64_t holes = 0;
    std::uint64_t first_hole = 0;
    for (const TensorPlace& place : places) {
      if (place.offset > size || place.bytes > size - place.offset) {
        Say(name, place.offset,
            fmt::format("the file ends at {}, before the {} bytes that the index names here", size,
                        place.bytes));
        continue;
      }
      const std::uint64_t end = place.offset + place.bytes;
      if (place.offset < next) {
        // Each byte is read once, however many rows name it.
        Say(name, place.offset, "the index names these bytes twice");
        next = std::max(next, end);
        continue;
      }
      if (place.offset > next) SayUncovered(name, next, place.offset - next);
      next = end;
      if (!holes_->Take(fd.get(), info, place.offset, place.bytes)) {
        if (holes == 0) first_hole = place.offset;
        holes += place.bytes;
        continue;
      }
      const Result<FileDigest> digest =
          DigestFile(fd.get(), folder_ / name, place.offset, place.bytes);
      if (!digest.ok()) {
        Say(name, place.offset, digest.status().message());
      } else if (digest->digest != place.digest) {
        Say(name, place.offset, fmt::format("{} bytes: digest differs", place.bytes));
      }
    }
    if (holes > 0) SayUnread(name, first_hole, holes, info);
    // A live run may have written values whose index rows are still to come.
    if (!over_) return;
    if (part) {
      report_->notes.push_back(
          fmt::format("{}/{}: its writer died before it was finished: {} values, to be read by "
                      "their rows in the table tensors",
                      name_, name, places.size()));
    } else if (next != size) {
      SayUncovered(name, next, size - next);
    }
  }

  const std::filesystem::path folder_;
  const std::string name_;
  const bool over_;
  const bool finished_;
  HoleBudget* const holes_;
  VerifyReport* const report_;
  std::array<SeqSet, 256> found_;
  NextSeqs next_seq_{};
  std::map<std::string, SealedRecord> sealed_;  ///< By file, the newest word on it.
  std::set<std::uint64_t> journals_;
  std::map<std::string, std::vector<TensorPlace>> tensors_;
  bool ended_ = false;
  std::uint64_t impossible_ = 0;  ///< Rows with numbers out of bounds.
};

}  // namespace

Result<VerifyReport> Verify(const std::filesystem::path& run) {
  VerifyReport report;
  bool over = true;
  bool finished = false;
  const Result<RunInfo> info = ReadRunInfo(run);
  const std::vector<std::string> writers = ListWriters(run);
  if (info.ok()) {
    report.state = DeriveRunState(*info, run).state;
    over = report.state != "running";
    finished = info->finished;
  } else {
    // A damaged run.json hides nothing else; with no run at all there is nothing to check.
    if (info.status().code() == Code::kVersion || writers.empty()) return info.status();
    report.problems.push_back({"run.json", {}, info.status().message()});
  }
  std::vector<run_files::Entry> entries;
  run_files::List({run, "."}, &entries);
  for (const run_files::Entry& entry : entries) {
    if (IsLinkedWriter(entry))
      report.problems.push_back({entry.name, {}, std::string(kLinkedWriter)});
  }
  HoleBudget holes;
  for (const std::string& name : writers) {
    TELLTALE_RETURN_IF_ERROR(WriterVerifier(run, name, over, finished, &holes, &report).Run());
  }
  return report;
}

}  // namespace telltale::store
