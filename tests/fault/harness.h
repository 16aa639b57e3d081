// SPDX-License-Identifier: Apache-2.0
// Runs the real `telltale run` around the test's trainer, finds its processes, reads its store.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/string_pool.h"
#include "format/records.gen.h"
#include "oracle.h"
#include "store/reader.h"

namespace telltale::fault {

/// A generous limit for things that must happen; no test's verdict depends on how fast they do.
inline constexpr std::chrono::seconds kPatience(300);

/// Waits until `condition` holds; false after the patience is over.
bool Await(const std::function<bool()>& condition, std::chrono::milliseconds limit = kPatience);

/// A folder of its own for each test, removed with it.
class Scratch {
 public:
  explicit Scratch(std::string_view name);
  ~Scratch();
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// A variable of the environment, as long as this lives; one of the caller's goes on before it.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value);
  ~ScopedVariable();
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// What is started as long as this lives finds this library before all others.
class Preload {
 public:
  explicit Preload(const std::string& library) : library_("LD_PRELOAD", library) {}

 private:
  const ScopedVariable library_;
  const ScopedVariable order_{"ASAN_OPTIONS", "verify_asan_link_order=0"};
};

/// The text of a file, empty where there is none.
std::string TextOf(const std::filesystem::path& path);

/// A variable of the environment that a process was started with.
std::string VariableOf(pid_t pid, const std::string& name);

/// A run under test; what is left of it is killed with it.
struct Started {
  Started() = default;
  Started(Started&& other) noexcept
      : pid(std::exchange(other.pid, -1)), err_path(std::move(other.err_path)) {}
  Started& operator=(Started&& other) noexcept {
    std::swap(pid, other.pid);
    std::swap(err_path, other.err_path);
    return *this;
  }
  ~Started();

  pid_t pid = -1;        ///< Also its process group, with the training in it.
  std::string err_path;  ///< Its stderr.
  /// Waits for its end; -1000 when it does not come. Exit code, or -signal.
  int Wait();
  std::string Err() const;
};

/// Starts `telltale run -o RUN OPTIONS -- COMMAND` in a process group of its own; `prepare` is
/// called in the process that becomes it.
Started StartRun(const std::filesystem::path& run, const std::vector<std::string>& options,
                 const std::vector<std::string>& command, const std::filesystem::path& err,
                 void (*prepare)() = nullptr);

/// Whether the kernel tells how a process ended whose parent had ended before (Linux 6.15, and
/// somebody who reaps it), tried on one.
bool EndOfAnOrphanIsTold();

/// Paths of the test's trainer, of the crowd around one, of the product.
std::string TrainerPath();
std::string CrowdPath();
std::string TelltalePath();

/// Pid of the helper of that kind ("agent" or "watch") of this run, 0 where there is none.
pid_t FindHelper(std::string_view kind, const std::filesystem::path& run);

struct Recorded {
  StringPool pool;
  format::Rows rows;
  store::Salvage salvage;
  std::string state;
  std::optional<int> exit_code;
  std::optional<int> signal;
};
/// Reads everything in the run.
void ReadRun(const std::filesystem::path& run, Recorded* out);

/// Checks that each committed step and mark is there once and none twice; returns what is wrong, or
/// nothing. `attempt` as in the rows.
std::string CheckOnce(const Recorded& recorded, std::uint64_t committed, std::uint32_t attempt = 1);
/// The same of the steps alone.
std::string CheckStepsOnce(const Recorded& recorded, std::uint64_t committed,
                           std::uint32_t attempt = 1);

/// Events of that kind.
std::size_t CountEvents(const Recorded& recorded, std::string_view kind);

}  // namespace telltale::fault
