# SPDX-License-Identifier: Apache-2.0
"""In the midst of the training the loader waits for eight seconds, for a server that does not answer.

With --cured it answers after a tenth of a second.
"""

import sys
import time

import torch
from torch import nn

STEPS = 200


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    wait = 0.1 if "--cured" in sys.argv else 8.0
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.MSELoss()
    for step in range(STEPS):
        if step == STEPS // 2:
            time.sleep(wait)
        inputs = torch.randn(256, 64)
        optimizer.zero_grad()
        loss = criterion(model(inputs), inputs[:, :4].sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        time.sleep(0.005)
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
