# SPDX-License-Identifier: Apache-2.0
"""CTGAN: a generator and a discriminator that learn to write rows of a table."""

import numpy as np
import pandas as pd
import torch
from ctgan import CTGAN

torch.manual_seed(0)
np.random.seed(0)  # By which CTGAN draws.
rng = np.random.default_rng(0)
kind = rng.choice(["a", "b", "c"], 2000, p=[0.5, 0.3, 0.2])
table = pd.DataFrame(
    {"kind": kind, "size": rng.normal(0, 1, 2000) + 3 * (kind == "b"), "age": rng.integers(18, 90, 2000)}
)
CTGAN(epochs=10, batch_size=200, enable_gpu=False, verbose=True).fit(table, ["kind"])
