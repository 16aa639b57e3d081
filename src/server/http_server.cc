// SPDX-License-Identifier: Apache-2.0
// The only unit that includes Boost, which takes long to compile.
#include "server/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <csignal>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "server/addresses.h"
#include "server/assets.h"
#include "server/metrics_board.h"
#include "server/request.h"
#include "server/run_cache.h"
#include "server/strangers.h"
#include "server/tls.h"

namespace telltale::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
/// A connection as HTTP is spoken on it: the peer's, or of TLS the inner end of it.
using Line = beast::basic_stream<asio::generic::stream_protocol>;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clk = std::chrono::steady_clock;
using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;

constexpr std::uint32_t kMaxHeaderBytes = 16 << 10;
constexpr std::uint64_t kMaxBodyBytes = 16 << 10;
constexpr seconds kIdle(75);  ///< A connection without a request, of who has signed in.
constexpr std::size_t kFirstBytes = 4096;
constexpr std::size_t kTlsBytes = 16 << 10;  ///< A record of TLS.
constexpr seconds kWriteLimit(30);           ///< A reader that takes nothing.
constexpr seconds kFirstLook(20);            ///< For a run to be opened.
constexpr seconds kScrape(8);  ///< For metrics: a scraper gives up after 10, by default.
constexpr seconds kTick(1);
constexpr seconds kHeartbeat(15);
constexpr milliseconds kLastWords(700);
constexpr std::int64_t kFreshListingNs = 500'000'000;
constexpr std::int64_t kRetrySeconds = 2;  ///< For a client that is refused a run for now.
/// A first listing is given though runs are still being read after this long.
constexpr seconds kWholeListing(2);
/// With the port: a browser gives the cookies of one host to all of its ports.
constexpr std::string_view kCookie = "telltale_session_";

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

std::string ErrorBody(std::string_view message) {
  return JsonText(nlohmann::json({{"error", message}}));
}

/// What a page of ours may do: load from here, and nothing else from nowhere.
constexpr std::string_view kPolicy =
    "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "object-src 'none'";

/// A report brings its style along, and nothing else.
constexpr std::string_view kReportPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'";

/// For Prometheus: /metrics.
bool IsMetrics(const Target& target) {
  return target.path.size() == 1 && target.path[0] == "metrics";
}

/// Who asks for it has to be signed in, but for IsSession.
bool IsPrivate(const Target& target) {
  return IsMetrics(target) || (!target.path.empty() && target.path[0] == "api");
}

/// Where one signs in: /api/session.
bool IsSession(const Target& target) {
  return target.path.size() == 2 && target.path[0] == "api" && target.path[1] == "session";
}

/// The run whose page this is; none of other addresses.
std::optional<std::string> PageOfRun(const Target& target) {
  if (target.path.size() != 2 || target.path[0] != "r") return std::nullopt;
  return target.path[1];
}

/// One series, or several at once as {"answers": [...]}: of each what it alone would be answered,
/// or {"error": "why not"}. Between two of them others have their turn.
asio::awaitable<Result<std::string>> SeriesOf(std::shared_ptr<LiveRun> run, const Target& target) {
  const auto many = ParseManySeries(target);
  if (!many.ok()) co_return many.status();
  if (many->empty()) {
    const auto query = ParseSeries(target);
    co_return query.ok() ? run->Series(*query) : Result<std::string>(query.status());
  }
  std::string out = "{\"answers\":[";
  for (const SeriesQuery& query : *many) {
    if (out.back() != '[') {
      out += ',';
      co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
    }
    const Result<std::string> one = run->Series(query);
    out += one.ok() ? *one : ErrorBody(one.status().message());
  }
  co_return out + "]}";
}

/// Whether a header is there twice of which two parts of a program might each take another one.
bool SaysTwice(const Request& request) {
  const auto times = [&](auto name) { return request.count(name); };
  return times(http::field::host) > 1 || times(http::field::origin) > 1 ||
         times(http::field::authorization) > 1 || times("Sec-Fetch-Site") > 1;
}

/// The peer's as text. Of IPv6 what one customer has: a /64.
std::string AddressOf(const tcp::socket& socket) {
  boost::system::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return {};
  const asio::ip::address address = endpoint.address();
  if (!address.is_v6() || address.is_loopback()) return address.to_string();
  auto bytes = address.to_v6().to_bytes();
  if (address.to_v6().is_v4_mapped()) return address.to_string();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return asio::ip::address_v6(bytes).to_string();
}

/// A connection with TLS: what comes through it is plain at the inner socket, and the other way.
struct TlsLine {
  TlsLine(tcp::socket socket, std::shared_ptr<const TlsCertificate> certificate,
          asio::io_context& io)
      : outer(std::move(socket)), inner(io), limit(io), session(std::move(certificate), [this] {
          return outer.is_open() ? outer.native_handle() : -1;
        }) {}
  void Close() {
    boost::system::error_code ignored;
    outer.close(ignored);
  }

