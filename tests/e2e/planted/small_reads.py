# SPDX-License-Identifier: Apache-2.0
"""A sample is 32 files of 128 bytes: a batch opens, reads and closes a thousand of them.

With --cured the same bytes were packed into one array in one file, which is read in one call.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

SECONDS = 20
SAMPLES = 256
PARTS = 32
CLASSES = 4
BATCH = 32


class Samples(torch.utils.data.Dataset):
    """Noise around the middle of a class, in files."""

    def __init__(self, folder: Path, packed: bool) -> None:
        generator = np.random.default_rng(0)
        self.labels = generator.integers(0, CLASSES, SAMPLES)
        middles = generator.standard_normal((CLASSES, PARTS, 32))
        parts = (middles[self.labels] + generator.standard_normal((SAMPLES, PARTS, 32))).astype(np.float32)
        self.folder = folder
        self.packed: np.ndarray | None = None
        if packed:
            parts.tofile(folder / "all")
            self.packed = np.fromfile(folder / "all", np.float32).reshape(SAMPLES, PARTS * 32)
            return
        for sample in range(SAMPLES):
            for part in range(PARTS):
                (folder / f"{sample}-{part}").write_bytes(parts[sample, part].tobytes())

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        sample = index % SAMPLES
        if self.packed is not None:
            return self.packed[sample], int(self.labels[sample])
        raw = b"".join((self.folder / f"{sample}-{part}").read_bytes() for part in range(PARTS))
        return np.frombuffer(raw, np.float32).copy(), int(self.labels[sample])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        samples = Samples(Path(folder), "--cured" in sys.argv)
        loader = torch.utils.data.DataLoader(samples, batch_size=BATCH)
        model = nn.Sequential(nn.Linear(PARTS * 32, 256), nn.ReLU(), nn.Linear(256, CLASSES))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
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
