# SPDX-License-Identifier: Apache-2.0
"""Four loader workers read no faster than one. Someone had put a lock around the read because the file library is not to be used from
two places at once; the lock is inherited by all workers, each waits for its turn, and the training waits for them.
(The read's latency stands for a network drive.)"""

import multiprocessing
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
SAMPLES, WIDTH, SECONDS = 4800, 128, 10.0


class Recordings(torch.utils.data.Dataset):
    def __init__(self, path, kinds):
        self.path, self.kinds = path, kinds
        self.lock = multiprocessing.Lock()
        self.file = None

    def __len__(self):
        return len(self.kinds)

    def read(self, i):
        if self.file is None:  # each worker opens the file for itself
            self.file = open(self.path, "rb", buffering=0)
        time.sleep(0.008)
        return os.pread(self.file.fileno(), 4 * WIDTH, i * 4 * WIDTH)

    def __getitem__(self, i):
        if CURED:
            raw = self.read(i)
        else:
            with self.lock:
                raw = self.read(i)
        return torch.from_numpy(np.frombuffer(raw, np.float32).copy()), self.kinds[i]


def main():
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "recordings.bin")
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 10, SAMPLES)
    centres = rng.standard_normal((10, WIDTH)).astype(np.float32) * 0.6
    (centres[kinds] + rng.standard_normal((SAMPLES, WIDTH)).astype(np.float32)).tofile(path)

    loader = torch.utils.data.DataLoader(
        Recordings(path, kinds), 8, shuffle=True, num_workers=4, persistent_workers=True
    )
    model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    begin = time.monotonic()
    waited, step, recent = 0.0, 0, None
    while time.monotonic() - begin < SECONDS:
        mark = time.monotonic()
        for signal, kind in loader:
            waited += time.monotonic() - mark
            loss = nn.functional.cross_entropy(model(signal), kind)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.03)
            recent = loss.item() if recent is None else 0.95 * recent + 0.05 * loss.item()
            step += 1
            mark = time.monotonic()
            if mark - begin >= SECONDS:
                break
    spent = time.monotonic() - begin
    del loader
    shutil.rmtree(folder)
    print(
        f"truth: {100 * waited / spent:.0f} % of {spent:.1f} s waited for 4 workers, {8 * step / spent:.0f} samples a second, loss {recent:.2f}"
    )


if __name__ == "__main__":
    main()
