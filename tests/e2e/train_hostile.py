# SPDX-License-Identifier: Apache-2.0
"""A real training all of whose names are hostile.NAME, and whose loss is no number from step 90 on."""

import telltale
import torch
from hostile import NAME
from torch import nn

STEPS = 210


def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x * getattr(self, NAME)


torch.manual_seed(0)
torch.set_num_threads(1)
net = type(NAME, (nn.Module,), {"forward": forward})()
net.register_parameter(NAME, nn.Parameter(torch.ones(4)))
data = type(NAME, (torch.utils.data.TensorDataset,), {})(torch.randn(STEPS, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for i, (x,) in enumerate(torch.utils.data.DataLoader(data)):
    loss = net(x).square().sum() * (float("nan") if i >= 90 else 1.0)
    optimizer.zero_grad()
    loss.backward()
    telltale.log(**{NAME: i})
    optimizer.step()
