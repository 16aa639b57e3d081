# SPDX-License-Identifier: Apache-2.0
"""A classifier of small pictures, as in the first use case of SageMaker Debugger's talk. --ill, separated by commas:
deadrelu: the units of the first layer give nothing but 0; imbalance: of two classes next to nothing is left."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1500)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--ill", default="")
options = parser.parse_args()
ill = set(options.ill.split(","))
torch.manual_seed(0)
torch.set_num_threads(1)

CLASSES, SIDE = 10, 8
y = torch.arange(1800).remainder(CLASSES)
if "imbalance" in ill:
    keep = torch.ones(len(y), dtype=torch.bool)
    for rare in (3, 7):
        keep[y.eq(rare).nonzero().flatten()[4:]] = False
    y = y[keep]
kinds = torch.randn(CLASSES, 1, SIDE, SIDE)
x = kinds[y] + 1.5 * torch.randn(len(y), 1, SIDE, SIDE)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv1_relu = nn.ReLU()
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.conv2_relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(8 * (SIDE // 2) ** 2, CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        first = self.conv1_relu(self.conv1(pictures))
        second = self.pool(self.conv2_relu(self.conv2(first)))
        return self.fc(second.flatten(1))


net = Net()
if "deadrelu" in ill:
    net.state_dict()["conv1.bias"].fill_(-30.0)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
step = 0
while step < options.steps:
    for pictures, labels in loader:
        optimizer.zero_grad()
        criterion(net(pictures), labels).backward()
        optimizer.step()
        step += 1
        if step == options.steps:
            break
