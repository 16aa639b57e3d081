// SPDX-License-Identifier: Apache-2.0
#include "collect/mounts.h"

#include <utility>

#include "collect/text.h"

namespace telltale::collect {

std::string UnescapedMount(std::string_view text) {
  const auto digit = [&](std::size_t i) { return text[i] >= '0' && text[i] <= '7'; };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      out +=
          static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + text[i + 3] - '0');
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::vector<MountEntry> ParseMountinfo(std::string_view text) {
  std::vector<MountEntry> mounts;
  std::string_view line;
  while (NextLine(&text, &line)) {
    MountEntry mount;
    NextField(&line);  // Two ids.
    NextField(&line);
    mount.device = NextField(&line);
    mount.root = UnescapedMount(NextField(&line));
    mount.point = UnescapedMount(NextField(&line));
    // Any number of optional fields ends with a dash of its own.
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos || !mount.point.starts_with('/')) continue;
    line.remove_prefix(dash + 3);
    mount.type = NextField(&line);
    mount.source = UnescapedMount(NextField(&line));
    mount.options = NextField(&line);
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

}  // namespace telltale::collect
