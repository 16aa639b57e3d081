# SPDX-License-Identifier: Apache-2.0
"""The model keeps its blocks in a plain Python list, so model.parameters() does not see them.

The user sees a deep network that learns far worse than the paper says and does not get better with more
blocks: the optimizer trains only the first and the last layer.  `cured` uses nn.ModuleList."""

import sys

import torch
from torch import nn

CURED = "cured" in sys.argv[1:]
torch.manual_seed(14)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width * 2)
        self.down = nn.Linear(width * 2, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class ResidualNet(nn.Module):
    def __init__(self, inputs, width, blocks, classes):
        super().__init__()
        self.stem = nn.Linear(inputs, width)
        self.blocks = [Block(width) for _ in range(blocks)]
        if CURED:
            self.blocks = nn.ModuleList(self.blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


x = torch.randn(20000, 12)
code = (x[:, :8].reshape(-1, 4, 2).prod(2) > 0).long()  # four exclusive-ors of signs
y = (code * torch.tensor([1, 2, 4, 8])).sum(1)  # 16 classes
model = ResidualNet(12, 64, 4, 16)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
before = [p.detach().clone() for b in model.blocks for p in b.parameters()]

losses = []
for epoch in range(6):
    order = torch.randperm(len(x))
    for i in range(0, len(order), 128):
        pick = order[i : i + 128]
        loss = criterion(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {sum(losses[-150:]) / 150:.3f}")

after = [p.detach() for b in model.blocks for p in b.parameters()]
still = sum(torch.equal(a, b) for a, b in zip(before, after))
known = sum(len(g["params"]) for g in optimizer.param_groups)
print(
    f"truth: {still} of {len(before)} parameters of the blocks never moved, optimizer has {known} parameters, "
    f"loss {sum(losses[-50:]) / 50:.3f}"
)
