// SPDX-License-Identifier: Apache-2.0
#include "base/aws_credentials.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace telltale {
namespace {

TEST(AwsCredentials, AProfileIsReadAndNoOther) {
  const std::string text =
      "# ours\n[default]\naws_access_key_id = AKIA1\naws_secret_access_key=s3\r\n"
      "[ lab ]\naws_access_key_id=AKIA2\naws_secret_access_key = s4 \naws_session_token=t\n";
  const AwsCredentials first = CredentialsOfProfile(text, "default");
  EXPECT_EQ(first.access_key, "AKIA1");
  EXPECT_EQ(first.secret_key, "s3");
  EXPECT_EQ(first.session_token, "");
  const AwsCredentials lab = CredentialsOfProfile(text, "lab");
  EXPECT_EQ(lab.access_key, "AKIA2");
  EXPECT_EQ(lab.secret_key, "s4");
  EXPECT_EQ(lab.session_token, "t");
  EXPECT_EQ(CredentialsOfProfile(text, "none").access_key, "");
  EXPECT_EQ(CredentialsOfProfile("[broken", "broken").access_key, "");
}

TEST(AwsCredentials, TheEnvironmentComesFirst) {
  ::setenv("AWS_ACCESS_KEY_ID", "AKIAENV", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
  ::setenv("AWS_SESSION_TOKEN", "token", 1);
  const auto found = FindAwsCredentials();
  ::unsetenv("AWS_ACCESS_KEY_ID");
  ::unsetenv("AWS_SECRET_ACCESS_KEY");
  ::unsetenv("AWS_SESSION_TOKEN");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->access_key, "AKIAENV");
  EXPECT_EQ(found->session_token, "token");
}

TEST(AwsCredentials, AFolderInPlaceOfAFileHasNone) {
  ::setenv("AWS_SHARED_CREDENTIALS_FILE", "/tmp", 1);
  ::setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/", 1);
  ::setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/tmp", 1);
  EXPECT_NO_THROW(static_cast<void>(FindAwsCredentials()));
  ::unsetenv("AWS_SHARED_CREDENTIALS_FILE");
  ::unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  ::unsetenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
}

TEST(AwsCredentials, TimesOfUtc) {
  EXPECT_EQ(UnixNsOfUtc("1970-01-02T00:00:00Z"), 86'400'000'000'000);
  EXPECT_EQ(UnixNsOfUtc(""), 0);
  EXPECT_EQ(UnixNsOfUtc("soon"), 0);
}

}  // namespace
}  // namespace telltale
