// SPDX-License-Identifier: Apache-2.0
// The actions that agents carry out: stop, capture, profile. Each is a request whose id is made of
// when it was decided and of its key, so that a watcher that takes it up again writes the same
// file.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/run_files.h"
#include "rules/actions/act.h"
#include "rules/actions/kinds.h"
#include "store/requests.h"

namespace telltale::rules {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kWho = "watch";

store::RequestId IdOf(const std::string& key, std::int64_t unix_ns) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const unsigned char c : key) hash = (hash ^ c) * 0x100000001b3ULL;
  store::RequestId id{};
  for (std::size_t i = 0; i < 8; ++i) {
    id[i] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(unix_ns) >> (56 - 8 * i));
    id[8 + i] = static_cast<std::uint8_t>(hash >> (56 - 8 * i));
  }
  return id;
}

Result<std::string> Ask(const char* kind, const ordered_json& body, const Notice& notice,
                        const ActContext& at) {
  if (at.run.empty()) return Status(Code::kUsage, "there is no run to ask");
  store::Request request;
  request.id = IdOf(notice.key, at.unix_ns);
  request.who = kWho;
  request.time_ns = at.unix_ns;
  request.attempt = at.attempt;
  request.kind = kind;
  request.body = JsonText(body);
  // There already: a watcher before us has written it, and it is never written twice.
  const auto file = store::RequestFile(at.run, kWho, request.id);
  if (!run_files::IsFile(run_files::OfSubfolder(file))) {
    TELLTALE_RETURN_IF_ERROR(store::WriteRequest(at.run, request).status());
  }
  return fmt::format("asked by request {}", store::Hex(request.id));
}

ordered_json About(const Notice& notice) {
  const Finding& first = notice.findings.front();
  return {{"rule", first.rule},
          {"incident", first.id},
          {"why", OneLine(fmt::format("{}: {}", first.rule, first.incident.message), 300)}};
}

}  // namespace

Result<std::string> ActStop(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  ordered_json body = About(notice);
  body["checkpoint"] = ActionBool(spec, "checkpoint");
  body["checkpoint_seconds"] = ActionNumber(spec, "checkpoint_timeout");
  body["grace_seconds"] = ActionNumber(spec, "grace");
  body["kill"] = ActionBool(spec, "kill");
  return Ask("stop", body, notice, at);
}

Result<std::string> ActCapture(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  const Finding& first = notice.findings.front();
  if (first.incident.last_step < 0) {
    return Status(Code::kUsage, "the finding names no step, so no end of what is kept");
  }
  const std::int64_t from = first.incident.last_step + 1;
  const auto steps = static_cast<std::int64_t>(ActionNumber(spec, "steps"));
  // Of a name of its own: it takes nothing from a collection of the user's.
  const ordered_json collection = {
      {"include", ActionList(spec, "include")},
      {"take", {"statistics", "values"}},
      {"train", {{"interval", 1}, {"start", from}, {"end", from + steps}}}};
  ordered_json body = {{"base", "current"},
                       {"plan", {{"collections", {{"incident-" + first.id, collection}}}}}};
  return Ask("plan", body, notice, at);
}

Result<std::string> ActProfile(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  ordered_json body = About(notice);
  body["steps"] = static_cast<std::int64_t>(ActionNumber(spec, "steps"));
  return Ask("profile", body, notice, at);
}

}  // namespace telltale::rules
