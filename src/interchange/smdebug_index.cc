// SPDX-License-Identifier: Apache-2.0
#include "interchange/smdebug_index.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <tuple>

#include "base/json.h"
#include "base/unique_fd.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kReductions = "smdebug/reductions/";
constexpr std::string_view kSuffix = ".json";
constexpr std::string_view kModePrefix = "ModeKeys.";
constexpr std::array<std::string_view, 4> kModes{"TRAIN", "EVAL", "PREDICT", "GLOBAL"};
/// An index file holds some 200 bytes a tensor.
constexpr std::uint64_t kMaxIndexBytes = 256ULL << 20;
// In the order in which one is chosen, where a tensor is in several.
constexpr std::array<std::string_view, 12> kBuiltIn{
    "weights", "biases", "gradients",   "losses", "metrics",    "inputs",
    "outputs", "layers", "predictions", "labels", "sm_metrics", "optimizer_variables"};

/// Of a file of reasonable size; whoever made the folder may have put a pipe or a device there. An
/// empty text is no JSON.
std::string ReadText(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  if (info.st_size < 0 || static_cast<std::uint64_t>(info.st_size) > kMaxIndexBytes) return {};
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  text.resize(done);
  return text;
}

/// A conversion of what is no whole number would give any.
std::int64_t Whole(const json& number) {
  if (!number.is_number_integer()) throw std::invalid_argument("a number that is not whole");
  return number.get<std::int64_t>();
}

/// Names of the entries of a folder, sorted; none where it cannot be listed.
std::vector<fs::path> EntriesOf(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

/// "000000000010_worker_0.json"; what is still being written ends in .tmp.
std::optional<IndexFile> ParseIndexName(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::size_t bar = name.find('_');
  if (bar == std::string::npos || !name.ends_with(kSuffix)) return std::nullopt;
  IndexFile file{.path = path};
  const auto [end, error] = std::from_chars(name.data(), name.data() + bar, file.step);
  if (error != std::errc() || end != name.data() + bar) return std::nullopt;
  file.worker = name.substr(bar + 1, name.size() - bar - 1 - kSuffix.size());
  if (file.worker.empty()) return std::nullopt;
  return file;
}

/// Lower is chosen first.
std::size_t RankOf(std::string_view collection) {
  if (collection == "all") return kBuiltIn.size() + 2;
  if (collection == "default") return kBuiltIn.size() + 1;
  const auto found = std::find(kBuiltIn.begin(), kBuiltIn.end(), collection);
  return static_cast<std::size_t>(found - kBuiltIn.begin());
}

}  // namespace

Result<std::vector<IndexFile>> ListIndex(const fs::path& folder) {
  std::vector<IndexFile> files;
  for (const fs::path& part : EntriesOf(folder / "index")) {
    for (const fs::path& path : EntriesOf(part)) {
      if (auto file = ParseIndexName(path)) files.push_back(*std::move(file));
    }
  }
  if (files.empty()) {
    return {Code::kUnusable,
            fmt::format("{} holds nothing that SageMaker Debugger saved: it has no index; name the "
                        "folder that was the hook's out_dir",
                        folder.string())};
  }
  std::sort(files.begin(), files.end(), [](const IndexFile& a, const IndexFile& b) {
    return std::tie(a.step, a.worker) < std::tie(b.step, b.worker);
  });
  return files;
}

Result<Index> ReadIndex(const fs::path& path) {
  try {
    std::error_code ignored;
    if (const auto bytes = fs::file_size(path, ignored); !ignored && bytes > kMaxIndexBytes) {
      return {Code::kPartial, fmt::format("{} is larger than {} MiB, the most that is read of an "
                                          "index file",
                                          path.string(), kMaxIndexBytes >> 20)};
    }
    // Throws with the place where it is no JSON.
    const json text = json::parse(ReadText(path));
    Index index;
    const json& meta = text.at("meta");
    index.mode = meta.at("mode").get<std::string>();
    // Some versions wrote the name of Python's enumeration before it.
    if (index.mode.starts_with(kModePrefix)) index.mode.erase(0, kModePrefix.size());
    if (std::find(kModes.begin(), kModes.end(), index.mode) == kModes.end()) {
      return {Code::kPartial, fmt::format("{}: '{}' is no mode of TRAIN, EVAL, PREDICT and GLOBAL",
                                          path.string(), index.mode)};
    }
    index.mode_step = Whole(meta.at("mode_step"));
    if (const auto file = meta.find("event_file_name"); file != meta.end() && file->is_string()) {
      index.event_file = file->get<std::string>();
    }
    // A list that has nothing is null, or is not there.
    if (const auto list = text.find("tensor_payload"); list != text.end() && list->is_array()) {
      for (const json& one : *list) {
        index.tensors.push_back({one.at("tensorname").get<std::string>(),
                                 static_cast<std::uint64_t>(Whole(one.at("start_idx"))),
                                 static_cast<std::uint64_t>(Whole(one.at("length")))});
      }
    }
    if (const auto list = text.find("shape_payload"); list != text.end() && list->is_array()) {
      for (const json& one : *list) {
        IndexedShape& shape = index.shapes.emplace_back();
        shape.name = one.at("originalname").get<std::string>();
        for (const json& size : one.at("shape")) shape.shape.push_back(Whole(size));
      }
    }
    return index;
  } catch (const std::exception& error) {
    return {Code::kPartial, fmt::format("{}: {}", path.string(), JsonTrouble(error))};
  }
}

std::map<std::string, std::string, std::less<>> ReadCollections(const fs::path& folder) {
  std::map<std::string, std::string, std::less<>> of;
  for (const fs::path& part : EntriesOf(folder / "collections")) {
    for (const fs::path& path : EntriesOf(part)) {
      const json text = ParseJson(ReadText(path));
      if (!text.is_object() || !text.contains("collections")) continue;
      for (const auto& [name, collection] : text["collections"].items()) {
        if (!collection.is_object() || !collection.contains("tensor_names")) continue;
        for (const json& tensor : collection["tensor_names"]) {
          if (!tensor.is_string()) continue;
          std::string& chosen = of[tensor.get<std::string>()];
          if (chosen.empty() || RankOf(name) < RankOf(chosen)) chosen = name;
        }
      }
    }
  }
  return of;
}

std::optional<Reduction> ParseReduction(std::string_view tag) {
  if (!tag.starts_with(kReductions)) return std::nullopt;
  tag.remove_prefix(kReductions.size());
  const std::size_t slash = tag.find('/');
  if (slash == std::string_view::npos || slash == 0) return std::nullopt;
  return Reduction{tag.substr(0, slash), tag.substr(slash + 1)};
}

}  // namespace telltale::interchange
