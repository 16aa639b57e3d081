# SPDX-License-Identifier: Apache-2.0
"""TabNet trained twice in one program: on the digits, and then, warm, on the same with a higher learning rate."""

from pytorch_tabnet.tab_model import TabNetClassifier
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
model = TabNetClassifier(seed=0, device_name="cpu")
for rate in (0.02, 0.03):
    model.optimizer_params = {"lr": rate}
    model.fit(
        x[:1400],
        y[:1400],
        eval_set=[(x[1400:], y[1400:])],
        max_epochs=12,
        batch_size=128,
        virtual_batch_size=64,
        warm_start=True,
    )
