# SPDX-License-Identifier: Apache-2.0
"""Sentences of 4 to 12 tokens, each padded to 64.

With --cured they are padded to the longest, 12.
"""

import sys

import torch
from torch import nn

STEPS = 2500
BATCH = 32
WORDS = 200


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16, padding_idx=0)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.ne(0).sum(1, keepdim=True)
        return self.head(self.embedding(tokens).sum(1) / length)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width = 12 if "--cured" in sys.argv else 64
    sentences = 2048
    labels = torch.randint(0, 2, (sentences,))
    lengths = torch.randint(4, 13, (sentences, 1))
    # The first class has the first half of the words.
    words = torch.randint(1, WORDS // 2, (sentences, width)) + labels[:, None] * (WORDS // 2)
    tokens = torch.where(torch.arange(width) < lengths, words, torch.zeros_like(words))
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    for step in range(STEPS):
        batch = torch.arange(step * BATCH, (step + 1) * BATCH) % sentences
        optimizer.zero_grad()
        loss = criterion(model(tokens[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
