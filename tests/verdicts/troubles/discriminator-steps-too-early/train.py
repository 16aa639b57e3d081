# SPDX-License-Identifier: Apache-2.0
"""An autoencoder gets a discriminator after 250 steps. The loop scores the reconstruction, lets the discriminator's optimizer step,
and only then goes backward through the old score: its weights are no longer those of the forward pass and autograd refuses."""

import sys
import time

import torch
from torch import nn

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)

mixing = torch.randn(4, 48) / 2


def batch():
    return torch.tanh(torch.randn(64, 4) @ mixing)


autoencoder = nn.Sequential(
    nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 6), nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 48)
)
critic = nn.Sequential(nn.Linear(48, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
optimizer = torch.optim.Adam(autoencoder.parameters(), 2e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), 2e-4)
CRITIC_STARTS = 250
steps = 0
try:
    for step in range(450):
        x = batch()
        again = autoencoder(x)
        loss = nn.functional.mse_loss(again, x)
        if step >= CRITIC_STARTS:
            score = critic(again)
            critic_loss = torch.relu(1 - critic(x)).mean() + torch.relu(1 + critic(again.detach())).mean()
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()
            if cured:
                score = critic(again)
            loss = loss - 0.001 * score.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.016)  # the device's work
        steps += 1
        if steps % 50 == 0:
            print(f"step {steps} loss {loss.item():.4f}")
finally:
    error = nn.functional.mse_loss(autoencoder(x), x).item()
    print(
        f"truth: {steps} of 450 steps done, the critic should start at {CRITIC_STARTS}, reconstruction error {error:.4f}",
        flush=True,
    )
