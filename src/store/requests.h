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
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace telltale::store {

struct RunInfo;

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
  /// Of the run, that it is asked of; 0: it does not say, so its time has to tell.
  std::uint32_t attempt = 0;
  std::string kind;  ///< "plan".
  std::string body;  ///< A JSON object.
};

/// The attempt of a run that a request is asked of now, the newest; 0: there is none.
std::uint32_t NewestAttempt(const RunInfo& info);

/// `who` as a folder's name: what else it holds becomes '_'.
std::string RequestFolderName(std::string_view who);
/// host:pid of this process.
std::string RequestWho();

/// Fills id and time where they are zero and writes the file: under a temporary name, synced,
/// renamed. kUsage: the body is no JSON object; kLimit: it is above 512 KiB; kIo.
Result<Request> WriteRequest(const std::filesystem::path& run, Request request);

/// Where the request of this id lies.
std::filesystem::path RequestFile(const std::filesystem::path& run, std::string_view who,
                                  const RequestId& id);

/// Follows the folder. A look at which nothing has changed costs one stat for each folder in it.
///
/// Who may write into the run folder could ask for anything, a stop too. So a request counts only
/// where its file and the folder of it belong to the owner of the run folder, to root or to the
/// user of this process; of others it is said once whose it is.
class RequestReader {
 public:
  explicit RequestReader(std::filesystem::path run, const Clock* clock = &Clock::System())
      : run_(std::move(run)), clock_(clock) {}

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
  struct Seen {
    Stamp stamp{};
    std::int64_t since_ns = 0;  ///< Monotonic: it has been the same since.
  };

  bool Changed(const std::string& folder, std::int64_t now_ns);
  void Look(const std::string& who, Found* found);
  /// Empty, or why the request of this owner does not count.
  std::string WhyForeign(std::uint32_t uid) const;

  std::filesystem::path run_;
  const Clock* clock_;
  std::map<std::string, Seen> stamps_;  ///< By folder, beneath the run's.
  std::set<std::string> seen_;          ///< who/file.
  std::size_t foreign_ = 0;             ///< Requests of others that were told of.
};

}  // namespace telltale::store
