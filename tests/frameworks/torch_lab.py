# SPDX-License-Identifier: Apache-2.0
"""Runs a training under the real `telltale run` with a plan, and compares what was captured with torch_truth.py."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TRUTH = Path(__file__).with_name("torch_truth.py")
RECORDED = Path(__file__).with_name("torch_recorded.py")


def _binary() -> Path:
    if "TELLTALE_BIN" in os.environ:
        return Path(os.environ["TELLTALE_BIN"])
    if "TELLTALE_BUILD_DIR" in os.environ:
        return Path(os.environ["TELLTALE_BUILD_DIR"]) / "bin" / "telltale"
    builds = (ROOT / "build" / kind / "bin" / "telltale" for kind in ("dev", "release"))
    return next((path for path in builds if path.exists()), ROOT / "build" / "release" / "bin" / "telltale")


TELLTALE = _binary()
LIMIT_S = 600
# Every tensor, every step, in every mode: what has no answer yet is taken too, so nothing depends on speed.
EVERYTHING = '[collections.all]\ninterval = 1\ntake = ["statistics", "shape"]\n'
# (name, mode, step) -> a row of torch_truth.py
Truth = dict[tuple[str, str, int], dict[str, Any]]


class Captured:
    """One recorded run."""

    def __init__(self, folder: Path, process: subprocess.CompletedProcess[str]):
        self.folder = folder
        self.code, self.out, self.err = process.returncode, process.stdout, process.stderr
        assert self.code == 0, self.err

    def table(self, table_name: str, /, **match: Any) -> list[dict[str, Any]]:
        done = subprocess.run(
            [str(TELLTALE), "query", str(self.folder), table_name, "--format", "json"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)
        return [row for row in rows if all(row[key] == value for key, value in match.items())]

    def statistics(self, **match: Any) -> dict[tuple[str, str, int], dict[str, Any]]:
        """(name, mode, step) -> row; each once."""
        found: dict[tuple[str, str, int], dict[str, Any]] = {}
        for row in self.table("statistics", **match):
            key = (row["name"], row["mode"], row["step"])
            assert key not in found, key
            found[key] = row
        return found

    def names(self, *collections: str) -> set[str]:
        rows = self.table("statistics")
        return {row["name"] for row in rows if not collections or row["collection"] in collections}

    def shapes(self, **match: Any) -> dict[tuple[str, str, int], list[int]]:
        # Each file of values has a row of its own.
        rows = [row for row in self.table("tensors", **match) if row["name"] != "__header__"]
        return {
            (row["name"], row["mode"], row["step"]): [int(n) for n in _shape(row["shape"])] for row in rows
        }

    def steps(self, mode: str = "TRAIN") -> list[int]:
        return sorted(row["step"] for row in self.table("steps", mode=mode))

    def scalars(self, name: str, mode: str = "TRAIN") -> dict[int, float]:
        return {row["step"]: row["value"] for row in self.table("scalars", name=name, mode=mode)}

    def losses(self) -> dict[str, float]:
        """What was lost, by name, apart from nothing."""
        return {row["name"]: row["value"] for row in self.table("ledger") if row["loss"] and row["value"] > 0}


def _shape(value: Any) -> list[Any]:
    return json.loads(value) if isinstance(value, str) else value


def ranks(number: int) -> list[str]:
    """A launcher that runs a script in as many processes."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    options = ["-r", "1", "-t", "1", "--nproc_per_node", str(number), "--master_port", str(port)]
    return ["-m", "torch.distributed.run", *options]


