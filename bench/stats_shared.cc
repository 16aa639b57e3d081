// SPDX-License-Identifier: Apache-2.0
// What bench/stats_peers.py calls: the probe's own kernel and the plain sum, in one shared library.
#include "bench/plain_sum.h"
#include "telltale/probe.h"

extern "C" {

TT_API float bench_plain_sum(const float* data, size_t count, int wide) {
  return telltale::bench::PlainSum(data, count, wide != 0);
}

TT_API int bench_stats(const float* data, size_t count, tt_stats* out) {
  return tt_compute_stats(data, count, TT_DTYPE_F32, out);
}

}  // extern "C"