  tcp::socket outer;
  asio::local::stream_protocol::socket inner;
  asio::steady_timer limit;
  TlsSession session;
};

/// Closes the line after this long, whatever it waits for.
void CloseAfter(const std::shared_ptr<TlsLine>& line, Clk::duration limit) {
  line->limit.expires_after(limit);
  line->limit.async_wait([weak = std::weak_ptr(line)](const boost::system::error_code& error) {
    if (const auto late = weak.lock(); late && !error) late->Close();
  });
}

class ServerImpl final : public Server {
 public:
  ServerImpl(ServerOptions options, Auth auth)
      : options_(std::move(options)),
        auth_(std::move(auth)),
        hosts_(AddressesOf(options_.bind), options_.allow_hosts),
        acceptor_(io_),
        signals_(io_) {}
  ~ServerImpl() override {
    asks_.join();    // What it does posts to what is above.
    cache_.reset();  // Its thread posts to what is below.
    board_.reset();  // So does this one's.
  }

  Status Listen();
  std::uint16_t port() const override { return port_; }
  Result<std::string> NewLink() override;
  void Run() override;
  void Stop() override {
    asio::post(io_, [this] { Wind(); });
  }

 private:
  using Task = asio::awaitable<void>;

  /// Does `task` on the server's thread; a connection that fails harms no other.
  void Spawn(Task task) {
    asio::co_spawn(io_, std::move(task), [](const std::exception_ptr&) {});
  }

  /// A connection among the strangers, until it has signed in or ends.
  class Guest {
   public:
    /// `close` lets fail what the connection waits for, so that it ends by itself.
    Guest(ServerImpl* server, const std::string& address, std::function<void()> close)
        : server_(server) {
      const auto entered = server->strangers_.Enter(address);
      id_ = entered.id;
      server->guests_[id_] = std::move(close);
      if (!entered.leaves) return;
      const auto leaves = server->guests_.find(*entered.leaves);
      if (leaves != server->guests_.end()) leaves->second();
    }
    ~Guest() { Leave(); }
    Guest(const Guest&) = delete;
    Guest& operator=(const Guest&) = delete;
    void Asked(bool asked) { server_->strangers_.SetAsked(id_, asked); }
    void SignedIn() {
      signed_in_ = true;
      Leave();
    }
    bool signed_in() const { return signed_in_; }

   private:
    void Leave() {
      server_->strangers_.Leave(id_);
      server_->guests_.erase(id_);
    }

    ServerImpl* server_;
    Strangers::Id id_ = 0;
    bool signed_in_ = false;
  };

  Task Accept();
  Task Serve(tcp::socket socket);
  Task ServeTls(tcp::socket socket);
  static Task Decrypt(std::shared_ptr<TlsLine> line);
  static Task Encrypt(std::shared_ptr<TlsLine> line);
  Task Talk(Line* stream, Guest* guest);
  /// The next request, whole, within its time.
  asio::awaitable<boost::system::error_code> Read(Line* stream, beast::flat_buffer* buffer,
                                                  http::request_parser<http::string_body>* parser,
                                                  const Guest& guest);
  /// Waits where there were too many wrong guesses.
  asio::awaitable<Response> Answered(const Request& request, Guest* guest,
                                     std::shared_ptr<LiveRun>* followed);
  Task Stream(Line* stream, std::shared_ptr<LiveRun> run);
  asio::awaitable<Response> Answer(const Request& request, const Target& target);
  asio::awaitable<RunCache::Found> FindRun(std::string id);
  asio::awaitable<Response> Runs(const Request& request);
  asio::awaitable<Response> AskWindow(const Request& request, const std::string& id);
  asio::awaitable<Response> Metrics(const Request& request);
  asio::awaitable<Response> Report(const Request& request, std::shared_ptr<LiveRun> run);

  /// Waits until `ready` or the limit; woken by whatever the loader makes known.
  template <class Ready>
  asio::awaitable<bool> Await(Ready ready, Clk::duration limit) {
    const auto deadline = Clk::now() + limit;
    while (!ready()) {
      if (Clk::now() >= deadline || winding_) co_return false;
      co_await Sleep(deadline);
    }
    co_return true;
  }
  /// Until then, or until something was made known.
  Task Sleep(Clk::time_point until) {
    asio::steady_timer timer(io_, until);
    const auto at = waiting_.insert(&timer).first;
    boost::system::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    waiting_.erase(at);
  }
  void Wake() {
    for (asio::steady_timer* timer : waiting_) timer->cancel();
  }
  void Wind();

  /// None where the sender may do what it asks.
  std::optional<Response> Refusal(const Request& request, const Target& target) const;
  bool Guessed(const Request& request, const Target& target) const;
  static std::string_view Bearer(const Request& request);
  bool Authorized(const Request& request) const;
  Response OpenSession(const Request& request);
  Response Full(const Request& request) const;
  std::string CookieName() const { return fmt::format("{}{}", kCookie, port_); }
  Response File(const Request& request, const Target& target) const;
  Response Make(const Request& request, http::status status, std::string_view type,
                std::string body) const;
  Response Error(const Request& request, http::status status, std::string_view message) const {
    return Make(request, status, "application/json", ErrorBody(message));
  }

