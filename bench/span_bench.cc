// SPDX-License-Identifier: Apache-2.0
// A span from C++, both clock reads included, while the agent's consumer drains the arena every
// 50 ms in another process and the look-back ring holds the spans of detail. Beside it: the bare
// clock, a hook of the step machine, and a name look-up. usage: span_bench [rounds]; exit code 1
// where a span, stored or of detail, costs more than its limit, one was dropped, or the ring had
// none.
//
// Each round is as many spans as fit into the ring between two drains, so none is dropped; the
// clock is CLOCK_MONOTONIC around the whole round.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "agent/look_back.h"
#include "channel/consumer.h"
#include "channel/control_page.h"
#include "channel/registration.h"
#include "channel/ticks.h"
#include "telltale/probe.hpp"

namespace {

using telltale::UniqueFd;
namespace channel = telltale::channel;

constexpr int kSpansPerRound = 100'000;  // 3.2 MB of the 12 MiB ring.

/// The supervisor's answer and the agent's drain, in one child process.
struct Counted {
  channel::ProducerCounters counters;
  std::uint64_t details = 0;  ///< Spans that went through the look-back ring.
};

[[noreturn]] void Consume(int listener, Counted* counted) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const UniqueFd socket(::accept(listener, nullptr, nullptr));
  channel::Hello hello;
  char bytes[512];
  int fds[channel::kMaxMessageFds];
  int count = 0;
  std::ptrdiff_t got = 0;
  while ((got = channel::ReceiveMessage(socket.get(), bytes, sizeof bytes, fds, &count)) ==
         -EAGAIN) {
    ::usleep(100);
  }
  if (got <= 0 || count != 1 ||
      !channel::CheckMessage(bytes, static_cast<std::size_t>(got), channel::MessageType::kHello,
                             &hello)) {
    ::_exit(1);
  }
  auto consumer = channel::Consumer::Attach(UniqueFd(fds[0]));
  auto control = channel::ControlPage::Create(hello.name_limit);
  if (!consumer.ok() || !control.ok()) ::_exit(1);
  auto accept = channel::MakeMessage<channel::Accept>(channel::MessageType::kAccept);
  control->SetDetail(telltale::format::kControlDetailMax, true);
  auto read_only = control->ReadOnlyFd();
  const int fd = read_only->get();
  channel::SendMessage(socket.get(), &accept, sizeof accept, &fd, 1);
  telltale::agent::LookBack ring(telltale::agent::kLookBackBytes);
  for (;;) {
    telltale::StringPool pool;
    bool more = true;
    while (more) {
      channel::Drained out;
      more = (*consumer)->Drain(1 << 20, 0, &pool, &out);
      ring.Offer(out.details, &out.rows);
      ring.Settle(true);
      counted->details += out.details.size();
      (*consumer)->Commit();
    }
    counted->counters = (*consumer)->counters();
    ::usleep(50'000);
  }
}

struct Row {
  const char* name;
  int calls;
  std::function<void()> round;
  bool settle;  ///< Wait for a drain before each round.
  std::vector<double> ns;
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  char folder[] = "/tmp/telltale-span-bench-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return 1;
  const std::string path = std::string(folder) + "/socket";
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), 1) != 0) {
    return 1;
  }
  void* shared =
      ::mmap(nullptr, sizeof(Counted), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  auto* counted = new (shared) Counted;
  const pid_t child = ::fork();
  if (child == 0) Consume(listener.get(), counted);
  ::setenv("TELLTALE_SOCKET", path.c_str(), 1);
  if (!telltale::Init()) {
    std::fprintf(stderr, "span_bench: the probe does not record\n");
    return 1;
  }
  const std::uint32_t name = telltale::Name("work");

  std::vector<Row> rows;
  rows.push_back({"clock, two reads",
                  kSpansPerRound,
                  [] {
                    for (int i = 0; i < kSpansPerRound; ++i) {
                      tt_now();
                      tt_now();
                    }
                  },
                  false,
                  {}});
  rows.push_back({"clock_gettime, two",
                  kSpansPerRound,
                  [] {
                    for (int i = 0; i < kSpansPerRound; ++i) {
                      channel::MonotonicNs();
                      channel::MonotonicNs();
                    }
                  },
                  false,
                  {}});
  rows.push_back({"Span, name kept",
                  kSpansPerRound,
                  [name] {
                    for (int i = 0; i < kSpansPerRound; ++i) telltale::Span span(name);
                  },
                  true,
                  {}});
  rows.push_back({"span of detail",
                  kSpansPerRound,
                  [name] {
                    for (int i = 0; i < kSpansPerRound; ++i) {
                      const std::uint64_t begin = tt_now();
                      tt_detail_span(name, begin, tt_now(), TT_SPAN_MODULE);
                    }
                  },
                  true,
                  {}});
  rows.push_back({"Span, name looked up",
                  kSpansPerRound,
                  [] {
                    for (int i = 0; i < kSpansPerRound; ++i) telltale::Span span("work");
                  },
                  true,
                  {}});
  rows.push_back({"hook (begin or end)",
                  8 * (kSpansPerRound / 8),
                  [] {
                    for (int i = 0; i < kSpansPerRound / 8; ++i) {
                      tt_fetch_begin();
                      tt_fetch_end(4);
                      tt_forward_begin(TT_MODE_TRAIN);
                      tt_forward_end(0);
                      tt_backward_begin();
                      tt_backward_end(1, 0.5);
                      tt_optimizer_begin(1);
                      tt_optimizer_end(1, 0, 0.1);
                    }
                  },
                  true,
                  {}});

  for (int round = -1; round < rounds; ++round) {
    for (Row& row : rows) {
      if (row.settle) ::usleep(120'000);
      const std::int64_t begin = channel::MonotonicNs();
      row.round();
      const std::int64_t took = channel::MonotonicNs() - begin;
      if (round >= 0) row.ns.push_back(static_cast<double>(took) / row.calls);
    }
  }
  for (Row& row : rows) {
    std::sort(row.ns.begin(), row.ns.end());
    std::printf("  %-22s %6.1f ns [%.1f..%.1f]\n", row.name, row.ns[row.ns.size() / 2],
                row.ns.front(), row.ns.back());
  }
  const bool tsc = channel::DetectClock() == telltale::format::ClockKind::kTsc;
  const double span = rows[2].ns[rows[2].ns.size() / 2];
  const double detail = rows[3].ns[rows[3].ns.size() / 2];
  const int limit = tsc ? 50 : 70;
  std::printf("  a span with both clock reads: %.1f ns   limit %d ns (clock %s)\n", span, limit,
              tsc ? "TSC" : "CLOCK_MONOTONIC");
  std::printf("  a span of detail, which the ring holds: %.1f ns   limit %d ns\n", detail, limit);
  ::usleep(200'000);
  const std::uint64_t produced = counted->counters.produced;
  const std::uint64_t dropped = counted->counters.dropped;
  const std::uint64_t details = counted->details;
  std::printf("  records: %llu, of them dropped: %llu   limit 0\n",
              static_cast<unsigned long long>(produced), static_cast<unsigned long long>(dropped));
  std::printf("  of detail, through the look-back ring: %llu   at least 1\n",
              static_cast<unsigned long long>(details));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::unlink(path.c_str());
  ::rmdir(folder);
  return span <= limit && detail <= limit && produced > 0 && dropped == 0 && details > 0 ? 0 : 1;
}
