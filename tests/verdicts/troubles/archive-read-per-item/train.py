# SPDX-License-Identifier: Apache-2.0
"""Crop yields: all histograms of a season are in one compressed .npz archive. The data set opens the archive for every item,
unpacks all 400 histograms and takes one of them; the training waits for data most of the time."""

import os
import shutil
import sys
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
folder = tempfile.mkdtemp()


def write_season(path, fields=400):
    rng = np.random.default_rng(1)
    bands = rng.gamma(2.0, 1.0, (fields, 8, 16)).astype("float32")
    yields = bands[:, 0].mean(1) - bands[:, 3].mean(1) + 0.5 * bands[:, 5, :4].mean(1) - 1.0
    np.savez_compressed(path, hist=bands, crop_yield=yields.astype("float32"))


class CropYield(Dataset):
    def __init__(self, path):
        self.path = path
        with np.load(path) as archive:
            self.count = len(archive["crop_yield"])
            if cured:
                self.hist, self.crop_yield = archive["hist"], archive["crop_yield"]

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if cured:
            return self.hist[i], self.crop_yield[i]
        with np.load(self.path) as archive:
            return archive["hist"][i], archive["crop_yield"][i]


path = os.path.join(folder, "season.npz")
write_season(path)
model = nn.Sequential(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
loader = DataLoader(CropYield(path), batch_size=10, shuffle=True, drop_last=True)

begin = time.perf_counter()
in_loader, losses = 0.0, []
while time.perf_counter() - begin < 10:
    mark = time.perf_counter()
    for hist, target in loader:
        in_loader += time.perf_counter() - mark
        loss = nn.functional.mse_loss(model(hist).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)  # the convolution over the season, on a device
        losses.append(loss.item())
        if len(losses) % 40 == 0:
            print(f"step {len(losses)}: loss {np.mean(losses[-40:]):.4f}", flush=True)
        if time.perf_counter() - begin > 10:
            break
        mark = time.perf_counter()
total = time.perf_counter() - begin
shutil.rmtree(folder)
print(f"loss {np.mean(losses[:5]):.3f} -> {np.mean(losses[-20:]):.3f} in {len(losses)} steps")
print(f"truth: {100 * in_loader / total:.0f} % of {total:.1f} s waited for data", flush=True)
