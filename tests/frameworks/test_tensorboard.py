# SPDX-License-Identifier: Apache-2.0
"""TensorBoard itself reads what `telltale export tensorboard` writes, of a real training with torch 2.

Needs tensorboard and torch; TELLTALE_BIN names the binary under test, by default the one of build/release.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
multiplexers = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_multiplexer")
data_providers = pytest.importorskip("tensorboard.backend.event_processing.data_provider")

ROOT = Path(__file__).resolve().parents[2]
TELLTALE = Path(os.environ.get("TELLTALE_BIN", ROOT / "build" / "release" / "bin" / "telltale"))
LIMIT_S = 300

TRAIN = """
import torch
import telltale

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for step in range(1000):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(torch.randn(16, 8)), torch.randn(16, 1))
    loss.backward()
    optimizer.step()
    telltale.log(accuracy=step / 1000)
"""
PLAN = """
[collections.weights]
take = ["statistics", "histogram"]
interval = 10
[collections.gradients]
take = ["statistics", "histogram"]
interval = 10
"""


def telltale(*arguments: object) -> str:
    done = subprocess.run(
        [str(TELLTALE), *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    work = tmp_path_factory.mktemp("tensorboard")
    (work / "train.py").write_text(TRAIN)
    (work / "plan.toml").write_text(PLAN)
    run, logs = work / "run", work / "logs"
    telltale(
        *("run", "--quiet", "--no-serve", "--overhead", "100%", "--plan", work / "plan.toml", "-o", run),
        *("--", sys.executable, work / "train.py"),
    )
    telltale("export", "tensorboard", run, "-o", logs, "--statistics")
    return run, logs


def rows(run: Path, table: str) -> list[dict[str, Any]]:
    return list(json.loads(telltale("query", run, table, "--format", "json")))


def test_scalars_are_those_recorded(exported: tuple[Path, Path]) -> None:
    run, logs = exported
    accumulator = accumulators.EventAccumulator(str(logs / "TRAIN"), {"scalars": 0, "histograms": 0})
    accumulator.Reload()
    recorded = [row for row in rows(run, "scalars") if row["mode"] == "TRAIN"]
    names = {row["name"] for row in recorded}
    assert {"loss", "accuracy"} <= names
    assert names <= set(accumulator.Tags()["scalars"])
    for name in names:
        expected = [(row["step"], row["value"]) for row in recorded if row["name"] == name]
        found = [(event.step, event.value) for event in accumulator.Scalars(name)]
        assert [step for step, _ in found] == [step for step, _ in expected]
        assert [value for _, value in found] == pytest.approx([value for _, value in expected], rel=1e-6)
        times = [event.wall_time for event in accumulator.Scalars(name)]
        assert times == pytest.approx([row["time_ns"] / 1e9 for row in recorded if row["name"] == name])
    means = accumulator.Scalars("weights/0.weight/mean")
    recorded = [row for row in rows(run, "statistics") if row["name"] == "0.weight"]
    assert recorded
    assert [event.step for event in means] == [row["step"] for row in recorded]


def test_histograms_have_the_counts_recorded(exported: tuple[Path, Path]) -> None:
    run, logs = exported
    accumulator = accumulators.EventAccumulator(str(logs / "TRAIN"), {"scalars": 0, "histograms": 0})
    accumulator.Reload()
    recorded = [row for row in rows(run, "histograms") if row["mode"] == "TRAIN" and row["taken"]]
    assert recorded
    tags = set(accumulator.Tags()["histograms"])
    assert tags == {f"{row['collection']}/{row['name']}" for row in recorded}
    for row in recorded:
        (event,) = [
            event
            for event in accumulator.Histograms(f"{row['collection']}/{row['name']}")
            if event.step == row["step"]
        ]
        value = event.histogram_value
        counts = json.loads(row["bins"])
        assert list(value.bucket) == counts
        assert sum(value.bucket) == value.num == row["taken"]
        assert value.min == pytest.approx(row["min"])
        assert value.bucket_limit[-1] == pytest.approx(row["max"])
        width = (row["max"] - row["min"]) / len(counts)
        assert value.bucket_limit[0] == pytest.approx(row["min"] + width)


def test_the_pages_of_tensorboard_find_them(exported: tuple[Path, Path]) -> None:
    """Through the data provider that its scalar and histogram pages ask."""
    _, logs = exported
    multiplexer = multiplexers.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(logs))
    multiplexer.Reload()
    provider = data_providers.MultiplexerDataProvider(multiplexer, str(logs))
    context = __import__("tensorboard.context", fromlist=["RequestContext"]).RequestContext()
    scalars = provider.list_scalars(context, experiment_id="", plugin_name="scalars")
    assert "loss" in scalars["TRAIN"]
    tensors = provider.list_tensors(context, experiment_id="", plugin_name="histograms")
    assert any(tag.startswith("weights/") for tag in tensors["TRAIN"])
