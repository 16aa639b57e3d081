// SPDX-License-Identifier: Apache-2.0
// What the user asks for is kept, or it is said why not; a home whose disk does not answer keeps no
// training from its start.
#include "cli/keep_consent.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "rules/actions/action_consent.h"
#include "rules/python_consent.h"
#include "store/store_testing.h"

namespace telltale::cli {
namespace {

namespace fs = std::filesystem;

/// With what the machine cannot do here the child ends so.
constexpr int kCannot = 77;

rules::RuleSet Asking() {
  rules::ActionSpec posting;
  posting.kind = "webhook";
  posting.parameters = {{"url", "https://example.org/hook"}};
  posting.dry_run = false;
  rules::RuleSpec python{
      .name = "mine", .source = rules::RuleSource::kPython, .rule = "/a/mine.py:Mine"};
  rules::RuleSet set;
  set.actions = {posting};
  set.rules = {python};
  return set;
}

/// From here on nobody who renames a file hears whether it was done, as where a disk does not
/// answer; until the descriptor that is returned is closed. -1: the machine cannot do this.
int HoldUpRenames() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
#ifdef SYS_rename
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rename, 3, 0),
#else
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 3, 0),
#endif
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
  };
  const sock_fprog filter = {sizeof program / sizeof *program, program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return static_cast<int>(
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter));
}

class KeepConsentTest : public ::testing::Test {
 protected:
  /// In a process of its own, whose user has this folder for what is kept: its exit code.
  int Run(const fs::path& state, const std::function<int()>& body) const {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setenv("XDG_STATE_HOME", state.c_str(), 1);
      ::unsetenv("TELLTALE_ACTIONS");
      ::unsetenv("TELLTALE_ACTIONS_AGREED");
      ::_exit(body());
    }
    int status = 0;
    if (pid < 0 || ::waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
  }
  bool ActionIsKept() const {
    return rules::ActionConsent(folder_.path() / "telltale/actions").Has(Asking().actions[0]);
  }
  bool RuleIsKept() const {
    return rules::PythonConsent(folder_.path() / "telltale/python-rules").Has(Asking().rules[0]);
  }

  store::TempFolder folder_;
};

TEST_F(KeepConsentTest, WhatIsAskedForIsKept) {
  EXPECT_EQ(Run(folder_.path(),
                [] {
                  const KeptConsent kept = KeepConsent(Asking());
                  return kept.python.ok() && kept.actions.ok() ? 0 : 1;
                }),
            0);
  EXPECT_TRUE(ActionIsKept());
  EXPECT_TRUE(RuleIsKept());
}

TEST_F(KeepConsentTest, WithNothingToAskNothingIsWritten) {
  EXPECT_EQ(Run(folder_.path(),
                [] {
                  const KeptConsent kept = KeepConsent({});
                  return kept.python.ok() && kept.actions.ok() ? 0 : 1;
                }),
            0);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(KeepConsentTest, WhereItCannotBeKeptItIsSaidWhyAndHoldsForThisProcess) {
  EXPECT_EQ(Run("/proc/none",
                [] {
                  const KeptConsent kept = KeepConsent(Asking());
                  if (kept.python.ok() || kept.actions.ok()) return 1;
                  const std::string why = kept.actions.message();
                  if (why.find("/proc/none/telltale/actions") == std::string::npos) return 2;
                  if (why.find("does not answer") != std::string::npos) return 3;
                  if (!rules::PythonConsent::OfUser().Has(Asking().rules[0])) return 4;
                  return rules::ActionConsent::OfUser().Has(Asking().actions[0]) ? 0 : 5;
                }),
            0);
}

TEST_F(KeepConsentTest, ADiskThatDoesNotAnswerIsLeftBehind) {
  // Who was left behind becomes a child of ours.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const int code = Run(folder_.path(), [] {
    const int held = HoldUpRenames();
    if (held < 0) return kCannot;
    const KeptConsent kept = KeepConsent(Asking(), kMs);
    if (kept.actions.message().find("does not answer") == std::string::npos) return 1;
    if (kept.python.message().find("does not answer") == std::string::npos) return 2;
    // Who takes our place has no child that it has not made.
    return ::waitpid(-1, nullptr, WNOHANG) == -1 ? 0 : 3;
  });
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  if (code == kCannot) GTEST_SKIP() << "no system call can be held up here";
  EXPECT_EQ(code, 0);
  EXPECT_FALSE(ActionIsKept());
}

}  // namespace
}  // namespace telltale::cli
