// SPDX-License-Identifier: Apache-2.0
// What a reader asks of the writers of a run: one JSON file a request in requests/<who>/, written
// once and never changed; the agent follows them and answers in its own journal.
// docs/formats/requests.md. Thread safety: none of its own; requests of several processes do not
// disturb each other.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::store {

inline constexpr int kRequestMajor = 1;
inline constexpr std::string_view kRequestFolder = "requests";

/// 32 hexadecimal digits in the file's name; the first 16 count up with time.
using RequestId = std::array<std::uint8_t, 16>;
std::string Hex(const RequestId& id);
/// What Hex made; none where it is something else.
std::optional<RequestId> RequestIdOf(std::string_view hex);

struct Request {
  RequestId id{};
  std::string who;           ///< Folder: host and pid, or what asked.
  std::int64_t time_ns = 0;  ///< Unix time by the asker's clock.
  std::string kind;          ///< "plan".
  std::string body;          ///< A JSON object.
};

/// `who` as a folder's name: what else it holds becomes '_'.
std::string RequestFolderName(std::string_view who);
/// host:pid of this process.
std::string RequestWho();

/// Fills id and time where they are zero and writes the file: under a temporary name, synced,
/// renamed. kUsage: the body is no JSON object; kLimit: it is above 512 KiB; kIo.
Result<Request> WriteRequest(const std::filesystem::path& run, Request request);

/// Follows the folder. A look at which nothing has changed costs one stat for each folder in it.
class RequestReader {
 public:
  explicit RequestReader(const std::filesystem::path& run) : folder_(run / kRequestFolder) {}

  struct Damaged {
    RequestId id{};
    std::string who;
    std::string why;
  };
  struct Found {
    std::vector<Request> requests;  ///< By (time, id).
    std::vector<Damaged> damaged;
  };
  /// What has appeared since the last call, each once.
  Found Poll();

 private:
  /// st_mtim and st_ino of a folder.
  using Stamp = std::array<std::int64_t, 3>;

  std::filesystem::path folder_;
  std::map<std::string, Stamp> stamps_;  ///< By folder; of a look that was not too fresh to trust.
  std::set<std::string> seen_;           ///< who/file.
};

}  // namespace telltale::store
