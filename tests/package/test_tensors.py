# SPDX-License-Identifier: Apache-2.0
"""Tensors through telltale.open() of an installation, of a run imported from SageMaker Debugger's real library."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, sh

RECORDING = REPO / "tests" / "data" / "smdebug" / "recording"
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


@pytest.fixture(scope="session")
def run(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported") / "run"
    sh(prefix / "bin" / "telltale", "import", "smdebug", RECORDING, "-o", folder)
    return folder


def check(python: Any, code: str, *arguments: object, **options: str) -> subprocess.CompletedProcess[str]:
    begin = """
import json, pathlib, sys, telltale
import numpy as np
run = telltale.open(sys.argv[1])
"""
    done: subprocess.CompletedProcess[str] = python(begin + code, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done


def test_values_are_views_of_what_the_training_had(python: Any, run: Path) -> None:
    code = """
expected = json.loads((pathlib.Path(sys.argv[2]) / "expected.json").read_text())
compared = 0
for name, values in expected.items():
    mode, step, name = name.split(" ", 2)
    if name.endswith((" mean", " l2")):
        continue
    array = run.tensor(name).at(int(step), mode=mode)
    assert array.dtype == np.float32 and not array.flags.writeable and not array.flags.owndata
    np.testing.assert_allclose(array, np.array(values, np.float32), rtol=1e-7)
    compared += 1
assert compared >= 15
weight = run.tensor("Sequential_0.weight")
array = weight.at(2)
run.close()
assert array.shape == (2, 3) and array.sum() == array.sum(), "views live on"
"""
    check(python, code, run, RECORDING)


def test_steps_and_slices(python: Any, run: Path) -> None:
    code = """
weight = run.tensor("Sequential_0.weight")
steps = weight.steps()
assert steps.dtype == np.int64 and steps.tolist() == [0, 2]
assert weight.steps("EVAL").tolist() == [0] and weight.steps(rank=0, of="values").tolist() == [0, 2]
both = weight.values()
assert both.shape == (2, 2, 3) and not both.flags.writeable
for i, step in enumerate(steps):
    assert (both[i] == weight.at(step)).all() and (weight[int(step)] == both[i]).all()
assert weight[0:1].shape == (1, 2, 3) and weight[:].shape == weight[0:3].shape == (2, 2, 3)
assert weight[::2].shape == (1, 2, 3) and weight[1:].shape == (1, 2, 3)
assert (weight.values([2, 0]) == both[::-1]).all()
assert run.steps().tolist() == [0, 2] and run.steps("EVAL").tolist() == [0]
assert run.steps("PREDICT").tolist() == [] and run.steps(rank=7).tolist() == []
loss = run.tensor("MSELoss_output_0")
assert loss.at(0).shape == () and loss.values().shape == (2,)
"""
    check(python, code, run)


def test_lists(python: Any, run: Path) -> None:
    code = """
tensors = run.tensors()
assert tensors.names == sorted(tensors.names) and "__header__" not in tensors.names
weight = tensors["Sequential_0.weight"]
assert weight.shape == (2, 3) and weight.dtype == "float32" and weight.collection == "weights"
assert weight.modes == ("EVAL", "TRAIN") and weight.ranks == (0,)
assert run.tensors("Sequential_0.*").names == ["Sequential_0.bias", "Sequential_0.weight"]
assert run.tensors(regex="weight$", collection="weights").names == ["Sequential_0.weight", "Sequential_2.weight"]
assert len(run.tensors("nothing*")) == 0
assert [t.name for t in tensors[:2]] == tensors.names[:2] and tensors[-1].name == tensors.names[-1]
assert "MSELoss_output_0" in tensors and weight in tensors and "x" not in tensors
assert len(tensors.pandas()) == len(tensors)
"""
    check(python, code, run)


def test_histograms_of_large_tensors_are_of_a_sample(python: Any, run: Path) -> None:
    code = """
from telltale._histograms import Histograms
large = np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000)
histograms = Histograms.of_values("large", [(step, large) for step in range(300)])
assert (histograms.counts.sum(axis=1) == 65_536).all()
assert histograms.min[0] == 0 and histograms.max[0] == 999_999, "first and last are among them"
np.testing.assert_allclose(histograms.quantiles[0], np.quantile(large, histograms_ranks), atol=1000)
few = Histograms.of_values("large", [(0, large)])
assert few.counts.sum() == large.size
"""
    check(python, code.replace("histograms_ranks", str(list(QUANTILES))), run)


def test_tables_and_pictures(python: Any, run: Path) -> None:
    code = """
