# SPDX-License-Identifier: Apache-2.0
"""Each picture is worked on heavily when it is loaded, in the training's own process: the training waits. --ill 0: it
was done once, before."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--ill", type=int, default=1)
options = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
ROUNDS, BATCH = 12, 16  # Of an item; a step has as many as a batch, and half as many more.


def augment(picture: np.ndarray, rounds: int) -> np.ndarray:
    for _ in range(rounds):
        picture = np.real(np.fft.ifft2(np.fft.fft2(picture) * 0.999))
    return picture.astype("float32")


class Pictures(Dataset):
    def __init__(self) -> None:
        self.x = np.random.RandomState(0).randn(512, 3, 16, 16).astype("float32")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> "tuple[np.ndarray, int]":
        return (augment(self.x[index], ROUNDS) if options.ill else self.x[index]), index % 10


net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
pictures = Pictures()
step, waited, begin = 0, 0.0, time.perf_counter()
while step < options.steps:
    before = time.perf_counter()
    for inputs, labels in DataLoader(pictures, batch_size=BATCH, shuffle=True):
        waited += time.perf_counter() - before
        optimizer.zero_grad()
        criterion(net(inputs), labels).backward()
        optimizer.step()
        augment(pictures.x[0], BATCH * ROUNDS * 3 // 2)
        step += 1
        if step == options.steps:
            break
        before = time.perf_counter()
print(f"truth: waited {100 * waited / (time.perf_counter() - begin):.0f} %")
