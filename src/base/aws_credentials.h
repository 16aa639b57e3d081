// SPDX-License-Identifier: Apache-2.0
// Whose keys a request to AWS is signed with, looked for where AWS's own tools look: environment,
// shared credentials file, the container's endpoint, the instance's metadata.
//
// Thread safety: any thread, while nobody changes the environment.
#pragma once
#include <cstdint>
#include <string>

#include "base/status.h"

namespace telltale {

struct AwsCredentials {
  std::string access_key, secret_key, session_token;
  std::int64_t expires_ns = 0;  ///< Unix time; 0: not known, or never.
};

/// kAuth: none are to be found; says where they were looked for. Waits for at most some seconds.
Result<AwsCredentials> FindAwsCredentials();

/// AWS_REGION, else AWS_DEFAULT_REGION, else empty.
std::string AwsRegion();

/// The profile of a shared credentials file (~/.aws/credentials); empty keys where it has none.
AwsCredentials CredentialsOfProfile(const std::string& file_text, const std::string& profile);

/// Nanoseconds since the epoch of "2026-11-21T23:15:40Z"; 0 where the text is no such time.
std::int64_t UnixNsOfUtc(const std::string& text);

}  // namespace telltale
