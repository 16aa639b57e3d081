// SPDX-License-Identifier: Apache-2.0
#include "base/redact.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace telltale {
namespace {

constexpr std::string_view kStars = "***";

bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAlphanumeric(char c) { return IsLower(c) || IsUpper(c) || IsDigit(c); }
bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

template <std::size_t kCount>
bool Contains(const std::array<std::string_view, kCount>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Its words in small letters: of "HF_TOKEN", "hf-token" and "hfToken" hf and token.
std::vector<std::string> WordsOf(std::string_view name) {
  std::vector<std::string> words;
  char before = 0;
  for (const char c : name) {
    if (IsAlphanumeric(c)) {
      if (!IsAlphanumeric(before) || (IsUpper(c) && IsLower(before))) words.emplace_back();
      words.back() += IsUpper(c) ? static_cast<char>(c - 'A' + 'a') : c;
    }
    before = c;
  }
  return words;
}

bool NamesSecret(std::string_view name) {
  constexpr std::array<std::string_view, 9> kSecrets = {"accesskey",  "apikey",      "auth",
                                                        "credential", "credentials", "passphrase",
                                                        "privatekey", "secret",      "secretkey"};
  // Also as the end of a word: PGPASSWORD.
  constexpr std::array<std::string_view, 2> kSecretEnds = {"passwd", "password"};
  constexpr std::array<std::string_view, 4> kKeys = {"access", "api", "private", "secret"};
  // A token of a vocabulary, or what is counted in tokens.
  constexpr std::array<std::string_view, 19> kNoSecretTokens = {
      "bos", "cls", "end", "eos",         "image", "initializer", "mask",  "max",  "min", "new",
      "num", "pad", "per", "placeholder", "sep",   "special",     "start", "stop", "unk"};
  const std::vector<std::string> words = WordsOf(name);
  if (words.empty()) return false;
  const std::string_view last = words.back();
  const std::string_view before =
      words.size() > 1 ? std::string_view(words[words.size() - 2]) : std::string_view();
  if (last == "token") return !Contains(kNoSecretTokens, before);
  if (last == "key") return Contains(kKeys, before);
  if (last == "pwd") return !before.empty();  // By itself it is a folder.
  return Contains(kSecrets, last) ||
         std::any_of(kSecretEnds.begin(), kSecretEnds.end(),
                     [&](std::string_view end) { return last.ends_with(end); });
}

/// The length of a name that begins `text`, as options, variables and configurations have it.
std::size_t NameLength(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && (IsAlphanumeric(text[at]) || text[at] == '_' || text[at] == '-' ||
                              text[at] == '.' || text[at] == '+')) {
    ++at;
  }
  return at;
}

/// Where the value of `name=value` begins whose name says that it is a secret; 0: nowhere.
std::size_t SecretValueOf(std::string_view text) {
  const std::size_t length = NameLength(text);
  if (length == 0 || length + 1 >= text.size() || text[length] != '=') return 0;
  std::string_view name = text.substr(0, length);
  if (name.starts_with("-D")) name.remove_prefix(2);
  return NamesSecret(name) ? length + 1 : 0;
}

/// `--name` or `-name` whose value is the next word.
bool TakesSecret(std::string_view word) {
  if (!word.starts_with('-') || NameLength(word) != word.size()) return false;
  const std::vector<std::string> words = WordsOf(word);
  return !words.empty() && !words.front().starts_with("no") && NamesSecret(word);
}

/// A form that a service gives its keys.
struct KeyForm {
  std::string_view prefix;  ///< ? is any small letter.
  std::size_t least;        ///< Characters behind it...
  std::size_t most;
  std::string_view more;  ///< ...letters, digits, and these.
  bool digit;             ///< One of them at least is a digit.
};
constexpr std::size_t kAny = std::string_view::npos;
constexpr std::array<KeyForm, 7> kKeyForms = {{{"AKIA", 16, 16, "", false},
                                               {"ASIA", 16, 16, "", false},
                                               {"gh?_", 20, kAny, "", false},
                                               {"github_pat_", 20, kAny, "_", false},
                                               {"hf_", 20, kAny, "", false},
                                               {"sk-", 20, kAny, "-_", true},
                                               {"xox?-", 10, kAny, "-", false}}};

bool Begins(std::string_view text, std::string_view prefix) {
  if (text.size() < prefix.size()) return false;
  return std::equal(prefix.begin(), prefix.end(), text.begin(),
                    [](char a, char b) { return a == '?' ? IsLower(b) : a == b; });
}

/// The length of a key that begins `text`, by its form; 0: none does.
std::size_t KeyLength(std::string_view text) {
  for (const KeyForm& form : kKeyForms) {
    if (!Begins(text, form.prefix)) continue;
    std::size_t at = form.prefix.size();
    bool digit = false;
    for (; at < text.size(); ++at) {
      if (!IsAlphanumeric(text[at]) && form.more.find(text[at]) == kAny) break;
      digit = digit || IsDigit(text[at]);
    }
    const std::size_t length = at - form.prefix.size();
    if (length >= form.least && length <= form.most && (digit || !form.digit)) return at;
  }
  return 0;
}

/// The length of "user:password" behind "scheme://" that begins `text`; 0: it is something else.
std::size_t UserLength(std::string_view text) {
  const std::size_t end = text.find_first_of("/?# \t\n\"'");
  const std::size_t at = text.substr(0, end).rfind('@');
  if (at == std::string_view::npos) return 0;
  return text.substr(0, at).find(':') != std::string_view::npos ? at : 0;
}

/// What a name and its value may stand behind: a parameter of a URL, one of a list that is an
/// option's value, a shell's separator or quote.
constexpr std::string_view kBeforeName = "?&=,;|({\"'`";
constexpr std::string_view kBehindValue = "&#,;|)} \t\n\"'`";

/// What shows by itself, anywhere in a word: keys by their form, users of URLs, and names with
/// their values.
std::string WithoutKeys(std::string_view word) {
  std::string out;
  std::size_t at = 0;
  while (at < word.size()) {
    const std::string_view rest = word.substr(at);
    const char before = at > 0 ? word[at - 1] : '\0';
    std::size_t secret = 0;
    if (word.substr(0, at).ends_with("://")) secret = UserLength(rest);
    if (secret == 0 && at > 0 && kBeforeName.find(before) != kAny) {
      if (const std::size_t value = SecretValueOf(rest); value != 0) {
        out += rest.substr(0, value);
        out += kStars;
        at += std::min(rest.size(), rest.find_first_of(kBehindValue, value));
        continue;
      }
    }
    if (secret == 0 && !IsAlphanumeric(before) && before != '_' && before != '-') {
      secret = KeyLength(rest);
    }
    if (secret > 0) {
      out += kStars;
      at += secret;
    } else {
      out += word[at++];
    }
  }
  return out;
}

struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;  ///< As begin: nothing.
};

