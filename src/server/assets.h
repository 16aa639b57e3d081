// SPDX-License-Identifier: Apache-2.0
// The page's files, as the build embedded them from web/dist (tools/embed_files.py).
#pragma once
#include <span>
#include <string_view>

namespace telltale::server {

struct Asset {
  std::string_view name;  ///< File name, without a folder.
  std::string_view type;  ///< Content-Type.
  std::string_view etag;  ///< With its quotes.
  std::string_view bytes;
};

/// Empty where the binary was built without the page.
std::span<const Asset> Assets();

}  // namespace telltale::server
