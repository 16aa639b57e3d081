// SPDX-License-Identifier: Apache-2.0
// Stands in for supervisor and agent in the adapters' tests: runs a command as `telltale run`
// would, accepts its probes, drains their real arenas and writes each record as a JSON line.
//
// usage: probe_host OUT.jsonl INTERVAL[:TAKE[:MODES]] PYTHON_DIR CMD [ARGS...]
//   OUT that ends with ".counts": the lines of producers only, so that draining keeps up with a
//   benchmark. The plan: of every tensor, at each INTERVALth step (0: never) of the MODES (bits by
//   tt_mode, default 1: TRAIN), TAKE (TT_TAKE_ bits, default 1: statistics). Names that are no
//   tensors' are answered with no. PYTHON_DIR: folder with boot/ and telltale/.
//   Values of tensors are lines {"table":"values", name, collection, dtype, shape, step, mode,
//   rank, pid, hex}.
//   PROBE_HOST_WINDOWS: a file with the windows of detail, a JSON object; looked at again and
//   again; "being written": they are left as by an agent that died in the midst of it.
//   PROBE_HOST_DETAIL: so many spans of detail a second, or "all"; they are lines of the table
//   "details", with the columns of spans.
//   PROBE_HOST_RUN: the run directory that CMD is told, instead of a folder of no use.
// Exit: CMD's code, 128 + signal, 125 on an error of its own. At the end one line per producer:
//   {"table":"producer", ...counters, "disabled": reason}.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/process.h"
#include "channel/consumer.h"
#include "channel/control_page.h"
#include "channel/registration.h"
#include "channel/slab.h"
#include "format/dtypes.h"
#include "telltale/probe.h"

namespace {

using telltale::StringPool;
using telltale::UniqueFd;
namespace channel = telltale::channel;
namespace format = telltale::format;

constexpr std::size_t kDrainBytes = 4 << 20;
constexpr std::uint64_t kSlabBytes = 64 << 20;

/// What is taken of every tensor.
struct Plan {
  std::uint32_t interval = 0;
  std::uint32_t take = TT_TAKE_STATS;
  std::uint32_t modes = 1;

  /// INTERVAL[:TAKE[:MODES]].
  static Plan Parse(const char* text) {
    Plan plan;
    char* end = nullptr;
    plan.interval = static_cast<std::uint32_t>(std::strtoul(text, &end, 10));
    if (*end == ':') plan.take = static_cast<std::uint32_t>(std::strtoul(end + 1, &end, 10));
    if (*end == ':') plan.modes = static_cast<std::uint32_t>(std::strtoul(end + 1, &end, 10));
    return plan;
  }
  format::ControlRule Rule() const {
    format::ControlRule rule = channel::ControlPage::EveryStep(interval != 0 ? take : 0, interval);
    for (unsigned mode = 0; mode < std::size(rule.when); ++mode) {
      if ((modes >> mode & 1) == 0) rule.when[mode] = {};
    }
    return rule;
  }
};

std::string Hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    out += kDigits[std::to_integer<unsigned>(byte) >> 4];
    out += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return out;
}

struct Peer {
  UniqueFd socket;
  UniqueFd pidfd;
  std::unique_ptr<channel::ControlPage> control;
  std::unique_ptr<channel::Consumer> consumer;
  std::optional<channel::SlabReader> slab;  ///< Of a trainer.
  std::uint32_t answered = 0;               ///< Names 1..answered have their word on the page.
};

