# SPDX-License-Identifier: Apache-2.0
"""The loop never calls optimizer.zero_grad(): each step adds its gradients to those of all steps before.

The user sees a small convolutional network whose loss falls for a hundred steps, jumps back
to chance level and stays there, at a learning rate that is fine for everybody else.  `cured` clears the gradients."""

import math
import sys

import torch
from torch import nn

CURED = "cured" in sys.argv[1:]
torch.manual_seed(11)
torch.set_num_threads(1)


def stripes(n):
    """Pictures of 16 x 16 with stripes; the class is the direction of the stripes."""
    label = torch.randint(0, 8, (n,))
    angle = (label * (math.pi / 8)).view(n, 1, 1)
    phase = torch.rand(n, 1, 1) * 2 * math.pi
    row = torch.arange(16.0).view(1, 16, 1)
    col = torch.arange(16.0).view(1, 1, 16)
    wave = torch.sin((row * angle.sin() + col * angle.cos()) * 1.3 + phase)
    return (wave + 1.6 * torch.randn(n, 16, 16)).unsqueeze(1), label


class StripeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(16 * 4 * 4, 8)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


images, labels = stripes(20000)
model = StripeNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

losses = []
for epoch in range(5):
    order = torch.randperm(len(images))
    for i in range(0, len(order), 64):
        batch = order[i : i + 64]
        if CURED:
            optimizer.zero_grad()
        loss = criterion(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {sum(losses[-300:]) / 300:.3f}")

last = sum(losses[-100:]) / 100
worst = max(losses[-600:])
verdict = "learns" if last < 1.0 and worst < 3.0 else "does not learn"
print(
    f"truth: {verdict}, mean loss of the last 100 steps {last:.3f}, highest of the last 600 {worst:.3f}, "
    f"chance is {math.log(8):.3f}"
)
