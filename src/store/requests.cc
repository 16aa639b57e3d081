// SPDX-License-Identifier: Apache-2.0
#include "store/requests.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/json.h"
#include "base/run_files.h"
#include "base/unique_fd.h"
#include "store/folder.h"
#include "store/run_info.h"

namespace telltale::store {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kRequestSuffix = ".json";
constexpr std::size_t kMaxBytes = 1U << 20;
constexpr std::size_t kMaxWhoBytes = 100;
/// So long after its stamp has changed a folder may change again within the tick of the file
/// system's clock. By a clock of ours: its own may be another machine's, and may be set.
constexpr std::int64_t kTrustNs = 1'000'000'000;
/// More than anybody asks: what lies beyond is left alone.
constexpr std::size_t kMaxSeen = 100'000;
/// Of requests that do not count so many are named, and of folders with such so many are followed:
/// whoever may write could write on and on.
constexpr std::size_t kMaxForeign = 100;

RequestId NewId(std::int64_t time_ns) {
  RequestId id{};
  const auto time = static_cast<std::uint64_t>(time_ns);
  for (std::size_t i = 0; i < 8; ++i) id[i] = static_cast<std::uint8_t>(time >> (56 - 8 * i));
  if (::getrandom(id.data() + 8, 8, 0) != 8) {
    // Early in the boot: the pid tells those of one moment apart.
    const auto pid = static_cast<std::uint64_t>(::getpid());
    for (std::size_t i = 0; i < 8; ++i) id[8 + i] = static_cast<std::uint8_t>(pid >> (56 - 8 * i));
  }
  return id;
}

Status MakeRequestFolder(const run_files::RunPath& path) {
  const int error = run_files::MakeFolder(path);
  if (error == 0 || error == EEXIST) return {};
  return {Code::kIo,
          fmt::format("cannot make '{}': {}: the run's folder must be writable for whoever "
                      "asks something of it",
                      (path.run / path.beneath).string(), run_files::WhyNot(error))};
}

/// Empty, or why it is no request.
std::string Parse(const std::string& text, Request* out) {
  const json in = ParseJson(text);
  if (!in.is_object()) return "it is no JSON object";
  const json version = in.value("version", json());
  if (!version.is_number_integer()) return "it names no version";
  if (version.get<std::int64_t>() > kRequestMajor) {
    return fmt::format("it is of version {}, this telltale reads up to {}",
                       version.get<std::int64_t>(), kRequestMajor);
  }
  const json body = in.value("body", json());
  if (!in.value("kind", json()).is_string() || !body.is_object())
    return "it has no kind or no body";
  out->kind = in["kind"].get<std::string>();
  if (const json time = in.value("time_ns", json()); time.is_number_integer()) {
    out->time_ns = time.get<std::int64_t>();
  }
  if (const json attempt = in.value("attempt", json()); attempt.is_number_unsigned()) {
    const auto number = attempt.get<std::uint64_t>();
    if (number <= std::numeric_limits<std::uint32_t>::max()) {
      out->attempt = static_cast<std::uint32_t>(number);
    }
  }
  if (const json who = in.value("who", json()); who.is_string()) out->who = who.get<std::string>();
  out->body = JsonText(body);
  return {};
}

}  // namespace

std::string Hex(const RequestId& id) {
  std::string out;
  for (const std::uint8_t byte : id) out += fmt::format("{:02x}", byte);
  return out;
}

std::optional<RequestId> RequestIdOf(std::string_view hex) {
  RequestId id{};
  if (hex.size() != 2 * id.size()) return {};
  for (std::size_t i = 0; i < hex.size(); ++i) {
    const char c = hex[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return {};
    id[i / 2] = static_cast<std::uint8_t>(id[i / 2] << 4 | digit);
  }
  return id;
}

std::uint32_t NewestAttempt(const RunInfo& info) {
  return info.attempts.empty() ? 0 : info.attempts.back().number;
}

std::string RequestFolderName(std::string_view who) {
  std::string out(who.substr(0, kMaxWhoBytes));
  for (char& c : out) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.';
    if (!plain) c = '_';
  }
  return out.empty() || out.front() == '.' ? "_" + out : out;
}