void SetField(nlohmann::json* json, std::string_view name, double value) {
  // JSON has no NaN and no infinity.
  if (std::isfinite(value)) {
    (*json)[std::string(name)] = value;
  } else {
    (*json)[std::string(name)] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
}
template <class T>
void SetField(nlohmann::json* json, std::string_view name, const T& value) {
  (*json)[std::string(name)] = value;
}

std::string_view TableName(format::TableId id) {
  for (const auto& table : format::kTables) {
    if (table.id == id) return table.name;
  }
  return "?";
}

class Host {
 public:
  Host(const char* out, const Plan& plan)
      : out_(out, std::ios::trunc),
        counts_only_(std::string_view(out).ends_with(".counts")),
        plan_(plan) {}

  bool Listen(const std::string& path) {
    listener_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return false;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
           listen(listener_.get(), 64) == 0;
  }

  /// One round: waits at most `timeout_ms` for news, then takes what there is.
  void Round(int timeout_ms) {
    std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
    for (const auto& peer : peers_) {
      if (peer->consumer == nullptr && peer->socket) fds.push_back({peer->socket.get(), POLLIN, 0});
    }
    poll(fds.data(), fds.size(), timeout_ms);
    for (;;) {
      UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) break;
      auto peer = std::make_unique<Peer>();
      peer->socket = std::move(socket);
      peers_.push_back(std::move(peer));
    }
    LookForWindows();
    for (const auto& peer : peers_) {
      if (peer->consumer == nullptr && peer->socket) Register(peer.get());
      if (peer->consumer != nullptr) Drain(peer.get());
    }
  }

  /// Whether a registered process lives.
  bool AnyAlive() const {
    for (const auto& peer : peers_) {
      if (peer->pidfd && !telltale::PidfdEnded(peer->pidfd.get())) return true;
    }
    return false;
  }

  void Finish() {
    for (const auto& peer : peers_) {
      if (peer->consumer == nullptr) continue;
      Drain(peer.get());
      const channel::ProducerInfo& info = peer->consumer->info();
      const channel::ProducerCounters counters = peer->consumer->counters();
      out_ << telltale::JsonText(nlohmann::json{{"table", "producer"},
                                                {"pid", info.pid},
                                                {"parent_pid", info.parent_pid},
                                                {"rank", info.rank},
                                                {"kind", info.kind},
                                                {"produced", counters.produced},
                                                {"dropped", counters.dropped},
                                                {"names_folded", counters.names_folded},
                                                {"foreign_thread", counters.foreign_thread},
                                                {"skipped", counters.skipped},
                                                {"spans_thinned", counters.spans_thinned},
                                                {"raw_dropped", counters.raw_dropped},
                                                {"histogram_dropped", counters.histogram_dropped},
                                                {"histograms_waiting", counters.histograms_waiting},
                                                {"unanswered", counters.unanswered},
                                                {"malformed", counters.malformed},
                                                {"disabled", peer->consumer->disabled_reason()}})
           << '\n';
    }
    out_.flush();
  }

 private:
  void LookForWindows() {
    const char* path = std::getenv("PROBE_HOST_WINDOWS");
    if (path == nullptr) return;
    std::ifstream file(path);
    std::string text((std::istreambuf_iterator<char>(file)), {});
    if (text == windows_) return;
    windows_ = std::move(text);
    for (const auto& peer : peers_) {
      if (peer->control == nullptr) continue;
      if (windows_ == "being written") {
        BeginWindows(peer->control->fd());
      } else {
        peer->control->SetWindows(windows_);
      }
    }
  }

  /// What an edit of the windows does first.
  static void BeginWindows(int page) {
    std::uint32_t at = 0;
    std::uint64_t sequence = 0;
    constexpr auto kOffset = offsetof(format::ControlHeader, windows_offset);
    if (pread(page, &at, sizeof at, kOffset) != sizeof at ||
        pread(page, &sequence, sizeof sequence, at) != sizeof sequence) {
      return;
    }
    sequence |= 1;
    if (pwrite(page, &sequence, sizeof sequence, at) != sizeof sequence) {
      std::perror("probe_host: the control page");
    }
  }

  void Register(Peer* peer) {
    alignas(8) char bytes[1024];
    int fds[channel::kMaxMessageFds] = {};
    int fd_count = 0;
    const auto size =
        channel::ReceiveMessage(peer->socket.get(), bytes, sizeof bytes, fds, &fd_count);
    if (size == -EAGAIN) return;
    UniqueFd arena(fd_count > 0 ? fds[0] : -1);
    for (int i = 1; i < fd_count; ++i) close(fds[i]);
    channel::Hello hello;
    if (size <= 0 || !channel::CheckMessage(bytes, static_cast<std::size_t>(size),
                                            channel::MessageType::kHello, &hello)) {
      peer->socket.reset();
      return;
    }
    auto control = channel::ControlPage::Create(hello.name_limit);
    auto consumer = channel::Consumer::Attach(std::move(arena));
    if (!control.ok() || !consumer.ok()) {
      std::fprintf(stderr, "probe_host: cannot attach to pid %d\n", hello.pid);
      peer->socket.reset();
      return;
    }
    peer->control = std::make_unique<channel::ControlPage>(std::move(control).value());
    // Every tensor is taken, so none has to wait for its answer.
    const format::ControlRule rule = plan_.Rule();
    peer->control->SetRules({&rule, 1}, plan_.interval != 0 ? 1 : 0, kSlabBytes);
    peer->control->SetWindows(windows_);
    if (const char* detail = std::getenv("PROBE_HOST_DETAIL")) {
      peer->control->SetDetail(static_cast<std::uint32_t>(std::strtoul(detail, nullptr, 10)),
                               std::strcmp(detail, "all") == 0);
    }
    peer->control->PublishEpoch();
    peer->consumer = std::move(consumer).value();
    peer->pidfd = telltale::OpenPidfd(hello.pid);
    auto accept = channel::MakeMessage<channel::Accept>(channel::MessageType::kAccept);
    accept.abi_major = hello.abi_major;
    accept.abi_minor = hello.abi_minor;
    accept.attempt = 1;
    auto page = peer->control->ReadOnlyFd();
    if (!page.ok()) return;
    UniqueFd slab;
    if (hello.process_kind == TT_PROCESS_TRAINER) {
      auto made = channel::CreateSlab(kSlabBytes);
      if (made.ok()) {
        slab = std::move(made).value();
        auto reader = channel::SlabReader::Attach(UniqueFd(dup(slab.get())));
        if (reader.ok()) peer->slab.emplace(std::move(reader).value());
      }
    }
    const int sent[] = {page.value().get(), slab.get()};
    channel::SendMessage(peer->socket.get(), &accept, sizeof accept, sent, slab ? 2 : 1);
  }

  void Drain(Peer* peer) {
    bool more = true;
    while (more) {
      channel::Drained drained;
      more = peer->consumer->Drain(kDrainBytes, 0, &pool_, &drained);
      format::ForEachTable(drained.rows, [&](const auto& rows) {
        if (counts_only_) return;
        for (const auto& row : rows) Write(row);
      });
      for (const format::SpanRow& row : drained.details) {
        if (!counts_only_) Write(row, "details");
      }
      for (const channel::DrainedTensor& tensor : drained.tensors) WriteValues(peer, tensor);
      peer->consumer->Commit();
      for (; peer->answered < peer->consumer->name_count(); ++peer->answered) {
        const std::string_view name = peer->consumer->name(peer->answered + 1);
        const bool tensor = !name.empty() && name[0] == format::kTensorMark;
        peer->control->SetName(
            peer->answered + 1,
            tensor ? format::kNameYes | 1U << format::kNameMaskShift : format::kNameNo);
      }
      if (drained.records == 0) break;
    }
  }

  template <class Row>
  void Write(const Row& row, std::string_view table = TableName(Row::kTable)) {
    nlohmann::json json{{"table", table}};
    format::ForEachColumn<Row>([&](const format::ColumnDesc& column, auto member) {
      SetField(&json, column.name, row.*member);
    });
    out_ << telltale::JsonText(json) << '\n';
  }

  void WriteValues(Peer* peer, const channel::DrainedTensor& tensor) {
    std::span<const std::byte> values = std::as_bytes(std::span(tensor.values));
    if (tensor.slot && peer->slab) {
      peer->slab->Take(*tensor.slot, tensor.bytes);
      values = peer->slab->Data(*tensor.slot, tensor.bytes);
    }
    if (!counts_only_) {
      const nlohmann::json json{{"table", "values"},
                                {"name", tensor.name},
                                {"collection", tensor.collection},
                                {"dtype", format::kDtypes[tensor.dtype].name},
                                {"shape", tensor.shape},
                                {"step", tensor.step},
                                {"mode", tensor.mode},
                                {"rank", tensor.rank},
                                {"pid", tensor.pid},
                                {"hex", Hex(values)}};
      out_ << telltale::JsonText(json) << '\n';
    }
    if (tensor.slot && peer->slab) peer->slab->Free(*tensor.slot, tensor.bytes);
  }

  UniqueFd listener_;
  std::vector<std::unique_ptr<Peer>> peers_;
  StringPool pool_;
  std::ofstream out_;
  bool counts_only_;
  Plan plan_;
  std::string windows_;
};

