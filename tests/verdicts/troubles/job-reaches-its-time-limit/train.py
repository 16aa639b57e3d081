# SPDX-License-Identifier: Apache-2.0
"""The scheduler ends the job at its time limit with SIGTERM, when a bit more than half of the steps are done.
The program knows nothing of it and has saved nothing: all its work is lost."""

import os
import subprocess
import sys
import time

import torch
from torch import nn

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)

# What the scheduler does with this job; the cured one asked for enough time.
limit_s = 60 if cured else 7
scheduler = subprocess.Popen(
    ["sh", "-c", f"sleep {limit_s}; kill -TERM {os.getpid()}"], start_new_session=True
)

x = torch.randn(8192, 24)
y = (x[:, :3].sum(1) * x[:, 3] > 0).long()
model = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
STEPS = 440
saved = 0
for step in range(1, STEPS + 1):
    i = torch.randint(0, len(x), (128,))
    loss = nn.functional.cross_entropy(model(x[i]), y[i])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.016)  # the device's work
    if step == STEPS:
        weights = model.state_dict()  # here a real job writes them to its disk
        saved = 1
    if step % 20 == 0:
        print(
            f"truth: {step} of {STEPS} steps done, weights saved {saved} times, loss {loss.item():.3f}",
            flush=True,
        )
os.killpg(scheduler.pid, 9)
scheduler.wait()
