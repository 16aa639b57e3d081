# SPDX-License-Identifier: Apache-2.0
"""Statistics of tensors on CUDA devices, without one: the streams, events and pinned memory are stand-ins that note
what they are asked; the reductions are the real ones, on the CPU.
"""

from __future__ import annotations

import contextlib
import math
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "python"))
from telltale.adapters.torch import device  # noqa: E402


class OnDevice(torch.Tensor):  # type: ignore[name-defined]
    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl


class Probe:
    """What would be recorded."""

    def __init__(self) -> None:
        self.moment = (7, 0)
        self.rows: dict = {}
        self.skipped: dict = {}

    def current(self):
        return self.moment

    def count_skipped(self, reason, n):
        self.skipped[reason] = self.skipped.get(reason, 0) + n

    def record_computed(self, name_id, *values):
        names = [
            "dtype",
            "count",
            "nan",
            "inf",
            "zero",
            "min",
            "max",
            "mean",
            "std",
            "l1",
            "l2",
            "step",
            "mode",
        ]
        self.rows[name_id, values[-2]] = dict(zip(names, values))


class Event:
    done = True

    def query(self):
        assert not Cuda.graph, "an event was asked about while a graph was captured"
        return self.done

    def __getattr__(self, name):
        raise AssertionError(f"an event was asked to {name}")


class Cuda:
    graph = False

    def __init__(self, where) -> None:
        self.device = where
        self.calls: list[str] = []
        self.tables = 0

    @staticmethod
    def capturing():
        return Cuda.graph

    @contextlib.contextmanager
    def side(self):
        self.calls.append("begin")
        yield
        self.calls.append("end")

    def hold_user(self):
        self.calls.append("hold")

    def release_user(self):
        self.calls.append("release")

    def event(self):
        self.calls.append("event")
        return Event()

    def pinned(self, rows):
        self.calls.append("pinned")
        return torch.empty((rows, device._COLUMNS), dtype=torch.float64)

    def integers(self, values):
        self.tables += 1
        return torch.tensor(values, dtype=torch.int64)


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def probe(monkeypatch):
    found = Probe()
    monkeypatch.setattr(device, "probe", found)
    monkeypatch.setattr(device, "Cuda", Cuda)
    monkeypatch.setattr(device, "_torch", torch)
    monkeypatch.setattr(device, "_devices", {})
    monkeypatch.setattr(Event, "done", True)
    monkeypatch.setattr(Cuda, "graph", False)
    return found


def give(tensors, scale=None):
    for name_id, tensor in enumerate(tensors, 1):
        there = tensor if isinstance(tensor, OnDevice) else tensor.as_subclass(OnDevice)
        assert device.add(there, name_id, 0, scale)
    device.launch()


def only() -> device._Device:
    (found,) = device._devices.values()
    return found


def check(row, tensor) -> None:
    x = (tensor.abs() if tensor.is_complex() else tensor).double()
    finite = x[torch.isfinite(x)]
    assert row["count"] == x.numel()
    assert row["nan"] == int(torch.isnan(x).sum()) and row["inf"] == int(torch.isinf(x).sum())
    assert row["zero"] == int((x == 0).sum())
    if finite.numel() == 0:
        assert all(math.isnan(row[name]) for name in ("min", "max", "mean", "std", "l1", "l2"))
        return
    size = finite.abs().mean().item()
    assert row["min"] == finite.min().item() and row["max"] == finite.max().item()
    assert abs(row["mean"] - finite.mean().item()) <= 1e-6 * size
    assert abs(row["std"] - finite.std(unbiased=False).item()) <= 1e-5 * row["std"] + 1e-7 * size
    assert row["l1"] == pytest.approx(finite.abs().sum().item(), rel=1e-5)
    assert row["l2"] == pytest.approx(finite.square().sum().sqrt().item(), rel=1e-5)


TENSORS = {
    "small": lambda: torch.randn(5),
    "one row": lambda: torch.randn(2048),
    "over a chunk": lambda: torch.randn(2100, 2050) * 3 + 1000,
    "another order": lambda: torch.randn(30, 70).t(),
    "empty": lambda: torch.empty(0, 3),
    "scalar": lambda: torch.tensor(-2.5),
    "no finite one": lambda: torch.tensor([math.nan, math.inf, -math.inf, math.nan]),
    "some finite ones": lambda: torch.tensor([math.nan, 1.0, 0.0, -math.inf, 4.0] * 1000),
    "zeros": lambda: torch.zeros(3000),
    "half": lambda: torch.randn(5000).half(),
    "bfloat16": lambda: torch.randn(5000).bfloat16(),
    "double": lambda: torch.randn(5000, dtype=torch.float64),
    "integers": lambda: torch.arange(-5, 4000),
    "booleans": lambda: torch.arange(100) % 3 == 0,
    "complex": lambda: torch.randn(300, dtype=torch.complex64),
}