std::string RequestWho() { return fmt::format("{}:{}", HostName(), ::getpid()); }

fs::path RequestFile(const fs::path& run, std::string_view who, const RequestId& id) {
  return run / kRequestFolder / RequestFolderName(who) / (Hex(id) + std::string(kRequestSuffix));
}

Result<Request> WriteRequest(const fs::path& run, Request request) {
  try {
    const json body = ParseJson(request.body);
    if (!body.is_object()) {
      return Status(Code::kUsage, "a request's body must be a JSON object");
    }
    if (request.body.size() > kMaxBytes / 2) {
      return Status(Code::kLimit,
                    fmt::format("a request may be of {} bytes, this one is of {}: ask for "
                                "less at once",
                                kMaxBytes / 2, request.body.size()));
    }
    if (request.time_ns == 0) request.time_ns = Clock::System().RealtimeNs();
    if (request.id == RequestId{}) request.id = NewId(request.time_ns);
    const fs::path file = RequestFile(run, request.who, request.id);
    TELLTALE_RETURN_IF_ERROR(MakeRequestFolder(run_files::OfRun(run / kRequestFolder)));
    TELLTALE_RETURN_IF_ERROR(MakeRequestFolder(run_files::OfFolder(file.parent_path())));
    ordered_json out = {{"version", kRequestMajor},
                        {"id", Hex(request.id)},
                        {"who", request.who},
                        {"time_ns", request.time_ns}};
    if (request.attempt != 0) out["attempt"] = request.attempt;
    out["kind"] = request.kind;
    out["body"] = ParseOrderedJson(request.body);
    TELLTALE_RETURN_IF_ERROR(
        ReplaceFile(run_files::OfSubfolder(file),
                    out.dump(2, ' ', false, json::error_handler_t::replace) + "\n"));
    return request;
  } catch (const std::exception& error) {
    return Status(Code::kIo, fmt::format("cannot write a request: {}", error.what()));
  }
}

std::string WhoMayAsk(std::uint32_t owner) {
  std::string out = "the owner of the run folder ";
  out += owner == 0 ? std::string("(root)") : fmt::format("(user {})", owner);
  const std::uint32_t own = ::geteuid();
  if (own != owner && own != 0) out += fmt::format(", user {}, who records it,", own);
  return owner == 0 ? out : out + " and root";
}

bool RequestReader::Counts(std::uint32_t uid) const {
  return uid == owner_ || uid == 0 || uid == ::geteuid();
}

bool RequestReader::FollowsForeign(const std::string& who) {
  return foreign_folders_.contains(who) ||
         (foreign_folders_.size() < kMaxForeign && foreign_folders_.insert(who).second);
}

void RequestReader::NameForeign(const RequestId& id, const std::string& who, const std::string& key,
                                std::uint32_t uid, Found* found) {
  if (foreign_named_.size() >= kMaxForeign || !foreign_named_.insert(key).second) return;
  found->damaged.push_back(
      {id, who,
       fmt::format("it is of user {}: requests count only from {}", uid, WhoMayAsk(owner_))});
}

/// True where the folder may hold something new.
bool RequestReader::Changed(const std::string& folder, std::int64_t now_ns) {
  struct stat info {};
  if (!run_files::StatOf({run_, folder}, &info) || !S_ISDIR(info.st_mode)) return false;
  const Stamp stamp = {static_cast<std::int64_t>(info.st_mtim.tv_sec), info.st_mtim.tv_nsec,
                       static_cast<std::int64_t>(info.st_ino)};
  const auto [known, fresh] = stamps_.try_emplace(folder);
  Seen& seen = known->second;
  if (!fresh && seen.stamp == stamp) return now_ns - seen.since_ns <= kTrustNs;
  seen = {stamp, now_ns};
  return true;
}

