// SPDX-License-Identifier: Apache-2.0
// What lies in a folder of SageMaker Debugger's profiler, by the names that it gives its files.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::interchange {

enum class ProfileFileKind : std::uint8_t {
  kSystem,     ///< Samples of the machine.
  kTimeline,   ///< Events of smdebug's own.
  kTransfers,  ///< Horovod's and SageMaker's timelines: communication.
  kPython,     ///< Statistics of cProfile.
  kTrace,      ///< A trace of the framework's own profiler.
  kOther,
};

struct ProfileFile {
  std::filesystem::path path;
  std::string name;  ///< Within the folder.
  ProfileFileKind kind = ProfileFileKind::kOther;
  std::int64_t order = 0;  ///< The time that the file's name has.
  std::string node;        ///< "0-algo-1", "4487_0000".
};

/// By the path within the folder.
ProfileFile ClassifyProfileFile(const std::filesystem::path& path, const std::string& name);

/// All files below `folder`, in the order of their times. kUnusable: it cannot be listed; kLimit:
/// there are more than a million.
Result<std::vector<ProfileFile>> ListProfileFiles(const std::filesystem::path& folder);

/// The rank of each node id: its number where these are 0, 1, 2 …, else its place.
std::map<std::string, std::int32_t> RanksOfNodes(const std::vector<ProfileFile>& files);
/// "algo-1" of "0-algo-1"; empty where there is none.
std::string_view HostOfNode(std::string_view node);

}  // namespace telltale::interchange
