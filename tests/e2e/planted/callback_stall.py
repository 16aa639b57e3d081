# SPDX-License-Identifier: Apache-2.0
"""Each 50th step writes all weights as text, one number a line, inside the loop.

With --cured they are written as bytes.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

STEPS = 700
EVERY = 50


def save(model: nn.Module, path: Path, cured: bool) -> None:
    if cured:
        path.write_bytes(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
        return
    with path.open("w", encoding="ascii") as out:
        for parameter in model.parameters():
            for value in parameter.detach().flatten().tolist():
                out.write(f"{value!r}\n")


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cured = "--cured" in sys.argv
    labels = torch.randint(0, 10, (4096,))
    inputs = torch.randn(10, 256)[labels] + torch.randn(4096, 256)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(STEPS):
            batch = torch.arange(step * 128, step * 128 + 128) % len(inputs)
            optimizer.zero_grad()
            loss = criterion(model(inputs[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            if step % EVERY == EVERY - 1:
                save(model, Path(folder) / "weights", cured)
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
