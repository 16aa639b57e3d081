# SPDX-License-Identifier: Apache-2.0
"""A small real training without a line of Telltale: train_tiny.py STEPS [--save FILE]."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
steps = int(sys.argv[1])
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
data = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randint(0, 10, (512,)))
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()
done = 0
while done < steps:
    for x, y in loader:
        if done == steps:
            break
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        done += 1
if "--save" in sys.argv:
    torch.save([p.detach() for p in net.parameters()], sys.argv[sys.argv.index("--save") + 1])
print("trained", done)
