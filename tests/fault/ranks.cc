// SPDX-License-Identifier: Apache-2.0
// A training of several processes that somebody stops: each is recorded, makes steps, and counts
// the SIGTERMs that it is sent. usage: fault_ranks FILE N obey|live_on obey: a rank ends some steps
// after SIGTERM. live_on: it does not, until FILE says so.
#include "ranks.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "telltale/probe.h"

namespace {

telltale::fault::Ranks* ranks = nullptr;
std::size_t rank_of_us = 0;

void OnTerm(int) { ranks->terms[rank_of_us].fetch_add(1); }

void Train(bool obeys) {
  struct sigaction action {};
  action.sa_handler = OnTerm;
  ::sigaction(SIGTERM, &action, nullptr);
  ranks->pids[rank_of_us] = ::getpid();
  ranks->recorded[rank_of_us] =
      tt_init(TT_PROCESS_TRAINER, static_cast<std::int32_t>(rank_of_us)) + 1;
  const timespec pause{0, 5'000'000};
  for (int after = 0; ranks->release == 0 && after < 20;) {
    tt_forward_begin(TT_MODE_TRAIN);
    ::nanosleep(&pause, nullptr);
    tt_forward_end(1);
    tt_optimizer_begin(1);
    tt_optimizer_end(1, 0, 0.1);
    tt_step();
    if (obeys && ranks->terms[rank_of_us] > 0) ++after;
  }
  tt_finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  ranks = telltale::fault::Ranks::Map(argv[1]);
  if (ranks == nullptr) return 2;
  const auto count =
      std::min<std::size_t>(std::strtoul(argv[2], nullptr, 10), telltale::fault::Ranks::kMost);
  const bool obeys = std::strcmp(argv[3], "obey") == 0;
  for (std::size_t rank = 0; rank < count; ++rank) {
    rank_of_us = rank;
    const pid_t pid = ::fork();
    if (pid < 0) return 2;
    if (pid != 0) continue;
    Train(obeys);
    ::_exit(0);
  }
  while (::wait(nullptr) > 0) {
  }
  return 0;
}