bool IsQuote(char c) { return c == '"' || c == '\''; }

/// The length of a quote at `at`, with the backslash before it where it is in quotes itself; 0:
/// there is none.
std::size_t QuoteLength(std::string_view text, std::size_t at) {
  const std::size_t escaped = at < text.size() && text[at] == '\\' ? 1 : 0;
  return at + escaped < text.size() && IsQuote(text[at + escaped]) ? escaped + 1 : 0;
}

/// Where the quote that begins at `at` ends.
std::size_t QuoteEnd(std::string_view text, std::size_t at, std::size_t length) {
  const std::string_view quote = text.substr(at, length);
  std::size_t end = at + length;
  while ((end = text.find(quote, end)) != kAny) {
    // In one that has no backslash itself, a quote behind one is part of the value.
    if (length == 2 || text[end - 1] != '\\') return end;
    ++end;
  }
  return text.size();
}

std::size_t BehindSpaces(std::string_view text, std::size_t at) {
  while (at < text.size() && IsSpace(text[at])) ++at;
  return at;
}

/// Of a name before a colon.
bool NamesSecretOfHeader(std::string_view name) {
  const std::vector<std::string> words = WordsOf(name);
  return NamesSecret(name) || (!words.empty() && words.back().ends_with("authorization"));
}

