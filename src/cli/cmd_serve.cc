// SPDX-License-Identifier: Apache-2.0
// telltale serve PATH...: the live page of the runs below some folders. `telltale run` starts it
// with
// --link-fd for its own run.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/run_files.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/rule_flags.h"
#include "cli/run_or_trace.h"
#include "cli/window_request.h"
#include "server/addresses.h"
#include "server/http_server.h"
#include "store/run_info.h"

namespace telltale::cli {
namespace {

struct Args {
  std::vector<std::string> paths;
  std::string bind = "127.0.0.1";
  std::uint16_t port = 0;
  std::vector<std::string> allow_hosts;
  bool print_token = false;
  bool print_metrics_token = false;
  bool read_only = false;
  bool allow_control = false;
  bool plain_http = false;
  std::string tls_cert, tls_key;
  int link_fd = -1;
  int parent = 0;
};

constexpr int kBesideTraining = 10;  ///< Niceness.

/// A stream is a descriptor each.
void RaiseFileLimit() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

/// Whether the address and what is allowed there go together.
Status CheckReach(const Args& args, bool beyond) {
  if (args.read_only && args.allow_control) {
    return {Code::kUsage, "--read-only and --allow-control: choose one"};
  }
  if (args.tls_cert.empty() != args.tls_key.empty()) {
    return {Code::kUsage, "--tls-cert and --tls-key belong together: give both"};
  }
  if (!args.tls_cert.empty() && args.plain_http) {
    return {Code::kUsage, "--plain-http and --tls-cert: choose one"};
  }
  if (beyond && args.tls_cert.empty() && !args.plain_http) {
    return {
        Code::kUsage,
        fmt::format("--bind {}: others than this machine can reach it, and there is no TLS: who "
                    "is on the way could read the page and sign in as you: give --tls-cert and "
                    "--tls-key, or leave --bind out and use `ssh -L`, or say --plain-http",
                    args.bind)};
  }
  return {};
}

/// What whoever starts it has to know, before all else.
void SayReach(const Args& args) {
  Say("telltale serve: WITHOUT TLS, beyond this machine (--plain-http): who is on the way can read "
      "the page and sign in as you; {}\n",
      args.allow_control
          ? "who signs in can ask trainings for windows of detail (--allow-control)"
          : "it only reads (--allow-control lets the page ask trainings for windows)");
}

int Serve(Args args) {
  // What is no address is refused where it is used.
  const bool beyond = server::ReachesBeyond(args.bind).value_or(false);
  if (const Status reach = CheckReach(args, beyond); !reach.ok()) return Fail("serve", reach);
  RunsOrTraces traces;
  for (std::string& path : args.paths) {
    if (const Status opened = traces.Open("serve", &path); !opened.ok()) {
      return Fail("serve", opened);
    }
  }
  std::string note;
  auto auth = server::Auth::Open(&note);
  if (!auth.ok()) return Fail("serve", auth.status());
  const std::string token = auth->token();
  const std::string metrics_token = auth->metrics_token();
  if ((args.print_token || args.print_metrics_token) && args.paths.empty()) {
    // A token that dies with this process would open nothing.
    if (!note.empty()) return Fail("serve", Status(Code::kAuth, note));
    if (args.print_token) Print("{}\n", token);
    if (args.print_metrics_token) Print("{}\n", metrics_token);
    return 0;
  }
  if (args.paths.empty()) {
    return Fail("serve", Status(Code::kUsage,
                                "no PATH: name a run or a folder that holds runs: "
                                "telltale serve telltale-runs"));
  }
  const bool beside = args.link_fd >= 0;
  for (const std::string& path : args.paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      return Fail("serve",
                  Status(Code::kUnusable, fmt::format("{}: no such folder: give a run or a "
                                                      "folder that holds runs",
                                                      path)));
    }
    // One in a folder is listed as unreadable beside the others.
    if (beside || !run_files::Exists({path, "run.json"})) continue;
    if (const auto info = store::ReadRunInfo(path); !info.ok()) return Fail("serve", info.status());
  }
  if (beside) {
    // It must never outlive its supervisor, nor take from the training what that needs.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    // One that died before is not told of by a signal.
    if (args.parent != 0 && ::getppid() != args.parent) return 0;
    ::setpriority(PRIO_PROCESS, 0, kBesideTraining);
  }
  RaiseFileLimit();
  ::signal(SIGPIPE, SIG_IGN);
  server::ServerOptions options;
  options.bind = args.bind;
  options.port = args.port;
  options.allow_hosts = args.allow_hosts;
  options.tls_certificate = args.tls_cert;
  options.tls_key = args.tls_key;
  options.paths.assign(args.paths.begin(), args.paths.end());
  options.handle_signals = true;
  if (beyond ? args.allow_control : !args.read_only) {
    options.ask_window = [](const std::filesystem::path& run, const std::string& body) {
      return AskForWindow(run.string(), body);
    };
  }
  auto server = server::Server::Open(options, std::move(auth).value());
  if (!server.ok() && beside && args.port != 0) {
    // The port of the server before: somebody else has it now.
    auto again = server::Auth::Open(&note);
    if (!again.ok()) return Fail("serve", again.status());
    options.port = 0;
    server = server::Server::Open(options, std::move(again).value());
  }
  if (!server.ok()) return Fail("serve", server.status());
  const auto link = (*server)->NewLink();
  if (!link.ok()) return Fail("serve", link.status());
  if (beyond && args.plain_http) SayReach(args);
  if (!note.empty()) Say("telltale: {}\n", note);
  if (beside) {
    // Whether others can learn the token from its file.
    const std::string line = fmt::format("{} {}\n", *link, note.empty() ? "kept" : "unkept");
    [[maybe_unused]] const ssize_t n = ::write(args.link_fd, line.data(), line.size());
    ::close(args.link_fd);
  } else {
    Print("{}\n", *link);
    if (args.print_token) Print("{}\n", token);
    if (args.print_metrics_token) Print("{}\n", metrics_token);
    // Main says so: who would open the page, was not told where it is.
    if (const int error = OutputError(); error != 0 && error != EPIPE) return 0;
  }
  (*server)->Run();
  return 0;
}

}  // namespace

