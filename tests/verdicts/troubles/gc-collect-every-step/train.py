# SPDX-License-Identifier: Apache-2.0
"""The loop calls gc.collect() after every step, "against leaks". The collector looks at every live Python object each time, here some
150,000 of the libraries and of the annotations: it takes longer than the training step."""

import gc
import sys
import time

import torch
from torch import nn

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)


def load_annotations(images=6000):
    """As json.load() gives them: a dictionary per image with a list of boxes."""
    centres = torch.rand(images, 2)
    images_of = []
    for i, (cx, cy) in enumerate(centres.tolist()):
        boxes = [{"box": [cx, cy, cx + 0.1 * k, cy + 0.1 * k], "label": k % 3} for k in range(1, 4)]
        images_of.append({"id": i, "boxes": boxes})
    return images_of


annotations = load_annotations()
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), 2e-3)

start = time.perf_counter()
collecting, losses = 0.0, []
while time.perf_counter() - start < 10:
    picked = [annotations[i] for i in torch.randint(0, len(annotations), (32,)).tolist()]
    x = torch.tensor([sum((b["box"] for b in image["boxes"]), []) for image in picked])
    centre = x.view(-1, 3, 4)[:, :, :2].mean(1)
    loss = nn.functional.mse_loss(model(x + 0.02 * torch.randn_like(x)), centre)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.012)  # the rest of the network, on a device
    losses.append(loss.item())
    if not cured:
        t = time.perf_counter()
        gc.collect()
        collecting += time.perf_counter() - t
    if len(losses) % 40 == 0:
        print(f"step {len(losses)} loss {sum(losses[-40:]) / 40:.4f}", flush=True)
total = time.perf_counter() - start
print(f"loss {losses[0]:.3f} -> {sum(losses[-20:]) / 20:.4f} in {len(losses)} steps")
print(
    f"truth: {100 * collecting / total:.0f} % of {total:.1f} s in gc.collect(), {len(losses)} steps",
    flush=True,
)