/// What is new in one folder.
RequestReader::Looked RequestReader::Look(const std::string& who, Found* found) {
  // Held open: who may write beside it could put another folder in its place meanwhile.
  const UniqueFd folder = run_files::OpenFolder({run_, fs::path(kRequestFolder) / who});
  struct stat of_folder {};
  if (!folder || ::fstat(folder.get(), &of_folder) != 0) {
    const bool counts = run_files::StatOf({run_, fs::path(kRequestFolder) / who}, &of_folder) &&
                        Counts(of_folder.st_uid);
    return counts ? Looked::kAgain : Looked::kForget;
  }
  const bool foreign = !Counts(of_folder.st_uid);
  if (foreign && (foreign_named_.size() >= kMaxForeign || !FollowsForeign(who))) {
    return Looked::kForget;
  }
  std::vector<run_files::Entry> entries;
  const std::size_t most = foreign ? kMaxForeign : std::numeric_limits<std::size_t>::max();
  if (run_files::List(run_files::OfOpenFolder(folder, "."), &entries, most) != 0)
    return Looked::kAgain;
  for (const run_files::Entry& entry : entries) {
    const std::string& name = entry.name;
    const std::string key = who + "/" + name;
    if (!name.ends_with(kRequestSuffix) || seen_.contains(key)) continue;
    const auto id =
        RequestIdOf(std::string_view(name).substr(0, name.size() - kRequestSuffix.size()));
    if (!id) continue;
    const run_files::RunPath file = run_files::OfOpenFolder(folder, name);
    struct stat info = of_folder;
    // Of a link or a pipe its own, and before anything is opened.
    if (!foreign && !run_files::StatOf(file, &info)) continue;
    if (!Counts(info.st_uid)) {
      NameForeign(*id, who, key, info.st_uid, found);
      continue;
    }
    if (seen_.size() >= kMaxSeen) continue;
    const UniqueFd fd = run_files::OpenToRead(file);
    std::string why = fd ? std::string() : run_files::WhyNot(errno);
    if (fd && ::fstat(fd.get(), &info) != 0) why = std::strerror(errno);
    if (!Counts(info.st_uid)) continue;  // Put in its place a moment ago: the next look names it.
    seen_.insert(key);
    Request request;
    request.id = *id;
    if (why.empty()) {
      const auto text = ReadOpenFile(fd, run_ / kRequestFolder / key, kMaxBytes);
      why = text.ok() ? Parse(*text, &request) : text.status().message();
    }
    if (request.who.empty()) request.who = who;
    if (why.empty()) {
      found->requests.push_back(std::move(request));
    } else {
      found->damaged.push_back({*id, request.who, why});
    }
  }
  return Looked::kDone;
}

RequestReader::Found RequestReader::Poll() {
  Found found;
  const std::int64_t now = clock_->MonotonicNs();
  const std::string all(kRequestFolder);
  try {
    const UniqueFd run = run_files::OpenFolder({run_, "."});
    struct stat info {};
    if (!run || ::fstat(run.get(), &info) != 0) return found;  // The next look finds all.
    owner_ = info.st_uid;
    std::set<std::string> folders;
    if (Changed(all, now)) {
      std::vector<run_files::Entry> entries;
      if (run_files::List({run_, all}, &entries) != 0) stamps_[all] = {};
      for (run_files::Entry& entry : entries) {
        if (entry.kind == run_files::Kind::kFolder) folders.insert(std::move(entry.name));
      }
    }
    for (const auto& [path, stamp] : stamps_) {
      if (path != all) folders.insert(path.substr(all.size() + 1));
    }
    for (const std::string& who : folders) {
      const std::string folder = all + "/" + who;
      const Looked looked = Changed(folder, now) ? Look(who, &found) : Looked::kDone;
      if (looked == Looked::kAgain) stamps_[folder] = {};
      if (looked == Looked::kForget) stamps_.erase(folder);
    }
  } catch (const std::exception&) {
    // Out of memory: what is there the next time is found then.
  }
  std::sort(found.requests.begin(), found.requests.end(), [](const Request& a, const Request& b) {
    return std::tie(a.time_ns, a.id) < std::tie(b.time_ns, b.id);
  });
  return found;
}

}  // namespace telltale::store
