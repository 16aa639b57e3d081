// SPDX-License-Identifier: Apache-2.0
// What fuzz targets are made of. With TELLTALE_LIBFUZZER a target's file makes a program of
// libFuzzer's; without it enters itself in the table that driver.cc goes through.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace telltale::fuzz {

struct Target {
  std::string_view name;
  int (*run)(const std::uint8_t* data, std::size_t size) = nullptr;
};

inline std::vector<Target>& Targets() {
  static std::vector<Target> targets;
  return targets;
}

inline bool Enter(const Target& target) {
  Targets().push_back(target);
  return true;
}

/// What must hold whatever the bytes are.
inline void Require(bool holds) {
  if (!holds) std::abort();
}

/// A folder of this process, gone at its end; in memory where the machine has such a place.
const std::filesystem::path& ScratchRoot();
/// Makes ScratchRoot()/name (and its folders) of these bytes.
std::filesystem::path WriteInput(std::string_view bytes, const std::string& name);
/// Empty where there is no such file.
std::string ReadAll(const std::filesystem::path& path);

}  // namespace telltale::fuzz

/// TELLTALE_FUZZ_TARGET(name) { ...reads `bytes`... }
#ifdef TELLTALE_LIBFUZZER
#define TELLTALE_FUZZ_TARGET(name)                                                    \
  static void Fuzz_##name(std::string_view bytes);                                    \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { \
    Fuzz_##name({reinterpret_cast<const char*>(data), size});                         \
    return 0;                                                                         \
  }                                                                                   \
  static void Fuzz_##name(std::string_view bytes)
#else
#define TELLTALE_FUZZ_TARGET(name)                                        \
  static void Fuzz_##name(std::string_view bytes);                        \
  static int FuzzOne_##name(const std::uint8_t* data, std::size_t size) { \
    Fuzz_##name({reinterpret_cast<const char*>(data), size});             \
    return 0;                                                             \
  }                                                                       \
  [[maybe_unused]] static const bool kFuzz_##name =                       \
      ::telltale::fuzz::Enter({#name, FuzzOne_##name});                   \
  static void Fuzz_##name(std::string_view bytes)
#endif
