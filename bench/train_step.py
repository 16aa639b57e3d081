# SPDX-License-Identifier: Apache-2.0
"""One training whose step time bench/overhead.py measures; knows nothing of Telltale.

usage: train_step.py MODEL [--steps N] [--warmup N] [--threads N] [--smdebug FOLDER]
After the warm-up it takes turns: for each line on its standard input it makes N steps and prints one
JSON line with their times in nanoseconds (an empty list after the warm-up); it ends at the end of its
input. With --smdebug its hook is registered on model and loss as its documentation says, and set to
save nothing.
"""

import argparse
import json
import sys
import time

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
    # 42 k parameters, where a step is little more than the calls of Python and torch.
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.Linear(128 if layers else 64, 128), nn.ReLU()]
    layers += [nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), torch.randn(32, 64), torch.randint(0, 10, (32,))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["resnet18", "transformer", "small"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--smdebug", metavar="FOLDER")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    network, inputs, targets = make(options.model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    if options.smdebug:
        import smdebug.pytorch as smd

        hook = smd.Hook(
            out_dir=options.smdebug,
            save_config=smd.SaveConfig(save_interval=1_000_000, start_step=1),
            include_collections=["weights", "gradients", "losses"],
        )
        hook.register_module(network)
        hook.register_loss(criterion)

    def train(steps: int) -> list[int]:
        times = []
        for _ in range(steps):
            begin = time.perf_counter_ns()
            optimizer.zero_grad()
            loss = criterion(network(inputs), targets)
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter_ns() - begin)
        return times

    train(options.warmup)
    times: list[int] = []
    while True:
        print(json.dumps({"step_ns": times}), flush=True)
        if not sys.stdin.readline():
            return
        times = train(options.steps)


if __name__ == "__main__":
    main()
