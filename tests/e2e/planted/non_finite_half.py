# SPDX-License-Identifier: Apache-2.0
"""Attention scores are kept in float16 without their scale: as the samples grow louder they pass 65504.

With --cured they are divided by the square root of the width first.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.clip_grad import clip_grad_norm_

STEPS = 400
CLASSES = 4
WIDTH = 64


class Scores(nn.Module):
    """Of each to each, in float16."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return (queries @ keys.T * self.scale).half()


class Attention(nn.Module):
    def __init__(self, cured: bool) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.scores = Scores(WIDTH**-0.5 if cured else 1.0)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores = self.scores(self.query(inputs), self.key(inputs)).float()
        # The largest first, so that the exponential cannot overflow: Inf less Inf where it has already.
        weights = torch.exp(scores - scores.max(1, keepdim=True).values)
        mixed = weights / weights.sum(1, keepdim=True) @ inputs
        result: torch.Tensor = self.head(F.layer_norm(inputs + mixed, (WIDTH,)))
        return result


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, WIDTH)[labels] + torch.randn(4096, WIDTH)
    model = Attention("--cured" in sys.argv)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        batch = torch.arange(step * 64, step * 64 + 64) % len(inputs)
        # Samples grow louder.
        samples = inputs[batch] * (1 + step / 4)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(samples), labels[batch])
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
