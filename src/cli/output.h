// SPDX-License-Identifier: Apache-2.0
// What subcommands say: Print() to stdout, Say() to stderr. Neither throws where the stream takes
// nothing; main asks once, at the end, whether stdout took everything.
// Thread safety: Say() from any thread, the rest from one.
#pragma once
#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace telltale::cli {

/// Keeps the numbers of standard streams that were closed from the first files that we open.
/// Writing to such a stream still fails, and a program that we start finds it closed, as given.
void HoldStandardStreams();

/// Writes to stdout; false where it could not. OutputError() then says why.
bool WriteOut(std::string_view text);
/// Writes to stderr. That it cannot be written is nobody's to know, and never a reason to fail.
void WriteErr(std::string_view text);

template <class... Args>
void Print(fmt::format_string<Args...> format, Args&&... args) {
  WriteOut(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void Say(fmt::format_string<Args...> format, Args&&... args) {
  WriteErr(fmt::format(format, std::forward<Args>(args)...));
}

/// Writes out what stdio still holds. 0, or errno of the first write to stdout that failed.
int OutputError();

}  // namespace telltale::cli