def test_the_numbers_are_those_of_torch(probe):
    torch.manual_seed(0)
    tensors = [make() for make in TENSORS.values()]
    give(tensors)
    device.end_step()
    device.end_step()
    assert len(probe.rows) == len(tensors) and probe.skipped == {}
    for name_id, tensor in enumerate(tensors, 1):
        check(probe.rows[name_id, 7], tensor)


def test_a_step_is_one_copy_and_nobody_waits(probe):
    tensors = [torch.randn(100, 30).as_subclass(OnDevice) for _ in range(40)]
    give(tensors)  # The layout of the tensors is copied to the device once.
    device.end_step()
    operations = Operations()
    for step in range(8, 11):
        probe.moment = (step, 0)
        with operations:
            give(tensors)
            device.end_step()
    # One batch a step however many tensors, one copy of its results, and no value asked for.
    assert not any("_local_scalar_dense" in name or "item" in name for name in operations.seen)
    assert sum(name.startswith("aten.copy_") for name in operations.seen) == 3
    views = (
        "detach",
        "view",
        "slice",
        "reshape",
        "alias",
        "select",
        "unsqueeze",
        "as_strided",
        "_reshape_alias",
    )
    kernels = [name for name in operations.seen if name.split(".")[1] not in views]
    assert len(kernels) <= 3 * 60, sorted(set(kernels))
    cuda = only().cuda
    assert cuda.calls.count("pinned") == 1 and cuda.tables == 1
    # The user's stream goes on as soon as the tensors have been copied, before they are reduced.
    begin = cuda.calls.index("begin")
    assert cuda.calls[begin : begin + 4] == ["begin", "hold", "end", "release"]
    device.end_step()
    assert {step for _, step in probe.rows} == {7, 8, 9, 10} and probe.skipped == {}


def test_results_that_are_late_keep_the_step_of_their_time(probe, monkeypatch):
    monkeypatch.setattr(Event, "done", False)
    for step in (1, 2):
        probe.moment = (step, 0)
        give([torch.full((4,), float(step))])
        device.end_step()
    assert probe.rows == {}
    monkeypatch.setattr(Event, "done", True)
    probe.moment = (9, 1)
    device.begin_forward()
    assert {key: row["mean"] for key, row in probe.rows.items()} == {(1, 1): 1.0, (1, 2): 2.0}
    assert all(row["mode"] == 0 for row in probe.rows.values())


def test_pinned_memory_is_bounded_and_what_finds_no_room_is_counted(probe, monkeypatch):
    monkeypatch.setattr(Event, "done", False)
    for step in range(10):
        probe.moment = (step, 0)
        give([torch.ones(3), torch.ones(4)])
        device.end_step()
    assert only().cuda.calls.count("pinned") == device._BUFFERS
    assert probe.skipped == {"capture.device_late": 2 * (10 - device._BUFFERS)}
    device._drain_last()
    assert probe.skipped["capture.device_late"] == 20 and probe.rows == {}
    monkeypatch.setattr(device, "_CAPACITY", 1)
    monkeypatch.setattr(device, "_devices", {})
    give([torch.ones(3), torch.ones(4)])
    assert probe.skipped["capture.device_room"] == 1


def test_nothing_is_added_to_a_graph_that_is_being_captured(probe, monkeypatch):
    monkeypatch.setattr(Cuda, "graph", True)
    give([torch.ones(3)])
    assert device._devices == {} and probe.skipped == {"capture.graph": 1}


def test_nothing_is_asked_of_the_device_while_a_graph_is_captured(probe, monkeypatch):
    """Results of the steps before are on their way, and some have not been copied."""
    monkeypatch.setattr(Event, "done", False)
    give([torch.ones(3)])
    device.end_step()
    probe.moment = (8, 0)
    give([torch.full((3,), 2.0)])
    calls = list(only().cuda.calls)
    monkeypatch.setattr(Cuda, "graph", True)
    probe.moment = (9, 0)
    device.begin_forward()
    give([torch.ones(3)])
    device.end_step()
    assert only().cuda.calls == calls and probe.skipped == {"capture.graph": 1}
    device._drain_last()
    # One on its way, one never copied: counted at such an end.
    assert probe.skipped == {"capture.graph": 1, "capture.device_late": 2} and probe.rows == {}


