// SPDX-License-Identifier: Apache-2.0
// rule_mutants SECONDS BYTES: reads lines "NUMBER SCRIPT..." and runs these rule scripts with that
// change of the rules made (0: none), each line in a process of its own with at most so much time
// and memory. Writes a line for each: "NUMBER as-expected", or the number and what is not: the name
// of the first script that is not as expected, or the signal that ended the process.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

#include "mutant.h"
#include "rules/script.h"

namespace {

/// Writes to `out` and ends the process.
[[noreturn]] void RunScripts(std::istringstream scripts, int number, int out) {
  telltale::mutant::active = number;
  std::string said = "as-expected";
  for (std::string script; scripts >> script;) {
    const auto outcome = telltale::rules::RunScript(script);
    if (outcome.ok() && outcome->failures == 0) continue;
    said = script;
    break;
  }
  const bool written = ::write(out, said.data(), said.size()) == std::ssize(said);
  std::_Exit(written ? 0 : 1);
}

std::string ResultOf(pid_t child, int in) {
  std::string said(4096, '\0');
  const ssize_t size = ::read(in, said.data(), said.size());
  said.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return said.empty() ? "exit code " + std::to_string(WEXITSTATUS(status)) : said;
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  const auto seconds = static_cast<rlim_t>(std::atoll(words[1]));
  const auto bytes = static_cast<rlim_t>(std::atoll(words[2]));
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    int number = 0;
    in >> number;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return 1;
    const pid_t child = ::fork();
    if (child < 0) return 1;
    if (child == 0) {
      const rlimit time{seconds, seconds};
      const rlimit memory{bytes, bytes};
      ::setrlimit(RLIMIT_CPU, &time);
      ::setrlimit(RLIMIT_AS, &memory);
      RunScripts(std::move(in), number, ends[1]);
    }
    ::close(ends[1]);
    std::printf("%d %s\n", number, ResultOf(child, ends[0]).c_str());
    std::fflush(stdout);
    ::close(ends[0]);
  }
  return 0;
}
