// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/transfer.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace telltale::rules {
namespace {

Try Failed(bool retry, double after = 0) { return {Status(Code::kIo, "HTTP 503"), retry, after}; }

TEST(Transfer, TriesAgainWithLongerAndLongerPauses) {
  const std::atomic<bool> stop = false;
  std::vector<double> pauses;
  int tries = 0;
  const Status status = TryAgain(
      3, stop,
      [&](double seconds) {
        pauses.push_back(seconds);
        return true;
      },
      [&] {
        ++tries;
        return Failed(true, tries == 2 ? 500 : 0);
      });
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_EQ(tries, 4);
  EXPECT_EQ(pauses, (std::vector<double>{1, 60, 4}));
}

TEST(Transfer, DoesNotRepeatWhatIsNoUse) {
  const std::atomic<bool> stop = false;
  int tries = 0;
  const Status status = TryAgain(
      3, stop, [](double) { return true; },
      [&] {
        ++tries;
        return Failed(false);
      });
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(tries, 1);
}

ActionSpec Webhook(bool allow_private) {
  ActionSpec spec;
  spec.kind = "webhook";
  spec.parameters["allow_private"] = allow_private ? "true" : "false";
  return spec;
}

/// A port of this machine on which somebody listens, so that only the guard keeps a request away.
class Listening {
 public:
  Listening() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(fd_.get(), any, sizeof address), 0);
    EXPECT_EQ(::listen(fd_.get(), 16), 0);
    socklen_t size = sizeof address;
    EXPECT_EQ(::getsockname(fd_.get(), any, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  std::string port() const { return std::to_string(port_); }
  bool SomebodyCame() const { return UniqueFd(::accept(fd_.get(), nullptr, nullptr)).valid(); }

 private:
  UniqueFd fd_;
  int port_ = 0;
};

TEST(Transfer, ThisMachineIsNotReachedHoweverItIsWritten) {
  const Listening here;
  const std::atomic<bool> stop = false;
  for (const char* host : {"127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "localhost",
                           "[::ffff:127.0.0.1]"}) {
    HttpRequest request = GuardedRequest(Webhook(false), stop);
    request.url = std::string("http://") + host + ":" + here.port() + "/";
    const Try tried = Post(request);
    EXPECT_FALSE(tried.status.ok()) << host;
    EXPECT_FALSE(here.SomebodyCame()) << host;
    if (std::string(host) == "127.0.0.1") {
      EXPECT_EQ(tried.status.code(), Code::kUsage);
      EXPECT_FALSE(tried.retry);
      EXPECT_NE(tried.status.message().find("allow_private"), std::string::npos);
    }
  }
}

TEST(Transfer, NothingReachesMetadata) {
  const std::atomic<bool> stop = false;
  for (const char* host : {"169.254.169.254", "2852039166", "100.100.100.200", "192.0.0.192",
                           "168.63.129.16", "0.0.0.0"}) {
    HttpRequest request = GuardedRequest(Webhook(true), stop);
    request.url = std::string("http://") + host + "/latest/meta-data/";
    EXPECT_EQ(Post(request).status.code(), Code::kUsage) << host;
  }
}

TEST(Transfer, OtherProtocolsAreNone) {
  const std::atomic<bool> stop = false;
  HttpRequest request = GuardedRequest(Webhook(true), stop);
  request.url = "file:///etc/hostname";
  EXPECT_EQ(Post(request).status.code(), Code::kUsage);
}

}  // namespace
}  // namespace telltale::rules
