// SPDX-License-Identifier: Apache-2.0
#include "cli/window_request.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "plan/plan_json.h"
#include "plan/window.h"
#include "store/reader.h"
#include "store/requests.h"

namespace telltale::cli {

Result<std::string> WindowBody(std::int64_t steps, const std::string& detail) {
  if (steps < 1) {
    return Status(Code::kUsage, fmt::format("steps: {}: write 1 or more", steps));
  }
  std::string text = fmt::format("next={}", steps);
  if (!detail.empty()) text += ";detail=" + detail;
  TELLTALE_ASSIGN_OR_RETURN(const plan::Window window, plan::ParseWindow(text));
  return JsonText(nlohmann::ordered_json{{"windows", {{"", plan::WindowToJson(window)}}}});
}

Result<std::string> AskForWindow(const std::string& run, const std::string& body) {
  const auto asked = ParseJson(body);
  const auto steps = asked.is_object() ? asked.find("steps") : asked.end();
  if (!asked.is_object() || steps == asked.end() || !steps->is_number_integer()) {
    return Status(Code::kUsage,
                  "no steps: send {\"steps\": 5, \"detail\": \"ops,kernels,shapes\"}");
  }
  std::string detail;
  if (const auto found = asked.find("detail"); found != asked.end()) {
    if (!found->is_string()) return Status(Code::kUsage, "detail: write words, as \"ops,kernels\"");
    detail = found->get<std::string>();
    // It is one value of a line of keys.
    if (detail.find(';') != std::string::npos) {
      return Status(Code::kUsage, "detail: write words with commas between, as \"ops,kernels\"");
    }
  }
  TELLTALE_ASSIGN_OR_RETURN(std::string window, WindowBody(steps->get<std::int64_t>(), detail));
  TELLTALE_ASSIGN_OR_RETURN(const auto reader, store::RunReader::Open(run));
  if (const store::RunState state = reader->state(); state.state != "running") {
    return Status(
        Code::kUnusable,
        fmt::format("the run is {}: only one that goes on can be looked at closer", state.state));
  }
  store::Request request;
  request.who = store::RequestWho();
  request.attempt = store::NewestAttempt(reader->info());
  request.kind = "profile";
  request.body = std::move(window);
  TELLTALE_ASSIGN_OR_RETURN(const store::Request written,
                            store::WriteRequest(run, std::move(request)));
  return JsonText(nlohmann::json{{"id", store::Hex(written.id)}});
}

}  // namespace telltale::cli
