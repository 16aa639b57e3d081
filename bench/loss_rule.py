# SPDX-License-Identifier: Apache-2.0
"""How often LossNotDecreasing is right, beside the comparison of two single losses that SageMaker
Debugger's rule of this name makes: short trainings of a small network on scikit-learn's digits, 46 a
seed, over optimizers, learning rates and batch sizes.

usage: loss_rule.py TELLTALE [SEED ...]   (the command, seeds 0 1); needs
torch, scikit-learn
A run counts as learning where its last 20 losses are below 0.6 of the first on average, as flat where
they are above 0.99 of it; what lies between is listed and judged by nobody.
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn

STEPS = 450
CASES = (
    ("SGD", 0.0, (0.001, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10)),
    ("SGD", 0.9, (0.001, 0.01, 0.1, 0.5, 1, 2)),
    ("Adam", 0.0, (1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.3, 0.5, 1)),
)


def losses(kind: str, momentum: float, rate: float, batch: int, seed: int) -> list[float]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer: torch.optim.Optimizer
    if kind == "SGD":
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    out: list[float] = []
    order = torch.randperm(len(images))
    at = 0
    for _ in range(STEPS):
        if at + batch > len(images):
            order, at = torch.randperm(len(images)), 0
        chosen = order[at : at + batch]
        at += batch
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


def telltale_fires(runner: str, kind: str, rate: float, values: list[float]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "run.test"
        series = " ".join(f"{v:.6g}" for v in values)
        script.write_text(
            "rule LossNotDecreasing\n"
            f'load event optimizer at=0 : {{"class":"{kind}","lr":{rate}}}\n'
            f"load scalar lr at=0 : {rate}\nload scalar loss advance=1 : {series}\nend\nexpect none\n"
        )
        return (
            subprocess.run(
                [runner, "rules", "test", str(script)], capture_output=True, check=False
            ).returncode
            != 0
        )


def pairwise_fires(values: list[float]) -> bool:
    """num_steps 10, diff_percent 0.1: a loss against the one ten steps before it."""
    return any(
        not values[i - 10] - values[i] >= 0.001 * abs(values[i - 10]) for i in range(20, len(values), 10)
    )


def main() -> None:
    runner = sys.argv[1]
    seeds = [int(seed) for seed in sys.argv[2:]] or [0, 1]
    torch.set_num_threads(1)
    counts = {"learning": [0, 0, 0], "flat": [0, 0, 0]}
    between = []
    for kind, momentum, rates in CASES:
        for rate in rates:
            for batch in (16, 64):
                for seed in seeds:
                    values = losses(kind, momentum, rate, batch, seed)
                    share = sum(values[-20:]) / 20 / values[0]
                    fires = telltale_fires(runner, kind, rate, values)
                    if share < 0.6 or not share <= 0.99:
                        row = counts["learning" if share < 0.6 else "flat"]
                        row[0] += 1
                        row[1] += fires
                        row[2] += pairwise_fires(values)
                    else:
                        between.append(
                            f"{kind} {momentum:g} lr {rate:g}: {share:.3f} {'fires' if fires else 'quiet'}"
                        )
    print("runs        number   LossNotDecreasing   two single losses")
    for name, (number, ours, theirs) in counts.items():
        print(f"{name:<10} {number:>7} {ours:>14} fire {theirs:>14} fire")
    print(f"between: {len(between)}: " + "; ".join(between))


if __name__ == "__main__":
    main()
