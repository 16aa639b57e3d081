// SPDX-License-Identifier: Apache-2.0
// Against a socket on loopback that says what a test wants said.
#include "base/http_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "base/unique_fd.h"

namespace telltale {
namespace {

/// Takes one connection, reads one request whole, answers.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) : answer_(std::move(answer)) {
    listening_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listening_.get(), any, sizeof address), 0);
    EXPECT_EQ(::listen(listening_.get(), 1), 0);
    socklen_t size = sizeof address;
    EXPECT_EQ(::getsockname(listening_.get(), any, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~OneAnswer() { Join(); }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  /// What was asked; waits for the end of the connection.
  const std::string& request() {
    Join();
    return request_;
  }

 private:
  void Join() {
    // Nobody may have come.
    ::shutdown(listening_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  void Serve() {
    const UniqueFd fd(::accept(listening_.get(), nullptr, nullptr));
    if (!fd) return;
    char buffer[4096];
    while (!Whole()) {
      const ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
      if (n <= 0) return;
      request_.append(buffer, static_cast<std::size_t>(n));
    }
    ::send(fd.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
  }
  bool Whole() const {
    const auto head = request_.find("\r\n\r\n");
    if (head == std::string::npos) return false;
    const auto at = request_.find("Content-Length: ");
    const std::size_t length =
        at == std::string::npos || at > head ? 0 : std::stoul(request_.substr(at + 16));
    return request_.size() >= head + 4 + length;
  }

  const std::string answer_;
  UniqueFd listening_;
  int port_ = 0;
  std::string request_;
  std::thread thread_;
};

std::string Ok(const std::string& body, const std::string& more = "") {
  return "HTTP/1.1 200 OK\r\n" + more +
         "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(HttpClient, WhatIsPostedArrives) {
  OneAnswer server(Ok("thanks"));
  HttpRequest request;
  request.url = server.url() + "/v1/metrics";
  request.headers = {"Content-Type: application/x-protobuf"};
  request.body = std::string("a\0b", 3);
  const auto response = SendHttp(request);
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "thanks");
  EXPECT_FALSE(response->retry_after_s);
  const std::string& asked = server.request();
  EXPECT_TRUE(asked.starts_with("POST /v1/metrics HTTP/1.1\r\n")) << asked;
  EXPECT_NE(asked.find("Content-Type: application/x-protobuf\r\n"), std::string::npos);
  EXPECT_TRUE(asked.ends_with(std::string("\r\n\r\na\0b", 7)));
}

TEST(HttpClient, ARedirectIsAnAnswerAndNotFollowed) {
  OneAnswer server(
      "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nRetry-After: 7\r\n"
      "Connection: close\r\nContent-Length: 0\r\n\r\n");
  HttpRequest request;
  request.url = server.url();
  const auto response = SendHttp(request);
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->status, 302);
  EXPECT_EQ(response->retry_after_s, 7);
}

TEST(HttpClient, OnlyThePartOfAnAnswerThatIsWantedIsKept) {
  OneAnswer server(Ok(std::string(100'000, 'x')));
  HttpRequest request;
  request.method = "GET";
  request.url = server.url();
  request.most_answer_bytes = 10;
  const auto response = SendHttp(request);
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->body, std::string(10, 'x'));
}

TEST(HttpClient, AnAddressThatIsNotAllowedIsNotConnectedTo) {
  OneAnswer server(Ok(""));
  HttpRequest request;
  request.url = server.url();
  int asked = 0;
  request.address_allowed = [&](const sockaddr* address, socklen_t size) {
    ++asked;
    EXPECT_GE(size, sizeof(sockaddr_in));
    return address->sa_family != AF_INET;
  };
  const auto response = SendHttp(request);
  EXPECT_EQ(response.status().code(), Code::kUsage);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(server.request(), "");
}

TEST(HttpClient, NoProxyOfTheEnvironmentComesBetweenTheGuardAndItsAddress) {
  OneAnswer server(Ok("direct"));
  ::setenv("http_proxy", "http://127.0.0.1:1", 1);
  HttpRequest request;
  request.url = server.url();
  request.address_allowed = [](const sockaddr*, socklen_t) { return true; };
  const auto response = SendHttp(request);
  ::unsetenv("http_proxy");
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->body, "direct");
}

TEST(HttpClient, AProxyThatIsNamedIsAskedAbout) {
  OneAnswer proxy(Ok("by proxy"));
  HttpRequest request;
  request.url = "http://nowhere.invalid/";
  request.proxy = proxy.url();
  request.address_allowed = [](const sockaddr*, socklen_t) { return false; };
  EXPECT_EQ(SendHttp(request).status().code(), Code::kUsage);
  request.address_allowed = [](const sockaddr*, socklen_t) { return true; };
  const auto response = SendHttp(request);
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->body, "by proxy");
}

TEST(HttpClient, ItCanBeEnded) {
  // Nobody accepts: the connection stands and no answer comes.
  const UniqueFd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listening.get(), any, sizeof address), 0);
  ASSERT_EQ(::listen(listening.get(), 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(::getsockname(listening.get(), any, &size), 0);
  const std::atomic<bool> stop = true;
  HttpRequest request;
  request.url = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  request.timeout_ms = 600'000;
  request.stop = &stop;
  EXPECT_EQ(SendHttp(request).status().code(), Code::kIo);
}

TEST(HttpClient, NoHeaderCanBeSmuggledIn) {
  HttpRequest request;
  request.url = "http://127.0.0.1:1";
  request.headers = {"X: a\r\nY: b"};
  EXPECT_EQ(SendHttp(request).status().code(), Code::kUsage);
  request.headers = {"no header"};
  EXPECT_EQ(SendHttp(request).status().code(), Code::kUsage);
  request.headers.clear();
  for (const char* url : {"", "file:///etc/passwd", "ftp://host/", "http//host", "http://a\nb/"}) {
    request.url = url;
    EXPECT_EQ(SendHttp(request).status().code(), Code::kUsage) << url;
  }
}

TEST(HttpClient, AnErrorNamesTheHostAndNoSecret) {
  HttpRequest request;
  request.url = "http://user:secret@127.0.0.1:1/token/path?key=secret";
  const auto response = SendHttp(request);
  EXPECT_EQ(response.status().code(), Code::kIo);
  EXPECT_NE(response.status().message().find("http://127.0.0.1:1"), std::string::npos);
  EXPECT_EQ(response.status().message().find("secret"), std::string::npos);
  EXPECT_EQ(response.status().message().find("path"), std::string::npos);
}

TEST(HttpClient, ARequestOfAwsIsSigned) {
  OneAnswer server(Ok(""));
  HttpRequest request;
  request.url = server.url() + "/";
  request.headers = {"Content-Type: application/x-www-form-urlencoded"};
  request.body = "Action=PutMetricData";
  request.aws = AwsSignature{"AKIDEXAMPLE", "secret", "session", "eu-central-1", "monitoring"};
  const auto response = SendHttp(request);
  ASSERT_TRUE(response.ok()) << response.status().message();
  const std::string& asked = server.request();
  EXPECT_NE(asked.find("Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"),
            std::string::npos)
      << asked;
  EXPECT_NE(asked.find("/eu-central-1/monitoring/aws4_request"), std::string::npos) << asked;
  EXPECT_NE(asked.find("X-Amz-Security-Token: session"), std::string::npos) << asked;
  EXPECT_EQ(asked.find("secret"), std::string::npos) << asked;
}

TEST(HttpClient, PartsOfAddresses) {
  EXPECT_EQ(HttpOrigin("https://u:p@host.example:4318/v1?x=1"), "https://host.example:4318");
  EXPECT_EQ(HttpOrigin("no url at all"), "?");
  EXPECT_TRUE(HasNoPath("http://host:4318"));
  EXPECT_TRUE(HasNoPath("http://host:4318/"));
  EXPECT_FALSE(HasNoPath("http://host/v1/metrics"));
  EXPECT_EQ(PercentEncoded("a b/ü~"), "a%20b%2F%C3%BC~");
}

}  // namespace
}  // namespace telltale