import struct, zlib
import xml.etree.ElementTree as xml
weight = run.tensor("Sequential_0.weight")
statistics = weight.statistics()
assert set(statistics["name"].to_pylist()) == {"Sequential_0.weight"} and statistics.num_rows == 3
frame = weight.pandas()
first = frame[(frame["mode"] == "TRAIN") & (frame["step"] == 0)].iloc[0]
np.testing.assert_allclose(first["mean"], weight.at(0).mean(dtype=np.float64), rtol=1e-6)
histograms = weight.histograms()
assert histograms.steps.tolist() == [0, 2] and histograms.counts.shape == (2, 64)
assert (histograms.counts.sum(axis=1) == 6).all()
counts, edges = np.histogram(weight.at(2).astype(float), 64)
assert (histograms.counts[1] == counts).all() and np.allclose(histograms.edges(1), edges)
xml.fromstring(histograms.svg())

picture = weight.tiles(0)
data = picture.data
assert data[:8] == b"\\x89PNG\\r\\n\\x1a\\n"
at, image = 8, b""
while at < len(data):
    size, kind = struct.unpack_from(">I4s", data, at)
    body = data[at + 8 : at + 8 + size]
    assert struct.unpack_from(">I", data, at + 8 + size)[0] == zlib.crc32(kind + body)
    if kind == b"IHDR":
        width, height = struct.unpack_from(">II", body)
    if kind == b"IDAT":
        image += body
    at += 12 + size
assert (width, height) == (3, 2)
rows = np.frombuffer(zlib.decompress(image), np.uint8).reshape(height, width + 1)
assert (rows[:, 0] == 0).all()
values = weight.at(0).astype(float)
expected = np.rint((values - values.min()) / (values.max() - values.min()) * 255)
assert (rows[:, 1:] == expected).all()

for shown in (run, run.tensors(), weight, run.tensor("MSELoss_output_0"), histograms, picture):
    assert shown._repr_html_().startswith("<"), shown
    assert repr(shown)
only_statistics = run.tensor("gradient/Sequential_0.weight")
assert only_statistics._repr_html_()
"""
    check(python, code, run)


def test_plots_without_matplotlib(python: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('not installed')\n")
    code = """
picture = run.tensor("Sequential_0.weight").plot()
assert picture.format == "svg" and picture._repr_html_().count("<rect") > 2
"""
    check(python, code, run, paths=str(tmp_path))


def test_plots_with_matplotlib(python: Any, run: Path) -> None:
    code = """
import matplotlib
matplotlib.use("agg")
axes = run.tensor("Sequential_0.weight").plot()
assert axes.get_xlabel() == "step" and len(axes.images) == 1
"""
    check(python, code, run)


def test_following_gives_the_values(python: Any, run: Path) -> None:
    code = """
seen = [(v.name, v.mode, v.step, v.rank) for v in run.follow_values("Sequential_0.*")]
names = run.tensors("Sequential_0.*").names
assert sorted(seen) == sorted((n, m, s, 0) for n in names for m, s in (("TRAIN", 0), ("TRAIN", 2), ("EVAL", 0)))
for value in run.tensor("Sequential_0.weight").follow():
    assert (value.array == run.tensor(value.name).at(value.step, mode=value.mode)).all()
"""
    check(python, code, run)


def test_what_is_not_there_is_said(python: Any, run: Path) -> None:
    code = """
def error(f):
    try:
        f()
    except telltale.ReadError as failure:
        assert "\\n" not in str(failure)
        return failure.code, str(failure)
    raise AssertionError("no error")
assert "did you mean 'Sequential_0.weight'" in error(lambda: run.tensor("Sequential_0.weigth").steps())[1]
assert error(lambda: run.tensor("zzz").at(0))[0] == 2
weight = run.tensor("Sequential_0.weight")
assert "step 1" in error(lambda: weight.at(1))[1]
assert "rank 3" in error(lambda: weight.at(0, rank=3))[1]
assert "PREDICT" in error(lambda: weight.steps("PREDICT"))[1]
assert error(lambda: weight[5:7])[0] == 2
assert error(lambda: weight.steps(of="weights"))[0] == 2
assert error(lambda: run.tensors(regex="("))[0] == 2
assert error(lambda: weight.reader("steps"))[0] == 2
run.close()
assert "was closed" in error(lambda: run.tensors())[1]
"""
    check(python, code, run)
