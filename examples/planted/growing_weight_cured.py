"""The same penalty, added: the first weights stay small, and the loss falls as far as it can."""

import torch
from torch import nn

STEPS = 800
PENALTY = 0.1


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = torch.randint(0, 10, (4096,))
    inputs = torch.randn(10, 256)[labels] + torch.randn(4096, 256)
    first = nn.Linear(256, 256)
    model = nn.Sequential(first, nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        batch = torch.arange(step * 128, step * 128 + 128) % len(inputs)
        optimizer.zero_grad()
        penalty = PENALTY * first.weight.pow(2).sum()
        loss = criterion(model(inputs[batch]), labels[batch]) + penalty
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4g}, first weights {first.weight.abs().max().item():.4g}")


if __name__ == "__main__":
    main()
