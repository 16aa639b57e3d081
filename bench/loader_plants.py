# SPDX-License-Identifier: Apache-2.0
"""A training whose loader has one planted fault, for bench/loader_advice.py: prints the milliseconds of a step.

usage: loader_plants.py NAME [--workers N] [--persistent] [--once] [--kept] [--seconds S]

--once: one DataLoader for all epochs, where the plant makes one for each. --kept: the items' results are made
before the first step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
import zlib
from typing import Any, Callable

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH = 192


def burn(seconds: float) -> None:
    """So much time on a core."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def sleeps(seconds: float, width: int = 16) -> Callable[[int], Any]:
    def make(index: int) -> Any:
        time.sleep(seconds)
        return torch.full((width,), float(index)) + torch.rand(1)

    return make


def sleeps_unevenly(index: int) -> Any:
    time.sleep(0.004 + 0.012 * torch.rand(1).item())
    return torch.rand(16)


def computes(seconds: float) -> Callable[[int], Any]:
    def make(index: int) -> Any:
        burn(seconds)
        return torch.rand(16)

    return make


def repeats(index: int) -> Any:
    values = np.random.RandomState(index).rand(64, 64)
    result = values
    for _ in range(3):
        result = np.linalg.qr(result)[0] @ values
    return torch.from_numpy(result.reshape(-1)[:64].copy()).float()


PACKED = zlib.compress(bytes(np.random.RandomState(0).bytes(1 << 16)) + bytes(1 << 20))


def unpacks(index: int) -> Any:
    data = np.frombuffer(zlib.decompress(PACKED), dtype=np.uint8)
    return torch.from_numpy(data[index : index + 64].copy()).float()


TABLE = torch.randn(4096, 16)


def in_memory(index: int) -> Any:
    return TABLE[index]


LOCK = multiprocessing.Lock()


def locked(index: int) -> Any:
    with LOCK:
        time.sleep(0.004)
    return torch.rand(16)


def collate_slowly(items: list[Any]) -> Any:
    burn(0.02)
    return torch.stack(items)


def open_slowly(_: int) -> None:
    time.sleep(0.4)


class Items(Dataset):
    def __init__(self, make: Callable[[int], Any], length: int, kept: bool) -> None:
        self.make, self.length = make, length
        self.items = [make(index) for index in range(length)] if kept else None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index) if self.items is None else self.items[index]


# Name: items, batch size, workers, compute of a step in seconds; then options.
PLANTS: dict[str, tuple[Callable[[int], Any], int, int, float, dict[str, Any]]] = {
    "sleep": (sleeps(0.01), 4, 0, 0.005, {}),
    "sleep_long": (sleeps(0.05), 4, 0, 0.002, {}),
    "sleep_one_worker": (sleeps(0.01), 8, 1, 0.01, {"persistent": True}),
    "sleep_two_workers": (sleeps(0.02), 4, 2, 0.005, {"persistent": True}),
    "sleep_unevenly": (sleeps_unevenly, 4, 0, 0.01, {}),
    "sleep_big_batch": (sleeps(0.01, 1 << 18), 8, 0, 0.02, {}),
    "compute": (computes(0.004), 8, 0, 0.03, {}),
    "compute_one_worker": (computes(0.006), 8, 1, 0.01, {"persistent": True}),
    "repeat": (repeats, 8, 0, 0.005, {}),
    "repeat_one_worker": (repeats, 16, 1, 0.005, {"persistent": True}),
    "unpack": (unpacks, 16, 0, 0.005, {}),
    "tiny": (in_memory, 32, 0, 0.0005, {"length": 4096}),
    "tiny_one_worker": (in_memory, 32, 1, 0.0005, {"length": 4096, "persistent": True}),
    "collate": (in_memory, 16, 0, 0.02, {"length": 4096, "collate_fn": collate_slowly}),
    "respawn": (in_memory, 16, 2, 0.01, {"worker_init_fn": open_slowly}),
    "respawn_anew": (in_memory, 16, 2, 0.01, {"worker_init_fn": open_slowly, "anew": True}),
    "lock": (locked, 8, 2, 0.005, {"persistent": True}),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PLANTS)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--seconds", type=float, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make, batch, workers, compute, options = PLANTS[arguments.name]
    options = dict(options)
    if arguments.workers is not None:
        workers = arguments.workers
    persistent = options.pop("persistent", False) or arguments.persistent
    anew = options.pop("anew", False) and not arguments.once
    data = Items(make, options.pop("length", LENGTH), arguments.kept)
    width = data[0].numel()
    net = nn.Linear(width, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def loader() -> Any:
        return DataLoader(
            data,
            batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=persistent and workers > 0,
            **options,
        )

    batches = loader()
    steps = 0
    began = time.monotonic()
    measured = began
    warm = 0
    while time.monotonic() < began + arguments.seconds:
        for items in loader() if anew else batches:
            optimizer.zero_grad()
            net(items).square().mean().backward()
            optimizer.step()
            time.sleep(compute)
            steps += 1
            # Imports, the first start of the workers.
            if warm == 0 and time.monotonic() > began + arguments.seconds / 8:
                warm, measured = steps, time.monotonic()
            if time.monotonic() > began + arguments.seconds:
                break
    print(f"ms/step {1000 * (time.monotonic() - measured) / max(1, steps - warm):.4f}", flush=True)


if __name__ == "__main__":
    main()
