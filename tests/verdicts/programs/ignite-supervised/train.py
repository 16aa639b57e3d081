# SPDX-License-Identifier: Apache-2.0
"""Ignite's supervised trainer with an evaluator at the end of each epoch."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)
train = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=32, shuffle=True)
test = DataLoader(TensorDataset(x[1400:], y[1400:]), batch_size=128)
net = nn.Sequential(
    nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)
)
trainer = create_supervised_trainer(net, torch.optim.Adam(net.parameters(), 1e-3), nn.CrossEntropyLoss())
evaluator = create_supervised_evaluator(net, {"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss())})


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    print(engine.state.epoch, evaluator.run(test).metrics)


trainer.run(train, max_epochs=25)
