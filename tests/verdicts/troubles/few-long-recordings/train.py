# SPDX-License-Identifier: Apache-2.0
"""Most recordings are a few seconds long, one in twenty-five is two hours long. The data set unpacks the whole recording and then
takes one second of it. Each batch with a long recording in it stops the training for a long moment; the other batches come at once."""

import os
import shutil
import sys
import tempfile
import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
folder = tempfile.mkdtemp()
RATE = 4000
rng = np.random.default_rng(0)


def record(path, seconds, tone):
    """Packs a recording; the cure packs each second of it by itself, with a table of where each second begins."""
    second = 6 * np.sin(2 * np.pi * (100 + 150 * tone) * np.arange(RATE) / RATE)
    some = [(second + rng.integers(-9, 10, RATE)).astype("int16").tobytes() for _ in range(3)]
    parts = [some[rng.integers(3)] for _ in range(seconds)]
    if cured:
        small = {p: zlib.compress(p, 1) for p in some}
        packed = [small[p] for p in parts]
    else:
        packed = [zlib.compress(b"".join(parts), 1)]
    with open(path, "wb") as f:
        f.write(b"".join(packed))
    return np.cumsum([0] + [len(p) for p in packed])


class Recordings(Dataset):
    def __init__(self, count=150):
        self.tones = rng.integers(0, 6, count)
        self.seconds = [7200 if i % 25 == 7 else int(rng.integers(2, 6)) for i in range(count)]
        self.paths = [os.path.join(folder, f"{i}.rec") for i in range(count)]
        self.tables = [record(p, s, t) for p, s, t in zip(self.paths, self.seconds, self.tones)]

    def __len__(self):
        return len(self.tones)

    def __getitem__(self, i):
        at = int(torch.randint(0, self.seconds[i], (1,)))
        with open(self.paths[i], "rb") as f:
            if cured:
                f.seek(self.tables[i][at])
                clip = zlib.decompress(f.read(self.tables[i][at + 1] - self.tables[i][at]))
            else:
                whole = zlib.decompress(f.read())
                clip = whole[2 * RATE * at : 2 * RATE * (at + 1)]
        spectrum = np.abs(np.fft.rfft(np.frombuffer(clip, "int16")))[:2000].reshape(80, 25).mean(1)
        return np.log(spectrum + 1).astype("float32"), self.tones[i]


def stack(samples):
    x, y = zip(*samples)
    return np.stack(x), np.array(y)


recordings = Recordings()
model = nn.Sequential(nn.LayerNorm(80), nn.Linear(80, 64), nn.ReLU(), nn.Linear(64, 6))
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
order = RandomSampler(recordings, replacement=True, num_samples=200000)
batches = iter(DataLoader(recordings, batch_size=8, sampler=order, num_workers=2, collate_fn=stack))
next(batches)  # the workers have started

start = time.perf_counter()
waits, losses = [], []
while time.perf_counter() - start < 8.5:
    t = time.perf_counter()
    x, y = map(torch.from_numpy, next(batches))
    waits.append(time.perf_counter() - t)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.03)  # the rest of the network, on a device
    losses.append(loss.item())
    if len(losses) % 25 == 0:
        print(f"step {len(losses)} loss {np.mean(losses[-25:]):.3f}", flush=True)
total = time.perf_counter() - start
del batches
shutil.rmtree(folder)
slow = sorted(waits)[-max(1, len(waits) // 4) :]
print(f"loss {losses[0]:.3f} -> {np.mean(losses[-20:]):.3f} in {len(losses)} steps")
print(
    f"truth: {100 * sum(waits) / total:.0f} % of {total:.1f} s waited for data, {100 * sum(slow) / sum(waits):.0f} % of it for a quarter of the batches, "
    f"the median batch {1000 * np.median(waits):.0f} ms, the slowest {1000 * max(waits):.0f} ms",
    flush=True,
)
