// SPDX-License-Identifier: Apache-2.0
#include "watch/keep_request.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/run_files.h"
#include "store/requests.h"

namespace telltale::watch {
namespace {

constexpr std::string_view kWho = "watch";
constexpr std::size_t kWhyBytes = 300;

store::RequestId IdOf(const rules::Finding& finding) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const unsigned char c : "lookback " + finding.id) hash = (hash ^ c) * 0x100000001b3ULL;
  const auto time = static_cast<std::uint64_t>(finding.incident.start_ns);
  store::RequestId id{};
  for (std::size_t i = 0; i < 8; ++i) {
    id[i] = static_cast<std::uint8_t>(time >> (56 - 8 * i));
    id[8 + i] = static_cast<std::uint8_t>(hash >> (56 - 8 * i));
  }
  return id;
}

}  // namespace

bool WantsToKeep(const rules::Finding& finding) {
  return finding.open && finding.incident.severity >= rules::Severity::kMedium;
}

Status AskToKeep(const std::filesystem::path& run, const rules::Finding& finding,
                 std::int64_t unix_ns, std::uint32_t attempt) {
  store::Request request;
  request.id = IdOf(finding);
  request.who = kWho;
  request.time_ns = unix_ns;
  request.attempt = attempt;
  request.kind = "lookback";
  const auto file = store::RequestFile(run, kWho, request.id);
  if (run_files::IsFile(run_files::OfSubfolder(file))) return {};
  const rules::Incident& incident = finding.incident;
  std::string why = incident.message;
  if (why.size() > kWhyBytes) {
    why.resize(kWhyBytes);
    // Not in the midst of a character.
    while (!why.empty() && (static_cast<unsigned char>(why.back()) & 0xC0U) == 0x80U)
      why.pop_back();
    if (!why.empty() && static_cast<unsigned char>(why.back()) >= 0x80U) why.pop_back();
  }
  request.body = JsonText(nlohmann::ordered_json{{"rule", finding.rule},
                                                 {"incident", finding.id},
                                                 {"why", why},
                                                 {"first_step", incident.first_step},
                                                 {"last_step", incident.last_step}});
  return store::WriteRequest(run, std::move(request)).status();
}

}  // namespace telltale::watch