void RegisterServe(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(
      app, "serve", "Serve the live page of the runs below some folders",
      "  telltale serve telltale-runs\n"
      "  telltale serve --bind 0.0.0.0 --port 8443 --allow-host lab1.example.org \\\n"
      "    --tls-cert lab1.pem --tls-key lab1.key runs\n"
      "  curl -H \"Authorization: Bearer $(telltale serve --print-token)\" "
      "http://127.0.0.1:8080/api/runs\n"
      "The first line on stdout is a link. It opens one browser, within 10 minutes; later "
      "sign in with what --print-token prints.",
      {0, 3, 6, 8});
  auto args = std::make_shared<Args>();
  AddOption(command, "PATH", args->paths, "Runs, folders that hold runs, or traces");
  AddOption(
      command, "--bind", args->bind,
      "Address to listen at; beyond this machine it only reads, and wants TLS or --plain-http")
      .Default("127.0.0.1");
  AddOption(command, "--port", args->port, "Port (default: one that is free)");
  AddOption(command, "--allow-host", args->allow_hosts,
            "A further name under which browsers may reach the server")
      .OneEach();
  AddFlag(command, "--print-token", args->print_token,
          "Print the token for programs and to sign in with; without PATH, print it and "
          "end");
  AddFlag(command, "--print-metrics-token", args->print_metrics_token,
          "Print the token that reads /metrics alone, for Prometheus; without PATH, print "
          "it and end");
  AddFlag(command, "--read-only", args->read_only,
          "Ask nothing of trainings: the page's button for a window of detail is refused");
  AddFlag(command, "--allow-control", args->allow_control,
          "Let the page ask trainings for windows of detail also beyond this machine");
  AddOption(command, "--tls-cert", args->tls_cert,
            "Speak TLS, with this certificate in PEM and its chain");
  AddOption(command, "--tls-key", args->tls_key, "Its key in PEM");
  AddFlag(
      command, "--plain-http", args->plain_http,
      "Serve beyond this machine without TLS: who is on the way can read it and sign in as you");
  AddPythonRulesFlag(command);
  AddOption(command, "--link-fd", args->link_fd, "Write the link to this descriptor").Hidden();
  AddOption(command, "--parent", args->parent, "Process to end with").Hidden();
  OnRun(command, context, [args] { return Serve(*args); });
}

}  // namespace telltale::cli
