// SPDX-License-Identifier: Apache-2.0
#include "base/run_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

namespace telltale::run_files {
namespace {

namespace fs = std::filesystem;

// What is there and is not what was asked for, as numbers that open() gives for nothing of ours.
constexpr int kIsLink = ELOOP;
constexpr int kIsPipe = ESPIPE;
constexpr int kIsSocket = ENXIO;  // As the kernel says it.
constexpr int kIsDevice = ENOTBLK;
constexpr int kIsFolder = EISDIR;
constexpr int kHasTwoNames = EMLINK;
constexpr int kIsNoFile = EBADF;
constexpr int kLeavesTheRun = EXDEV;

/// A folder in a folder in ... of ours is at most this deep.
constexpr int kDeepestTree = 32;

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};
using UniqueDir = std::unique_ptr<DIR, CloseDir>;

RunPath Split(const fs::path& path, int names) {
  fs::path run = path;
  fs::path beneath;
  for (int i = 0; i < names; ++i) {
    if (!run.has_filename()) run = run.parent_path();  // "RUN/agent/"
    beneath = beneath.empty() ? run.filename() : run.filename() / beneath;
    run = run.parent_path();
  }
  return {std::move(run), std::move(beneath)};
}

/// The run folder, for names beneath it.
UniqueFd OpenRun(const fs::path& run) {
  return UniqueFd(::open(run.empty() ? "." : run.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

/// The same where the kernel, or a filter of system calls, has no openat2: name by name.
UniqueFd WalkTo(int run, const fs::path& beneath, int flags, mode_t mode) {
  UniqueFd folder;
  int at = run;
  for (auto name = beneath.begin(); name != beneath.end();) {
    const std::string one = name->string();
    const bool last = ++name == beneath.end();
    if (one.empty()) continue;
    UniqueFd next(last ? ::openat(at, one.c_str(), flags | O_NOFOLLOW, mode)
                       : ::openat(at, one.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next) {
      const int error = errno;
      struct stat there {};
      const bool link = error == ENOTDIR &&
                        ::fstatat(at, one.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
                        S_ISLNK(there.st_mode);
      errno = link ? kIsLink : error;
      return {};
    }
    folder = std::move(next);
    at = folder.get();
  }
  return folder;
}

UniqueFd OpenBeneath(const RunPath& path, int flags, mode_t mode) {
  for (const fs::path& name : path.beneath) {
    if (name == ".." || name.has_root_path()) {
      errno = kLeavesTheRun;
      return {};
    }
  }
  const UniqueFd run = OpenRun(path.run);
  if (!run) return {};
  static std::atomic<bool> absent = false;
  if (!absent.load(std::memory_order_relaxed)) {
    open_how how{};
    how.flags = static_cast<std::uint64_t>(flags);
    how.mode = (flags & O_CREAT) != 0 ? mode : 0;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    const fs::path& beneath = path.beneath;
    const long fd = ::syscall(SYS_openat2, run.get(), beneath.empty() ? "." : beneath.c_str(), &how,
                              sizeof how);
    if (fd >= 0) return UniqueFd(static_cast<int>(fd));
    if (errno == ENOSYS) absent.store(true, std::memory_order_relaxed);
    // A filter of system calls says EPERM of one that it does not know; so may the file.
    if (errno != ENOSYS && errno != EPERM) return {};
  }
  return WalkTo(run.get(), path.beneath.empty() ? "." : path.beneath, flags, mode);
}

int KindError(mode_t mode) {
  if (S_ISREG(mode)) return 0;
  if (S_ISDIR(mode)) return kIsFolder;
  if (S_ISFIFO(mode)) return kIsPipe;
  if (S_ISSOCK(mode)) return kIsSocket;
  if (S_ISCHR(mode) || S_ISBLK(mode)) return kIsDevice;
  return S_ISLNK(mode) ? kIsLink : kIsNoFile;
}

/// A plain file, without waiting for it; what else is there is not even opened: of a device that
/// may begin something.
UniqueFd OpenPlain(const RunPath& path, int flags, mode_t mode) {
  struct stat there {};
  if (StatOf(path, &there)) {
    errno = (flags & O_EXCL) != 0 ? EEXIST : KindError(there.st_mode);
    if (errno != 0) return {};
  } else if (errno != ENOENT || (flags & O_CREAT) == 0) {
    return {};
  }
  // Another may have come in its place.
  UniqueFd fd = OpenBeneath(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode);
  if (!fd) return fd;
  struct stat info {};
  int error = ::fstat(fd.get(), &info) != 0 ? errno : KindError(info.st_mode);
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  if (error == 0 && writes && info.st_nlink > 1) error = kHasTwoNames;
  if (error == 0 && ::fcntl(fd.get(), F_SETFL, flags & O_APPEND) != 0) error = errno;
  if (error != 0) {
    fd.reset();
    errno = error;
  }
  return fd;
}

/// The folder that holds the last name, and that name; errno where there is none.
UniqueFd OpenParent(const RunPath& path, std::string* name) {
  *name = path.beneath.filename().string();
  if (name->empty() || *name == "." || *name == "..") {
    errno = EINVAL;
    return {};
  }
  return OpenBeneath({path.run, path.beneath.parent_path()}, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
}

int Unlink(const RunPath& path, int flags) {
  std::string name;
  const UniqueFd folder = OpenParent(path, &name);
  return folder && ::unlinkat(folder.get(), name.c_str(), flags) == 0 ? 0 : errno;
}

Kind KindOf(int folder, const dirent& entry) {
  unsigned char type = entry.d_type;
  if (type == DT_UNKNOWN) {
    struct stat info {};
    if (::fstatat(folder, entry.d_name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
      type = IFTODT(info.st_mode);
    }
  }
  return type == DT_REG   ? Kind::kFile
         : type == DT_DIR ? Kind::kFolder
         : type == DT_LNK ? Kind::kLink
                          : Kind::kOther;
}

int ListOpen(UniqueFd fd, std::vector<Entry>* out,
             std::size_t most = std::numeric_limits<std::size_t>::max()) {
  if (!fd) return errno;
  const UniqueDir dir(::fdopendir(fd.get()));
  if (!dir) return errno;
  const int folder = fd.release();
  for (const std::size_t before = out->size(); out->size() - before < most;) {
    errno = 0;
    const dirent* const entry = ::readdir(dir.get());
    if (entry == nullptr) return errno;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") out->push_back({std::string(name), KindOf(folder, *entry)});
  }
  return 0;
}

int RemoveAll(int folder, const std::string& name, int depth) {
  if (::unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT) return 0;
  if (errno != EISDIR && errno != EPERM) return errno;
  if (depth == 0) return ENAMETOOLONG;
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  const UniqueFd inner(::openat(folder, name.c_str(), kFlags));
  if (!inner) return errno;
  std::vector<Entry> entries;
  int error = ListOpen(UniqueFd(::fcntl(inner.get(), F_DUPFD_CLOEXEC, 0)), &entries);
  for (const Entry& entry : entries) {
    const int one = RemoveAll(inner.get(), entry.name, depth - 1);
    if (error == 0) error = one;
  }
  if (error != 0) return error;
  return ::unlinkat(folder, name.c_str(), AT_REMOVEDIR) == 0 ? 0 : errno;
}

}  // namespace

RunPath OfRun(const fs::path& path) { return Split(path, 1); }
RunPath OfFolder(const fs::path& path) { return Split(path, 2); }
RunPath OfSubfolder(const fs::path& path) { return Split(path, 3); }
RunPath OfOpenFolder(const UniqueFd& folder, const fs::path& name) {
  return {"/proc/self/fd/" + std::to_string(folder.get()), name};
}

std::string WhyNot(int error) {
  switch (error) {
    case kIsLink:
      return "it is a link, or lies behind one, and links in a run folder are not followed";
    case kIsPipe:
      return "it is a pipe, not a file";
    case kIsSocket:
      return "it is a socket, not a file";
    case kIsDevice:
      return "it is a device, not a file";
    case kIsFolder:
      return "it is a folder, not a file";
    case kHasTwoNames:
      return "it has a second name elsewhere (a hard link), so it is not written to";
    case kLeavesTheRun:
      return "its path leaves the run folder";
    default:
      return std::strerror(error);
  }
}

UniqueFd OpenToRead(const RunPath& path) { return OpenPlain(path, O_RDONLY, 0); }

UniqueFd OpenToWrite(const RunPath& path, Writing how, mode_t mode) {
  int flags = how == Writing::kAppended ? O_WRONLY | O_APPEND : O_RDWR;
  if (how != Writing::kExisting && how != Writing::kEmptied) flags |= O_CREAT;
  if (how == Writing::kFresh || how == Writing::kNew) flags |= O_EXCL;
  if (how == Writing::kFresh) {
    if (const int error = Remove(path); error != 0 && error != ENOENT) {
      errno = error;
      return {};
    }
  }
  // Emptied only once it is known to be a plain file of one name.
  UniqueFd fd = OpenPlain(path, flags, mode);
  if (fd && how == Writing::kEmptied && ::ftruncate(fd.get(), 0) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

UniqueFd OpenFolder(const RunPath& path) {
  return OpenBeneath(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
}

bool StatOf(const RunPath& path, struct stat* out) {
  std::string name;
  const UniqueFd folder = OpenParent(path, &name);
  return folder && ::fstatat(folder.get(), name.c_str(), out, AT_SYMLINK_NOFOLLOW) == 0;
}

bool Exists(const RunPath& path) {
  struct stat info {};
  return StatOf(path, &info);
}

std::int64_t ChangedNs(const RunPath& path) {
  struct stat info {};
  if (!StatOf(path, &info)) return -1;
  return std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

bool IsFile(const RunPath& path) {
  struct stat info {};
  return StatOf(path, &info) && S_ISREG(info.st_mode);
}

bool IsFolder(const RunPath& path) {
  struct stat info {};
  return StatOf(path, &info) && S_ISDIR(info.st_mode);
}

std::optional<std::uint64_t> FreeBytes(const RunPath& folder) {
  const UniqueFd fd = OpenFolder(folder);
  struct statvfs info {};
  if (!fd || ::fstatvfs(fd.get(), &info) != 0) return std::nullopt;
  return std::uint64_t{info.f_bavail} * info.f_frsize;
}

int List(const RunPath& folder, std::vector<Entry>* out, std::size_t most) {
  return ListOpen(OpenFolder(folder), out, most);
}

int MakeFolder(const RunPath& path) {
  std::string name;
  const UniqueFd folder = OpenParent(path, &name);
  return folder && ::mkdirat(folder.get(), name.c_str(), 0700) == 0 ? 0 : errno;
}

int Rename(const RunPath& from, const RunPath& to) {
  std::string old_name;
  std::string new_name;
  const UniqueFd old_folder = OpenParent(from, &old_name);
  if (!old_folder) return errno;
  const UniqueFd new_folder = OpenParent(to, &new_name);
  if (!new_folder) return errno;
  return ::renameat(old_folder.get(), old_name.c_str(), new_folder.get(), new_name.c_str()) == 0
             ? 0
             : errno;
}

int Remove(const RunPath& path) { return Unlink(path, 0); }
int RemoveFolder(const RunPath& path) { return Unlink(path, AT_REMOVEDIR); }

int RemoveTree(const RunPath& path) {
  std::string name;
  const UniqueFd folder = OpenParent(path, &name);
  return folder ? RemoveAll(folder.get(), name, kDeepestTree) : errno;
}

bool LiesInARun(const fs::path& path) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error).lexically_normal();
  if (error) return false;
  for (int up = 0; up < 3 && folder.has_relative_path(); ++up) {
    folder = folder.parent_path();
    if (Exists({folder, "run.json"})) return true;
  }
  return false;
}

}  // namespace telltale::run_files
