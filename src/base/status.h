// SPDX-License-Identifier: Apache-2.0
// Status and Result: the one way in which an operation says that it failed. No exceptions cross a
// module. An error is handled once: returned or reported, not both.
#pragma once
#include <optional>
#include <string>
#include <utility>

namespace telltale {

/// The values are the exit codes of the command line, permanent.
enum class Code : int {
  kOk = 0,
  kUsage = 2,     ///< The caller asked for something that makes no sense.
  kUnusable = 3,  ///< The input is missing, or nothing of it can be used.
  kLimit = 4,     ///< A limit was hit.
  kIo = 5,        ///< Storage or I/O failed.
  kAuth = 6,
  kPartial = 7,  ///< Part of the input was damaged; the rest was salvaged.
  kVersion = 8,  ///< Written by a version that this one does not know.
  kRunning = 9,  ///< Somebody else is already doing it.
};

/// Code and one line that says what, where, why and what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

/// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
  Result(Code code, std::string message) : status_(code, std::move(message)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  /// REQUIRES: ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

#define TELLTALE_CONCAT_INNER(a, b) a##b
#define TELLTALE_CONCAT(a, b) TELLTALE_CONCAT_INNER(a, b)
/// Returns the Status of `expr` from the calling function where it is not ok.
#define TELLTALE_RETURN_IF_ERROR(expr)                             \
  do {                                                             \
    if (::telltale::Status tt_s = (expr); !tt_s.ok()) return tt_s; \
  } while (false)
/// `TELLTALE_ASSIGN_OR_RETURN(auto x, F())`.
#define TELLTALE_ASSIGN_OR_RETURN(lhs, expr) \
  TELLTALE_ASSIGN_OR_RETURN_INNER(TELLTALE_CONCAT(tt_result_, __LINE__), lhs, expr)
#define TELLTALE_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                    \
  if (!tmp.ok()) return tmp.status();                   \
  lhs = std::move(tmp).value()

}  // namespace telltale
