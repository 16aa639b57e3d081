// SPDX-License-Identifier: Apache-2.0
// Files for targets that read files.
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <system_error>

#include "fuzz.h"

namespace telltale::fuzz {
namespace {

namespace fs = std::filesystem;

struct ScratchFolder {
  ScratchFolder() {
    for (const fs::path& parent : {fs::path("/dev/shm"), fs::temp_directory_path()}) {
      std::string name = (parent / "telltale-fuzz-XXXXXX").string();
      if (::mkdtemp(name.data()) == nullptr) continue;
      path = name;
      return;
    }
    std::abort();
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  fs::path path;
};

}  // namespace

const fs::path& ScratchRoot() {
  static const ScratchFolder folder;
  return folder.path;
}

fs::path WriteInput(std::string_view bytes, const std::string& name) {
  const fs::path path = ScratchRoot() / name;
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  Require(file.good());
  return path;
}

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace telltale::fuzz
