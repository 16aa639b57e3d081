// SPDX-License-Identifier: Apache-2.0
#include "base/aws_credentials.h"

#include <time.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "base/http_client.h"
#include "base/json.h"

namespace telltale {
namespace {

/// Both answer at once where they are there at all.
constexpr std::int64_t kMetadataTimeoutMs = 1'000;
constexpr std::string_view kInstance = "http://169.254.169.254";

std::string Env(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string Trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

/// The body of a 200; empty for everything else.
std::string Ask(const char* method, const std::string& url,
                const std::vector<std::string>& headers) {
  HttpRequest request;
  request.method = method;
  request.url = url;
  request.headers = headers;
  request.proxy = "";  // Keys are for nobody between.
  request.connect_timeout_ms = request.timeout_ms = kMetadataTimeoutMs;
  const auto response = SendHttp(request);
  return response.ok() && response->status == 200 ? response->body : std::string();
}

/// {"AccessKeyId": ..., "SecretAccessKey": ..., "Token": ..., "Expiration": ...}
AwsCredentials FromJson(const std::string& text) {
  const auto json = ParseJson(text);
  const auto get = [&](const char* key) {
    const auto found = json.is_object() ? json.find(key) : json.end();
    return json.is_object() && found != json.end() && found->is_string() ? found->get<std::string>()
                                                                         : std::string();
  };
  return {get("AccessKeyId"), get("SecretAccessKey"), get("Token"), UnixNsOfUtc(get("Expiration"))};
}

bool Whole(const AwsCredentials& found) {
  return !found.access_key.empty() && !found.secret_key.empty();
}

/// Empty where it cannot be read; a folder can be opened, and an iterator would throw then.
std::string TextOf(const std::string& file) {
  const std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

AwsCredentials FromFile() {
  std::string file = Env("AWS_SHARED_CREDENTIALS_FILE");
  if (file.empty()) {
    const std::string home = Env("HOME");
    if (home.empty()) return {};
    file = home + "/.aws/credentials";
  }
  const std::string text = TextOf(file);
  const std::string profile = Env("AWS_PROFILE");
  return CredentialsOfProfile(text, profile.empty() ? "default" : profile);
}

AwsCredentials FromContainer() {
  std::string url = Env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (const std::string relative = Env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
      !relative.empty()) {
    url = "http://169.254.170.2" + relative;
  }
  if (url.empty()) return {};
  std::vector<std::string> headers;
  std::string token = Env("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string file = Env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !file.empty()) {
    token = Trimmed(TextOf(file));
  }
  if (!token.empty()) headers.push_back("Authorization: " + token);
  return FromJson(Ask("GET", url, headers));
}

AwsCredentials FromInstance() {
  if (Env("AWS_EC2_METADATA_DISABLED") == "true") return {};
  const std::string base(kInstance);
  const std::string token =
      Ask("PUT", base + "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds: 300"});
  if (token.empty()) return {};
  const std::vector<std::string> headers = {"X-aws-ec2-metadata-token: " + Trimmed(token)};
  const std::string path = base + "/latest/meta-data/iam/security-credentials/";
  const std::string roles = Ask("GET", path, headers);
  const std::string role = Trimmed(roles.substr(0, roles.find('\n')));
  return role.empty() ? AwsCredentials() : FromJson(Ask("GET", path + role, headers));
}

}  // namespace

std::int64_t UnixNsOfUtc(const std::string& text) {
  tm parts{};
  const char* const end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr) return 0;
  const time_t seconds = ::timegm(&parts);
  return seconds <= 0 ? 0 : static_cast<std::int64_t>(seconds) * 1'000'000'000;
}

std::string AwsRegion() {
  const std::string region = Env("AWS_REGION");
  return region.empty() ? Env("AWS_DEFAULT_REGION") : region;
}

AwsCredentials CredentialsOfProfile(const std::string& file_text, const std::string& profile) {
  AwsCredentials out;
  std::istringstream in(file_text);
  std::string line;
  bool ours = false;
  while (std::getline(in, line)) {
    line = Trimmed(line);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      ours = Trimmed(line.substr(1, line.find(']') - 1)) == profile;
      continue;
    }
    const auto equals = line.find('=');
    if (!ours || equals == std::string::npos) continue;
    const std::string key = Trimmed(line.substr(0, equals));
    const std::string value = Trimmed(line.substr(equals + 1));
    if (key == "aws_access_key_id") out.access_key = value;
    if (key == "aws_secret_access_key") out.secret_key = value;
    if (key == "aws_session_token") out.session_token = value;
  }
  return out;
}

Result<AwsCredentials> FindAwsCredentials() {
  AwsCredentials found{Env("AWS_ACCESS_KEY_ID"), Env("AWS_SECRET_ACCESS_KEY"),
                       Env("AWS_SESSION_TOKEN"), 0};
  if (Whole(found)) return found;
  for (const auto& look : {FromFile, FromContainer, FromInstance}) {
    found = look();
    if (Whole(found)) return found;
  }
  return {Code::kAuth,
          "no credentials for AWS in the environment (AWS_ACCESS_KEY_ID), in ~/.aws/credentials, "
          "of the container or of the instance: set the environment, or give the machine a role"};
}

}  // namespace telltale
