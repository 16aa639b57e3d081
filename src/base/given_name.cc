// SPDX-License-Identifier: Apache-2.0
#include "base/given_name.h"

#include <map>
#include <mutex>
#include <utility>

namespace telltale {
namespace {

struct Names {
  std::mutex mutex;
  std::map<std::string, std::string> of;  ///< By path.
};

Names& All() {
  static Names names;
  return names;
}

}  // namespace

GivenName::GivenName(std::string path, std::string name) : path_(std::move(path)) {
  Names& names = All();
  const std::scoped_lock lock(names.mutex);
  names.of[path_] = std::move(name);
}

GivenName::~GivenName() {
  Names& names = All();
  const std::scoped_lock lock(names.mutex);
  names.of.erase(path_);
}

std::string AsGiven(const std::string& path) {
  Names& names = All();
  const std::scoped_lock lock(names.mutex);
  const auto found = names.of.find(path);
  return found == names.of.end() ? path : found->second;
}

std::string TextAsGiven(std::string_view text) {
  std::string out(text);
  Names& names = All();
  const std::scoped_lock lock(names.mutex);
  for (const auto& [path, name] : names.of) {
    for (std::size_t at = out.find(path); at != std::string::npos;
         at = out.find(path, at + name.size())) {
      out.replace(at, path.size(), name);
    }
  }
  return out;
}

}  // namespace telltale