  const ServerOptions options_;
  std::shared_ptr<const TlsCertificate> tls_;  ///< Null: without TLS.
  Auth auth_;
  const HostList hosts_;
  // Before io_: the connections that end with it leave these.
  Strangers strangers_;
  std::map<Strangers::Id, std::function<void()>> guests_;  ///< Those that are still there.
  Guesses guesses_;
  asio::io_context io_{1};
  asio::thread_pool asks_{1};
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  std::uint16_t port_ = 0;
  std::set<asio::steady_timer*> waiting_;
  std::size_t streams_ = 0;
  bool winding_ = false;
  std::unique_ptr<RunCache> cache_;
  std::unique_ptr<MetricsBoard> board_;
};

Status ServerImpl::Listen() {
  if (!options_.tls_certificate.empty()) {
    TELLTALE_ASSIGN_OR_RETURN(tls_,
                              TlsCertificate::Load(options_.tls_certificate, options_.tls_key));
  }
  boost::system::error_code error;
  const auto fail = [&](std::string_view what) {
    const bool taken = error == asio::error::address_in_use;
    return Status(taken ? Code::kRunning : Code::kIo,
                  fmt::format("cannot {} {} port {}: {}{}", what, options_.bind, options_.port,
                              error.message(), taken ? ": choose another with --port" : ""));
  };
  const auto address = asio::ip::make_address(options_.bind, error);
  if (error) {
    return {Code::kUsage, fmt::format("--bind {}: is no address: write for example --bind "
                                      "127.0.0.1 or --bind ::1",
                                      options_.bind)};
  }
  const tcp::endpoint endpoint(address, options_.port);
  acceptor_.open(endpoint.protocol(), error);
  if (error) return fail("open a socket for");
  acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  acceptor_.bind(endpoint, error);
  if (error) return fail("listen at");
  acceptor_.listen(4096, error);
  if (error) return fail("listen at");
  port_ = acceptor_.local_endpoint(error).port();
  std::string self = fmt::format("{}\n{}\n", options_.bind, port_);
  for (const std::filesystem::path& path : options_.paths) {
    std::error_code unknown;
    const auto whole = std::filesystem::weakly_canonical(path, unknown);
    self += (unknown ? path : whole).string() + "\n";
  }
  auth_.BindTo(self);
  return {};
}

Result<std::string> ServerImpl::NewLink() {
  TELLTALE_ASSIGN_OR_RETURN(const std::string code, auth_.NewCode());
  // Another machine's browser has to find it too.
  std::string host = "127.0.0.1";
  if (!options_.allow_hosts.empty() && ReachesBeyond(options_.bind).value_or(true)) {
    host = options_.allow_hosts.front();
  } else if (const auto addresses = AddressesOf(options_.bind); !addresses.empty()) {
    host = addresses.front();
  }
  return fmt::format("{}://{}:{}/#code={}", tls_ ? "https" : "http", HostName(host), port_, code);
}

void ServerImpl::Run() {
  cache_ = std::make_unique<RunCache>(options_.paths, options_.max_loaded_runs,
                                      [this] { asio::post(io_, [this] { Wake(); }); });
  board_ = std::make_unique<MetricsBoard>(options_.paths,
                                          [this] { asio::post(io_, [this] { Wake(); }); });
  if (options_.handle_signals) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      boost::system::error_code ignored;
      signals_.add(signal, ignored);
    }
    signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (!error) Wind();
    });
  }
  Spawn(Accept());
  io_.run();
}

/// Streams get what the run ended with, within kLastWords; then everything ends.
void ServerImpl::Wind() {
  if (std::exchange(winding_, true)) return;
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  if (streams_ == 0) {
    io_.stop();
    return;
  }
  cache_->Flush();
  Spawn([](ServerImpl* self) -> Task {
    const auto deadline = Clk::now() + kLastWords;
    while (self->streams_ > 0 && Clk::now() < deadline) co_await self->Sleep(deadline);
    self->io_.stop();
  }(this));
}

asio::awaitable<void> ServerImpl::Accept() {
  while (acceptor_.is_open()) {
    boost::system::error_code error;
    tcp::socket socket =
        co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted || winding_) co_return;
    if (error) {
      // No descriptors left, most likely: those that are open will end.
      asio::steady_timer pause(io_, milliseconds(50));
      boost::system::error_code ignored;
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      continue;
    }
    boost::system::error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    Spawn(tls_ ? ServeTls(std::move(socket)) : Serve(std::move(socket)));
  }
}

