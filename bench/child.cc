// SPDX-License-Identifier: Apache-2.0
#include "child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "fault/harness.h"

namespace telltale::bench {

Child::Child(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  out_.reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(write_end.get(), STDOUT_FILENO);
  ::execv(argv[0], argv.data());
  ::_exit(99);
}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGTERM);
  ::waitpid(pid_, nullptr, 0);
}

std::string Child::Line() {
  std::string line;
  char c = 0;
  while (::read(out_.get(), &c, 1) == 1 && c != '\n') line += c;
  return line;
}

double Child::CpuSeconds() const {
  std::ifstream file(fmt::format("/proc/{}/stat", pid_));
  std::string text;
  std::getline(file, text);
  // Fields 14 and 15; the name before them may hold anything.
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 2));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

namespace {

std::vector<std::string> ServeWords(const std::filesystem::path& root) {
  ::setenv("XDG_STATE_HOME", (root / ".state").c_str(), 1);
  return {fault::TelltalePath(), "serve", "--print-token", root};
}

}  // namespace

ServeProcess::ServeProcess(const std::filesystem::path& root) : child_(ServeWords(root)) {
  const std::string link = child_.Line();
  token_ = child_.Line();
  if (const auto colon = link.rfind(':'); colon != std::string::npos) {
    port_ = static_cast<std::uint16_t>(std::atoi(link.c_str() + colon + 1));
  }
}

std::string ServeProcess::StreamRequest(const std::string& run) const {
  return fmt::format("GET /api/runs/{}/stream HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{}\r\n\r\n", run,
                     port_, bearer());
}

double Quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const auto at = static_cast<std::size_t>(q * static_cast<double>(sorted.size()));
  return sorted[std::min(at, sorted.size() - 1)];
}

}  // namespace telltale::bench
