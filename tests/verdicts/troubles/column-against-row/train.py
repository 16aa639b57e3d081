# SPDX-License-Identifier: Apache-2.0
"""The model gives (128, 1), the targets are (128,), and MSELoss broadcasts them to 128 x 128 differences.

The user sees a regression whose loss stays at the variance of the targets: the best that the model can do is to
give the mean for every sample.  `cured` squeezes the output."""

import sys

import torch
from torch import nn

CURED = "cured" in sys.argv[1:]
torch.manual_seed(9)
torch.set_num_threads(1)


class Price(nn.Module):
    """Price of a flat: its district (an embedding) and ten numbers."""

    def __init__(self):
        super().__init__()
        self.district = nn.Embedding(50, 16)
        self.body = nn.Sequential(
            nn.Linear(26, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, district, numbers):
        out = self.body(torch.cat([self.district(district), numbers], 1))
        return out.squeeze(1) if CURED else out


n = 25600
district = torch.randint(0, 50, (n,))
numbers = torch.randn(n, 10)
level = torch.randn(50)
price = level[district] + numbers[:, 0] * numbers[:, 1] + torch.sin(2 * numbers[:, 2]) + 0.6 * numbers[:, 3]
price = (price - price.mean()) / price.std()

model = Price()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

losses = []
for epoch in range(7):
    order = torch.randperm(n - 1600) + 1600
    for i in range(0, len(order) - 127, 128):
        pick = order[i : i + 128]
        loss = criterion(model(district[pick], numbers[pick]), price[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {sum(losses[-187:]) / 187:.4f}")

model.eval()
with torch.no_grad():
    guess = model(district[:1600], numbers[:1600]).reshape(-1)
r2 = 1 - ((guess - price[:1600]) ** 2).mean() / price[:1600].var()
print(
    f"truth: output {tuple(model(district[:128], numbers[:128]).shape)} against target (128,), "
    f"loss {sum(losses[-100:]) / 100:.3f}, R2 on held-out flats {r2:.2f}"
)
