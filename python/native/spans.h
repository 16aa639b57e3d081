// SPDX-License-Identifier: Apache-2.0
//
// Spans of what a framework does beside the phases of a step: pauses of the garbage collector,
// evaluations, calls that hooks of kind kTimed stand around, and what was done before the process
// registered (imports, reading a checkpoint). And the clock by which samplers are called.
//
// Thread safety: everything here is touched with the GIL held.
#pragma once

#include "py_api.h"
#include "telltale/probe.h"

namespace telltale::native {

/// Records a span; one that ended before the process registered is kept until it does (64 of them).
/// `name` is a str.
void RecordSpan(PyObject* name, std::uint64_t begin, std::uint64_t end, tt_span_category category);

/// The channel's clock, for so many nanoseconds. Exact to a thousandth once a second has passed.
std::uint64_t Ticks(std::uint64_t ns);
std::uint64_t Nanoseconds(std::uint64_t ticks);

/// The process has registered: what was kept is recorded.
void SpansAwake();
/// This is a forked child: what was kept is the parent's.
void ForgetSpans();
/// The process ends.
void FinishSpans();

// ---- evaluations: from the first forward without gradient to the last before training goes on
// ----

extern bool g_evaluating;
/// A forward without gradient begins, ends.
void EvaluationForward(std::uint64_t begin, std::uint64_t end);
/// The forward of a training step begins.
[[gnu::cold]] void EndEvaluation();
/// A fetch began: the loader of an evaluation has one of its own.
extern std::uint64_t g_newest_fetch;

// ---- samplers: what adapters look at from time to time, at a moment that suits ----

/// When on_queue may be called next; far away where there is none.
extern std::uint64_t g_queue_due;
/// When on_second may be called next.
extern std::uint64_t g_second_due;
/// Calls on_queue(iterator) before a fetch; sets g_queue_due. Returns whether the batch is
/// ready.
[[gnu::cold]] bool SampleQueue(PyObject* iterator, std::uint64_t now);
/// Calls on_second() before the forward of a training step.
[[gnu::cold]] void SampleSecond(std::uint64_t now);
/// When on_fetched may be called next.
extern std::uint64_t g_fetched_due;
/// Calls on_fetched(fetcher) behind a fetch.
[[gnu::cold]] void SampleFetcher(PyObject* fetcher, std::uint64_t now);
/// A sampler was set or taken away.
void RenewSamplers();

/// collected, span_at, span_ns.
bool AddSpanFunctions(PyObject* module);

}  // namespace telltale::native
