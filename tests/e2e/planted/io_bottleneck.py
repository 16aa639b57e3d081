# SPDX-License-Identifier: Apache-2.0
"""Every sample is put together from reads that go past the page cache to the disk, one after the other.

With --cured they come from memory and there is no file: pressure on storage is an average over ten seconds, in
which the writing of one would still be seen.
"""

import mmap
import os
import random
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional as F

BLOCK = 1 << 20
BLOCKS = 128
READS = 4  # of one sample
BATCH = 8
SECONDS = 16
CLASSES = 4


def write(path: str) -> None:
    piece = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(BLOCKS * BLOCK // len(piece)):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


class Blocks(torch.utils.data.Dataset):
    """Samples of READS blocks at random places of the file."""

    def __init__(self, path: str, cured: bool) -> None:
        self.memory: bytes | None = None
        if cured:
            self.memory = os.urandom(BLOCKS * BLOCK)
            return
        self.buffer = mmap.mmap(-1, BLOCK)
        try:
            self.file = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
            os.preadv(self.file, [self.buffer], 0)
        except OSError:  # A file system that has no direct reads: its cache is told to forget.
            self.file = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return 1_000_000

    def block(self, number: int) -> bytes:
        if self.memory is not None:
            return self.memory[number * BLOCK : number * BLOCK + 8]
        os.posix_fadvise(self.file, number * BLOCK, BLOCK, os.POSIX_FADV_DONTNEED)
        os.preadv(self.file, [self.buffer], number * BLOCK)
        return self.buffer[:8]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        places = random.Random(index)
        data = b"".join(self.block(places.randrange(BLOCKS)) for _ in range(READS))
        # A label that can be learned: else the loss stands still, too.
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).float() / 255, data[0] * CLASSES // 256


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        path = os.path.join(folder, "blocks")
        if "--cured" not in sys.argv:
            write(path)
        loader = torch.utils.data.DataLoader(Blocks(path, "--cured" in sys.argv), batch_size=BATCH)
        model = nn.Sequential(nn.Linear(READS * 8, 1024), nn.ReLU(), nn.Linear(1024, CLASSES))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        end = time.monotonic() + SECONDS
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            if time.monotonic() > end:
                break
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