def test_results_from_before_a_captured_graph_are_recorded_after_it(probe, monkeypatch):
    monkeypatch.setattr(Event, "done", False)
    give([torch.ones(3)])
    device.end_step()
    monkeypatch.setattr(Event, "done", True)
    monkeypatch.setattr(Cuda, "graph", True)
    device.end_step()
    assert probe.rows == {}
    monkeypatch.setattr(Cuda, "graph", False)
    device.end_step()
    assert {key: row["mean"] for key, row in probe.rows.items()} == {(1, 7): 1.0}


@pytest.mark.parametrize("limit", [0, 1 << 20, 1 << 40])
def test_copies_are_bounded_and_the_numbers_the_same(probe, monkeypatch, limit):
    """A large model is not copied as a whole: what is copied is reduced before the next is."""
    monkeypatch.setattr(device, "_MAX_COPIED_BYTES", limit)
    waiting = most = 0
    make, reduce = device._table, device._row_statistics

    def made(*arguments):
        nonlocal waiting, most
        table = make(*arguments)
        waiting += table.numel() * table.element_size()
        most = max(most, waiting)
        return table

    def reduced(table):
        nonlocal waiting
        waiting -= table.numel() * table.element_size()
        return reduce(table)

    monkeypatch.setattr(device, "_table", made)
    monkeypatch.setattr(device, "_row_statistics", reduced)
    monkeypatch.setattr(device, "_CHUNK_ROWS", 16)
    torch.manual_seed(0)
    tensors = [torch.randn(90_000), torch.randn(3), torch.randn(300, 500).t(), torch.randn(70_000)]
    give(tensors)
    device.end_step()
    device.end_step()
    for name_id, tensor in enumerate(tensors, 1):
        check(probe.rows[name_id, 7], tensor)
    chunk = 16 * 2048 * 4
    assert waiting == 0
    if limit < 1 << 40:
        assert most <= limit + chunk
    else:
        assert most > 8 * chunk


def test_memory_in_another_order_is_read_without_a_copy(probe):
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    for tensor in (image, image.transpose(1, 3), torch.randn(6, 7).t(), torch.randn(4, 1, 5).transpose(0, 2)):
        assert device._pieces(tensor).data_ptr() == tensor.data_ptr()
        assert not device._is_converted(tensor)
        give([tensor])
        device.end_step()
        device.end_step()
        check(probe.rows[1, 7], tensor)
    for tensor in (torch.randn(6, 8)[:, ::2], torch.randn(1, 3).expand(4, 3), torch.arange(4)):
        assert device._is_converted(tensor)


def test_what_would_take_a_copy_of_its_own_of_a_large_size_is_refused(probe):
    large = torch.ones(1).expand((64 << 20) + 1).as_subclass(OnDevice)
    assert not device.add(large, 1, 0) and not device.waiting()


def test_scaled_values_are_recorded_as_what_they_stand_for(probe):
    torch.manual_seed(0)
    tensors = [torch.randn(5000), torch.tensor([math.nan, 1.0, 0.0, -math.inf, 4.0]), torch.empty(0)]
    give([tensor * 1024 for tensor in tensors], torch.tensor([1024.0]))
    device.end_step()
    device.end_step()
    assert len(probe.rows) == 3
    for name_id, tensor in enumerate(tensors, 1):
        check(probe.rows[name_id, 7], tensor)


def test_what_a_callback_added_before_it_failed_is_not_kept(probe):
    tensor = torch.ones(3).as_subclass(OnDevice)
    assert device.add(tensor, 1, 0)
    device.drop_waiting()
    assert not device.waiting() and probe.skipped == {"capture.failed": 1}


def test_an_evaluation_ends_its_steps_itself(probe):
    for step in range(3):
        probe.moment = (step, 1)
        device.begin_forward()
        give([torch.full((2,), float(step))])
    probe.moment = (3, 1)
    device.begin_forward()
    device.begin_forward()
    assert {key: row["mean"] for key, row in probe.rows.items()} == {(1, 0): 0.0, (1, 1): 1.0, (1, 2): 2.0}


def test_what_lies_elsewhere_is_refused(probe):
    assert not device.add(torch.ones(2), 1, 0)
    assert not device.waiting()
