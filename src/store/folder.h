// SPDX-License-Identifier: Apache-2.0
// Names in a writer's folder, and small durable file operations.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/run_files.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "format/records.gen.h"

namespace telltale::store {

inline constexpr std::string_view kLockName = "lock";
inline constexpr std::string_view kTemporarySuffix = ".tmp";
inline constexpr std::string_view kTensorFolder = "tensors";
/// The folder of a machine's agent is agent-<host>.
inline constexpr std::string_view kAgentPrefix = "agent-";

struct SegmentName {
  format::TableId table{};
  std::uint64_t first_seq = 0;
  std::uint64_t last_seq = 0;
  std::string file;
};

/// What lies in a writer's folder, sorted by number and by (table, first_seq).
struct FolderListing {
  std::vector<std::uint64_t> journals;
  std::vector<SegmentName> segments;
  std::vector<std::string> temporaries;  ///< Left by a crash, or being written right now.
  std::vector<std::string> foreign;      ///< Not ours.
};

/// The machine, of the name of its agent's folder; another name as it is.
std::string_view MachineOf(std::string_view writer);

std::string JournalFileName(std::uint64_t number);
std::string SegmentFileName(format::TableId table, std::uint64_t first_seq, std::uint64_t last_seq);
std::optional<std::uint64_t> ParseJournalName(std::string_view name);
std::optional<SegmentName> ParseSegmentName(std::string_view name);

/// Code::kUnusable when there is no such folder.
Result<FolderListing> ListFolder(const std::filesystem::path& folder);

/// Folders of a run that hold a lock, a journal or a segment, sorted by name.
std::vector<std::string> ListWriters(const std::filesystem::path& run);
bool IsWriterFolder(const std::filesystem::path& folder);
/// Whether what lies in a run folder is a link by the name of a writer's folder: what it leads to
/// is not read, and the rows of that writer are missing.
bool IsLinkedWriter(const run_files::Entry& entry);
/// What is said of it.
inline constexpr std::string_view kLinkedWriter =
    "is a link, and links in a run folder are not followed: copy what it leads to into its place";

const format::TableDesc* FindTable(std::string_view name);
const format::TableDesc* FindTable(format::TableId id);

/// Makes names in `folder` durable.
Status SyncFolder(const std::filesystem::path& folder);
/// Writes `bytes` to `path` under a temporary name, syncs, renames, syncs the folder. Keeps `room`
/// bytes of the disk after its end, where the file system can, for OverwriteText.
Status ReplaceFile(const run_files::RunPath& path, std::string_view bytes, std::size_t room = 0);
/// The same of a file in a run folder, or of one that the user has named.
Status ReplaceFile(const std::filesystem::path& path, std::string_view bytes, std::size_t room = 0);
/// Writes over the text of a file in a run folder, with line ends after the new one where the old
/// was longer: needs no room on the disk that the file has not. In one write, yet not safe from a
/// power cut. Where there is no room nothing has changed.
Status OverwriteText(const std::filesystem::path& path, std::string_view text);
/// kUnusable: there is none; kLimit: above `most_bytes`; kIo.
Result<std::string> ReadRunFile(const run_files::RunPath& path, std::uint64_t most_bytes);
/// Of an open file, from where it stands; of an invalid one errno says why. `path` is for messages.
Result<std::string> ReadOpenFile(const UniqueFd& fd, const std::filesystem::path& path,
                                 std::uint64_t most_bytes);
/// ReadRunFile of a file that the user has named, which may be a pipe, or of one of the kernel's.
Result<std::string> ReadWholeFile(const std::filesystem::path& path,
                                  std::uint64_t most_bytes = UINT64_MAX);
/// /proc/sys/kernel/random/boot_id, without the line's end.
const std::string& BootId();
std::string HostName();

}  // namespace telltale::store