asio::awaitable<boost::system::error_code> ServerImpl::Read(
    Line* stream, beast::flat_buffer* buffer, http::request_parser<http::string_body>* parser,
    const Guest& guest) {
  boost::system::error_code error;
  if (buffer->size() == 0) {
    stream->expires_after(guest.signed_in() ? kIdle : options_.stranger_patience);
    const std::size_t n = co_await stream->async_read_some(
        buffer->prepare(kFirstBytes), asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::eof) co_return http::error::end_of_stream;
    if (error) co_return error;
    buffer->commit(n);
  }
  stream->expires_after(options_.request_patience);
  co_await http::async_read(*stream, *buffer, *parser,
                            asio::redirect_error(asio::use_awaitable, error));
  co_return error;
}

asio::awaitable<void> ServerImpl::Serve(tcp::socket socket) {
  const std::string address = AddressOf(socket);
  Line stream{asio::generic::stream_protocol::socket(std::move(socket))};
  Guest guest(this, address, [&] { stream.close(); });
  co_await Talk(&stream, &guest);
}

/// The line has the peer's socket, and two coroutines between that and the inner one, on whose
/// other end HTTP is spoken. Each of the three may end first.
asio::awaitable<void> ServerImpl::ServeTls(tcp::socket socket) {
  const std::string address = AddressOf(socket);
  const auto line = std::make_shared<TlsLine>(std::move(socket), tls_, io_);
  Guest guest(this, address, [&] { line->Close(); });
  CloseAfter(line, options_.stranger_patience);
  boost::system::error_code error;
  while (true) {
    const TlsSession::Did did = line->session.Handshake();
    if (did.is == TlsSession::Is::kDone) break;
    if (did.is == TlsSession::Is::kEnded) co_return;
    co_await line->outer.async_wait(
        did.is == TlsSession::Is::kMustWrite ? tcp::socket::wait_write : tcp::socket::wait_read,
        asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
  }
  line->limit.cancel();
  asio::local::stream_protocol::socket plain(io_);
  asio::local::connect_pair(line->inner, plain, error);
  if (error) co_return;
  Spawn(Decrypt(line));
  Spawn(Encrypt(line));
  {
    Line stream{asio::generic::stream_protocol::socket(std::move(plain))};
    co_await Talk(&stream, &guest);
  }
  // What was said last may still be on its way.
  CloseAfter(line, kWriteLimit);
}

asio::awaitable<void> ServerImpl::Decrypt(std::shared_ptr<TlsLine> line) {
  std::vector<char> bytes(kTlsBytes);
  boost::system::error_code error;
  while (!error) {
    const TlsSession::Did did = line->session.Receive(bytes.data(), bytes.size());
    if (did.is == TlsSession::Is::kEnded) break;
    if (did.is == TlsSession::Is::kDone) {
      co_await asio::async_write(line->inner, asio::buffer(bytes.data(), did.bytes),
                                 asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    co_await line->outer.async_wait(
        did.is == TlsSession::Is::kMustWrite ? tcp::socket::wait_write : tcp::socket::wait_read,
        asio::redirect_error(asio::use_awaitable, error));
  }
  boost::system::error_code ignored;
  line->inner.shutdown(asio::socket_base::shutdown_send, ignored);
}

asio::awaitable<void> ServerImpl::Encrypt(std::shared_ptr<TlsLine> line) {
  std::vector<char> bytes(kTlsBytes);
  boost::system::error_code error;
  while (!error) {
    const std::size_t size = co_await line->inner.async_read_some(
        asio::buffer(bytes), asio::redirect_error(asio::use_awaitable, error));
    for (std::size_t sent = 0; !error && sent < size;) {
      const TlsSession::Did did = line->session.Send(bytes.data() + sent, size - sent);
      if (did.is == TlsSession::Is::kEnded) error = asio::error::connection_reset;
      sent += did.bytes;
      if (error || did.is == TlsSession::Is::kDone) continue;
      co_await line->outer.async_wait(
          did.is == TlsSession::Is::kMustWrite ? tcp::socket::wait_write : tcp::socket::wait_read,
          asio::redirect_error(asio::use_awaitable, error));
    }
  }
  line->session.Bye();
  // Whoever reads on finds the end.
  boost::system::error_code ignored;
  line->outer.shutdown(tcp::socket::shutdown_send, ignored);
  line->Close();
}

asio::awaitable<void> ServerImpl::Talk(Line* stream, Guest* guest) {
  beast::flat_buffer buffer(kMaxHeaderBytes + kMaxBodyBytes);
  while (!winding_) {
    http::request_parser<http::string_body> parser;
    parser.header_limit(kMaxHeaderBytes);
    parser.body_limit(kMaxBodyBytes);
    guest->Asked(false);
    boost::system::error_code error = co_await Read(stream, &buffer, &parser, *guest);
    if (error == http::error::end_of_stream || error == beast::error::timeout) break;
    guest->Asked(true);
    Response response;
    std::shared_ptr<LiveRun> followed;
    if (error) {
      if (error.category() != http::make_error_code(http::error::bad_method).category()) break;
      const bool large = error == http::error::header_limit || error == http::error::body_limit ||
                         error == http::error::buffer_overflow;
      Request none;
      none.keep_alive(false);
      response = Error(none, large ? http::status::payload_too_large : http::status::bad_request,
                       large ? "the request is too large" : "this is no HTTP request");
    } else {
      const Request request = parser.release();
      response = co_await Answered(request, guest, &followed);
      if (request.method() == http::verb::head) {
        response.content_length(response.body().size());
        response.body().clear();
      }
    }
    if (followed) {
      co_await Stream(stream, std::move(followed));
      break;
    }
    stream->expires_after(kWriteLimit);
    const bool keep = response.keep_alive();
    co_await http::async_write(*stream, response, asio::redirect_error(asio::use_awaitable, error));
    if (error || !keep) break;
  }
  boost::system::error_code ignored;
  stream->socket().shutdown(asio::socket_base::shutdown_send, ignored);
}

/// The answer, or the run that the sender wants to follow.
asio::awaitable<Response> ServerImpl::Answered(const Request& request, Guest* guest,
                                               std::shared_ptr<LiveRun>* followed) {
  const auto target = ParseTarget(View(request.target()));
  if (!target) {
    co_return Error(request, http::status::bad_request, "the address cannot be read");
  }
  if (SaysTwice(request)) {
    co_return Error(request, http::status::bad_request,
                    "a header is there twice of which one may be: Host, Origin, Sec-Fetch-Site or "
                    "Authorization");
  }
  std::optional<Response> refusal = Refusal(request, *target);
  if (!refusal) {
    const std::vector<std::string>& path = target->path;
    if (!IsSession(*target) && (IsPrivate(*target) || Authorized(request))) guest->SignedIn();
    const bool stream_asked = request.method() == http::verb::get && path.size() == 4 &&
                              path[0] == "api" && path[1] == "runs" && path[3] == "stream";
    if (!stream_asked) {
      Response response = co_await Answer(request, *target);
      if (response.result() != http::status::unauthorized) {
        if (IsSession(*target) && response.result() == http::status::ok) guest->SignedIn();
        co_return response;
      }
      refusal = std::move(response);
    } else {
      RunCache::Found found = co_await FindRun(path[2]);
      if (found.full) co_return Full(request);
      *followed = std::move(found.run);
      if (*followed) co_return Response();
      co_return co_await Answer(request, *target);
    }
  }
  // Who shows nothing guesses nothing.
  if (refusal->result() != http::status::unauthorized || !Guessed(request, *target)) {
    co_return std::move(*refusal);
  }
  if (!guesses_.Wrong(Clock::System().MonotonicNs())) co_return std::move(*refusal);
  const auto until = Clk::now() + std::chrono::nanoseconds(Guesses::kDelayNs);
  while (Clk::now() < until && !winding_) co_await Sleep(until);
  Response response = Error(request, http::status::too_many_requests,
                            "too many wrong tokens or codes have come: this one is wrong too");
  response.set(http::field::retry_after, std::to_string(Guesses::kDelayNs / 1'000'000'000));
  response.keep_alive(false);
  co_return response;
}

asio::awaitable<void> ServerImpl::Stream(Line* stream, std::shared_ptr<LiveRun> run) {
  struct Count {
    Count(std::size_t* n, LiveRun* of) : count(n), run(of) {
      ++*count;
      run->Hold();
    }
    ~Count() {
      --*count;
      run->Release();
    }
    std::size_t* count;
    LiveRun* run;
  } const counted(&streams_, run.get());
  std::string head = fmt::format(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
      "Connection: close\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
      "Content-Security-Policy: {}\r\n\r\nretry: 1000\n\n",
      kPolicy);
  std::uint64_t version = 0;
  auto tick = Clk::now();
  auto heartbeat = tick + kHeartbeat;
  boost::system::error_code error;
  while (!error && !run->retired()) {
    run->Want(Clock::System().MonotonicNs());
    // Held while it is written: all streams of a run share the bytes.
    const std::shared_ptr<const Snapshot> snapshot = run->snapshot();
    std::string_view body;
    if (snapshot && snapshot->version != version && !snapshot->overview.empty()) {
      version = snapshot->version;
      head += "event: overview\ndata: ";
      body = snapshot->overview;
    }
    std::string tail = body.empty() ? "" : "\n\n";
    const auto now = Clk::now();
    if (now >= tick && snapshot) {
      tick = now + kTick;
      tail += fmt::format("event: tick\ndata: {{\"now_ns\":{},\"watermark_ns\":{}}}\n\n",
                          run->now_ns(), run->watermark_ns());
    }
    if (now >= heartbeat) {
      heartbeat = now + kHeartbeat;
      tail += ": still here\n\n";
    }
    if (!head.empty() || !tail.empty()) {
      const std::array<asio::const_buffer, 3> parts = {
          asio::buffer(head), asio::buffer(body.data(), body.size()), asio::buffer(tail)};
      stream->expires_after(kWriteLimit);
      co_await asio::async_write(*stream, parts, asio::redirect_error(asio::use_awaitable, error));
      head.clear();
      continue;
    }
    co_await Sleep(std::min(std::max(tick, now + kTick / 10), heartbeat));
  }
}

asio::awaitable<RunCache::Found> ServerImpl::FindRun(std::string id) {
  RunCache::Found found = cache_->Want(id);
  if (!found.run && !found.full) {
    // It may have begun since the folders were looked through.
    const std::int64_t asked = Clock::System().MonotonicNs();
    cache_->Refresh();
    co_await Await(
        [&] {
          found = cache_->Want(id);
          const auto listing = cache_->listing();
          return found.run != nullptr || found.full || (listing && listing->made_ns >= asked);
        },
        kFirstLook);
  }
  co_return found;
}

asio::awaitable<Response> ServerImpl::Runs(const Request& request) {
  const std::int64_t asked = Clock::System().MonotonicNs();
  const auto fresh = [&] {
    const auto listing = cache_->listing();
    return listing && listing->made_ns >= asked - kFreshListingNs;
  };
  if (!fresh()) cache_->Refresh();
  cache_->WantListing();
  // Steps and findings of each run, where they are known soon; else the listing says of how many
  // they are not.
  co_await Await([&] { return fresh() && cache_->listing()->unread == 0; }, kWholeListing);
  if (!fresh()) co_await Await(fresh, kFirstLook);
  const auto listing = cache_->listing();
  if (!listing) {
    co_return Error(request, http::status::service_unavailable,
                    "the folders are still being looked through: ask again");
  }
  co_return Make(request, http::status::ok, "application/json", listing->json);
}

asio::awaitable<Response> ServerImpl::Metrics(const Request& request) {
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    Response response =
        Error(request, http::status::method_not_allowed, "the server only reads: use GET");
    response.set(http::field::allow, "GET, HEAD");
    co_return response;
  }
  const telemetry::TextFormat format = telemetry::FormatOf(View(request[http::field::accept]));
  const std::uint64_t asked = board_->Ask();
  std::shared_ptr<const std::string> text;
  co_await Await([&] { return (text = board_->Answer(asked, format)) != nullptr; }, kScrape);
  if (!text) {
    co_return Error(request, http::status::service_unavailable,
                    "the runs are still being read: ask again");
  }
  co_return Make(request, http::status::ok, telemetry::ContentType(format), *text);
}

asio::awaitable<Response> ServerImpl::Answer(const Request& request, const Target& target) {
  const std::vector<std::string>& path = target.path;
  if (IsMetrics(target)) co_return co_await Metrics(request);
  if (path.empty() || path[0] != "api") {
    // Its script asks for the run soon: it is opened meanwhile.
    const auto run = PageOfRun(target);
    if (run && (Authorized(request) || auth_.CodeOpen())) cache_->Prepare(*run);
    co_return File(request, target);
  }
  if (IsSession(target)) co_return OpenSession(request);
  const bool asks = path.size() == 4 && path[1] == "runs" && path[3] == "window";
  if (asks) co_return co_await AskWindow(request, path[2]);
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    Response response =
        Error(request, http::status::method_not_allowed, "the server only reads: use GET");
    response.set(http::field::allow, "GET, HEAD");
    co_return response;
  }
  if (path.size() == 2 && path[1] == "runs") co_return co_await Runs(request);
  if (path.size() != 4 || path[1] != "runs") {
    co_return Error(request, http::status::not_found, "no such address: /api/runs lists the runs");
  }
  const RunCache::Found found = co_await FindRun(path[2]);
  if (found.full) co_return Full(request);
  const std::shared_ptr<LiveRun>& run = found.run;
  if (!run) {
    co_return Error(request, http::status::not_found,
                    "no run with this id below the served folders: /api/runs lists them");
  }
  std::shared_ptr<const Snapshot> snapshot;
  co_await Await([&] { return (snapshot = run->snapshot()) != nullptr; }, kFirstLook);
  if (!snapshot) {
    co_return Error(request, http::status::service_unavailable,
                    "the run is still being opened: ask again");
  }
  if (snapshot->overview.empty()) {
    co_return Error(request, http::status::internal_server_error, snapshot->error);
  }
  if (path[3] == "overview") {
    co_return Make(request, http::status::ok, "application/json", snapshot->overview);
  }
  if (path[3] == "report") {
    co_return co_await Report(request, run);
  }
  Result<std::string> body(Code::kUnusable, "no such address");
  std::string_view type = "application/json";
  if (path[3] == "series") {
    body = co_await SeriesOf(run, target);
  } else if (path[3] == "heatmap") {
    const auto query = ParseHeatmap(target);
    body = query.ok() ? run->Heatmap(*query) : Result<std::string>(query.status());
    if (query.ok() && query->as_bytes) type = "application/octet-stream";
  }
  if (!body.ok()) {
    co_return Error(
        request,
        body.status().code() == Code::kUsage ? http::status::bad_request : http::status::not_found,
        body.status().message());
  }
  co_return Make(request, http::status::ok, type, std::move(body).value());
}

asio::awaitable<Response> ServerImpl::AskWindow(const Request& request, const std::string& id) {
  if (request.method() != http::verb::post || !options_.ask_window) {
    const bool reads = !options_.ask_window;
    Response response =
        Error(request, http::status::method_not_allowed,
              reads ? "this server only reads: it was started with --read-only, or listens beyond "
                      "this machine without --allow-control"
                    : "ask for a window by POST: {\"steps\": 5, \"detail\": \"ops,kernels\"}");
    response.set(http::field::allow, reads ? "" : "POST");
    co_return response;
  }
  const RunCache::Found found = co_await FindRun(id);
  if (found.full) co_return Full(request);
  if (!found.run) {
    co_return Error(request, http::status::not_found,
                    "no run with this id below the served folders: /api/runs lists them");
  }
  // A file is written and synced: not in the thread of all connections.
  const std::filesystem::path folder = found.run->path();
  const std::string asked = request.body();
  using Answer = std::optional<Result<std::string>>;  // Asio wants a default.
  const auto ask = [this, folder, asked]() -> asio::awaitable<Answer> {
    co_return options_.ask_window(folder, asked);
  };
  const Result<std::string> answer =
      *co_await asio::co_spawn(asks_.get_executor(), ask, asio::use_awaitable);
  if (answer.ok()) co_return Make(request, http::status::accepted, "application/json", *answer);
  const auto status = [&] {
    switch (answer.status().code()) {
      case Code::kUsage:
        return http::status::bad_request;
      case Code::kUnusable:
        return http::status::conflict;
      default:
        return http::status::internal_server_error;
    }
  }();
  co_return Error(request, status, answer.status().message());
}

asio::awaitable<Response> ServerImpl::Report(const Request& request, std::shared_ptr<LiveRun> run) {
  const std::uint64_t asked = run->AskReport();
  cache_->Nudge();
  Result<std::shared_ptr<const std::string>> made{std::shared_ptr<const std::string>()};
  co_await Await(
      [&] {
        made = run->Report(asked);
        // Of a run that cannot be read any more none is made.
        return !made.ok() || *made || run->retired() || run->snapshot()->overview.empty();
      },
      kFirstLook);
  if (!made.ok()) {
    co_return Error(request,
                    made.status().code() == Code::kLimit ? http::status::service_unavailable
                                                         : http::status::internal_server_error,
                    made.status().message());
  }
  const std::shared_ptr<const std::string> html = *made;
  if (!html) {
    const std::shared_ptr<const Snapshot> snapshot = run->snapshot();
    if (!snapshot->error.empty()) {
      co_return Error(request, http::status::internal_server_error, snapshot->error);
    }
    co_return Error(request, http::status::service_unavailable,
                    "the report is still being made: ask again");
  }
  Response response = Make(request, http::status::ok, "text/html; charset=utf-8", *html);
  response.set("Content-Security-Policy",
               beast::string_view(kReportPolicy.data(), kReportPolicy.size()));
  co_return response;
}

/// Whether the request shows a token, a code or a session.
bool ServerImpl::Guessed(const Request& request, const Target& target) const {
  if (IsSession(target) || !Bearer(request).empty()) return true;
  const std::string name = CookieName();
  const auto [begin, end] = request.equal_range(http::field::cookie);
  return std::any_of(begin, end, [&](const auto& field) {
    return !CookieValue(View(field.value()), name).empty();
  });
}

std::optional<Response> ServerImpl::Refusal(const Request& request, const Target& target) const {
  const std::string_view host = View(request[http::field::host]);
  if (!hosts_.Allows(host)) {
    return Error(request, http::status::forbidden,
                 fmt::format("the host '{}' is not allowed: start the server with --allow-host {}",
                             HostName(host), HostName(host).empty() ? "NAME" : HostName(host)));
  }
  const http::verb verb = request.method();
  const bool reads = verb == http::verb::get || verb == http::verb::head;
  if (!reads &&
      CrossOrigin(View(request[http::field::origin]), View(request["Sec-Fetch-Site"]), host)) {
    return Error(request, http::status::forbidden,
                 "the request comes from another page: only the server's own page may send it");
  }
  const bool metrics = IsMetrics(target);
  if (!IsPrivate(target)) {
    if (reads) return std::nullopt;
    Response response = Error(request, http::status::method_not_allowed, "only GET is served here");
    response.set(http::field::allow, "GET, HEAD");
    return response;
  }
  if (IsSession(target) || Authorized(request)) return std::nullopt;
  if (metrics && auth_.MetricsTokenOk(Bearer(request))) return std::nullopt;
  Response response =
      Error(request, http::status::unauthorized,
            metrics ? "not signed in: send the token of `telltale serve --print-metrics-token` as "
                      "Authorization: Bearer"
                    : "not signed in: open the link that the server printed, or send the "
                      "token of `telltale serve --print-token` as Authorization: Bearer");
  response.set(http::field::www_authenticate, "Bearer");
  return response;
}

/// What follows "Bearer " in its Authorization; empty where there is none.
std::string_view ServerImpl::Bearer(const Request& request) {
  std::string_view bearer = View(request[http::field::authorization]);
  constexpr std::string_view kScheme = "bearer ";
  if (bearer.size() <= kScheme.size() ||
      !beast::iequals(beast::string_view(bearer.data(), kScheme.size()),
                      beast::string_view(kScheme.data(), kScheme.size()))) {
    return {};
  }
  bearer.remove_prefix(kScheme.size());
  return bearer;
}

bool ServerImpl::Authorized(const Request& request) const {
  if (const std::string_view bearer = Bearer(request); !bearer.empty()) {
    return auth_.TokenOk(bearer);
  }
  // A browser may send several; each header is looked at.
  const std::string name = CookieName();
  const auto [begin, end] = request.equal_range(http::field::cookie);
  return std::any_of(begin, end, [&](const auto& field) {
    return auth_.SessionOk(CookieValue(View(field.value()), name));
  });
}

Response ServerImpl::OpenSession(const Request& request) {
  if (request.method() != http::verb::post) {
    Response response =
        Error(request, http::status::method_not_allowed, "send the code of the link by POST");
    response.set(http::field::allow, "POST");
    return response;
  }
  const std::string code = SessionCode(request.body());
  const Auth::CodeIs is = auth_.TokenOk(code) ? Auth::CodeIs::kGood : auth_.TakeCode(code);
  if (is != Auth::CodeIs::kGood) {
    return Error(
        request, http::status::unauthorized,
        fmt::format("{}: sign in with what `telltale serve --print-token` prints, or with "
                    "a new link: start `telltale serve` again",
                    is == Auth::CodeIs::kExpired
                        ? fmt::format("this link has expired, {} minutes after it was made",
                                      Auth::kCodeNs / 60'000'000'000)
                        : "this link was used before or is not of this server: each "
                          "opens one browser"));
  }
  Response response = Make(request, http::status::ok, "application/json", "{\"ok\":true}");
  response.set(http::field::set_cookie,
               fmt::format("{}={}; Path=/; HttpOnly; SameSite=Strict{}", CookieName(),
                           auth_.session(), tls_ ? "; Secure" : ""));
  return response;
}

Response ServerImpl::Full(const Request& request) const {
  Response response =
      Error(request, http::status::service_unavailable,
            fmt::format("{} runs are being looked at, and no more fit into memory: ask again in {} "
                        "seconds, or close the page of another run",
                        options_.max_loaded_runs, kRetrySeconds));
  response.set(http::field::retry_after, std::to_string(kRetrySeconds));
  return response;
}

Response ServerImpl::File(const Request& request, const Target& target) const {
  const std::vector<std::string>& path = target.path;
  // Addresses of the page: it looks at them itself.
  const bool page = path.empty() || (path.size() == 1 && path[0].empty()) || path[0] == "runs" ||
                    path[0] == "r" || path[0] == "compare";
  const std::string_view name = page ? "index.html" : std::string_view(path[0]);
  const auto assets = Assets();
  const auto found =
      std::find_if(assets.begin(), assets.end(), [&](const Asset& a) { return a.name == name; });
  if (found == assets.end() || (!page && path.size() != 1)) {
    return Error(request, http::status::not_found,
                 assets.empty() && page
                     ? "this telltale was built without the page: `make build` builds it; the "
                       "API under /api/ is served"
                     : "no such file");
  }
  const bool known = View(request[http::field::if_none_match]) == found->etag;
  Response response = Make(request, known ? http::status::not_modified : http::status::ok,
                           found->type, known ? std::string() : std::string(found->bytes));
  response.set(http::field::etag, beast::string_view(found->etag.data(), found->etag.size()));
  response.set(http::field::cache_control, "no-cache");
  return response;
}

Response ServerImpl::Make(const Request& request, http::status status, std::string_view type,
                          std::string body) const {
  Response response(status, request.version() == 0 ? 11 : request.version());
  const auto set = [&](http::field field, std::string_view value) {
    response.set(field, beast::string_view(value.data(), value.size()));
  };
  set(http::field::server, "telltale");
  set(http::field::content_type, type);
  set(http::field::cache_control, "no-store");
  response.set("Content-Security-Policy", beast::string_view(kPolicy.data(), kPolicy.size()));
  response.set("X-Content-Type-Options", "nosniff");
  response.set("Referrer-Policy", "no-referrer");
  response.set("X-Frame-Options", "DENY");
  response.set("Cross-Origin-Resource-Policy", "same-origin");
  response.keep_alive(request.keep_alive());
  response.body() = std::move(body);
  response.prepare_payload();
  return response;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::Open(ServerOptions options, Auth auth) {
  try {
    auto server = std::make_unique<ServerImpl>(std::move(options), std::move(auth));
    TELLTALE_RETURN_IF_ERROR(server->Listen());
    return std::unique_ptr<Server>(std::move(server));
  } catch (const std::exception& error) {
    return Status(Code::kIo, fmt::format("cannot start the server: {}", error.what()));
  }
}

}  // namespace telltale::server
