// SPDX-License-Identifier: Apache-2.0
// How much of what is freed malloc keeps. What goes back to the kernel is cleared page by page when
// it is taken again: where memory of one size is freed and taken many times a second, that costs
// more than to fill it.
//
// For the whole process: set before its threads are made. Without glibc nothing happens.
#pragma once

namespace telltale {

/// malloc keeps up to `kept` bytes at the end of its heap, and blocks below `block` bytes come from
/// that heap (at most 32 MiB: malloc takes no more).
void KeepFreedMemory(int block, int kept);

/// The same for a process that reads runs or traces from one end to the other and ends: 256 MiB are
/// kept, and the buffers of Arrow come from malloc too, whose own pools give back what is free for
/// 10 ms and take address space beforehand. Call it before the first of Arrow's pools is made.
void KeepFreedMemoryOfReading();

}  // namespace telltale
