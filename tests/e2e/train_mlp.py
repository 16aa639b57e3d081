# SPDX-License-Identifier: Apache-2.0
"""A training of ten million parameters that prints the memory it holds: train_mlp.py STEPS.

The last line is JSON: bytes of its resident memory by kind, at its end, and of the peak of all.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn


def resident() -> dict[str, int]:
    """Bytes by kind, and their peak, of /proc/self/status."""
    fields = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(("RssAnon", "RssShmem", "RssFile", "VmHWM")):
            name, value = line.split(":")
            fields[name] = int(value.split()[0]) * 1024
    return fields


torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2000))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
criterion = nn.CrossEntropyLoss()
inputs, labels = torch.randn(16, 784), torch.randint(0, 2000, (16,))
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    criterion(net(inputs), labels).backward()
    optimizer.step()
print(json.dumps(resident()))
