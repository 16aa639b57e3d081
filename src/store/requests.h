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

/// Who may ask something of a run whose folder belongs to `owner`, while this process records it:
/// "the owner of the run folder (user 4001) and root".
std::string WhoMayAsk(std::uint32_t owner);

/// Follows the folder. A look at which nothing has changed costs one stat for the run folder and
/// for each folder in it.
///
/// Who may write into the run folder could ask for anything, a stop too. So a request counts only
/// where its file and the folder of it belong to the owner of the run folder, to root or to the
/// user of this process. Of others a few are named, each once, and none is opened; however many
/// there are, they keep no request back that counts.
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
  enum class Looked : std::uint8_t {
    kDone,
    kAgain,   ///< It could not be listed.
    kForget,  ///< Nothing in it counts, or is to be named.
  };
  Looked Look(const std::string& who, Found* found);
  /// Whether what belongs to this user counts.
  bool Counts(std::uint32_t uid) const;
  /// Whether a folder in which no request counts is followed all the same, to name those in it.
  bool FollowsForeign(const std::string& who);
  void NameForeign(const RequestId& id, const std::string& who, const std::string& key,
                   std::uint32_t uid, Found* found);

  std::filesystem::path run_;
  const Clock* clock_;
  std::map<std::string, Seen> stamps_;     ///< By folder, beneath the run's.
  std::set<std::string> seen_;             ///< who/file.
  std::uint32_t owner_ = 0;                ///< Of the run folder, at this look.
  std::set<std::string> foreign_named_;    ///< who/file.
  std::set<std::string> foreign_folders_;  ///< Those that are followed.
};

}  // namespace telltale::store
