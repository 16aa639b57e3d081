# SPDX-License-Identifier: Apache-2.0
"""A small training whose captures cost far more than 1 % of its steps."""

import argparse
import pathlib
import runpy
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--sleep_ms", type=float, default=2)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--capture", default="", help="a plan, asked for by telltale.capture()")
parser.add_argument("--linger", type=float, default=0, help="seconds after the last step")
options = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
width = options.width
layers = [layer for _ in range(6) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())]
net = torch.nn.Sequential(*layers, torch.nn.Linear(width, 4))
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(8, width), torch.randint(0, 4, (8,))
runpy.run_path(str(pathlib.Path(__file__).parents[1] / "support/await_plan.py"))
if options.capture:
    import telltale

    telltale.capture(options.capture)
for _ in range(options.steps):
    optimizer.zero_grad()
    criterion(net(x), y).backward()
    optimizer.step()
    time.sleep(options.sleep_ms / 1000)
time.sleep(options.linger)
