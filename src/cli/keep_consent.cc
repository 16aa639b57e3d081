// SPDX-License-Identifier: Apache-2.0
#include "cli/keep_consent.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>

#include "base/clock.h"
#include "rules/actions/action_consent.h"
#include "rules/python_consent.h"
#include "run/errand.h"

namespace telltale::cli {
namespace {

namespace fs = std::filesystem;

/// From the child. Between processes of one program.
struct Answer {
  bool actions;
  Code code;
  char text[512];
};

void Tell(int link, bool actions, const Status& status) {
  Answer answer{actions, status.code(), {}};
  std::snprintf(answer.text, sizeof answer.text, "%s", status.message().c_str());
  [[maybe_unused]] const ssize_t n = ::send(link, &answer, sizeof answer, MSG_NOSIGNAL);
}

/// In the child.
void Keep(const rules::RuleSet& set, int link) {
  Tell(link, false, rules::PythonConsent::OfUser().Remember(set));
  Tell(link, true, rules::ActionConsent::OfUser().Remember(set));
}

struct Answers {
  std::optional<Status> python, actions;
};

/// Takes what the child says until it has ended. False: it has not.
bool Take(int link, std::int64_t deadline_ns, Answers* answers) {
  while (true) {
    const std::int64_t left = deadline_ns - Clock::System().MonotonicNs();
    pollfd fd{link, POLLIN, 0};
    // Rounded up: not to look again and again in the last millisecond.
    ::poll(&fd, 1, static_cast<int>(std::max<std::int64_t>(left, 0) / kMs + 1));
    Answer answer;
    const ssize_t got = ::recv(link, &answer, sizeof answer, MSG_DONTWAIT);
    if (got == sizeof answer) {
      answer.text[sizeof answer.text - 1] = '\0';
      (answer.actions ? answers->actions : answers->python) =
          answer.code == Code::kOk ? Status() : Status(answer.code, answer.text);
    } else if (got >= 0 || (errno != EAGAIN && errno != EINTR)) {
      return true;
    } else if (left <= 0) {
      return false;
    }
  }
}

}  // namespace

KeptConsent KeepConsent(const rules::RuleSet& set, std::int64_t patience_ns) {
  rules::PythonConsent::OfUser().Allow(set);
  rules::ActionConsent::OfUser().Allow(set);
  const bool python = rules::PythonConsent::Asks(set);
  const bool actions = rules::ActionConsent::Asks(set);
  if (!python && !actions) return {};
  const std::int64_t deadline = Clock::System().MonotonicNs() + patience_ns;
  // One that is left behind would be a child of the training where that takes our place: so another
  // one is between, which ends at once.
  auto errand = run::Errand::Start("telltale-keep", [&](int link) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid < 0 ? 1 : 0;
    try {
      Keep(set, link);
    } catch (const std::exception&) {
      // No memory: whoever waits hears that we have ended.
    }
    ::_exit(0);
  });
  if (!errand.ok()) {
    return {python ? errand.status() : Status(), actions ? errand.status() : Status()};
  }
  Answers answers;
  const bool ended = Take(errand->link(), deadline, &answers);
  static_cast<void>(errand->Await(kKeepConsentNs));
  const auto kept = [&](bool asked, const std::optional<Status>& answer, const fs::path& file) {
    if (!asked) return Status();
    return answer.value_or(Status(
        Code::kIo,
        fmt::format("{}: {}", file.string(),
                    ended ? "the process that writes it was ended" : "its disk does not answer")));
  };
  return {kept(python, answers.python, rules::PythonConsent::File()),
          kept(actions, answers.actions, rules::ActionConsent::File())};
}

}  // namespace telltale::cli
