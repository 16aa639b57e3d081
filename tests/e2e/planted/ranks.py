# SPDX-License-Identifier: Apache-2.0
"""Starts a script once a rank, in a process group of gloo, and ends what does not end by itself."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

import torch
import torch.distributed as dist


def launch(train: Callable[[int], None], ranks: int = 2, limit_s: float = 240) -> None:
    """Calls train(rank) in a process of each rank.

    Args:
        ranks: how many.
        limit_s: seconds after which the ranks are killed.
    """
    rank = os.environ.get("PLANTED_RANK")
    if rank is not None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=os.environ["PLANTED_MEETING"], rank=int(rank), world_size=ranks
        )
        train(int(rank))
        dist.destroy_process_group()
        return
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        children = [
            subprocess.Popen(
                [sys.executable, *sys.argv],
                env={**os.environ, "PLANTED_RANK": str(number), "PLANTED_MEETING": meeting},
            )
            for number in range(ranks)
        ]
        deadline = time.monotonic() + limit_s
        for child in children:
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
        for child in children:
            child.wait()


def average(model: torch.nn.Module, ranks: int = 2) -> None:
    """The gradients of all ranks, each parameter in a collective of its own."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
