# SPDX-License-Identifier: Apache-2.0
"""The loop calls next(iter(loader)) in each step, which starts the loader anew and gives its first batch.

The user sees a training loss that goes to 0 within seconds and a test accuracy that stays low: the model
has seen 64 of 12800 samples.  `cured` keeps one iterator for each epoch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CURED = "cured" in sys.argv[1:]
torch.manual_seed(19)
torch.set_num_threads(1)


class Signals(Dataset):
    """12 kinds of signals of 128 points: a kind is a mix of two waves, with noise."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.label = torch.randint(0, 12, (n,), generator=g)
        t = torch.arange(128.0) / 128 * 6.283
        low = 2.0 + self.label % 4
        high = 9.0 + 2 * (self.label // 4)
        shift = torch.rand(n, 2, generator=g) * 6.283
        wave = torch.sin(low[:, None] * t + shift[:, :1]) + torch.sin(high[:, None] * t + shift[:, 1:])
        self.signal = (wave + 1.8 * torch.randn(n, 128, generator=g)).unsqueeze(1)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        self.seen.add(i)
        return self.signal[i], self.label[i]

    seen = set()


train_set = Signals(12800, 1)
test = Signals(1000, 2)
loader = DataLoader(train_set, batch_size=64)
model = nn.Sequential(
    nn.Conv1d(1, 24, 9, stride=2, padding=4),
    nn.ReLU(),
    nn.Conv1d(24, 48, 9, stride=2, padding=4),
    nn.ReLU(),
    nn.Conv1d(48, 48, 9, stride=2, padding=4),
    nn.ReLU(),
    nn.AdaptiveAvgPool1d(1),
    nn.Flatten(),
    nn.Linear(48, 12),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

losses = []
for epoch in range(4):
    batches = iter(loader)
    for step in range(len(loader)):
        x, y = next(batches) if CURED else next(iter(loader))
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: training loss {sum(losses[-100:]) / 100:.3f}")

model.eval()
with torch.no_grad():
    right = (model(test.signal).argmax(1) == test.label).float().mean().item()
print(
    f"truth: {len(train_set.seen)} of {len(train_set)} samples seen in {len(losses)} steps, "
    f"training loss {sum(losses[-50:]) / 50:.3f}, test accuracy {100 * right:.0f} %"
)
