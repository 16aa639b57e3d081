# SPDX-License-Identifier: Apache-2.0
"""Pyro's SVI: a regression with uncertain weights. Pyro makes an optimizer a parameter."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn

pyro.set_rng_seed(0)
x = torch.randn(256, 3)
y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(256)


class Regression(PyroModule):
    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))

    def forward(self, x, y=None):
        sigma = pyro.sample("sigma", dist.Uniform(0.0, 5.0))
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(mean, sigma), obs=y)
        return mean


model = Regression()
svi = SVI(model, AutoDiagonalNormal(model), pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
for step in range(1500):
    loss = svi.step(x, y)
    if step % 300 == 0:
        print(step, loss)
