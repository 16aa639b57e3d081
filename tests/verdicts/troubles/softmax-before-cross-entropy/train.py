# SPDX-License-Identifier: Apache-2.0
"""The model ends in a softmax and the loss is CrossEntropyLoss, which applies a softmax itself.

The user sees a text classifier with 100 classes whose loss stays near ln(100) = 4.605 for the whole run:
no error, gradients are there but tiny.  `cured` gives the loss the raw scores."""

import math
import sys

import torch
from torch import nn

CURED = "cured" in sys.argv[1:]
torch.manual_seed(5)
torch.set_num_threads(1)

CLASSES, WORDS, LENGTH = 100, 4000, 40


def texts(n, topics):
    """Half of the words of a text come from the 60 words of its topic, the rest from anywhere."""
    label = torch.randint(0, CLASSES, (n,))
    own = topics[label].gather(1, torch.randint(0, 60, (n, LENGTH)))
    other = torch.randint(0, WORDS, (n, LENGTH))
    return torch.where(torch.rand(n, LENGTH) < 0.25, own, other), label


class TopicNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 96)
        self.hidden = nn.Linear(96, 192)
        self.scores = nn.Linear(192, CLASSES)

    def forward(self, words):
        x = self.embedding(words).mean(1)
        x = self.scores(torch.relu(self.hidden(x)))
        if CURED:
            return x
        return torch.softmax(x, dim=1)


topics = torch.stack([torch.randperm(WORDS)[:60] for _ in range(CLASSES)])
words, labels = texts(24000, topics)
model = TopicNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

losses, hits = [], []
for epoch in range(6):
    order = torch.randperm(len(words))
    for i in range(0, len(order), 128):
        batch = order[i : i + 128]
        out = model(words[batch])
        loss = criterion(out, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        hits.append((out.argmax(1) == labels[batch]).float().mean().item())
    print(f"epoch {epoch}: loss {sum(losses[-180:]) / 180:.3f}, accuracy {sum(hits[-180:]) / 180:.1%}")

print(
    f"truth: loss {sum(losses[-50:]) / 50:.3f} after {len(losses)} steps, chance is {math.log(CLASSES):.3f}, "
    f"training accuracy {sum(hits[-50:]) / 50:.1%}"
)
