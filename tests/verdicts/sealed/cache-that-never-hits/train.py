# SPDX-License-Identifier: Apache-2.0
"""A training's memory grows from step to step until the machine has none left. To save decoding, someone put an lru_cache without a bound
on the method that loads an image; but its arguments hold the random crop and flip too, so that nearly each call is a new entry, which
is kept for ever, and hardly any call finds one."""

import functools
import io
import random
import sys
import time

import numpy as np
import torch
from PIL import Image
from torch import nn

CURED = sys.argv[1:] == ["cured"]
random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
IMAGES, SIDE, CROP, STEPS = 160, 96, 72, 420

rng = np.random.default_rng(0)
kinds = rng.integers(0, 4, IMAGES)
stored = []
for kind in kinds:
    picture = rng.integers(0, 90, (SIDE, SIDE, 3))
    picture[..., :] += np.array([[120, 0, 0], [0, 120, 0], [0, 0, 120], [80, 80, 0]])[kind]
    file = io.BytesIO()
    Image.fromarray(picture.astype(np.uint8)).save(file, "JPEG", quality=85)
    stored.append(file.getvalue())


def memory_mib():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def decode(i):
    return np.asarray(Image.open(io.BytesIO(stored[i])).convert("RGB"))


@functools.cache
def decoded(i):
    return decode(i)


def cropped(picture, top, left, flip):
    part = picture[top : top + CROP, left : left + CROP]
    part = part[:, ::-1] if flip else part
    return torch.from_numpy(part.transpose(2, 0, 1).astype(np.float32) / 255)


@functools.cache
def load(i, top, left, flip):
    return cropped(decode(i), top, left, flip)


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return IMAGES

    def __getitem__(self, i):
        place = random.randrange(SIDE - CROP), random.randrange(SIDE - CROP), random.random() < 0.5
        return (cropped(decoded(i), *place) if CURED else load(i, *place)), int(kinds[i])


loader = torch.utils.data.DataLoader(Pictures(), 16, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 8, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 4)
)
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
step, at_start = 0, None
while step < STEPS:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.006)
        step += 1
        if step == 20:
            at_start = memory_mib()
        if step % 70 == 0:
            print(f"step {step} loss {loss.item():.3f} memory {memory_mib():.0f} MiB", flush=True)
        if step == STEPS:
            break
info = (decoded if CURED else load).cache_info()
print(
    f"truth: memory grew by {memory_mib() - at_start:.0f} MiB in {STEPS - 20} steps, the cache has {info.currsize} entries, "
    f"{100 * info.hits / (info.hits + info.misses):.0f} % of the calls hit, loss {loss.item():.2f}"
)
