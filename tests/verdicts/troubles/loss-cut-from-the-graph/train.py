# SPDX-License-Identifier: Apache-2.0
"""The loss is computed in NumPy and wrapped again with torch.tensor(..., requires_grad=True).

backward() had complained 'element 0 of tensors does not require grad', and requires_grad=True made the message
go away.  The user sees a loss that stays where it was: no gradient reaches the model and optimizer.step() does
nothing.  `cured` computes the same loss in torch."""

import sys

import numpy as np
import torch
from torch import nn

CURED = "cured" in sys.argv[1:]
torch.manual_seed(2)
torch.set_num_threads(1)
QUANTILES = [0.1, 0.5, 0.9]


def quantile_loss(prediction, target):
    if CURED:
        gap = target - prediction
        q = torch.tensor(QUANTILES)
        return torch.maximum(q * gap, (q - 1) * gap).mean()
    gap = target.numpy() - prediction.detach().numpy()
    q = np.array(QUANTILES, dtype=np.float32)
    value = np.maximum(q * gap, (q - 1) * gap).mean()
    return torch.tensor(value, requires_grad=True)


class Forecaster(nn.Module):
    """Reads 24 hours of load and gives three quantiles of the next hour."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 32, batch_first=True)
        self.out = nn.Linear(32, len(QUANTILES))

    def forward(self, hours):
        states, _ = self.gru(hours)
        return self.out(states[:, -1])


t = torch.arange(6000.0)
load = torch.sin(t / 24 * 6.283) + 0.5 * torch.sin(t / 168 * 6.283) + 0.15 * torch.randn(6000)
windows = load.unfold(0, 25, 1)
hours, following = windows[:, :24].unsqueeze(2), windows[:, 24:]
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
before = [p.detach().clone() for p in model.parameters()]

losses = []
for epoch in range(14):
    order = torch.randperm(len(hours))
    for i in range(0, len(order), 64):
        pick = order[i : i + 64]
        loss = quantile_loss(model(hours[pick]), following[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: quantile loss {sum(losses[-90:]) / 90:.4f}")

moved = sum(not torch.equal(a, b.detach()) for a, b in zip(before, model.parameters()))
print(
    f"truth: {moved} of {len(before)} parameters moved in {len(losses)} steps, "
    f"loss {sum(losses[:10]) / 10:.3f} at the start and {sum(losses[-50:]) / 50:.3f} at the end"
)
