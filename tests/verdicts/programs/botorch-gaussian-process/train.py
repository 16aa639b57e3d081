# SPDX-License-Identifier: Apache-2.0
"""BoTorch's fit of a Gaussian process by its loop over torch's Adam."""

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_torch
from gpytorch.mlls import ExactMarginalLogLikelihood

torch.manual_seed(0)
x = torch.rand(200, 3, dtype=torch.double)
y = torch.sin(6 * x).sum(1, keepdim=True) + 0.1 * torch.randn(200, 1, dtype=torch.double)
model = SingleTaskGP(x, y)
fit_gpytorch_mll(
    ExactMarginalLogLikelihood(model.likelihood, model),
    optimizer=fit_gpytorch_mll_torch,
    optimizer_kwargs={"step_limit": 800},
)
