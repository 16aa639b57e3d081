"""Helper processes index texts for later while the training runs: all want the same cores."""

import multiprocessing
import os
import zlib

import torch
from torch import nn

STEPS = 200


def index(texts):
    """Checksums of all words of many texts."""
    words = [f"word{number}".encode() for number in range(10_000)]
    total = 0
    for _ in range(texts):
        for word in words:
            total ^= zlib.crc32(word)
    return total


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = torch.randint(0, 10, (4096,))
    inputs = torch.randn(10, 512)[labels] + torch.randn(4096, 512)
    model = nn.Sequential(
        nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    cores = len(os.sched_getaffinity(0))
    helpers = [multiprocessing.Process(target=index, args=(10**9,), daemon=True) for _ in range(2 * cores)]
    for helper in helpers:
        helper.start()
    for step in range(STEPS):
        batch = torch.arange(step * 256, step * 256 + 256) % len(inputs)
        optimizer.zero_grad()
        loss = criterion(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    for helper in helpers:
        helper.terminate()
        helper.join()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
