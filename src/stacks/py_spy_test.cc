// SPDX-License-Identifier: Apache-2.0
#include "stacks/py_spy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "stacks/sampler.h"
#include "store/store_testing.h"

namespace telltale::stacks {
namespace {

namespace fs = std::filesystem;

TEST(PySpyWords, SayWhyAPieceFailed) {
  PySpyEnd end;
  ReadWords("Error: Permission Denied: Try running again with elevated permissions\n", &end);
  EXPECT_TRUE(end.refused);
  EXPECT_FALSE(end.no_python);
  end = {};
  ReadWords(
      "Error: No python processes found in process 12 or any of its subprocesses\n\nStack "
      "backtrace:\n   0: x\n",
      &end);
  EXPECT_FALSE(end.refused);
  EXPECT_TRUE(end.no_python);
  EXPECT_EQ(end.words, "Error: No python processes found in process 12 or any of its subprocesses");
  end = {};
  ReadWords("py-spy> Wrote chrome trace to 'a.json'. Samples: 316 Errors: 17\n", &end);
  EXPECT_FALSE(end.refused || end.no_python);
  EXPECT_EQ(end.errors, 17U);
}

TEST(PySpyProgram, IsTheOneBesideTheInterpreter) {
  const store::TempFolder folder;
  const auto program = [&](const char* name) {
    const fs::path path = folder.path() / name;
    std::ofstream(path) << "#!/bin/sh\n";
    ::chmod(path.c_str(), 0755);
    return path;
  };
  const fs::path python = program("python");
  ::setenv("TELLTALE_PY_SPY", "/nowhere/py-spy", 1);
  EXPECT_EQ(FindPySpy(python.string()), fs::path()) << "one is named, and is not there";
  ::unsetenv("TELLTALE_PY_SPY");
  const fs::path py_spy = program("py-spy");
  EXPECT_EQ(FindPySpy(python.string()), py_spy);
}

TEST(PySpyProgram, ThatFailsIsSaid) {
  const store::TempFolder folder;
  const fs::path program = folder.path() / "py-spy";
  std::ofstream(program) << "#!/bin/sh\necho 'Error: it is broken' >&2\nexit 3\n";
  ::chmod(program.c_str(), 0755);
  auto child = PySpyChild::Start({.program = program,
                                  .target = ::getpid(),
                                  .output = folder.path() / "out.json",
                                  .log = folder.path() / "log"});
  ASSERT_TRUE(child.ok());
  PySpyEnd end;
  while (!child->Ended(&end)) {
  }
  EXPECT_FALSE(end.well);
  EXPECT_FALSE(end.refused || end.no_python);
  EXPECT_EQ(end.words, "Error: it is broken");
}

TEST(NextRate, KeepsWhatPySpyTakesToItsShare) {
  constexpr double kBudget = 0.01;
  EXPECT_EQ(NextRate(20, 20, 0.05, 4, 8, kBudget), 20) << "idle cores cost nothing";
  EXPECT_EQ(NextRate(100, 100, 0.5, 4, 8, kBudget), 50) << "a quarter of a core at most";
  EXPECT_EQ(NextRate(20, 20, 0.04, 0.1, 2, kBudget), 5) << "half of the budget of two cores";
  EXPECT_EQ(NextRate(2, 20, 0.9, 0.1, 2, kBudget), 1);
  EXPECT_EQ(NextRate(1, 20, 0.9, 0.1, 2, kBudget), 1) << "never none";
  EXPECT_EQ(NextRate(5, 20, 0.001, 0.1, 2, kBudget), 10) << "and back";
  EXPECT_EQ(NextRate(15, 20, 0.001, 0.1, 2, kBudget), 20);
  EXPECT_EQ(NextRate(20, 20, 0, 0, 2, kBudget), 20);
}

}  // namespace
}  // namespace telltale::stacks
