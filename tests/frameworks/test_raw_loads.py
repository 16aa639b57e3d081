# SPDX-License-Identifier: Apache-2.0
"""Raw values of a training load in numpy, torch and JAX by the public safetensors package, each bit as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from conftest import AWAIT_PLAN, LIMIT_S, QUIET_ENV, what_was_told

PLAN = '[collections.all]\ninterval = 1\ntake = ["values"]\n'
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")

# A module for each dtype gives other values at each step: of two dimensions and turned, a scalar, nothing.
TRAIN = f"""
import json, sys, torch, torch.nn as nn
{AWAIT_PLAN}
torch.manual_seed(0)
class Give(nn.Module):
    def forward(self, x): return self.given
class Net(nn.Module):
    def __init__(self, dtypes):
        super().__init__()
        self.line = nn.Linear(2, 1)
        for dtype in dtypes: self.add_module("of_" + dtype, Give())
    def forward(self, x):
        for name, module in self.named_children():
            if name != "line": module(x)
        return self.line(x)
net = Net(sys.argv[1:]); opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    for dtype in sys.argv[1:]:
        given = (3 * torch.randn(((5, 7), (), (0, 3))[step])).to(getattr(torch, dtype)).t()
        getattr(net, "of_" + dtype).given = given
        data = given.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        print("TOLD " + json.dumps(dict(
            step=step, name="of_" + dtype + ".output", dtype=dtype, shape=list(given.shape), data=data.hex())))
    opt.zero_grad(); net(torch.ones(1, 2)).sum().backward(); opt.step()
"""

# What loads a file, and what tells of a value: its dtype, its bytes.
LOADERS = {
    "numpy": """
import ml_dtypes  # By it numpy knows bfloat16.
from safetensors.numpy import load_file
def tell(value): return str(value.dtype), value.tobytes()
""",
    "torch": """
import torch
from safetensors.torch import load_file
def tell(value):
    return str(value.dtype).rpartition(".")[2], value.reshape(-1).view(torch.uint8).numpy().tobytes()
""",
    "jax": """
import jax, numpy
from safetensors.flax import load_file
def tell(value):
    assert isinstance(value, jax.Array)
    return str(value.dtype), numpy.asarray(value).tobytes()
""",
}
# The package has float8 for torch alone: elsewhere its bytes are what they are taken for.
FLOAT8_LOADERS = {
    "numpy": """
import ml_dtypes, numpy, safetensors
def load_file(path):
    with open(path, "rb") as file: stored = dict(safetensors.deserialize(file.read()))
    kinds = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
    return {
        key: numpy.frombuffer(value["data"], kinds[value["dtype"]]).reshape(value["shape"])
        for key, value in stored.items() if value["dtype"] in kinds
    }
def tell(value): return str(value.dtype), value.tobytes()
""",
    "torch": LOADERS["torch"],
}
FLOAT8_LOADERS["jax"] = (
    FLOAT8_LOADERS["numpy"]
    + """
import jax.numpy
of_numpy = load_file
def load_file(path): return {key: jax.numpy.array(value) for key, value in of_numpy(path).items()}
def tell(value): return str(value.dtype), numpy.asarray(value).tobytes()
"""
)
LOAD = """
import json, sys
for path in sys.argv[1:]:
    for key, value in load_file(path).items():
        dtype, data = tell(value)
        print("TOLD " + json.dumps(dict(key=key, dtype=dtype, shape=list(value.shape), data=data.hex())))
"""


def check(run: Any, dtypes: tuple[str, ...], loader: str) -> None:
    """What a loader gives of a run's files is what the training had."""
    recorded = run(TRAIN, PLAN, arguments=dtypes).assert_clean()
    given = {(row["name"], row["step"]): row for row in what_was_told(recorded.out)}
    assert len(given) == 3 * len(dtypes)
    files = sorted(str(path) for path in recorded.folder.glob("agent-*/tensors/*.safetensors"))
    done = subprocess.run(
        [sys.executable, "-c", loader + LOAD, *files],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **QUIET_ENV, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"},
    )
    assert done.returncode == 0, done.stderr
    loaded = {row["key"]: row for row in what_was_told(done.stdout)}
    rows = {(row["name"], row["step"]): row for row in recorded.table("tensors")}
    for (name, step), expected in given.items():
        row = rows[name, step]
        assert json.loads(row["shape"]) == expected["shape"]
        found = loaded[f"{row['mode']}/{step}/{row['rank']}/{name}"]
        for what in ("dtype", "shape", "data"):
            assert found[what] == expected[what], (name, step, what)


@pytest.mark.parametrize("framework", LOADERS)
def test_they_load(run, framework):
    check(run, DTYPES, LOADERS[framework])


@pytest.mark.parametrize("framework", FLOAT8_LOADERS)
def test_those_of_float8_load(run, framework):
    check(run, FLOAT8, FLOAT8_LOADERS[framework])
