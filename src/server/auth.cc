// SPDX-License-Identifier: Apache-2.0
#include "server/auth.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/unique_fd.h"
#include "server/sha256.h"

namespace telltale::server {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSecretBytes = 32;
constexpr std::size_t kCodeBytes = 16;
constexpr std::size_t kMaxCodes = 64;

/// Takes as long for a wrong guess as for a right one.
bool Same(std::string_view a, std::string_view b) {
  if (a.size() != b.size() || b.empty()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

bool IsSecret(std::string_view text) {
  return text.size() == kSecretBytes * 2 &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

struct Secrets {
  std::string token, sessions;
};

/// None where there is no such file, or none that we may read.
Result<std::optional<Secrets>> Read(const fs::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) {
    if (errno != ELOOP) return std::optional<Secrets>();
    return Status(Code::kAuth, fmt::format("{}: is a link, and so not trusted: remove it, a new "
                                           "one is made",
                                           file.string()));
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0 || status.st_uid != ::geteuid() ||
      (status.st_mode & 077) != 0) {
    return Status(
        Code::kAuth,
        fmt::format("{}: not yours alone, so it protects nothing: remove it, a new one is made",
                    file.string()));
  }
  std::array<char, kSecretBytes * 4 + 16> bytes{};
  const ssize_t size = ::read(fd.get(), bytes.data(), bytes.size());
  const std::string_view text(bytes.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  const auto end = text.find('\n');
  if (end == std::string_view::npos || text.size() != 2 * end + 2) {
    return Status(Code::kAuth,
                  fmt::format("{}: is damaged: remove it, a new one is made", file.string()));
  }
  Secrets secrets{std::string(text.substr(0, end)), std::string(text.substr(end + 1, end))};
  if (!IsSecret(secrets.token) || !IsSecret(secrets.sessions)) {
    return Status(Code::kAuth,
                  fmt::format("{}: is damaged: remove it, a new one is made", file.string()));
  }
  return std::optional<Secrets>(std::move(secrets));
}

/// Whole or not at all, and never over a file that another server has made meanwhile.
Status Write(const fs::path& file, const Secrets& secrets) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  ::chmod(file.parent_path().c_str(), 0700);
  const fs::path temporary = fmt::format("{}.{}", file.string(), ::getpid());
  const std::string text = secrets.token + "\n" + secrets.sessions + "\n";
  const auto fail = [&] {
    const int reason = errno;
    ::unlink(temporary.c_str());
    return Status(Code::kIo,
                  fmt::format("{}: cannot be written: {}", file.string(), std::strerror(reason)));
  };
  ::unlink(temporary.c_str());
  UniqueFd fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return fail();
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return fail();
  }
  if (::fsync(fd.get()) != 0) return fail();
  fd.reset();
  if (::link(temporary.c_str(), file.c_str()) != 0 && errno != EEXIST) return fail();
  ::unlink(temporary.c_str());
  return {};
}

class BootClock final : public Clock {
 public:
  std::int64_t MonotonicNs() const override {
    timespec t{};
    clock_gettime(CLOCK_BOOTTIME, &t);
    return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
  }
  std::int64_t RealtimeNs() const override { return System().RealtimeNs(); }
};

}  // namespace

const Clock& Auth::CodeClock() {
  static const BootClock clock;
  return clock;
}

Result<std::string> RandomHex(std::size_t bytes) {
  std::string raw(bytes, '\0');
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::getrandom(raw.data() + done, bytes - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return Status(Code::kAuth, fmt::format("no random bytes for a token: getrandom failed: {}: "
                                             "is this kernel older than 3.17?",
                                             std::strerror(errno)));
    }
    done += static_cast<std::size_t>(n);
  }
  std::string out;
  for (const char c : raw) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

fs::path Auth::File() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && state[0] == '/') {
    return fs::path(state) / "telltale/serve-token";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return fs::path(home) / ".local/state/telltale/serve-token";
  }
  return {};
}

Result<Auth> Auth::Fresh(const Clock* clock) {
  Auth auth;
  auth.clock_ = clock;
  TELLTALE_ASSIGN_OR_RETURN(auth.token_, RandomHex(kSecretBytes));
  TELLTALE_ASSIGN_OR_RETURN(auth.secret_, RandomHex(kSecretBytes));
  auth.BindTo("");
  return auth;
}

Result<Auth> Auth::Open(std::string* note, const Clock* clock) {
  TELLTALE_ASSIGN_OR_RETURN(Auth auth, Fresh(clock));
  const fs::path file = File();
  if (file.empty()) {
    *note = "neither HOME nor XDG_STATE_HOME is set: the token is good for this server alone";
    return auth;
  }
  for (const bool written : {false, true}) {
    TELLTALE_ASSIGN_OR_RETURN(std::optional<Secrets> secrets, Read(file));
    if (secrets) {
      auth.token_ = std::move(secrets->token);
      auth.secret_ = std::move(secrets->sessions);
      auth.BindTo("");
      return auth;
    }
    if (written) break;
    if (const Status status = Write(file, {auth.token_, auth.secret_}); !status.ok()) {
      *note = status.message() + ": the token is good for this server alone";
      return auth;
    }
  }
  *note = file.string() + ": cannot be read: the token is good for this server alone";
  return auth;
}

Result<std::string> Auth::NewCode() {
  TELLTALE_ASSIGN_OR_RETURN(std::string code, RandomHex(kCodeBytes));
  codes_.push_back({code, clock_->MonotonicNs() + kCodeNs});
  if (codes_.size() > kMaxCodes) codes_.pop_front();
  return code;
}

Auth::CodeIs Auth::TakeCode(std::string_view code) {
  const auto found = std::find_if(codes_.begin(), codes_.end(),
                                  [&](const Issued& one) { return Same(one.code, code); });
  if (found == codes_.end()) return CodeIs::kUnknown;
  if (clock_->MonotonicNs() >= found->expires_ns) return CodeIs::kExpired;
  codes_.erase(found);
  return CodeIs::kGood;
}

bool Auth::CodeOpen() const {
  return !codes_.empty() && clock_->MonotonicNs() < codes_.back().expires_ns;
}

void Auth::BindTo(std::string_view server) {
  session_ = HmacSha256(secret_, server);
  // No server is called so: their names have lines.
  metrics_token_ = HmacSha256(secret_, "metrics");
}

bool Auth::TokenOk(std::string_view token) const { return Same(token, token_); }
bool Auth::SessionOk(std::string_view session) const { return Same(session, session_); }
bool Auth::MetricsTokenOk(std::string_view token) const { return Same(token, metrics_token_); }

}  // namespace telltale::server
