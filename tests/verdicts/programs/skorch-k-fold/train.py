# SPDX-License-Identifier: Apache-2.0
"""skorch's classifier under scikit-learn's cross_val_score: five fits on handwritten digits."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from skorch import NeuralNetClassifier
from torch import nn

torch.manual_seed(0)
x, y = load_digits(return_X_y=True)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
model = NeuralNetClassifier(net, criterion=nn.CrossEntropyLoss, lr=0.1, max_epochs=20, batch_size=64)
print(cross_val_score(model, (x / 16).astype("float32"), y, cv=5))
