// SPDX-License-Identifier: Apache-2.0
// Writes a mail and hands it to an SMTP server. Nothing that a rule or a program says can make a
// header line: what stands in one is checked (addresses) or encoded (the subject), the body is
// base64.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <string_view>

#include "base/printable.h"
#include "base/process.h"
#include "rules/actions/act.h"
#include "rules/actions/kinds.h"
#include "rules/actions/secret.h"

namespace telltale::rules {
namespace {

std::string Base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto at = [&](std::size_t k) -> unsigned {
      return i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U;
    };
    const unsigned group = at(0) << 16 | at(1) << 8 | at(2);
    out += kDigits[group >> 18 & 63U];
    out += kDigits[group >> 12 & 63U];
    out += i + 1 < bytes.size() ? kDigits[group >> 6 & 63U] : '=';
    out += i + 2 < bytes.size() ? kDigits[group & 63U] : '=';
  }
  return out;
}

/// Lines of 76.
std::string Base64Lines(std::string_view bytes) {
  const std::string all = Base64(bytes);
  std::string out;
  for (std::size_t i = 0; i < all.size(); i += 76) out += all.substr(i, 76) + "\r\n";
  return out;
}

/// An unstructured header's text as encoded words (RFC 2047), each of whole characters, folded.
std::string EncodedWords(std::string_view text) {
  constexpr std::size_t kBytesAWord = 39;
  std::string out;
  while (!text.empty()) {
    std::size_t n = std::min(kBytesAWord, text.size());
    while (n < text.size() && n > 1 && (static_cast<unsigned char>(text[n]) & 0xc0U) == 0x80U) --n;
    out += fmt::format("{}=?UTF-8?B?{}?=", out.empty() ? "" : "\r\n ", Base64(text.substr(0, n)));
    text.remove_prefix(n);
  }
  return out;
}

/// RFC 5322, in UTC, in English whatever the locale.
std::string Date(std::int64_t unix_ns) {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const auto seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  std::tm t{};
  ::gmtime_r(&seconds, &t);
  return fmt::format("{}, {} {} {} {:02}:{:02}:{:02} +0000", kDays[t.tm_wday], t.tm_mday,
                     kMonths[t.tm_mon], t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

/// Of the parts of a host's name that may stand in a header.
std::string SafeHost() {
  std::string out = HostName();
  std::erase_if(out, [](char c) {
    return !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '.' || c == '-');
  });
  return out.empty() ? "localhost" : out;
}

Status CheckedAddress(std::string_view what, std::string_view text) {
  if (IsMailAddress(text)) return {};
  return {Code::kUsage, fmt::format("action email: {} '{}' is no address: write it like "
                                    "someone@example.org",
                                    what, Printable(text))};
}

Result<std::string> Sender(const ActionSpec& spec) {
  std::string sender = TextOrVariable(spec, "sender", {"TELLTALE_SMTP_SENDER"});
  if (sender.empty()) sender = "telltale@" + SafeHost();
  TELLTALE_RETURN_IF_ERROR(CheckedAddress("sender", sender));
  return sender;
}

}  // namespace

Result<std::string> MailText(const ActionSpec& spec, const Notice& notice, std::int64_t unix_ns) {
  TELLTALE_ASSIGN_OR_RETURN(const std::string sender, Sender(spec));
  std::string to;
  for (const std::string& address : ActionList(spec, "to")) {
    TELLTALE_RETURN_IF_ERROR(CheckedAddress("to", address));
    to += (to.empty() ? "" : ",\r\n ") + address;
  }
  // The key is made of our own hexadecimal digits.
  return fmt::format(
      "Date: {}\r\nFrom: Telltale <{}>\r\nTo: {}\r\nSubject: {}\r\nMessage-ID: <{}@{}>\r\n"
      "Auto-Submitted: auto-generated\r\nMIME-Version: 1.0\r\n"
      "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n{}",
      Date(unix_ns), sender, to, EncodedWords(SubjectLine(notice)), notice.key, SafeHost(),
      Base64Lines(PlainText(notice)));
}

Result<std::string> ActEmail(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  const std::string host = TextOrVariable(spec, "host", {"TELLTALE_SMTP_HOST"});
  if (host.empty()) {
    return Status(Code::kUsage,
                  "no SMTP server is set: write host in the action, or set TELLTALE_SMTP_HOST");
  }
  const bool plain_host = std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == ':' || c == '[' || c == ']';
  });
  if (!plain_host) {
    return Status(Code::kUsage,
                  fmt::format("host '{}' is no name of a server: write one like smtp.example.org",
                              Printable(host)));
  }
  const std::string tls = ActionText(spec, "tls");
  auto port = static_cast<int>(ActionNumber(spec, "port"));
  if (port == 0) {
    const std::string text = TextOrVariable(spec, "", {"TELLTALE_SMTP_PORT"});
    const bool number =
        !text.empty() && text.size() <= 5 &&
        std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    port = number ? std::stoi(text) : tls == "implicit" ? 465 : 587;
  }
  if (port < 1 || port > 65535)
    return Status(Code::kUsage, fmt::format("port {} is no TCP port: write 1 to 65535", port));
  MailRequest mail;
  mail.server =
      fmt::format("{}://{}:{}/{}", tls == "implicit" ? "smtps" : "smtp", host, port, SafeHost());
  mail.starttls = tls == "starttls";
  mail.user = TextOrVariable(spec, "user", {"TELLTALE_SMTP_USER"});
  if (!mail.user.empty()) {
    TELLTALE_ASSIGN_OR_RETURN(mail.password, Secret(spec, "password"));
    if (tls == "none") {
      return Status(
          Code::kUsage,
          "a password is not sent in the clear: write tls = \"starttls\" or \"implicit\"");
    }
  }
  TELLTALE_ASSIGN_OR_RETURN(mail.from, Sender(spec));
  mail.to = ActionList(spec, "to");
  TELLTALE_ASSIGN_OR_RETURN(mail.text, MailText(spec, notice, at.unix_ns));
  // A mail server is named by whoever runs this, and mostly stands in a private network.
  mail.address_allowed = Guard(true);
  mail.ca_file = ActionText(spec, "ca_file");
  mail.timeout_ms =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(ActionNumber(spec, "timeout") * 1000));
  mail.stop = at.stop;
  TELLTALE_RETURN_IF_ERROR(TryAgain(static_cast<int>(ActionNumber(spec, "retries")), *at.stop,
                                    at.pause, [&] { return Mail(mail); }));
  return fmt::format("the server took it for {} {}", mail.to.size(),
                     mail.to.size() == 1 ? "address" : "addresses");
}

}  // namespace telltale::rules
