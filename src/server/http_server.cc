// SPDX-License-Identifier: Apache-2.0
// The only unit that includes Boost, which takes long to compile.
#include "server/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
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
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "server/assets.h"
#include "server/metrics_board.h"
#include "server/request.h"
#include "server/run_cache.h"

namespace telltale::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clk = std::chrono::steady_clock;
using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;

constexpr std::uint32_t kMaxHeaderBytes = 16 << 10;
constexpr std::uint64_t kMaxBodyBytes = 16 << 10;
constexpr seconds kIdle(75);        ///< A connection without a request.
constexpr seconds kWriteLimit(30);  ///< A reader that takes nothing.
constexpr seconds kFirstLook(20);   ///< For a run to be opened.
constexpr seconds kScrape(8);       ///< For metrics: a scraper gives up after 10, by default.
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

class ServerImpl final : public Server {
 public:
  ServerImpl(ServerOptions options, Auth auth)
      : options_(std::move(options)),
        auth_(std::move(auth)),
        hosts_(options_.bind, options_.allow_hosts),
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

  Task Accept();
  Task Serve(tcp::socket socket);
  Task Stream(beast::tcp_stream* stream, std::shared_ptr<LiveRun> run);
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
  Auth auth_;
  const HostList hosts_;
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
  std::string host = options_.bind;
  if (host == "0.0.0.0" || host == "::") {
    host = options_.allow_hosts.empty() ? "127.0.0.1" : options_.allow_hosts.front();
  }
  return fmt::format("http://{}:{}/#code={}", HostName(host), port_, code);
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
    Spawn(Serve(std::move(socket)));
  }
}

asio::awaitable<void> ServerImpl::Serve(tcp::socket socket) {
  beast::tcp_stream stream(std::move(socket));
  beast::flat_buffer buffer(kMaxHeaderBytes + kMaxBodyBytes);
  while (!winding_) {
    http::request_parser<http::string_body> parser;
    parser.header_limit(kMaxHeaderBytes);
    parser.body_limit(kMaxBodyBytes);
    boost::system::error_code error;
    stream.expires_after(kIdle);
    co_await http::async_read(stream, buffer, parser,
                              asio::redirect_error(asio::use_awaitable, error));
    if (error == http::error::end_of_stream || error == beast::error::timeout) break;
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
      const auto target = ParseTarget(View(request.target()));
      if (!target) {
        response = Error(request, http::status::bad_request, "the address cannot be read");
      } else if (auto refusal = Refusal(request, *target)) {
        response = std::move(*refusal);
      } else {
        const bool stream_asked = request.method() == http::verb::get && target->path.size() == 4 &&
                                  target->path[0] == "api" && target->path[1] == "runs" &&
                                  target->path[3] == "stream";
        RunCache::Found found;
        if (stream_asked) found = co_await FindRun(target->path[2]);
        followed = std::move(found.run);
        if (found.full) {
          response = Full(request);
        } else if (!followed) {
          response = co_await Answer(request, *target);
        }
      }
      if (request.method() == http::verb::head) {
        response.content_length(response.body().size());
        response.body().clear();
      }
    }
    if (followed) {
      co_await Stream(&stream, std::move(followed));
      break;
    }
    stream.expires_after(kWriteLimit);
    const bool keep = response.keep_alive();
    co_await http::async_write(stream, response, asio::redirect_error(asio::use_awaitable, error));
    if (error || !keep) break;
  }
  boost::system::error_code ignored;
  stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
}

asio::awaitable<void> ServerImpl::Stream(beast::tcp_stream* stream, std::shared_ptr<LiveRun> run) {
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
  if (path.size() == 2 && path[1] == "session") co_return OpenSession(request);
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
              reads ? "this server only reads: it was started with --read-only"
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
  const bool api = metrics || (!target.path.empty() && target.path[0] == "api");
  const bool session = target.path.size() == 2 && target.path[1] == "session";
  if (!api) {
    if (reads) return std::nullopt;
    Response response = Error(request, http::status::method_not_allowed, "only GET is served here");
    response.set(http::field::allow, "GET, HEAD");
    return response;
  }
  if (session || Authorized(request)) return std::nullopt;
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
  const auto body = ParseJson(request.body());
  std::string code;
  if (body.is_object() && body.contains("code") && body["code"].is_string()) {
    code = body["code"].get<std::string>();
  }
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
  response.set(http::field::set_cookie, fmt::format("{}={}; Path=/; HttpOnly; SameSite=Strict",
                                                    CookieName(), auth_.session()));
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
