# SPDX-License-Identifier: Apache-2.0
"""One picture of the data set is a grey-scale PNG, all others are RGB. The DataLoader cannot stack a picture of one channel
with pictures of three: the training dies in the batch that the grey one falls into."""

import atexit
import os
import shutil
import sys
import tempfile
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)

folder = tempfile.mkdtemp(prefix="pictures-")
atexit.register(shutil.rmtree, folder, True)
rng = np.random.default_rng(0)
for i in range(3200):
    picture = rng.integers(0, 160, (24, 24, 3), dtype=np.uint8)
    picture[:, :, i % 3] += 60  # reddish, greenish, bluish
    image = Image.fromarray(picture)
    if i == 2215:
        image = image.convert("L")
    image.save(os.path.join(folder, f"{i:05d}.png"), compress_level=1)


class Pictures(Dataset):
    def __init__(self):
        self.names = sorted(os.listdir(folder))

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        image = Image.open(os.path.join(folder, self.names[i]))
        if cured:
            image = image.convert("RGB")
        pixels = torch.from_numpy(np.array(image)).float() / 255
        if pixels.dim() == 2:
            pixels = pixels.unsqueeze(2)
        return pixels.permute(2, 0, 1), i % 3


model = nn.Sequential(
    nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
loader = DataLoader(Pictures(), batch_size=8)
steps = 0
try:
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.012)  # the device's work
        steps += 1
        if steps % 50 == 0:
            print(f"step {steps} loss {loss.item():.3f}")
finally:
    grey = [name for name in os.listdir(folder) if Image.open(os.path.join(folder, name)).mode == "L"]
    print(
        f"truth: {steps} of {len(loader)} steps done, last loss {loss.item():.3f}, grey pictures: {grey}",
        flush=True,
    )
