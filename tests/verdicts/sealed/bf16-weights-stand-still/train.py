# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning with model.to(torch.bfloat16) to save memory: gradients flow and no error comes, but the loss hardly falls, while the same
program in float32 learns well. The learning rate is small against the weights, and bfloat16 has three digits: most updates are rounded
away when they are added to the weight."""

import sys
import time

import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
torch.manual_seed(0)
torch.set_num_threads(1)
CLASSES, WIDTH, STEPS = 10, 512, 700

# Features of a frozen backbone, and a head that another task left behind.
centres = torch.randn(CLASSES, WIDTH) * 0.5
labels = torch.randint(0, CLASSES, (4000,))
features = centres[labels] + torch.randn(4000, WIDTH)

head = nn.Sequential(nn.Linear(WIDTH, 256), nn.Tanh(), nn.Linear(256, CLASSES))
with torch.no_grad():
    for layer in (head[0], head[2]):
        layer.weight.copy_(
            (0.03 + 0.03 * torch.rand_like(layer.weight)) * torch.randn_like(layer.weight).sign()
        )
        layer.bias.fill_(0.05)
if not CURED:
    head = head.to(torch.bfloat16)
start = [p.detach().clone() for p in head.parameters()]
optimizer = torch.optim.AdamW(head.parameters(), lr=2e-5, weight_decay=0.0)

first = recent = None
for step in range(STEPS):
    index = torch.randint(0, len(features), (64,))
    if CURED:
        # Float32 weights; only the arithmetic of the layers is done in bfloat16.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = head(features[index])
    else:
        output = head(features[index].to(torch.bfloat16))
    loss = nn.functional.cross_entropy(output.float(), labels[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.003)
    recent = loss.item() if recent is None else 0.95 * recent + 0.05 * loss.item()
    first = recent if first is None else first
    if step % 100 == 0:
        print(f"step {step} loss {recent:.3f}", flush=True)

still = sum((a == b).sum().item() for a, b in zip(start, head.parameters())) / sum(a.numel() for a in start)
print(
    f"truth: {100 * still:.0f} % of the weights have not moved in {STEPS} steps, loss {first:.2f} at the start and {recent:.2f} at the end"
)
