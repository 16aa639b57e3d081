// SPDX-License-Identifier: Apache-2.0
#include "interchange/smdebug_profile/profile_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/utf8.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxFiles = 1'000'000;
constexpr int kMaxFolderDepth = 16;

/// The digits that `text` begins with; -1 where there are none.
std::int64_t LeadingNumber(std::string_view text) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && number >= 0 ? number : -1;
}

bool EndsWithAny(std::string_view text, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](std::string_view end) { return text.ends_with(end); });
}

/// Its number and its host, by which node ids are sorted.
std::pair<std::string, std::int64_t> NodeKey(const std::string& node) {
  return {std::string(HostOfNode(node)), LeadingNumber(node)};
}

}  // namespace

std::string_view HostOfNode(std::string_view node) {
  const std::size_t dash = node.find('-');
  return dash == std::string_view::npos ? std::string_view() : node.substr(dash + 1);
}

ProfileFile ClassifyProfileFile(const fs::path& path, const std::string& name) {
  ProfileFile out;
  out.path = path;
  std::string scratch;
  out.name = std::string(ToValidUtf8(name, &scratch));
  const std::string file = path.filename().string();
  out.order = std::max<std::int64_t>(0, LeadingNumber(file));
  const bool transfers =
      EndsWithAny(file, {"_horovod_timeline.json", "_smdataparallel_timeline.json"});
  if (transfers || EndsWithAny(file, {"_pythontimeline.json", "_model_timeline.json"})) {
    out.kind = transfers ? ProfileFileKind::kTransfers : ProfileFileKind::kTimeline;
    // <end>_<node>_<suffix>.json, where the node may have an underscore itself.
    std::string_view rest = file;
    rest.remove_suffix(std::string_view(".json").size());
    for (const std::string_view suffix :
         {"_pythontimeline", "_model_timeline", "_horovod_timeline", "_smdataparallel_timeline"}) {
      if (rest.ends_with(suffix)) rest.remove_suffix(suffix.size());
    }
    const std::size_t first = rest.find('_');
    out.node = first == std::string_view::npos ? "" : std::string(rest.substr(first + 1));
  } else if (file == "python_stats") {
    out.kind = ProfileFileKind::kPython;
    out.node = path.parent_path().parent_path().filename().string();
  } else if (EndsWithAny(file, {".trace.json.gz", ".trace.json", ".xplane.pb"})) {
    out.kind = ProfileFileKind::kTrace;
  } else if (out.order > 0 && file.find(".algo-") != std::string::npos && file.ends_with(".json")) {
    out.kind = ProfileFileKind::kSystem;
  }
  return out;
}

Result<std::vector<ProfileFile>> ListProfileFiles(const fs::path& folder) {
  std::vector<ProfileFile> out;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    std::error_code ignored;
    if (at.depth() >= kMaxFolderDepth) at.disable_recursion_pending();
    if (at->is_symlink(ignored) || !at->is_regular_file(ignored)) continue;
    if (out.size() >= kMaxFiles) {
      return {Code::kLimit, fmt::format("{} has more than {} files: name a part of it",
                                        folder.string(), kMaxFiles)};
    }
    out.push_back(ClassifyProfileFile(at->path(), at->path().lexically_relative(folder).string()));
  }
  if (error) {
    return {Code::kUnusable, fmt::format("cannot list {}: {}", folder.string(), error.message())};
  }
  std::sort(out.begin(), out.end(), [](const ProfileFile& a, const ProfileFile& b) {
    return std::tie(a.order, a.name) < std::tie(b.order, b.name);
  });
  return out;
}

std::map<std::string, std::int32_t> RanksOfNodes(const std::vector<ProfileFile>& files) {
  std::set<std::string> nodes;
  for (const ProfileFile& file : files) {
    const bool timed =
        file.kind == ProfileFileKind::kTimeline || file.kind == ProfileFileKind::kTransfers;
    if (timed || file.kind == ProfileFileKind::kPython) nodes.insert(file.node);
  }
  std::vector<std::string> sorted(nodes.begin(), nodes.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const std::string& a, const std::string& b) {
    return NodeKey(a) < NodeKey(b);
  });
  // Each number below that of the nodes, and once: they are ranks.
  std::set<std::int64_t> numbers;
  for (const std::string& node : sorted) numbers.insert(LeadingNumber(node));
  const bool ranks =
      numbers.size() == sorted.size() && !numbers.contains(-1) &&
      (numbers.empty() || *numbers.rbegin() < static_cast<std::int64_t>(sorted.size()));
  std::map<std::string, std::int32_t> out;
  std::int32_t next = 0;
  for (const std::string& node : sorted) {
    out[node] = ranks ? static_cast<std::int32_t>(LeadingNumber(node)) : next++;
  }
  return out;
}

}  // namespace telltale::interchange
