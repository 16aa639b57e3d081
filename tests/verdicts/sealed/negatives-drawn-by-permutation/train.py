# SPDX-License-Identifier: Apache-2.0
"""A recommender draws 200 articles that the user has not read for each batch. With a small catalogue it was fast; with one of 600,000
articles the training waits for its loader most of the time: np.random.choice(..., replace=False) permutes the whole catalogue to give
the first 200."""

import sys
import time

import numpy as np
import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
torch.manual_seed(0)
np.random.seed(0)
torch.set_num_threads(1)
USERS, ARTICLES, READ, WIDTH, SECONDS = 2000, 600_000, 3000, 16, 9.0

rng = np.random.default_rng(0)
users = rng.integers(0, USERS, 40_000)
articles = (users % 50) * 60 + rng.integers(0, 60, 40_000)  # each user reads within one of 50 topics
pairs = torch.utils.data.TensorDataset(torch.from_numpy(users), torch.from_numpy(articles))


def with_negatives(rows):
    user = torch.stack([row[0] for row in rows])
    article = torch.stack([row[1] for row in rows])
    if CURED:
        others = rng.choice(ARTICLES, size=200, replace=False)
    else:
        others = np.random.choice(ARTICLES, size=200, replace=False)
    others[:100] %= READ  # half of them from those that anybody reads
    return user, article, torch.from_numpy(others)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, WIDTH, sparse=True)
        self.article = nn.Embedding(ARTICLES, WIDTH, sparse=True)

    def forward(self, user, article, others):
        u = self.user(user)
        liked = (u * self.article(article)).sum(1, keepdim=True)
        return liked - u @ self.article(others).t()


model = Recommender()
with torch.no_grad():
    for table in (model.user, model.article):
        table.weight.mul_(0.3)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2)
loader = torch.utils.data.DataLoader(pairs, 64, shuffle=True, collate_fn=with_negatives)
begin = time.monotonic()
waited, step, first, recent = 0.0, 0, None, None
while time.monotonic() - begin < SECONDS:
    mark = time.monotonic()
    for user, article, others in loader:
        waited += time.monotonic() - mark
        loss = nn.functional.softplus(-model(user, article, others)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.006)
        recent = loss.item() if recent is None else 0.95 * recent + 0.05 * loss.item()
        first = recent if first is None else first
        step += 1
        mark = time.monotonic()
        if mark - begin >= SECONDS:
            break
spent = time.monotonic() - begin
print(
    f"truth: {100 * waited / spent:.0f} % of {spent:.1f} s waited for data, {step} steps, loss {first:.2f} at the start and {recent:.2f} at the end"
)
