// SPDX-License-Identifier: Apache-2.0
// Writes docs/metrics.md or checks that it is current.
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "collect/catalogue.h"

int main(int argc, char** argv) {
  const std::string_view mode = argc == 3 ? argv[1] : "";
  const std::string page = telltale::collect::CataloguePage();
  if (mode == "--write") {
    std::ofstream out(argv[2], std::ios::binary);
    out << page;
    return out.flush() ? 0 : 5;
  }
  if (mode == "--check") {
    std::ifstream in(argv[2], std::ios::binary);
    const std::string found{std::istreambuf_iterator<char>(in), {}};
    if (found == page) return 0;
    fmt::print(stderr,
               "{0} is not what src/collect/catalogue.cc gives; run: metrics_page --write {0}\n",
               argv[2]);
    return 1;
  }
  fmt::print(stderr, "usage: metrics_page --write|--check docs/metrics.md\n");
  return 2;
}
