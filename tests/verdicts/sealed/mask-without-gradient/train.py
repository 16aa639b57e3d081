# SPDX-License-Identifier: Apache-2.0
"""A network is to find out by itself which of 64 sensors it needs: each sensor has a learned score, and sensors with a score above the
threshold are let through. The prediction gets better but the choice of sensors stays as it was drawn at the start: the comparison
with the threshold has no gradient, so that the scores never learn."""

import sys
import time

import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
torch.manual_seed(0)
torch.set_num_threads(1)
SENSORS, USEFUL, STEPS = 64, 8, 900

readings = torch.randn(6000, SENSORS)
wanted = torch.sin(readings[:, :USEFUL]).sum(1, keepdim=True)


class SensorGate(nn.Module):
    def __init__(self, sensors):
        super().__init__()
        self.scores = nn.Parameter(0.2 + 0.4 * torch.rand(sensors))

    def forward(self, x):
        soft = torch.sigmoid(self.scores)
        hard = (soft > 0.5).float()
        mask = hard + soft - soft.detach() if CURED else hard
        return x * mask, mask


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = SensorGate(SENSORS)
        self.body = nn.Sequential(nn.Linear(SENSORS, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, x):
        kept, mask = self.gate(x)
        return self.body(kept), mask


model = Model()
before = model.gate.scores.detach().clone()
optimizer = torch.optim.Adam(
    [{"params": model.body.parameters(), "lr": 2e-3}, {"params": model.gate.parameters(), "lr": 1e-2}]
)
for step in range(STEPS):
    index = torch.randint(0, len(readings), (128,))
    prediction, mask = model(readings[index])
    loss = nn.functional.mse_loss(prediction, wanted[index]) + 0.004 * mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.005)
    if step % 200 == 0:
        print(f"step {step} loss {loss.item():.3f} sensors {int(mask.sum().item())}", flush=True)

with torch.no_grad():
    chosen = torch.sigmoid(model.gate.scores) > 0.5
    moved = (model.gate.scores - before).abs().max().item()
print(
    f"truth: the scores moved by {moved:.2f} in {STEPS} steps, {int(chosen.sum())} sensors kept, "
    f"{int(chosen[:USEFUL].sum())} of the {USEFUL} that matter, loss {loss.item():.3f}"
)
