// SPDX-License-Identifier: Apache-2.0
#include "probe/stats.h"

namespace telltale::probe {

BlockKernelF32 BlockKernelF32Avx512() { return nullptr; }

}  // namespace telltale::probe