pid_t Spawn(const std::string& socket_path, const std::string& python_dir, char** command) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  std::string path = python_dir + "/boot";
  const char* old = std::getenv("PYTHONPATH");
  if (old != nullptr && *old != '\0') path += std::string(":") + old;
  setenv("PYTHONPATH", path.c_str(), 1);
  setenv("TELLTALE_SOCKET", socket_path.c_str(), 1);
  setenv("TELLTALE_PYTHON_DIR", python_dir.c_str(), 1);
  const char* run = std::getenv("PROBE_HOST_RUN");
  const std::string folder = socket_path.substr(0, socket_path.rfind('/'));
  setenv("TELLTALE_RUN", run != nullptr ? run : folder.c_str(), 1);
  setenv("TELLTALE_ATTEMPT", "1", 1);
  execvp(command[0], command);
  std::fprintf(stderr, "probe_host: cannot run %s: %s\n", command[0], std::strerror(errno));
  _exit(127);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr,
                 "usage: probe_host OUT.jsonl INTERVAL[:TAKE[:MODES]] PYTHON_DIR CMD [ARGS...]\n");
    return 2;
  }
  char folder[] = "/tmp/probe_host.XXXXXX";
  if (mkdtemp(folder) == nullptr) return 125;
  const std::string path = std::string(folder) + "/socket";
  Host host(argv[1], Plan::Parse(argv[2]));
  if (!host.Listen(path)) {
    std::fprintf(stderr, "probe_host: cannot listen at %s\n", path.c_str());
    return 125;
  }
  const pid_t pid = Spawn(path, argv[3], argv + 4);
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) host.Round(5);
  // Workers may outlive the command for a moment.
  for (int i = 0; i < 2000 && host.AnyAlive(); ++i) host.Round(5);
  host.Round(0);
  host.Finish();
  unlink(path.c_str());
  rmdir(folder);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
