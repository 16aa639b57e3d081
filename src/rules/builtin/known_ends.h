// SPDX-License-Identifier: Apache-2.0
// What frequent exceptions and signals mean and what helps, as data: for RunEnd.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace telltale::rules {

/// An exception that many trainings end by.
struct KnownEnd {
  std::string_view type;  ///< Found in the exception's type; empty: any.
  std::string_view text;  ///< Found in its text; empty: any.
  std::string_view cause;
  std::string_view advice;
  // The same in a run whose DataLoader has workers; empty: no other words.
  std::string_view cause_with_workers = {};
  std::string_view advice_with_workers = {};
};
/// Null where no entry fits. `text` may be empty: it can be switched off.
const KnownEnd* FindKnownEnd(std::string_view type, std::string_view text);

/// What a signal says of a process that it ended.
struct KnownSignal {
  int signal;
  std::string_view name;
  std::string_view what;  ///< Behind "The training": "crashed with SIGSEGV".
  std::string_view cause;
  std::string_view advice;
  std::string_view advice_in_worker = {};  ///< Where a DataLoader worker ended; empty: the same.
};
/// Null where it is not a signal that ends trainings.
const KnownSignal* FindKnownSignal(int signal);
/// "SIGUSR1", or "signal 40".
std::string SignalName(int signal);

/// The numbers in the text of torch.cuda.OutOfMemoryError, in bytes.
struct CudaMemory {
  double wanted = 0;
  std::optional<double> total, free, allocated;
  std::optional<double> idle;  ///< Reserved by PyTorch and not allocated.
};
/// Nothing where the text is another one.
std::optional<CudaMemory> CudaMemoryOf(std::string_view text);

}  // namespace telltale::rules
