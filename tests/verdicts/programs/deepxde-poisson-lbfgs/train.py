# SPDX-License-Identifier: Apache-2.0
"""DeepXDE: a network that solves a differential equation, by Adam and then by L-BFGS."""

import deepxde as dde
import numpy as np
import torch

dde.config.set_random_seed(0)


def equation(x, u):
    return dde.grad.hessian(u, x) + np.pi**2 * torch.sin(np.pi * x)


space = dde.geometry.Interval(-1, 1)
border = dde.icbc.DirichletBC(space, lambda x: 0, lambda _, on_boundary: on_boundary)
data = dde.data.PDE(space, equation, border, 32, 2, solution=lambda x: np.sin(np.pi * x), num_test=100)
model = dde.Model(data, dde.nn.FNN([1] + [50] * 3 + [1], "tanh", "Glorot uniform"))
model.compile("adam", lr=1e-3)
model.train(iterations=1500)
model.compile("L-BFGS")
model.train()
