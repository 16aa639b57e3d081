# SPDX-License-Identifier: Apache-2.0
"""One training whose step time bench/overhead.py measures; knows nothing of Telltale.

usage: train_step.py MODEL [--steps N] [--warmup N] [--threads N] [--spin-ms MS] [--smdebug FOLDER [--saves WHAT]]
After the warm-up it takes turns: for each line on its standard input it makes N steps and prints one
JSON line with their begins (time.perf_counter_ns()) and times in nanoseconds (empty lists after the warm-up); it ends
at the end of its input. With --smdebug its hook is registered on model and loss as its documentation says, and set to
save nothing, or, every step, of all weights and gradients: reductions (ten: min, max, mean and std of the values and
of the absolute ones, l1, l2), histograms, or the raw values.
"""

import argparse
import json
import os
import sys
import time
from typing import Any

import torch
from torch import nn


class Transformer(nn.Module):
    """Three encoder layers of width 512 over 2 x 32 tokens: 10 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 512)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(512, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def make(model: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The network and one batch."""
    if model == "resnet18":
        import torchvision

        return (
            torchvision.models.resnet18(num_classes=10),
            torch.randn(16, 3, 64, 64),
            torch.randint(0, 10, (16,)),
        )
    if model == "transformer":
        return Transformer(), torch.randint(0, 1000, (2, 32)), torch.randint(0, 10, (2,))
    if model == "mlp":
        sizes = (784, 2048, 2048, 1920, 10)
        layers: list[nn.Module] = []
        for number, (fan_in, fan_out) in enumerate(zip(sizes, sizes[1:])):
            layers += [nn.ReLU(), nn.Linear(fan_in, fan_out)] if number else [nn.Linear(fan_in, fan_out)]
        return nn.Sequential(*layers), torch.randn(64, 784), torch.randint(0, 10, (64,))
    # 42 k parameters, where a step is little more than the calls of Python and torch.
    layers = []
    for _ in range(2):
        layers += [nn.Linear(128 if layers else 64, 128), nn.ReLU()]
    layers += [nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), torch.randn(32, 64), torch.randint(0, 10, (32,))


def smdebug_hook(folder: str, saves: str) -> Any:
    """smdebug's hook as its documentation makes one."""
    import smdebug.pytorch as smd

    config: dict[str, Any] = {"save_config": smd.SaveConfig(save_interval=1)}
    if saves == "nothing":
        config["save_config"] = smd.SaveConfig(save_interval=1_000_000, start_step=1)
    elif saves == "reductions":
        four = ["min", "max", "mean", "std"]
        config["reduction_config"] = smd.ReductionConfig(
            reductions=four, abs_reductions=four, norms=["l1", "l2"]
        )
    elif saves == "histograms":
        # They go to TensorBoard's files alone; a reduction keeps the raw values from being saved too.
        config["reduction_config"] = smd.ReductionConfig(reductions=["mean"])
        config |= {"export_tensorboard": True, "tensorboard_dir": f"{folder}-tensorboard"}
    hook = smd.Hook(out_dir=folder, include_collections=["weights", "gradients", "losses"], **config)
    if saves == "histograms":
        for name in ("weights", "gradients"):
            hook.get_collection(name).save_histogram = True
    return hook


def spin(ms: float) -> None:
    """Computes until this thread has had so much of a core: a time when it is stopped is none of it."""
    end = time.thread_time() + ms / 1000
    while time.thread_time() < end:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["resnet18", "transformer", "mlp", "small"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--spin-ms", type=float, default=0, help="computes for so long in each step: a known cost"
    )
    parser.add_argument("--smdebug", metavar="FOLDER")
    parser.add_argument("--saves", choices=["nothing", "reductions", "histograms", "raw"], default="nothing")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    network, inputs, targets = make(options.model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    if options.smdebug:
        hook = smdebug_hook(options.smdebug, options.saves)
        hook.register_module(network)
        hook.register_loss(criterion)

    def train(steps: int) -> tuple[list[int], list[int]]:
        begins, times = [], []
        for _ in range(steps):
            begin = time.perf_counter_ns()
            optimizer.zero_grad()
            loss = criterion(network(inputs), targets)
            loss.backward()
            optimizer.step()
            if options.spin_ms:
                spin(options.spin_ms)
            times.append(time.perf_counter_ns() - begin)
            begins.append(begin)
        return begins, times

    train(options.warmup)
    if options.threads == 1 and not options.smdebug:
        # This thread alone: whatever else runs, of torch's or of what watches us, goes where it likes (smdebug's
        # writers are made later and would have to stay too). Neighbours of the machine slow its cores down one at a
        # time, for seconds; those who take turns share theirs.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    begins: list[int] = []
    times: list[int] = []
    while True:
        print(json.dumps({"begin_ns": begins, "step_ns": times}), flush=True)
        if not sys.stdin.readline():
            return
        begins, times = train(options.steps)


if __name__ == "__main__":
    main()
