// SPDX-License-Identifier: Apache-2.0
#include "base/redact.h"

#include <gtest/gtest.h>

namespace telltale {
namespace {

using Words = std::vector<std::string>;

TEST(Redact, ValuesWhoseNameSaysThatTheyAreSecret) {
  for (const char* name :
       {"password",    "db-passwd",     "client_secret",     "token",
        "hub-token",   "hubToken",      "HF_TOKEN",          "apikey",
        "api-key",     "wandb_api_key", "access-key",        "AWS_SECRET_ACCESS_KEY",
        "private-key", "secret-key",    "credential",        "gcp-credentials",
        "auth",        "http.auth",     "logger.auth.token", "PGPASSWORD",
        "MYSQL_PWD",   "key-passphrase"}) {
    const std::string option = std::string("--") + name;
    EXPECT_EQ(Redacted({"t", option, "canary", "--lr", "0.1"}),
              (Words{"t", option, "***", "--lr", "0.1"}));
    EXPECT_EQ(Redacted({"t", option + "=canary", "x"}), (Words{"t", option + "=***", "x"}));
    EXPECT_EQ(Redacted({"java", std::string("-D") + name + "=canary"}),
              (Words{"java", std::string("-D") + name + "=***"}));
    EXPECT_EQ(Redacted({"env", std::string(name) + "=canary words", "t"}),
              (Words{"env", std::string(name) + "=***", "t"}));
    EXPECT_EQ(Redacted({"t", std::string("+") + name + "=a=b"}),
              (Words{"t", std::string("+") + name + "=***"}));
  }
}

TEST(Redact, OrdinaryArgumentsStayAsTheyAre) {
  const Words words = {"torchrun",
                       "--nproc-per-node",
                       "2",
                       "train.py",
                       "--tokenizer",
                       "gpt2",
                       "--max-tokens",
                       "512",
                       "--max-token=512",
                       "--token-dropout=0.1",
                       "--num_tokens",
                       "1e9",
                       "--author",
                       "me",
                       "AUTHOR=me",
                       "PWD=/work",
                       "--pad-token",
                       "<pad>",
                       "eos_token=</s>",
                       "--cost-per-token",
                       "3",
                       "--password-file",
                       "/run/secret",
                       "--no-auth",
                       "data",
                       "--token",
                       "--lr",
                       "0.1",
                       "--auth=",
                       "--key",
                       "loss",
                       "-",
                       "--",
                       "",
                       "data/token=3/part-0.parquet",
                       "TOKENIZERS_PARALLELISM=false",
                       "https://host:8080/a@b?page=2&sort=name",
                       "tcp://127.0.0.1:29500",
                       "--name",
                       "task-learning-rate-2026-11-25-a",
                       "hf_model_of_ours_large",
                       "AKIAshort",
                       "sk-learn-experiments-of-ours",
                       "a  b\t'c d'\n",
                       "\xff\xfe"};
  EXPECT_EQ(Redacted(words), words);
}

TEST(Redact, ValuesBehindAColon) {
  EXPECT_EQ(Redacted({"curl", "-H", "Authorization: Bearer can ary", "x"}),
            (Words{"curl", "-H", "Authorization: ***", "x"}));
  EXPECT_EQ(Redacted({"-HX-Api-Key: canary", "--header=Proxy-Authorization: Basic canary"}),
            (Words{"-HX-Api-Key: ***", "--header=Proxy-Authorization: ***"}));
  EXPECT_EQ(Redacted({"sh", "-c", "curl -H 'Authorization: Bearer canary' https://host && t"}),
            (Words{"sh", "-c", "curl -H 'Authorization: ***' https://host && t"}));
  EXPECT_EQ(Redacted({R"({"lr": 0.1, "api_key": "can ary", "n":{"token":"canary"}})",
                      "{'hub_token' : 'canary','steps':3}", R"({"secret":12345})"}),
            (Words{R"({"lr": 0.1, "api_key": "***", "n":{"token":"***"}})",
                   "{'hub_token' : '***','steps':3}", R"({"secret":***})"}));
  EXPECT_EQ(Redacted({"-H", R"(Authorization: Digest user="u", token="canary")",
                      R"(sh -c 'curl -d "{\"api_key\": \"can ary\"}" x')",
                      R"({"password": "can\"ary", "lr": 1})", R"({"auth": {"password": "canary"}})",
                      R"({"credentials": ["u", "canary"]})", R"(db={lr: 1, password: "canary"})",
                      "lr: 1\n  password: canary\nb: 2"}),
            (Words{"-H", "Authorization: ***", R"(sh -c 'curl -d "{\"api_key\": \"***\"}" x')",
                   R"({"password": "***", "lr": 1})", R"({"auth": {"password": "***"}})",
                   R"({"credentials": ***]})", R"(db={lr: 1, password: "***"})",
                   "lr: 1\n  password: ***\nb: 2"}));
  EXPECT_EQ(Redacted({R"({"api_key": "canary)", R"({"api_key":)", R"({"api_key")"}),
            (Words{R"({"api_key": "***)", R"({"api_key":)", R"({"api_key")"}));
  const Words others = {"app.auth:main",
                        "losses:values,interval=1",
                        "token:8080",
                        "say the token: it",
                        R"({"tokenizer": "a b"})",
                        R"({"pad_token": "<pad>"})",
                        R"({"api_key": ""})",
                        R"({"use_auth": false})",
                        "--enable-authorization",
                        "train.py",
                        "--nopassword",
                        "x.py"};
  EXPECT_EQ(Redacted(others), others);
}

TEST(Redact, UsersOfUrls) {
  EXPECT_EQ(Redacted({"--db=postgres://me:can@ary@host:5432/runs"}),
            (Words{"--db=postgres://***@host:5432/runs"}));
  EXPECT_EQ(Redacted({"a https://u:p@h/x,https://u:p@h/y b"}),
            (Words{"a https://***@h/x,https://***@h/y b"}));
  EXPECT_EQ(Redacted({"https://h/x?page=2&access_token=canary&z=1#top"}),
            (Words{"https://h/x?page=2&access_token=***&z=1#top"}));
}

TEST(Redact, KeysByTheirForm) {
  for (const char* key : {"AKIAIOSFODNN7EXAMPLE", "ghp_0123456789abcdefghijABCDEFGHIJ012345",
                          "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", "sk-abcdefghij0123456789",
                          "xoxb-0123456789-abc", "sk-proj-Abc_0123456789-abcdef"}) {
    EXPECT_EQ(Redacted({key}), (Words{"***"}));
    EXPECT_EQ(Redacted({std::string("--id=") + key + ",next"}), (Words{"--id=***,next"}));
    EXPECT_EQ(Redacted({std::string("x") + key}), (Words{std::string("x") + key}));
  }
  EXPECT_EQ(Redacted({"AKIAIOSFODNN7EXAMPLES"}), (Words{"AKIAIOSFODNN7EXAMPLES"}))
      << "one too long";
}

TEST(Redact, NamesWithinAWord) {
  const auto redacted = [](const char* word) { return Redacted({word}).front(); };
  EXPECT_EQ(redacted("--export=ALL,WANDB_API_KEY=canary,X=1"),
            "--export=ALL,WANDB_API_KEY=***,X=1");
  EXPECT_EQ(redacted("--env=HF_TOKEN=canary"), "--env=HF_TOKEN=***");
  EXPECT_EQ(redacted("cd x;HF_TOKEN=canary python t.py"), "cd x;HF_TOKEN=*** python t.py");
  EXPECT_EQ(redacted("(HF_TOKEN=canary python t.py) | tee log"),
            "(HF_TOKEN=*** python t.py) | tee log");
  EXPECT_EQ(redacted("run -e \"API_KEY=canary\" -e 'HF_TOKEN=canary' img"),
            "run -e \"API_KEY=***\" -e 'HF_TOKEN=***' img");
  EXPECT_EQ(redacted("--dims=batch=3,tokens=4"), "--dims=batch=3,tokens=4");
}

TEST(Redact, QuotesWithinALine) {
  const auto redacted = [](const char* word) { return Redacted({word}).front(); };
  EXPECT_EQ(redacted("echo it's on; python t.py --token canary"),
            "echo it's on; python t.py --token ***");
  EXPECT_EQ(redacted("ssh h 'python t.py --token canary --lr 1' \"and so\""),
            "ssh h 'python t.py --token *** --lr 1' \"and so\"");
}

TEST(Redact, CommandLinesInAWord) {
  EXPECT_EQ(Redacted({"sh", "-c", "cd x && python t.py --token canary  --lr 0.1 | tee log"}),
            (Words{"sh", "-c", "cd x && python t.py --token ***  --lr 0.1 | tee log"}));
  EXPECT_EQ(Redacted({"sh", "-c", "exec t --password 'can ary' --api-key=\"can ary\" KEY=1"}),
            (Words{"sh", "-c", "exec t --password *** --api-key=*** KEY=1"}));
  // What the value of a variable that begins a word ends with is not known.
  EXPECT_EQ(Redacted({"sh", "-c", "HF_TOKEN=can ary"}), (Words{"sh", "-c", "HF_TOKEN=***"}));
}

}  // namespace
}  // namespace telltale
