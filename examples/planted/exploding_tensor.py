"""Two losses on one body; the second takes a square root at 0, and a guard hides its NaN gradients.

The distance of each sample to itself is 0, where the square root has no derivative. The guard in the
optimizer keeps the training alive, so the loss falls; but the projection never learns.
"""

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 600
CLASSES = 4


class GuardedSGD(torch.optim.SGD):
    """Replaces what is not finite by 0, so that one bad batch does not end the training."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        return super().step(closure)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.head = nn.Linear(64, CLASSES)
        self.projection = nn.Linear(64, 16)

    def forward(self, inputs):
        features = self.body(inputs)
        return self.head(features), self.projection(features.detach())


def distances(points):
    """Of each to each."""
    return (points[:, None] - points[None]).pow(2).sum(-1).sqrt()


def contrast(points, labels):
    """The same class near, other classes at least 1 apart."""
    apart = distances(points)
    same = labels[:, None] == labels[None]
    return torch.where(same, apart, F.relu(1 - apart)).mean()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)
    model = Network()
    optimizer = GuardedSGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        batch = torch.arange(step * 128, step * 128 + 128) % len(inputs)
        optimizer.zero_grad()
        logits, points = model(inputs[batch])
        loss = F.cross_entropy(logits, labels[batch]) + 0.1 * contrast(points, labels[batch])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
