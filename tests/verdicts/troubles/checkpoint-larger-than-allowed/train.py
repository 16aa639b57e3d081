# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: the backbone is frozen for six epochs, then thawed. Adam keeps two more values for each weight that it trains, so the
checkpoint grows from 4 to 11 MB then; the site allows no file above 8 MB (ulimit -f) and torch.save fails at the end of that epoch."""

import atexit
import os
import resource
import shutil
import sys
import tempfile
import time

import torch
from torch import nn

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
allowed = (64 if cured else 8) * 2**20
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, hard))  # as the login profile of the site does it

folder = tempfile.mkdtemp(prefix="run-")
atexit.register(shutil.rmtree, folder, True)

x = torch.randn(4096, 256)
y = (x[:, :40] @ torch.randn(40, 5)).argmax(1)
backbone = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 1000), nn.ReLU())
head = nn.Linear(1000, 5)
backbone.requires_grad_(False)
model = nn.Sequential(backbone, head)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
path = os.path.join(folder, "last.pt")
epochs = 0
try:
    for epoch in range(8):
        if epoch == 6:
            backbone.requires_grad_(True)
        for step in range(32):
            i = torch.randint(0, len(x), (32,))
            loss = nn.functional.cross_entropy(model(x[i]), y[i])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.018)  # the device's work
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        epochs += 1
        print(f"epoch {epoch} loss {loss.item():.3f} checkpoint {os.path.getsize(path) / 2**20:.1f} MB")
finally:
    values = sum(p.numel() for p in model.parameters()) + sum(
        v.numel() for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)
    )
    print(
        f"truth: {epochs} of 8 checkpoints written, {4 * values / 2**20:.1f} MB to write, {allowed >> 20} MB allowed, last loss {loss.item():.3f}",
        flush=True,
    )
