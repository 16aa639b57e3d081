# SPDX-License-Identifier: Apache-2.0
"""train_step() makes a new Adam each time it is called, so its averages and its step counter begin anew.

The user sees a loss that falls at first and then hovers well above what the same model reaches elsewhere: every
weight goes up or down by the full learning rate in each step.  `cured` makes one optimizer before the loop."""

import sys

import torch
from torch import nn

CURED = "cured" in sys.argv[1:]
torch.manual_seed(17)
torch.set_num_threads(1)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(96, 224), nn.ReLU(), nn.Linear(224, 12))
        self.decoder = nn.Sequential(nn.Linear(12, 224), nn.ReLU(), nn.Linear(224, 96))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def train_step(model, batch, optimizer=None):
    if optimizer is None:
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = nn.functional.mse_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    counter = max(int(state["step"]) for state in optimizer.state.values())
    return loss.item(), counter


hidden = torch.randn(20000, 8)
spectra = torch.tanh(hidden @ torch.randn(8, 96) / 3) + 0.02 * torch.randn(20000, 96)
model = AutoEncoder()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3) if CURED else None

losses, counter = [], 0
for epoch in range(8):
    order = torch.randperm(len(spectra))
    for i in range(0, len(order), 128):
        loss, counter = train_step(model, spectra[order[i : i + 128]], optimizer)
        losses.append(loss)
    print(f"epoch {epoch}: loss {sum(losses[-150:]) / 150:.5f}")

print(
    f"truth: Adam's step counter stands at {counter} after {len(losses)} steps, "
    f"loss {losses[0]:.3f} at the start and {sum(losses[-100:]) / 100:.5f} at the end"
)
