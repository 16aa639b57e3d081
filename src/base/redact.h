// SPDX-License-Identifier: Apache-2.0
// Command lines are stored with the run, which others may be given: what looks like a secret in
// them is not.
//
// A value is replaced by *** where the last word of its name says so (--password X, --api-key=X,
// -Dauth.token=X, HF_TOKEN=X, "Authorization: X", {"api_key": "X"}; not --tokenizer, --max-tokens,
// --pad-token), the user and password of a URL, and words of the forms that some services give
// their keys. All else stays as it is.
#pragma once
#include <string>
#include <vector>

namespace telltale {

/// The words of a command line. One that holds a command line itself (sh -c "...") is taken apart.
std::vector<std::string> Redacted(std::vector<std::string> words);

}  // namespace telltale
