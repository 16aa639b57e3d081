// SPDX-License-Identifier: Apache-2.0
#include "client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>

namespace telltale::testing {

using std::chrono::milliseconds;

Connection::Connection(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fd_.reset();
  }
}

bool Connection::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool Connection::Read(milliseconds limit) {
  pollfd one{fd_.get(), POLLIN, 0};
  if (::poll(&one, 1, static_cast<int>(limit.count())) <= 0) return true;
  char bytes[65536];
  const ssize_t n = ::recv(fd_.get(), bytes, sizeof bytes, 0);
  if (n <= 0) return false;
  received_.append(bytes, static_cast<std::size_t>(n));
  return true;
}

bool Connection::Await(std::string_view text, milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (received_.find(text) == std::string::npos) {
    if (std::chrono::steady_clock::now() >= deadline || !Read(milliseconds(100))) return false;
  }
  return true;
}

Reply Connection::Receive() {
  Reply reply;
  if (!Await("\r\n\r\n")) return reply;
  const auto end = received_.find("\r\n\r\n");
  const std::string head = received_.substr(0, end);
  received_.erase(0, end + 4);
  if (head.size() < 12) return reply;
  reply.status = std::atoi(head.c_str() + 9);
  for (std::size_t at = head.find("\r\n"); at != std::string::npos;) {
    const auto next = head.find("\r\n", at + 2);
    const std::string line = head.substr(at + 2, next == std::string::npos ? next : next - at - 2);
    std::string name = line.substr(0, line.find(':'));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    reply.headers[name] = line.substr(std::min(line.size(), line.find(':') + 2));
    at = next;
  }
  const auto length = static_cast<std::size_t>(std::atoll(reply.headers["content-length"].c_str()));
  while (received_.size() < length && Read(milliseconds(60'000))) {
  }
  reply.body = received_.substr(0, length);
  received_.erase(0, length);
  return reply;
}

RunningServer::RunningServer(std::vector<std::filesystem::path> paths,
                             std::vector<std::string> allow_hosts) {
  auto auth = server::Auth::Fresh();
  EXPECT_TRUE(auth.ok());
  server::ServerOptions options;
  options.paths = std::move(paths);
  options.allow_hosts = std::move(allow_hosts);
  Start(std::move(options), std::move(auth).value(), {});
}

RunningServer::RunningServer(server::ServerOptions options, server::Auth auth,
                             const std::function<void()>& linked) {
  Start(std::move(options), std::move(auth), linked);
}

void RunningServer::Start(server::ServerOptions options, server::Auth auth,
                          const std::function<void()>& linked) {
  token_ = auth.token();
  auto server = server::Server::Open(std::move(options), std::move(auth));
  EXPECT_TRUE(server.ok()) << server.status().message();
  server_ = std::move(server).value();
  port_ = server_->port();
  const auto link = server_->NewLink();
  EXPECT_TRUE(link.ok());
  link_ = *link;
  code_ = link->substr(link->find("#code=") + 6);
  if (linked) linked();
  thread_ = std::thread([this] { server_->Run(); });
}

RunningServer::~RunningServer() {
  server_->Stop();
  thread_.join();
}

Reply RunningServer::Ask(std::string_view method, std::string_view target,
                         const std::vector<std::string>& headers, std::string_view body) const {
  Connection connection(port_);
  if (!connection.ok()) return {};
  std::string text = fmt::format("{} {} HTTP/1.1\r\nConnection: close\r\n", method, target);
  const bool own_host = std::any_of(headers.begin(), headers.end(), [](const std::string& line) {
    return line.starts_with("Host:");
  });
  if (!own_host) text += fmt::format("Host: 127.0.0.1:{}\r\n", port_);
  for (const std::string& line : headers) text += line + "\r\n";
  if (!body.empty()) text += fmt::format("Content-Length: {}\r\n", body.size());
  text += "\r\n";
  text += body;
  connection.Send(text);
  return connection.Receive();
}

std::string RunningServer::SignIn(const std::string& code) const {
  const Reply reply = Ask("POST", "/api/session", {}, "{\"code\":\"" + code + "\"}");
  const auto cookie = reply.headers.find("set-cookie");
  if (reply.status != 200 || cookie == reply.headers.end()) return "";
  return "Cookie: " + cookie->second.substr(0, cookie->second.find(';'));
}

Reply RunningServer::Get(std::string_view target) const { return Ask("GET", target, {bearer()}); }

}  // namespace telltale::testing
