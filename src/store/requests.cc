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
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/json.h"
#include "store/folder.h"

namespace telltale::store {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kRequestSuffix = ".json";
constexpr std::size_t kMaxBytes = 1U << 20;
constexpr std::size_t kMaxWhoBytes = 100;
/// A folder whose stamp is younger may change again within the clock's tick of the file system.
constexpr std::int64_t kTrustNs = 1'000'000'000;
/// More than anybody asks: what lies beyond is left alone.
constexpr std::size_t kMaxSeen = 100'000;

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

Status MakeFolder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return {Code::kIo,
          fmt::format("cannot make '{}': {}: the run's folder must be writable for whoever "
                      "asks something of it",
                      path.string(), std::strerror(errno))};
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
    const fs::path folder = run / kRequestFolder / RequestFolderName(request.who);
    TELLTALE_RETURN_IF_ERROR(MakeFolder(run / kRequestFolder));
    TELLTALE_RETURN_IF_ERROR(MakeFolder(folder));
    const ordered_json out = {{"version", kRequestMajor}, {"id", Hex(request.id)},
                              {"who", request.who},       {"time_ns", request.time_ns},
                              {"kind", request.kind},     {"body", ParseOrderedJson(request.body)}};
    TELLTALE_RETURN_IF_ERROR(
        ReplaceFile(folder / (Hex(request.id) + std::string(kRequestSuffix)),
                    out.dump(2, ' ', false, json::error_handler_t::replace) + "\n"));
    return request;
  } catch (const std::exception& error) {
    return Status(Code::kIo, fmt::format("cannot write a request: {}", error.what()));
  }
}

RequestReader::Found RequestReader::Poll() {
  Found found;
  const std::int64_t now = Clock::System().RealtimeNs();
  /// True where the folder may hold something new.
  const auto changed = [&](const fs::path& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return false;
    const Stamp stamp = {static_cast<std::int64_t>(info.st_mtim.tv_sec), info.st_mtim.tv_nsec,
                         static_cast<std::int64_t>(info.st_ino)};
    const auto known = stamps_.find(path.string());
    if (known != stamps_.end() && known->second == stamp) return false;
    const std::int64_t age = now - (stamp[0] * 1'000'000'000 + stamp[1]);
    if (age > kTrustNs || age < -kTrustNs) {
      stamps_[path.string()] = stamp;
    } else {
      stamps_.erase(path.string());
    }
    return true;
  };
  try {
    std::error_code error;
    if (!fs::exists(folder_, error)) return found;
    std::vector<fs::path> folders;
    if (changed(folder_)) {
      for (fs::directory_iterator at(folder_, error), end; !error && at != end;
           at.increment(error)) {
        folders.push_back(at->path());
        stamps_.try_emplace(folders.back().string(), Stamp{});  // Known from here on.
      }
    }
    for (const auto& [path, stamp] : stamps_) {
      const fs::path folder(path);
      if (folder != folder_ && std::find(folders.begin(), folders.end(), folder) == folders.end()) {
        folders.push_back(folder);
      }
    }
    for (const fs::path& folder : folders) {
      const bool look = changed(folder);
      // Its place in the map is what makes it looked at the next time.
      stamps_.try_emplace(folder.string(), Stamp{});
      if (!look) continue;
      const std::string who = folder.filename().string();
      for (fs::directory_iterator at(folder, error), end; !error && at != end;
           at.increment(error)) {
        const std::string name = at->path().filename().string();
        if (!name.ends_with(kRequestSuffix) || seen_.size() >= kMaxSeen) continue;
        const auto id =
            RequestIdOf(std::string_view(name).substr(0, name.size() - kRequestSuffix.size()));
        if (!id || !seen_.insert(who + "/" + name).second) continue;
        Request request;
        request.id = *id;
        std::string why;
        std::error_code size_error;
        if (const auto size = fs::file_size(at->path(), size_error);
            size_error || size > kMaxBytes) {
          why = "it is too large, or cannot be read";
        } else if (const auto text = ReadWholeFile(at->path()); !text.ok()) {
          why = text.status().message();
        } else {
          why = Parse(*text, &request);
        }
        if (request.who.empty()) request.who = who;
        if (why.empty()) {
          found.requests.push_back(std::move(request));
        } else {
          found.damaged.push_back({*id, request.who, why});
        }
      }
    }
  } catch (const std::exception&) {
    // A folder that vanishes while we look: what is there the next time is found then.
  }
  std::sort(found.requests.begin(), found.requests.end(), [](const Request& a, const Request& b) {
    return std::tie(a.time_ns, a.id) < std::tie(b.time_ns, b.id);
  });
  return found;
}

}  // namespace telltale::store
