# SPDX-License-Identifier: Apache-2.0
"""A training that spends its time in known places: `hot_function` in the forward pass, `load_item` in a worker. It goes
on until a file appears: train_hot.py STOP-FILE. It sleeps in each step: others need the machine too.
"""

import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


def burn(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def hot_function() -> None:
    burn(0.06)


def load_item() -> None:
    burn(0.005)


class Items(Dataset):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        load_item()
        return torch.randn(8), index % 2


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hot_function()
        return self.layer(x)


def main(stop: Path) -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in DataLoader(Items(), batch_size=4, num_workers=1):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(0.04)
        if stop.exists():
            break
    print("trained")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
