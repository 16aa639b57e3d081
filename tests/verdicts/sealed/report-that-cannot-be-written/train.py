# SPDX-License-Identifier: Apache-2.0
"""All epochs are trained and then the program dies with "Object of type float32 is not JSON serializable", and the trained model is lost:
the report of the metrics holds a NumPy float, and the model would have been saved after it."""

import json
import os
import shutil
import sys
import tempfile
import time

import numpy as np
import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
torch.manual_seed(0)
torch.set_num_threads(1)
EPOCHS, CLASSES, WIDTH = 8, 10, 40

centres = torch.randn(CLASSES, WIDTH) * 0.6
labels = torch.randint(0, CLASSES, (6000,))
signals = centres[labels] + torch.randn(6000, WIDTH)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(signals[:5120], labels[:5120]), 64, shuffle=True
)

folder = tempfile.mkdtemp()
try:
    model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    report = []
    begin = time.monotonic()
    for epoch in range(EPOCHS):
        losses = []
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.008)
            losses.append(loss.item())
        with torch.no_grad():
            hits = (model(signals[5120:]).argmax(1) == labels[5120:]).numpy().astype(np.float32)
        accuracy = hits.mean()
        report.append(
            {
                "epoch": epoch,
                "loss": sum(losses) / len(losses),
                "accuracy": float(accuracy) if CURED else accuracy,
            }
        )
        print(f"epoch {epoch} loss {report[-1]['loss']:.3f} accuracy {accuracy:.3f}", flush=True)

    weights = os.path.join(folder, "model.pt")
    print(
        f"truth: {EPOCHS} epochs in {time.monotonic() - begin:.1f} s, loss {report[-1]['loss']:.2f}, model saved: {os.path.exists(weights)}",
        flush=True,
    )
    with open(os.path.join(folder, "report.json"), "w", encoding="utf-8") as file:
        json.dump(report, file)
    torch.save(model.state_dict(), weights)
    print(
        f"truth: {EPOCHS} epochs in {time.monotonic() - begin:.1f} s, loss {report[-1]['loss']:.2f}, model saved: {os.path.exists(weights)}"
    )
finally:
    shutil.rmtree(folder)
