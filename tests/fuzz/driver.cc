// SPDX-License-Identifier: Apache-2.0
// Goes through a target's corpus and, by the same dice each time, through damaged copies of it:
// fuzz_replay TARGET CORPUS MUTATIONS, or fuzz_replay TARGET FILE for one input.
//
// What ends the process, or lasts longer than a minute, is written to the working folder as
// crash-TARGET: mended, it belongs into the corpus. Memory has a bound of 512 MiB.
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz.h"

extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace telltale::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kLongestSeconds = 60;
constexpr long kMostResidentKib = 512L << 10;
constexpr std::size_t kMostBytes = 256 << 10;

// What the handlers need; they may call little.
std::array<char, 128> g_crash_file{};
const char* g_input = nullptr;
std::size_t g_input_bytes = 0;

void KeepInput() {
  const int fd = ::open(g_crash_file.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(fd, g_input, g_input_bytes);
  ::close(fd);
  constexpr std::string_view kSaid = "the input is in the working folder, crash-TARGET\n";
  [[maybe_unused]] const ssize_t said = ::write(2, kSaid.data(), kSaid.size());
}

void OnSignal(int number) {
  KeepInput();
  ::signal(number == SIGALRM ? SIGABRT : number, SIG_DFL);
  ::raise(number == SIGALRM ? SIGABRT : number);
}

void Watch(std::string_view target) {
  const std::string file = fmt::format("crash-{}", target);
  std::copy_n(file.begin(), std::min(file.size(), g_crash_file.size() - 1), g_crash_file.begin());
  // A stack that overflows has no room for the handler.
  static std::array<char, 64 << 10> stack;
  const stack_t other{.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  ::sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_ONSTACK;
  std::vector<int> signals = {SIGABRT, SIGALRM};
  if (__sanitizer_set_death_callback == nullptr) {
    signals.insert(signals.end(), {SIGSEGV, SIGBUS, SIGFPE, SIGILL});
  } else {
    __sanitizer_set_death_callback(KeepInput);
  }
  for (const int number : signals) ::sigaction(number, &action, nullptr);
}

void RunOne(const Target& target, const std::string& input) {
  // Of its own size, so that a sanitizer sees a read beyond it.
  const std::vector<std::uint8_t> exact(input.begin(), input.end());
  g_input = input.data();
  g_input_bytes = input.size();
  ::alarm(kLongestSeconds);
  target.run(exact.data(), exact.size());
  ::alarm(0);
}

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& corpus) : corpus_(corpus) {}

  std::string Next() {
    std::string bytes = Any();
    for (std::size_t left = 1 + Below(4); left > 0; --left) Change(&bytes);
    if (bytes.size() > kMostBytes) bytes.resize(kMostBytes);
    return bytes;
  }

 private:
  /// Not the library's distributions: their numbers differ between libraries.
  std::size_t Below(std::size_t most) { return most == 0 ? 0 : dice_() % most; }
  const std::string& Any() { return corpus_[Below(corpus_.size())]; }

  void Change(std::string* bytes) {
    static constexpr std::uint64_t kNumbers[] = {0,
                                                 1,
                                                 0x7f,
                                                 0x80,
                                                 0xff,
                                                 0x7fff,
                                                 0xffff,
                                                 0x7fffffff,
                                                 0x80000000,
                                                 0xffffffff,
                                                 1ULL << 40,
                                                 1ULL << 62,
                                                 INT64_MAX,
                                                 1ULL << 63,
                                                 UINT64_MAX,
                                                 0x7ff0000000000000,
                                                 0xfff8000000000000,
                                                 0x7fefffffffffffff};
    static constexpr std::string_view kWords[] = {"\"",
                                                  "\\",
                                                  "{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  ",",
                                                  ":",
                                                  "\n",
                                                  "NaN",
                                                  "1e999",
                                                  "-1",
                                                  "-Infinity",
                                                  "99999999999999999999",
                                                  "\xff",
                                                  "\xc3",
                                                  "\\u00",
                                                  "null",
                                                  "'",
                                                  "=",
                                                  "(((((((((((((((((((((((",
                                                  "%",
                                                  "..",
                                                  "/",
                                                  "0x",
                                                  "1e300",
                                                  "-9223372036854775808",
                                                  "[[[[[[[[[[[[[[[["};
    const std::size_t size = bytes->size();
    const std::size_t at = Below(size + 1);
    const std::size_t length = Below(std::min<std::size_t>(size - at, 64) + 1);
    switch (Below(8)) {
      case 0:
        bytes->resize(at);
        break;
      case 1:
        if (at < size) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << Below(8)));
        break;
      case 2:
        if (at < size) (*bytes)[at] = static_cast<char>(Below(256));
        break;
      case 3:
        bytes->erase(at, length);
        break;
      case 4:
        bytes->insert(at, bytes->substr(Below(size + 1), length));
        break;
      case 5: {
        const std::uint64_t number = kNumbers[Below(std::size(kNumbers))];
        const std::size_t width = std::min<std::size_t>(std::size_t{1} << Below(4), size - at);
        std::memcpy(bytes->data() + at, &number, width);
        break;
      }
      case 6:
        bytes->insert(at, kWords[Below(std::size(kWords))]);
        break;
      default: {
        const std::string& other = Any();
        *bytes = bytes->substr(0, at) + other.substr(Below(other.size() + 1));
      }
    }
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 dice_{20261122};
};

std::vector<std::string> ReadCorpus(const fs::path& path) {
  std::vector<fs::path> files;
  if (fs::is_directory(path)) {
    files.assign(fs::directory_iterator(path), {});
    std::sort(files.begin(), files.end());
  } else if (fs::exists(path)) {
    files.push_back(path);
  }
  std::vector<std::string> corpus;
  corpus.reserve(files.size());
  for (const fs::path& file : files) corpus.push_back(ReadAll(file));
  return corpus;
}

int Main(int argc, char** argv) {
  const std::string_view name = argc < 3 ? "" : argv[1];
  const auto target = std::ranges::find(Targets(), name, &Target::name);
  std::size_t mutations = 0;
  if (argc > 3) std::from_chars(argv[3], argv[3] + std::strlen(argv[3]), mutations);
  if (target == Targets().end()) {
    fmt::print(stderr, "usage: fuzz_replay TARGET CORPUS|FILE [MUTATIONS]\ntargets:");
    for (const Target& one : Targets()) fmt::print(stderr, " {}", one.name);
    fmt::print(stderr, "\n");
    return 2;
  }
  const std::vector<std::string> corpus = ReadCorpus(argv[2]);
  if (corpus.empty()) {
    fmt::print(stderr, "{}: no input in {}\n", name, argv[2]);
    return 1;
  }
  Watch(name);
  RunOne(*target, "");
  for (const std::string& input : corpus) RunOne(*target, input);
  Mutator mutator(corpus);
  for (std::size_t i = 0; i < mutations; ++i) RunOne(*target, mutator.Next());
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  fmt::print("{}: {} inputs, {} damaged copies, {} MiB\n", name, corpus.size(), mutations,
             usage.ru_maxrss >> 10);
  // Sanitizers' shadow is not the target's.
  if (__sanitizer_set_death_callback == nullptr && usage.ru_maxrss > kMostResidentKib) {
    fmt::print(stderr, "{}: more than {} MiB\n", name, kMostResidentKib >> 10);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace telltale::fuzz

int main(int argc, char** argv) { return telltale::fuzz::Main(argc, argv); }
