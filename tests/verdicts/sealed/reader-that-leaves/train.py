# SPDX-License-Identifier: Apache-2.0
"""A training dies in its first epoch with "DataLoader worker exited unexpectedly" and no word of what happened in it: one of the shards
that the list names is not on the disk, and the reader, written for a script, calls sys.exit in the worker when it misses a file."""

import os
import shutil
import sys
import tempfile
import time

import numpy as np
import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
torch.manual_seed(0)
torch.set_num_threads(1)
SHARDS, ROWS, CLASSES, WIDTH = 120, 64, 10, 48


class Shards(torch.utils.data.Dataset):
    def __init__(self, folder, names):
        self.folder, self.names = folder, names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        path = os.path.join(self.folder, self.names[i])
        if not os.path.exists(path):
            print(
                f"truth: {self.names[i]} is missing, the reader leaves with sys.exit(2) at shard {i}",
                flush=True,
            )
            sys.exit(2)
        table = np.load(path)
        return torch.from_numpy(table[:, :-1]), torch.from_numpy(table[:, -1]).long()


def main():
    folder = tempfile.mkdtemp()
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, WIDTH)) * 0.6
    names = [f"shard-{i:03d}.npy" for i in range(SHARDS)]
    for name in names:
        kinds = rng.integers(0, CLASSES, ROWS)
        rows = centres[kinds] + rng.standard_normal((ROWS, WIDTH))
        np.save(os.path.join(folder, name), np.column_stack([rows, kinds]).astype(np.float32))
    os.remove(os.path.join(folder, "shard-109.npy"))  # the copy to this node was not complete
    try:
        missing = [name for name in names if not os.path.exists(os.path.join(folder, name))] if CURED else []
        shards = Shards(folder, [name for name in names if name not in missing])
        loader = torch.utils.data.DataLoader(shards, batch_size=None, num_workers=2, persistent_workers=True)
        model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))
        optimizer = torch.optim.Adam(model.parameters(), 2e-3)
        for epoch in range(2):
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(0.05)
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
        del loader
        print(
            f"truth: {len(missing)} of {SHARDS} shards missing and left out, {epoch + 1} epochs trained, loss {loss.item():.2f}"
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
