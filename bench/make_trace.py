# SPDX-License-Identifier: Apache-2.0
"""Writes a trace as PyTorch's profiler does of a training on one GPU: operators with a nested one each, launches,
flows and kernels, 225 bytes an event.

usage: make_trace.py OUT.json.gz EVENTS [STEP_OPERATORS]     a name without .gz: not packed
"""

import gzip
import random
import sys
from pathlib import Path
from typing import IO

OPERATORS = (
    "aten::empty", "aten::mm", "aten::addmm", "aten::conv2d", "aten::copy_", "aten::add_", "aten::mul",
    "aten::batch_norm", "autograd::engine::evaluate_function: ConvolutionBackward0",
    "autograd::engine::evaluate_function: AddmmBackward0", "aten::native_batch_norm",
)  # fmt: skip
KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1> >"
    "(int, at::native::FillFunctor<float>, at::detail::Array<char*, 1>)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "ampere_sgemm_128x64_tn",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct, float const*)",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(Params)",
)
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 42505273344, "numSms": 108}],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
  "traceEvents": [
  {"name": "process_name", "ph": "M", "ts": 0, "pid": 7, "tid": 0, "args": {"name": "python3"}}"""


def write(out: IO[str], events: int, step_operators: int) -> None:
    chance = random.Random(2)
    begin = 1_669_783_687_464_181
    cpu, gpu, correlation = begin, begin, 1000
    out.write(HEAD)
    written, operators = 1, 0
    while written < events:
        if operators % step_operators == 0:
            out.write(
                f',\n  {{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{operators // step_operators}", '
                f'"pid": 7, "tid": 7, "ts": {cpu}, "dur": {step_operators * 60 - 2}, '
                f'"args": {{"External id": {correlation}, "Ev Idx": {written}}}}}'
            )
            written += 1
        operators += 1
        duration, which = chance.randint(20, 50), chance.randrange(len(OPERATORS))
        gpu = max(gpu + 1, cpu + 12)
        kernel_duration, kernel = chance.randint(3, 45), KERNELS[chance.randrange(len(KERNELS))]
        out.write(
            f',\n  {{"ph": "X", "cat": "cpu_op", "name": "{OPERATORS[which]}", "pid": 7, "tid": 7, "ts": {cpu}, '
            f'"dur": {duration}, "args": {{"External id": {correlation}, "Ev Idx": {written}, '
            f'"Input Dims": [[64, 256, 14, 14], [256, 256, 3, 3], []], "Input type": ["float", "float", ""]}}}}'
            f',\n  {{"ph": "X", "cat": "cpu_op", "name": "{OPERATORS[(which * 7 + 1) % 11]}", "pid": 7, "tid": 7, '
            f'"ts": {cpu + 1}, "dur": {duration - 4}, "args": {{"External id": {correlation + 1}, "Ev Idx": {written}}}}}'
            f',\n  {{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, '
            f'"ts": {cpu + 4}, "dur": 7, '
            f'"args": {{"External id": {correlation}, "cbid": 211, "correlation": {correlation}}}}}'
            f',\n  {{"ph": "s", "id": {correlation}, "pid": 7, "tid": 7, "ts": {cpu + 4}, "cat": "ac2g", '
            f'"name": "ac2g"}}'
            f',\n  {{"ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7, "ts": {gpu}, '
            f'"dur": {kernel_duration}, "args": {{"External id": {correlation}, "queued": 0, "device": 0, '
            f'"context": 1, "stream": 7, "correlation": {correlation}, "registers per thread": 16, '
            f'"shared memory": 0, "blocks per SM": 0.3, "warps per SM": 1.2, "grid": [24, 1, 1], '
            f'"block": [128, 1, 1], "est. achieved occupancy %": 2}}}}'
            f',\n  {{"ph": "f", "id": {correlation}, "pid": 0, "tid": 7, "ts": {gpu}, "cat": "ac2g", '
            f'"name": "ac2g", "bp": "e"}}'
        )
        written += 6
        gpu += kernel_duration
        cpu += 60
        correlation += 2
    out.write('\n  ],\n  "traceName": "trace_rank_0.json"\n}\n')


def main() -> None:
    path, events = Path(sys.argv[1]), int(sys.argv[2])
    step_operators = int(sys.argv[3]) if len(sys.argv) > 3 else 800
    if path.suffix == ".gz":
        with gzip.open(path, "wt", compresslevel=6) as packed:
            write(packed, events, step_operators)
    else:
        with path.open("w") as plain:
            write(plain, events, step_operators)


if __name__ == "__main__":
    main()
