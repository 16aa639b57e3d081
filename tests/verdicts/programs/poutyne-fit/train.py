# SPDX-License-Identifier: Apache-2.0
"""Poutyne's Model.fit with validation and a learning rate that is lowered on a plateau."""

import torch
from poutyne import Model, ReduceLROnPlateau
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
net = nn.Sequential(
    nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
)
model = Model(net, "adam", "cross_entropy", batch_metrics=["accuracy"])
model.fit(
    x[:1400],
    y[:1400],
    validation_data=(x[1400:], y[1400:]),
    epochs=40,
    batch_size=32,
    callbacks=[ReduceLROnPlateau(patience=5)],
    progress_options={"coloring": False},
)
