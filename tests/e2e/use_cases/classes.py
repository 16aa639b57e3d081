# SPDX-License-Identifier: Apache-2.0
"""A classifier that PyTorch trains, and evaluates after each epoch without gradients. --ill and --ill_evaluation,
separated by commas: imbalance: of class 3 (of two classes: 1) next to nothing is left; mixed: the labels of classes 1
and 2 (of two classes: of both) say nothing of the samples. --evaluate no: the loss is not computed there."""

import argparse

import torch
import torch.nn.functional as functional
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--loss", default="cross_entropy")
parser.add_argument("--ill", default="")
parser.add_argument("--ill_evaluation", default="")
parser.add_argument("--evaluate", default="loss")
parser.add_argument("--epochs", type=int, default=6)
options = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
binary = options.loss.startswith("binary")
CLASSES = 2 if binary else 5


def samples(count: int, ill: str) -> TensorDataset:
    y = torch.arange(count).remainder(CLASSES)
    if "imbalance" in ill:
        rare = y.eq(1 if binary else 3).nonzero().flatten()
        keep = torch.ones(count, dtype=torch.bool)
        keep[rare[torch.randperm(len(rare))[len(rare) // 30 :]]] = False
        y = y[keep]
    x = 4 * functional.one_hot(y, CLASSES).float() + 0.5 * torch.randn(len(y), CLASSES)
    if "mixed" in ill:
        at = torch.ones_like(y, dtype=torch.bool) if binary else y.eq(1) | y.eq(2)
        first = 0 if binary else 1
        y = y.clone()
        y[at] = torch.randint(first, first + 2, (int(at.sum()),))
    return TensorDataset(x, y)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(CLASSES, 32), nn.ReLU(), nn.Linear(32, 1 if binary else CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.body(x).squeeze(1) if binary else self.body(x)
        if options.loss == "nll_loss":
            return scores.log_softmax(1)
        return scores.sigmoid() if options.loss == "binary_cross_entropy" else scores


modules = {"CrossEntropyLoss": nn.CrossEntropyLoss()}
loss_of = modules.get(options.loss) or getattr(functional, options.loss)
training = DataLoader(samples(4000, options.ill), 32, shuffle=True)
evaluation = DataLoader(samples(2000, options.ill_evaluation), 50, shuffle=False)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for _ in range(options.epochs):
    net.train()
    for x, y in training:
        optimizer.zero_grad()
        loss_of(net(x), y.float() if binary else y).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        for x, y in evaluation:
            scores = net(x)
            if options.evaluate == "loss":
                loss_of(scores, y.float() if binary else y)