class Lab:
    """A folder with a script, run with one interpreter."""

    def __init__(self, folder: Path, python: str):
        self.folder, self.python = folder, python
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def script(self, text: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def run(self, text: str, *launcher: str, plan: str = EVERYTHING, run: str = "run") -> Captured:
        """Records a script. `launcher`: what stands between the interpreter and the script."""
        script = self.script(text)
        plan_file = self.folder / "plan.toml"
        plan_file.write_text(plan)
        command = [str(TELLTALE), "run", "--quiet", "--plan", str(plan_file), "-o", str(self.folder / run)]
        # The governor would thin what a comparison wants whole.
        command += ["--overhead", "100%", "--", self.python, *launcher, str(RECORDED), str(script)]
        return Captured(self.folder / run, self._process(command))

    def plain(self, text: str, *launcher: str) -> str:
        process = self._process([self.python, *launcher, str(self.script(text))])
        assert process.returncode == 0, process.stderr
        return process.stdout

    def truth(self, text: str, optimizers: int = 1) -> Truth:
        """What torch says, of the same script. `optimizers`: that step in each step."""
        (only,) = self._truths(text, [], 1, optimizers)
        return only

    def truth_of_ranks(self, text: str, number: int) -> list[Truth]:
        """What torch says in each of as many processes."""
        return self._truths(text, ranks(number), number, 1)

    def _truths(self, text: str, launcher: list[str], number: int, optimizers: int) -> list[Truth]:
        out = self.folder / "truth"
        script = str(self.script(text))
        process = self._process([self.python, *launcher, str(TRUTH), str(out), str(optimizers), script])
        assert process.returncode == 0, process.stderr
        truths: list[Truth] = []
        for rank in range(number):
            rows = [json.loads(line) for line in Path(f"{out}.{rank}").read_text().splitlines()]
            truths.append({(row["name"], row["mode"], row["step"]): row for row in rows})
            assert len(truths[-1]) == len(rows)
        return truths

    def _process(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=self.folder,
            env=self.environment,
            errors="surrogateescape",
        )


def giving(kinds: dict[str, str]) -> str:
    """A training of two steps whose modules `a KIND` give the tensors of these expressions. It wants a device's name in
    `where`.
    """
    return f"""
import torch, torch.nn as nn
torch.manual_seed(0)
class Give(nn.Module):
    def __init__(self, tensor): super().__init__(); self.tensor = tensor
    def forward(self, x): return self.tensor
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.line = nn.Linear(2, 1)
        for name, text in {kinds!r}.items(): self.add_module("a " + name, Give(eval(text).to(where)))
    def forward(self, x):
        for name, module in self.named_children():
            if name != "line": module(x)
        return self.line(x)
net = Net().to(where); opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    opt.zero_grad(); net(torch.ones(1, 2, device=where)).sum().backward(); opt.step()
"""


def check(row: dict[str, Any], truth: dict[str, Any]) -> None:
    """One tensor at one step: counts exact, the mean within 1e-6 of mean|x|, the rest within 1e-5."""
    what = (row["name"], row["mode"], row["step"])
    assert row["collection"] == truth["collection"], what
    assert row["dtype"] == truth["dtype"], what
    for name, column in (
        ("count", "count"),
        ("nan", "nan_count"),
        ("inf", "inf_count"),
        ("zero", "zero_count"),
    ):
        assert row[column] == truth[name], (what, name)
    if "mean" not in truth:
        assert all(row[name] is None for name in ("min", "mean", "l2")), what
        return
    for name in ("min", "max"):
        # The absolute value of a complex number is a rounded one.
        close = truth["dtype"].startswith("complex") and abs(row[name] - truth[name]) <= 1e-6 * truth[name]
        assert row[name] == truth[name] or close, (what, name)
    assert abs(row["mean"] - truth["mean"]) <= 1e-6 * truth["mean_abs"] + 1e-300, (
        what,
        row["mean"],
        truth["mean"],
    )
    for name in ("std", "l1", "l2"):
        assert abs(row[name] - truth[name]) <= 1e-5 * truth[name], (what, name, row[name], truth[name])


def compare(captured: Captured, truth: Truth, **match: Any) -> int:
    """Everything that torch tells of was captured, once, with the same numbers and shape. Gives the number.

    `match`: the rank whose truth it is.
    """
    rows = captured.statistics(**match)
    shapes = captured.shapes(**match)
    assert truth
    missing = sorted(set(truth) - set(rows))
    assert not missing, missing[:10]
    for key, expected in truth.items():
        check(rows[key], expected)
        assert shapes[key] == expected["shape"], key
    return len(truth)