/// Where the value of a secret lies whose name begins `text`, as a header has it (`name: value`, up
/// to the line's end, or the quote where `before`, the character before the name, is one) or JSON
/// (`name": "value"`, also with backslashes before the quotes).
Span SecretBehindColon(std::string_view text, char before) {
  std::size_t at = NameLength(text);
  if (at == 0 || at >= text.size() || !NamesSecretOfHeader(text.substr(0, at))) return {};
  const std::size_t name_quote = QuoteLength(text, at);
  if (name_quote > 0) at = BehindSpaces(text, at + name_quote);
  if (at >= text.size() || text[at] != ':') return {};
  const std::size_t begin = BehindSpaces(text, at + 1);
  if (begin >= text.size() || text[begin] == '{') return {};  // What is inside has names again.
  if (name_quote == 0 && begin == at + 1) return {};          // module:attribute
  if (const std::size_t quote = QuoteLength(text, begin); quote > 0) {
    return {begin + quote, QuoteEnd(text, begin, quote)};
  }
  const auto until = [&](std::string_view ends) {
    return Span{begin, std::min(text.size(), text.find_first_of(ends, begin))};
  };
  if (name_quote == 0) return until(before == '"' ? "\"\n" : before == '\'' ? "'\n" : "\n");
  if (text[begin] == '[') return until("]");
  const Span bare = until(",}] \t\n\"'");
  constexpr std::array<std::string_view, 3> kNoSecrets = {"false", "null", "true"};
  return Contains(kNoSecrets, text.substr(begin, bare.end - begin)) ? Span{} : bare;
}

/// Whether a name may begin at `at`: behind a separator, or behind spaces at a line's or an
/// object's begin or behind a comma.
bool MayBeginName(std::string_view word, std::size_t at) {
  std::size_t spaces = at;
  while (spaces > 0 && (word[spaces - 1] == ' ' || word[spaces - 1] == '\t')) --spaces;
  if (spaces == 0 || word[spaces - 1] == '\n') return true;
  return spaces == at ? kBeforeName.find(word[at - 1]) != kAny
                      : word[spaces - 1] == ',' || word[spaces - 1] == '{';
}

std::string WithoutSecretsBehindColons(std::string_view word) {
  std::string out;
  std::size_t at = 0;
  while (at < word.size()) {
    // Spaces are looked back over once, from what follows them.
    if (!IsSpace(word[at]) && MayBeginName(word, at)) {
      const Span secret = SecretBehindColon(word.substr(at), at > 0 ? word[at - 1] : '\0');
      if (secret.end > secret.begin) {
        out.append(word.substr(at, secret.begin)).append(kStars);
        at += secret.end;
        continue;
      }
    }
    out += word[at++];
  }
  return out;
}

std::string RedactedLine(std::string_view line);

std::string RedactedWord(std::string_view whole) {
  if (const std::size_t value = SecretValueOf(whole); value != 0) {
    return std::string(whole.substr(0, value)).append(kStars);
  }
  // Before it is taken apart at its spaces, which such values may have.
  const std::string word = WithoutSecretsBehindColons(whole);
  if (std::any_of(word.begin(), word.end(), IsSpace)) return RedactedLine(word);
  return WithoutKeys(word);
}

/// The words of a line end at spaces that are in no quotes. A quote that does not end is none.
std::size_t WordLength(std::string_view line) {
  for (std::size_t at = 0; at < line.size(); ++at) {
    const char c = line[at];
    if (c == '"' || c == '\'') {
      if (const std::size_t end = line.find(c, at + 1); end != kAny) at = end;
    } else if (IsSpace(c)) {
      return at;
    }
  }
  return line.size();
}

/// Whether the word is in quotes as a whole, which may hold a command line in turn.
bool IsQuoted(std::string_view word) {
  return word.size() > 2 && (word.front() == '"' || word.front() == '\'') &&
         word.find(word.front(), 1) == word.size() - 1;
}

std::string RedactedLine(std::string_view line) {
  std::string out;
  bool secret = false;  ///< The next word is the value of the one before.
  while (!line.empty()) {
    if (IsSpace(line.front())) {
      out += line.front();
      line.remove_prefix(1);
      continue;
    }
    const std::string_view word = line.substr(0, WordLength(line));
    line.remove_prefix(word.size());
    if (secret && !word.starts_with('-')) {
      out += kStars;
    } else if (IsQuoted(word)) {
      out.append(1, word.front());
      out.append(RedactedWord(word.substr(1, word.size() - 2))).append(1, word.back());
    } else if (std::any_of(word.begin(), word.end(), IsSpace) && SecretValueOf(word) == 0) {
      out += WithoutKeys(word);  // Quoted in a part of it: taken apart no further.
    } else {
      out += RedactedWord(word);
    }
    secret = TakesSecret(word);
  }
  return out;
}

}  // namespace

std::vector<std::string> Redacted(std::vector<std::string> words) {
  bool secret = false;  // The next word is the value of the one before.
  for (std::string& word : words) {
    const bool takes = TakesSecret(word);
    word = secret && !word.starts_with('-') && !word.empty() ? std::string(kStars)
                                                             : RedactedWord(word);
    secret = takes;
  }
  return words;
}

}  // namespace telltale
