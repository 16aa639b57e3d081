// SPDX-License-Identifier: Apache-2.0
// An XSpace that went through a program for text: each byte above 127 that was no UTF-8 has become
// U+FFFD, and with it the low bits of every number above 127, lengths too. What is left are names,
// and events whose numbers happen to be whole.
#pragma once
#include <string_view>

#include "base/status.h"
#include "interchange/trace_source.h"

namespace telltale::interchange {

/// More than one byte in fifty was replaced.
bool WentThroughText(std::string_view bytes);

/// Gives the events that are whole, counts the others. kUnusable where none is.
Status SalvageXSpace(std::string_view bytes, TraceSource* source);

}  // namespace telltale::interchange
