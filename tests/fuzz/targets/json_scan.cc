// SPDX-License-Identifier: Apache-2.0
// The scanner of files of small JSON objects.
#include "interchange/json_scan.h"

#include "fuzz.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(json_scan) {
  interchange::JsonScanner scanner(bytes);
  std::string scratch;
  while (scanner.FindObject()) {
    scanner.ReadObject([&](std::string_view key, const interchange::JsonValue& value) {
      Require(key.size() + value.text.size() <= bytes.size());
      static_cast<void>(value.Number());
      static_cast<void>(value.Integer());
      static_cast<void>(value.Scaled(9));
      static_cast<void>(interchange::JsonUnescape(value, &scratch));
    });
  }
}

}  // namespace telltale::fuzz
