// SPDX-License-Identifier: Apache-2.0
#include "run/command.h"

#include <gtest/gtest.h>

namespace telltale::run {
namespace {

using Words = std::vector<std::string>;

TEST(Command, KnowsPython) {
  for (const char* yes : {"python", "python3", "/usr/bin/python3.11", "venv/bin/python"}) {
    EXPECT_TRUE(IsPython(yes)) << yes;
  }
  for (const char* no : {"pythonw", "ipython", "python-config", "torchrun", ""}) {
    EXPECT_FALSE(IsPython(no)) << no;
  }
}

TEST(Command, PythonThatWouldNotFindUsGoesThroughBoot) {
  const auto boot = [](Words words) { return ThroughBoot(std::move(words), "/b.py"); };
  for (const Words& same : std::vector<Words>{{"python", "t.py", "-I"},
                                              {"python", "-u", "t.py"},
                                              {"python", "-s", "-P", "-m", "mod"},
                                              {"python", "-W", "I", "t.py"},
                                              {"python", "-XI", "t.py"},
                                              {"python", "-I"},
                                              {"python", "-S"},
                                              {"python", "-I", "-"},
                                              {"bash", "-I", "t.sh"},
                                              {"env", "python", "-I", "t.py"}}) {
    EXPECT_EQ(boot(same), same);
  }
  EXPECT_EQ(boot({"python", "-I", "t.py", "-c", "x"}),
            (Words{"python", "-I", "/b.py", "t.py", "-c", "x"}));
  EXPECT_EQ(boot({"python", "-S", "t.py"}), (Words{"python", "-S", "/b.py", "t.py"}));
  EXPECT_EQ(boot({"python", "-ISm", "mod"}), (Words{"python", "-IS", "/b.py", "-m", "mod"}));
  EXPECT_EQ(boot({"python3", "-Eu", "-W", "error", "-m", "mod", "a"}),
            (Words{"python3", "-Eu", "-W", "error", "/b.py", "-m", "mod", "a"}));
  EXPECT_EQ(boot({"python", "-Ium", "mod", "a"}),
            (Words{"python", "-Iu", "/b.py", "-m", "mod", "a"}));
  EXPECT_EQ(boot({"python", "-E", "-cprint(1)"}),
            (Words{"python", "-E", "/b.py", "-c", "print(1)"}));
  EXPECT_EQ(boot({"python", "-Imm", "a"}), (Words{"python", "-I", "/b.py", "-m", "m", "a"}));
}

TEST(Command, RunIsNamedAfterTheScript) {
  EXPECT_EQ(RunName({"python", "-u", "examples/train.py", "--lr", "1"}), "train");
  EXPECT_EQ(RunName({"python", "-m", "pkg.train"}), "pkg.train");
  EXPECT_EQ(RunName({"python", "-um", "pkg.train"}), "pkg.train");
  EXPECT_EQ(RunName({"python", "-c", "print(1)"}), "python-c");
  EXPECT_EQ(RunName({"torchrun", "--nproc-per-node", "2", "a/b.py", "c.py"}), "b");
  EXPECT_EQ(RunName({"/usr/bin/env", "true"}), "env");
  EXPECT_EQ(RunName({"sh", "-c", "HF_TOKEN=canary python train.py"}), "sh");
  EXPECT_EQ(RunName({"env", "SCRIPT=a.py", "python3", "b.py"}), "b");
  EXPECT_EQ(RunName({"./../..x/\n$(rm)"}), "___rm_");
  EXPECT_EQ(RunName({"/"}), "run");
  EXPECT_EQ(RunName({std::string(200, 'x')}).size(), 40U);
}

TEST(Command, SaysAsAShellWhyItCannotStart) {
  EXPECT_EQ(CheckStartable("true").exit_code, 0);
  EXPECT_EQ(CheckStartable("/bin/true").exit_code, 0);
  EXPECT_EQ(CheckStartable("no-such-program-here").exit_code, 127);
  EXPECT_EQ(CheckStartable("/no/such/file").exit_code, 127);
  EXPECT_EQ(CheckStartable("/proc/version").exit_code, 126);
  EXPECT_EQ(CheckStartable("/etc").exit_code, 126);
  EXPECT_EQ(CheckStartable("").exit_code, 127);
}

}  // namespace
}  // namespace telltale::run
