// SPDX-License-Identifier: Apache-2.0
// The one way to open, make, rename, remove and list what lies in a run folder. A run folder may be
// a stranger's: copied, downloaded, unpacked from an archive. So beneath it no link is followed,
// nothing is opened that is not a plain file, nothing waits for a pipe, and nothing is written to a
// file that has a second name elsewhere. The run folder itself is what the user has named: it may
// be reached through links. tools/check_opens forbids every other way in src/.
//
// Thread safety: stateless. Errors are numbers of errno; WhyNot has words for them.
#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace telltale::run_files {

/// The run folder as the user named it, and a relative path beneath it without "..".
struct RunPath {
  std::filesystem::path run;
  std::filesystem::path beneath;
};

/// Of RUN/NAME: all but the last name is the run folder.
RunPath OfRun(const std::filesystem::path& path);
/// Of RUN/FOLDER/NAME.
RunPath OfFolder(const std::filesystem::path& path);
/// Of RUN/FOLDER/SUBFOLDER/NAME.
RunPath OfSubfolder(const std::filesystem::path& path);
/// Of NAME in a folder that is held open, whatever lies under the folder's own name by now.
RunPath OfOpenFolder(const UniqueFd& folder, const std::filesystem::path& name);

/// "No such file or directory", "it is a pipe, not a file", "it is a link, or lies behind one, and
/// links in a run folder are not followed".
std::string WhyNot(int error);

/// A plain file for reading; invalid, and errno says why, where it is none.
UniqueFd OpenToRead(const RunPath& path);

enum class Writing : std::uint8_t {
  kFresh,     ///< A new, empty file; one that is there under this name is removed before.
  kNew,       ///< A new file; EEXIST where there is one.
  kEmptied,   ///< The file that is there, emptied.
  kExisting,  ///< The file that is there, as it is.
  kKept,      ///< The file that is there, as it is, or a new one.
  kAppended,  ///< The same, and what is written goes to its end.
};
/// For writing, and for reading besides but where it is appended to. A new file has `mode`.
UniqueFd OpenToWrite(const RunPath& path, Writing how, mode_t mode = 0600);

/// A folder, to list, lock or sync it. `beneath` may be ".".
UniqueFd OpenFolder(const RunPath& path);

/// Of what lies there itself: of a link, the link.
bool StatOf(const RunPath& path, struct stat* out);
/// Whatever it is.
bool Exists(const RunPath& path);
/// A plain file, or a folder.
bool IsFile(const RunPath& path);
bool IsFolder(const RunPath& path);
/// When it was last changed, Unix ns; -1: nothing is there.
std::int64_t ChangedNs(const RunPath& path);
/// So much the file system of a folder has for files of who is not root; none where it cannot be
/// asked.
std::optional<std::uint64_t> FreeBytes(const RunPath& folder);

enum class Kind : std::uint8_t { kFile, kFolder, kLink, kOther };
struct Entry {
  std::string name;
  Kind kind = Kind::kOther;
};
/// Without "." and "..", and no more than `most`; 0, or what went wrong.
int List(const RunPath& folder, std::vector<Entry>* out,
         std::size_t most = std::numeric_limits<std::size_t>::max());

// 0, or what went wrong.
int MakeFolder(const RunPath& path);  ///< For its owner alone; EEXIST.
int Rename(const RunPath& from, const RunPath& to);
int Remove(const RunPath& path);        ///< A file, or a link.
int RemoveFolder(const RunPath& path);  ///< An empty one.
int RemoveTree(const RunPath& path);    ///< Whatever it is, with all beneath it.

/// Whether a file of this path lies in a run folder: one with a run.json, or at most two folders
/// beneath it. What is written there is for its owner alone.
bool LiesInARun(const std::filesystem::path& path);

}  // namespace telltale::run_files
