// SPDX-License-Identifier: Apache-2.0
//
// Which item of a batch took longest. While a fetcher of torch's data loader fetches a batch, what
// it takes the items of (its dataset, its iterator) is replaced by an object that looks like it and
// reads the clock once after each item; before the fetch returns the original is put back.
//
// Thread safety: everything here is touched with the GIL held.
#pragma once

#include <cstdint>

#include "py_api.h"

namespace telltale::native {

bool InitItems();
/// This is a forked child: how long items take is learned anew.
void ForgetItems();

/// Watches fetcher.`name` until it is destroyed. Does nothing where that cannot be had or replaced.
class WatchedItems {
 public:
  WatchedItems(PyObject* fetcher, PyObject* name);
  ~WatchedItems();
  WatchedItems(const WatchedItems&) = delete;
  WatchedItems& operator=(const WatchedItems&) = delete;

  /// The fetch has ended well: records the span `sample` of its longest item where the fetch was
  /// long, and tells on_item of one that took far longer than items do.
  void Tell(std::uint64_t begin, std::uint64_t end);
  /// Items that were taken so far; 0 where they are not seen one by one.
  std::uint64_t count() const;
  /// When the last of them was there, by tt_now.
  std::uint64_t last() const;

 private:
  PyObject* fetcher_;  ///< Borrowed.
  PyObject* name_;     ///< Borrowed.
  PyObject* items_;    ///< Owned; null: nothing is watched.
};

}  // namespace telltale::native
