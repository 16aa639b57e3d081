// SPDX-License-Identifier: Apache-2.0
#include "rules/consent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <system_error>

#include "base/unique_fd.h"

namespace telltale::rules {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;  // Torn: it allows nothing.
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return out;
}

std::string Variable(const char* name) {
  // Nobody sets variables once threads run.
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

fs::path Consent::FileOf(std::string_view name) {
  if (const std::string state = Variable("XDG_STATE_HOME"); state.starts_with('/')) {
    return fs::path(state) / "telltale" / name;
  }
  if (const std::string home = Variable("HOME"); home.starts_with('/')) {
    return fs::path(home) / ".local/state/telltale" / name;
  }
  return {};
}

void Consent::Allow(const std::vector<std::string>& lines) {
  const std::lock_guard lock(mutex_);
  allowed_.insert(lines.begin(), lines.end());
}

Status Consent::Remember(std::vector<std::string> lines) {
  if (lines.empty()) return Status();
  Allow(lines);
  if (file_.empty()) return Status(Code::kIo, "neither HOME nor XDG_STATE_HOME is set");
  const std::vector<std::string> known = ReadLines();
  std::erase_if(lines, [&](const std::string& line) {
    return std::find(known.begin(), known.end(), line) != known.end();
  });
  return lines.empty() ? Status() : Add(lines);
}

bool Consent::Has(const std::string& line) const {
  {
    const std::lock_guard lock(mutex_);
    if (allowed_.contains(line)) return true;
  }
  // Read each time: a server outlives many runs.
  const std::vector<std::string> known = ReadLines();
  return std::find(known.begin(), known.end(), line) != known.end();
}

std::vector<std::string> Consent::ReadLines() const {
  if (file_.empty()) return {};
  // Not to wait for who writes a pipe of this name.
  const UniqueFd fd(::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid() || (status.st_mode & 022) != 0) {
    return {};
  }
  std::string text;
  std::array<char, 65536> buffer;
  while (text.size() <= 2 * kMostFileBytes) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  return Split(text);
}

/// Whole or not at all. Where two add at one time, one may be forgotten: it is asked for again.
Status Consent::Add(const std::vector<std::string>& lines) const {
  std::vector<std::string> all = ReadLines();
  all.insert(all.end(), lines.begin(), lines.end());
  std::uint64_t bytes = 0;
  auto first = all.end();
  while (first != all.begin() && bytes + std::prev(first)->size() + 1 <= kMostFileBytes) {
    --first;
    bytes += first->size() + 1;
  }
  std::string text;
  for (auto at = first; at != all.end(); ++at) text += *at + "\n";
  std::error_code error;
  fs::create_directories(file_.parent_path(), error);
  const std::string temporary = fmt::format("{}.{}", file_.string(), ::getpid());
  const auto fail = [&] {
    const int reason = errno;
    ::unlink(temporary.c_str());
    return Status(Code::kIo,
                  fmt::format("{}: cannot be written: {}", file_.string(), std::strerror(reason)));
  };
  ::unlink(temporary.c_str());
  UniqueFd fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return fail();
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t n = ::write(fd.get(), text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail();
    written += static_cast<std::size_t>(n);
  }
  fd.reset();
  if (::rename(temporary.c_str(), file_.c_str()) != 0) return fail();
  return Status();
}

}  // namespace telltale::rules
