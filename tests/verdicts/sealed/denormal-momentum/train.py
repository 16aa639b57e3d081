# SPDX-License-Identifier: Apache-2.0
"""A training on the CPU gets several times slower after some hundred steps and stays so; a restart makes it fast again for as long.
The second part of the curriculum uses few of the embedding's rows, the momentum of the others decays by a factor of 0.9 a step until it
is a denormal number, and the processor computes with those by a slow path."""

import sys
import time

import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
torch.manual_seed(0)
torch.set_num_threads(1)
if CURED:
    torch.set_flush_denormal(True)
ROWS, WIDTH, STEPS, FIRST = 6000, 64, 1100, 60

meaning = torch.randn(ROWS, 4)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(ROWS, WIDTH, mode="mean")
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


model = Bag()
optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
times, recent = [], None
for step in range(STEPS):
    begin = time.perf_counter()
    # First all of the vocabulary, then the 300 words of the target domain.
    tokens = torch.randint(0, ROWS if step < FIRST else 300, (256, 8))
    wanted = meaning[tokens].mean(1)
    loss = nn.functional.mse_loss(model(tokens), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - begin)
    time.sleep(0.002)
    recent = loss.item() if recent is None else 0.95 * recent + 0.05 * loss.item()
    if step % 100 == 0:
        print(f"step {step} loss {recent:.4f} {1000 * times[-1]:.1f} ms", flush=True)

early = sorted(times[100:300])[100]
late = sorted(times[-200:])[100]
small = optimizer.state[model.embedding.weight]["momentum_buffer"].abs()
tiny = ((small > 0) & (small < torch.finfo(torch.float32).tiny)).float().mean().item()
print(
    f"truth: a step takes {late / early:.1f} times as long at the end as at the start, {100 * tiny:.0f} % of the momentum is denormal, loss {recent:.4f}"
)
