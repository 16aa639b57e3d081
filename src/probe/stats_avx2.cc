// SPDX-License-Identifier: Apache-2.0
#include "probe/stats.h"

namespace telltale::probe {

BlockKernelF32 BlockKernelF32Avx2() { return nullptr; }

}  // namespace telltale::probe
