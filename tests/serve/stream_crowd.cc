// SPDX-License-Identifier: Apache-2.0
#include "stream_crowd.h"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <ctime>

namespace telltale::testing {

using std::chrono::milliseconds;

bool RaiseFileLimit(std::size_t descriptors) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return false;
  const auto wanted = static_cast<rlim_t>(descriptors + 1000);
  if (files.rlim_cur >= wanted) return true;
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, wanted);
  return ::setrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur == wanted;
}

StreamCrowd::StreamCrowd(std::uint16_t port, const std::string& request, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    auto stream = std::make_unique<Connection>(port);
    ok_ = ok_ && stream->ok() && stream->Send(request);
    streams_.push_back(std::move(stream));
  }
  for (const auto& stream : streams_) ok_ = ok_ && stream->Await("event: overview");
  thread_ = std::thread([this] { Read(); });
}

StreamCrowd::~StreamCrowd() {
  stop_ = true;
  thread_.join();
}

void StreamCrowd::Read() {
  std::vector<pollfd> fds;
  for (const auto& stream : streams_) fds.push_back({stream->fd(), POLLIN, 0});
  while (!stop_ && ok_) {
    ::poll(fds.data(), fds.size(), 100);
    for (std::size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      ok_ = ok_ && streams_[i]->Read(milliseconds(0));
      bytes_ += streams_[i]->received().size();
      streams_[i]->received().clear();
    }
    timespec cpu{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    cpu_ns_ = static_cast<std::int64_t>(cpu.tv_sec) * 1'000'000'000 + cpu.tv_nsec;
  }
}

}  // namespace telltale::testing
