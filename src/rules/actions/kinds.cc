// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <initializer_list>

#include "base/printable.h"

namespace telltale::rules {
namespace {

using enum ActionValue;

constexpr std::array kCommon = {
    ActionParameter{"cooldown", kNumber, "300",
                    "s; so long after it acted other incidents of the same rule only count"},
    ActionParameter{"group_wait", kNumber, "0",
                    "s; waits so long for more incidents and tells of all at once"},
    ActionParameter{"silence", kList, "",
                    "rules, or RULE/SUBJECT, that it leaves alone; * and ? stand for any text"},
    ActionParameter{"silence_until", kText, "",
                    "until then it does nothing: 2026-11-21T23:00:00Z, or seconds since 1970"},
};

constexpr std::array kStop = {
    ActionParameter{"checkpoint", kBool, "true",
                    "waits for the checkpoints of processes that have said that they save one"},
    ActionParameter{"checkpoint_timeout", kNumber, "120", "s; so long at most"},
    ActionParameter{"grace", kNumber, "30", "s that a process may take to end after SIGTERM"},
    ActionParameter{"kill", kBool, "false", "SIGKILL to those that live on after that"},
};

constexpr std::array kWebhook = {
    ActionParameter{"url", kText, "", "where to; http or https"},
    ActionParameter{"url_env", kText, "", "name of the environment variable that holds it"},
    ActionParameter{"url_file", kText, "", "file that holds it"},
    ActionParameter{"format", kText, "json", "of the body: json or slack"},
    ActionParameter{"token_env", kText, "", "variable with a token: Authorization: Bearer ..."},
    ActionParameter{"token_file", kText, "", "file with it"},
    ActionParameter{"allow_private", kBool, "false",
                    "the address may be of this machine or of a private network"},
    ActionParameter{"proxy", kText, "", "URL of a proxy; the guard then judges its address"},
    ActionParameter{"ca_file", kText, "", "certificates to trust instead of the system's"},
    ActionParameter{"timeout", kNumber, "10", "s for each try"},
    ActionParameter{"retries", kNumber, "10", "tries after the first; these take five minutes"},
};

constexpr std::array kEmail = {
    ActionParameter{"to", kList, "", "addresses"},
    ActionParameter{"sender", kText, "", "address; else TELLTALE_SMTP_SENDER"},
    ActionParameter{"host", kText, "", "of the SMTP server; else TELLTALE_SMTP_HOST"},
    ActionParameter{"port", kNumber, "0",
                    "0: 587, of tls = \"implicit\" 465; else "
                    "TELLTALE_SMTP_PORT"},
    ActionParameter{"tls", kText, "starttls", "starttls (required), implicit or none"},
    ActionParameter{"user", kText, "", "else TELLTALE_SMTP_USER; empty: does not sign in"},
    ActionParameter{"password_env", kText, "TELLTALE_SMTP_PASSWORD", "variable with the password"},
    ActionParameter{"password_file", kText, "", "file with it"},
    ActionParameter{"ca_file", kText, "", "certificates to trust instead of the system's"},
    ActionParameter{"timeout", kNumber, "30", "s for each try"},
    ActionParameter{"retries", kNumber, "10", "tries after the first; these take five minutes"},
};

constexpr std::array kSms = {
    ActionParameter{"to", kText, "", "telephone number: +15551234567"},
    ActionParameter{"topic_arn", kText, "", "of SNS, instead of a number"},
    ActionParameter{"region", kText, "", "of AWS; else AWS_REGION, AWS_DEFAULT_REGION"},
    ActionParameter{"endpoint", kText, "", "URL of SNS; else that of the region"},
    ActionParameter{"key_id_env", kText, "AWS_ACCESS_KEY_ID", "variable with the key's id"},
    ActionParameter{"key_env", kText, "AWS_SECRET_ACCESS_KEY", "variable with the key"},
    ActionParameter{"session_env", kText, "AWS_SESSION_TOKEN", "variable with a session's token"},
    ActionParameter{"gateway", kText, "", "URL of a gateway that takes {to, text}, instead of SNS"},
    ActionParameter{"token_env", kText, "", "variable with the gateway's bearer token"},
    ActionParameter{"token_file", kText, "", "file with it"},
    ActionParameter{"allow_private", kBool, "false",
                    "the address may be of this machine or of a private network"},
    ActionParameter{"ca_file", kText, "", "certificates to trust instead of the system's"},
    ActionParameter{"timeout", kNumber, "10", "s for each try"},
    ActionParameter{"retries", kNumber, "3", "tries after the first; each may arrive"},
};

constexpr std::array kProgram = {
    ActionParameter{"program", kText, "", "absolute path; TELLTALE_PROGRAMS must allow it"},
    ActionParameter{"arguments", kList, "", "words as they are, without a shell"},
    ActionParameter{"timeout", kNumber, "60", "s; it is killed then"},
};

constexpr std::array kCapture = {
    ActionParameter{"include", kList, "^gradient,[Ll]oss", "RE2, of the tensors' names"},
    ActionParameter{"steps", kNumber, "10", "steps after the incident whose tensors are kept"},
};

constexpr std::array kProfile = {
    ActionParameter{"steps", kNumber, "5", "steps of the window"},
};

constexpr std::array kKinds = {
    ActionKind{"stop", "ends the training, after a checkpoint where it can save one", kStop, true,
               true},
    ActionKind{"webhook", "posts JSON to a URL", kWebhook, true, false},
    ActionKind{"email", "writes a mail", kEmail, false, false},
    ActionKind{"sms", "sends a text message", kSms, false, false},
    ActionKind{"program", "runs a program of the allow-list", kProgram, false, false},
    ActionKind{"capture", "keeps whole tensors of the next steps", kCapture, true, true},
    ActionKind{"profile", "starts a profiler window", kProfile, true, true},
};

const ActionParameter* FindParameter(const ActionKind& kind, std::string_view name) {
  for (const ActionParameter& p : kind.parameters) {
    if (p.name == name) return &p;
  }
  for (const ActionParameter& p : kCommon) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

std::optional<double> Number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

std::optional<bool> Bool(std::string_view text) {
  if (text == "true" || text == "True" || text == "1") return true;
  if (text == "false" || text == "False" || text == "0") return false;
  return {};
}

Status Wrong(const ActionSpec& spec, std::string_view parameter, std::string_view what) {
  return {Code::kUsage, fmt::format("action {}: {} {}", spec.kind, Printable(parameter), what)};
}

bool Given(const ActionSpec& spec, std::string_view name) {
  return !ActionText(spec, name).empty();
}

bool OneOf(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

/// Of a URL that is written out. kUsage: it is none, or holds what is not to be stored with a run.
Status CheckUrl(const ActionSpec& spec, std::string_view name) {
  const std::string url = ActionText(spec, name);
  if (url.empty()) return {};
  if (!url.starts_with("http://") && !url.starts_with("https://")) {
    return Wrong(spec, name, "is no URL: write one that begins with https://");
  }
  const auto begin = url.find("://") + 3;
  const std::string authority = url.substr(begin, url.find_first_of("/?#", begin) - begin);
  if (authority.find('@') == std::string::npos) return {};
  return Wrong(spec, name,
               "holds a password, which would be stored with the run: leave it out and "
               "use token_env, or url_env");
}

/// What the parameters say together.
Status CheckTogether(const ActionSpec& spec) {
  for (const std::string_view name : {"url", "gateway", "endpoint"}) {
    TELLTALE_RETURN_IF_ERROR(CheckUrl(spec, name));
  }
  if (spec.kind == "webhook") {
    const int urls = Given(spec, "url") + Given(spec, "url_env") + Given(spec, "url_file");
    if (urls != 1) return Wrong(spec, "url", "is needed: write one of url, url_env, url_file");
    if (!OneOf(ActionText(spec, "format"), {"json", "slack"})) {
      return Wrong(spec, "format", "is unknown: write json or slack");
    }
  } else if (spec.kind == "email") {
    const std::vector<std::string> to = ActionList(spec, "to");
    if (to.empty()) return Wrong(spec, "to", "is needed: write an address");
    if (!std::all_of(to.begin(), to.end(), &IsMailAddress) ||
        (Given(spec, "sender") && !IsMailAddress(ActionText(spec, "sender")))) {
      return Wrong(spec, "to", "or sender is no address: write it like someone@example.org");
    }
    if (!OneOf(ActionText(spec, "tls"), {"starttls", "implicit", "none"})) {
      return Wrong(spec, "tls", "is unknown: write starttls, implicit or none");
    }
  } else if (spec.kind == "sms") {
    if (Given(spec, "to") == Given(spec, "topic_arn")) {
      return Wrong(spec, "to", "is needed: write a number like +15551234567, or topic_arn");
    }
    if (Given(spec, "gateway") && !Given(spec, "to")) {
      return Wrong(spec, "gateway", "sends to numbers: write to, like +15551234567");
    }
    if (const std::string to = ActionText(spec, "to"); !to.empty()) {
      const bool digits =
          std::all_of(to.begin() + 1, to.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (to[0] != '+' || to.size() < 3 || to.size() > 16 || !digits) {
        return Wrong(spec, "to", "is no number: write it like +15551234567");
      }
    }
  } else if (spec.kind == "program") {
    if (!ActionText(spec, "program").starts_with('/')) {
      return Wrong(spec, "program", "is no absolute path: write one like /usr/local/bin/page-me");
    }
  } else if (spec.kind == "capture" || spec.kind == "profile") {
    const double steps = ActionNumber(spec, "steps");
    if (steps < 1 || steps > 100'000 || steps != std::floor(steps)) {
      return Wrong(spec, "steps", "is no number of steps: write a whole number from 1 to 100000");
    }
  }
  return {};
}

}  // namespace

std::span<const ActionKind> ActionKinds() { return kKinds; }
std::span<const ActionParameter> CommonActionParameters() { return kCommon; }

const ActionKind* FindActionKind(std::string_view name) {
  for (const ActionKind& kind : kKinds) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

bool TellsOfMany(std::string_view kind) { return OneOf(kind, {"webhook", "email", "sms"}); }

std::string ActionText(const ActionSpec& spec, std::string_view name) {
  if (const auto given = spec.parameters.find(std::string(name)); given != spec.parameters.end()) {
    return given->second;
  }
  const ActionKind* kind = FindActionKind(spec.kind);
  const ActionParameter* parameter = kind != nullptr ? FindParameter(*kind, name) : nullptr;
  return parameter != nullptr ? std::string(parameter->default_value) : std::string();
}

double ActionNumber(const ActionSpec& spec, std::string_view name) {
  return Number(ActionText(spec, name)).value_or(0);
}

bool ActionBool(const ActionSpec& spec, std::string_view name) {
  return Bool(ActionText(spec, name)).value_or(false);
}

std::vector<std::string> ActionList(const ActionSpec& spec, std::string_view name) {
  std::vector<std::string> out;
  const std::string text = ActionText(spec, name);
  std::string_view rest = text;
  while (!rest.empty()) {
    const auto comma = std::min(rest.find(','), rest.size());
    std::string_view word = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    if (!word.empty()) out.emplace_back(word);
  }
  return out;
}

Status CheckAction(const ActionSpec& spec) {
  const ActionKind* kind = FindActionKind(spec.kind);
  if (kind == nullptr) {
    std::string known;
    for (const ActionKind& each : kKinds) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", each.name);
    }
    return {Code::kUsage,
            fmt::format("action '{}' is unknown: write one of {}", Printable(spec.kind), known)};
  }
  for (const auto& [name, value] : spec.parameters) {
    const ActionParameter* parameter = FindParameter(*kind, name);
    if (parameter == nullptr) {
      std::string known;
      for (const ActionParameter& p : kind->parameters) {
        known += fmt::format("{}{}", known.empty() ? "" : ", ", p.name);
      }
      return Wrong(spec, name,
                   fmt::format("is unknown: it has {}, and cooldown, group_wait, silence, "
                               "silence_until",
                               known));
    }
    if (parameter->type == kNumber) {
      const auto number = Number(value);
      if (!number || *number < 0 || *number > 1e6) {
        return Wrong(spec, name,
                     fmt::format("'{}' is no number of 0 to 1000000", Printable(value)));
      }
    }
    if (parameter->type == kBool && !Bool(value)) {
      return Wrong(spec, name, "is neither true nor false");
    }
    if (std::any_of(value.begin(), value.end(),
                    [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) {
      return Wrong(spec, name, "holds a control character");
    }
  }
  if (const std::string until = ActionText(spec, "silence_until");
      !until.empty() && !ParseTime(until)) {
    return Wrong(spec, "silence_until", "is no time: write it like 2026-11-21T23:00:00Z");
  }
  return CheckTogether(spec);
}

bool IsMailAddress(std::string_view text) {
  const auto at = text.find('@');
  if (at == std::string_view::npos || at == 0 || at + 1 == text.size() || text.size() > 254 ||
      text.find('@', at + 1) != std::string_view::npos) {
    return false;
  }
  return std::all_of(text.begin(), text.end(), [](char c) {
    return c > 0x20 && c < 0x7f &&
           std::string_view("<>(),;:\\\"[]").find(c) == std::string_view::npos;
  });
}

std::string ActionId(const ActionSpec& spec) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  const auto add = [&](std::string_view text) {
    for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ULL;
    hash = (hash ^ 0x1f) * 0x100000001b3ULL;
  };
  add(spec.kind);
  for (const auto& [name, value] : spec.parameters) {
    // How often it acts makes no other action of it.
    const auto common = [&wanted = name](const ActionParameter& p) { return p.name == wanted; };
    if (std::any_of(kCommon.begin(), kCommon.end(), common)) continue;
    add(name);
    add(value);
  }
  // One that was only shown acts once it is let: not the same.
  add(spec.dry_run ? "dry" : "");
  return fmt::format("{:016x}", hash);
}

std::optional<std::int64_t> ParseTime(std::string_view text) {
  if (const auto seconds = Number(text); seconds && *seconds >= 0 && *seconds < 9e9) {
    return static_cast<std::int64_t>(*seconds * 1e9);
  }
  std::tm t{};
  int length = 0;
  const std::string copy(text);
  if (std::sscanf(copy.c_str(), "%4d-%2d-%2dT%2d:%2d:%2dZ%n", &t.tm_year, &t.tm_mon, &t.tm_mday,
                  &t.tm_hour, &t.tm_min, &t.tm_sec, &length) != 6 ||
      length != static_cast<int>(copy.size()) || length == 0) {
    return {};
  }
  if (t.tm_year < 1970 || t.tm_mon < 1 || t.tm_mon > 12 || t.tm_mday < 1 || t.tm_mday > 31 ||
      t.tm_hour > 23 || t.tm_min > 59 || t.tm_sec > 60) {
    return {};
  }
  t.tm_year -= 1900;
  t.tm_mon -= 1;
  return static_cast<std::int64_t>(::timegm(&t)) * 1'000'000'000;
}

}  // namespace telltale::rules
