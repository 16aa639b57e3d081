# SPDX-License-Identifier: Apache-2.0
"""Statistics and values of tensors on CUDA devices, without one: the streams, events and pinned memory are stand-ins
that note what they are asked; the reductions and copies are the real ones, on the CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "python"))
from telltale.adapters import sharing  # noqa: E402
from telltale.adapters.torch import device, device_statistics, device_values  # noqa: E402

STATS, HISTOGRAM, RAW, SHAPE, MORE = 1, 2, 4, 8, 16
SAMPLE = 65536


class OnDevice(torch.Tensor):  # type: ignore[name-defined]
    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl


class Probe:
    """What would be recorded."""

    def __init__(self) -> None:
        self.moment = (7, 0)
        self.rows: dict = {}
        self.skipped: dict = {}
        # (id, step) -> what was given of it
        self.values: dict = {}
        self.shapes: dict = {}
        self.samples: dict = {}
        self.events: list = []
        self.most = SAMPLE
        self.slab = 256 << 20
        # By id: the memory is read as of this tensor's dtype.
        self.like: dict = {}
        self.kept: list = []

    def current(self):
        return self.moment

    def count_skipped(self, reason, n):
        self.skipped[reason] = self.skipped.get(reason, 0) + n

    def keep_forever(self, thing):
        self.kept.append(thing)

    def sample_size(self, name_id):
        return self.most

    def slab_bytes(self):
        return self.slab

    def event(self, kind, severity, subject, message, data):
        self.events.append((kind, subject, message))

    def _read(self, name_id, address, count):
        like = self.like[name_id]
        memory = ctypes.string_at(address, count * like.element_size()) if count else b""
        return torch.frombuffer(bytearray(memory), dtype=like.dtype) if memory else like.new_empty(0)

    def record(self, name_id, address, dtype, shape, strides, take, step, mode):
        step, mode = self.moment if step is None else (step, mode)
        assert strides is None and take in (RAW, SHAPE, RAW | SHAPE)
        if take == SHAPE:
            self.shapes[name_id, step] = tuple(shape)
        else:
            read = self._read(name_id, address, math.prod(shape))
            self.values[name_id, step] = {"values": read.reshape(shape), "take": take, "mode": mode}

    def record_sample(self, name_id, address, dtype, taken, count, low, high, step, mode):
        read = self._read(name_id, address, taken)
        found = {"values": read, "count": count, "low": low, "high": high, "mode": mode}
        self.samples[name_id, step] = found

    def record_computed(self, name_id, *values, **more):
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
        self.rows[name_id, values[-2]] = dict(zip(names, values), **more)


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
        return torch.empty((rows, device_statistics.COLUMNS), dtype=torch.float64)

    def pinned_bytes(self, size):
        self.calls.append(f"pinned {size}")
        return torch.zeros(size, dtype=torch.uint8)

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
    for module in (device, device_values, sharing):
        monkeypatch.setattr(module, "probe", found)
    monkeypatch.setattr(device, "Cuda", Cuda)
    monkeypatch.setattr(device, "_torch", torch)
    monkeypatch.setattr(device_statistics, "_torch", torch)
    monkeypatch.setattr(device, "_devices", {})
    monkeypatch.setattr(device, "_deadline", None)
    monkeypatch.setattr(device_values, "_bits", {})
    monkeypatch.setattr(device_values, "_pinned", {})
    monkeypatch.setattr(device_values, "_torch", None)
    device_values.install(torch)
    monkeypatch.setattr(sharing, "_unavailable", set())
    monkeypatch.setattr(Event, "done", True)
    monkeypatch.setattr(Cuda, "graph", False)
    return found


def give(tensors, scale=None, take=STATS):
    for name_id, tensor in enumerate(tensors, 1):
        there = tensor if isinstance(tensor, OnDevice) else tensor.as_subclass(OnDevice)
        device.probe.like[name_id] = tensor
        assert device.add(there, name_id, 0, scale, take)
    device.launch()


def give_and_record(tensors, scale=None, take=STATS):
    give(tensors, scale, take)
    device.end_step()
    device.end_step()


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


def test_what_many_callbacks_give_is_reduced_once_a_step(probe):
    def launched(parts):
        operations = Operations()
        with operations:
            for part in parts:
                for name_id, tensor in part:
                    assert device.add(tensor, name_id, 0, None, STATS | MORE)
                device.launch()
            device.end_step()
        return sum(
            name.startswith("aten.vector_norm") or "linalg_vector_norm" in name for name in operations.seen
        )

    torch.manual_seed(0)
    tensors = [torch.randn(50 * number, 30) for number in range(1, 41)]
    numbered = [(name_id, tensor.as_subclass(OnDevice)) for name_id, tensor in enumerate(tensors, 1)]
    together = launched([numbered])
    probe.moment = (8, 0)
    assert launched([[one] for one in numbered]) == together > 0
    device.end_step()
    for step in (7, 8):
        for name_id, tensor in enumerate(tensors, 1):
            check(probe.rows[name_id, step], tensor)
    assert len(probe.rows) == 80 and probe.skipped == {}


def test_results_of_an_end_that_come_soon_are_waited_for(probe, monkeypatch):
    asked = 0

    def soon(_):
        nonlocal asked
        asked += 1
        return asked % 6 == 0

    monkeypatch.setattr(Event, "query", soon)
    give([torch.ones(3)])
    device._drain_last()
    assert probe.rows.keys() == {(1, 7)} and probe.skipped == {}
    device._drain_last()
    assert len(probe.rows) == 1 and probe.skipped == {}


def test_an_end_waits_for_no_device_that_hangs(probe, monkeypatch):
    """And gives it nothing more to do."""
    monkeypatch.setattr(Event, "done", False)
    now = 0.0

    def passes(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr(device.time, "monotonic", lambda: now)
    monkeypatch.setattr(device.time, "sleep", passes)
    give([torch.ones(3)])
    device.end_step()
    probe.moment = (8, 0)
    give([torch.ones(3), torch.ones(4)])
    (known,) = device._devices.values()
    operations = Operations()
    with operations:
        device._drain_last()
    assert probe.skipped == {"capture.device_late": 3} and probe.rows == {} and operations.seen == []
    assert device._LAST_WAIT_S <= now < 2 * device._LAST_WAIT_S
    assert list(probe.kept[0].values()) == [known]


def test_an_interrupt_ends_the_wait_and_not_the_end(probe, monkeypatch):
    monkeypatch.setattr(Event, "done", False)

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(device.time, "sleep", interrupted)
    give([torch.ones(3)])
    device.end_step()
    device._drain_last()
    assert probe.skipped == {"capture.device_late": 1}


def test_an_end_frees_nothing(probe):
    """After an error of the device a call into CUDA, as which pinned memory is freed, ends the process."""
    give_and_record([torch.ones(1 << 18)], take=STATS | RAW)
    (known,) = device._devices.values()
    device._drain_last()
    (kept,) = probe.kept
    assert list(kept.values()) == [known] and device._devices == {}

    def broken():
        raise RuntimeError("CUDA error: device-side assert triggered")

    give([torch.ones(3), torch.ones(4)])
    (known,) = device._devices.values()
    known.cuda.event = broken
    device._drain_last()
    assert list(probe.kept[1].values()) == [known] and device._devices == {}
    assert sum(probe.skipped.values()) == 2


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
    make, reduce = device._table, device_statistics.row_statistics

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
    monkeypatch.setattr(device_statistics, "row_statistics", reduced)
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
        assert device_values.flat(tensor).data_ptr() == tensor.data_ptr()
        assert device_values.whole_bytes(tensor) == 0
        give([tensor])
        device.end_step()
        device.end_step()
        check(probe.rows[1, 7], tensor)
    for tensor in (torch.randn(6, 8)[:, ::2], torch.randn(1, 3).expand(4, 3)):
        assert device_values.whole_bytes(tensor) == tensor.numel() * 4


def test_what_would_take_a_copy_of_its_own_of_a_large_size_is_refused(probe):
    large = torch.ones(1).expand((64 << 20) + 1).as_subclass(OnDevice)
    assert not device.add(large, 1, 0) and not device.waiting()
    # By its bytes, not by its elements.
    for dtype, taken in ((torch.float64, False), (torch.float32, True), (torch.int16, True)):
        there = torch.ones(1, dtype=dtype).expand((16 << 20) + 1).as_subclass(OnDevice)
        assert device.add(there, 1, 0) == taken
    device.drop_waiting()


class Sizes(TorchDispatchMode):
    """Bytes of the largest float64 tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype == torch.float64:
            self.most = max(self.most, made.numel() * 8)
        return made


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_integers_are_converted_piece_by_piece(probe, monkeypatch, dtype):
    """However large: the copies in float64 are those of a chunk."""
    monkeypatch.setattr(device, "_CHUNK_ROWS", 4)
    tensor = (torch.arange(200_000) % 100 - 50).to(dtype)
    sizes = Sizes()
    there = tensor.as_subclass(OnDevice)
    with sizes:
        give([there])
    device.end_step()
    device.end_step()
    check(probe.rows[1, 7], tensor)
    assert 0 < sizes.most <= 4 * 2048 * 8


@pytest.mark.parametrize("limit", [0, 300_000, 1 << 40])
def test_a_copy_of_a_whole_tensor_counts_among_the_copies(probe, monkeypatch, limit):
    monkeypatch.setattr(device, "_MAX_COPIED_BYTES", limit)
    monkeypatch.setattr(device, "_CHUNK_ROWS", 8)
    waiting = alive = most = 0
    make, reduce, flat = device._table, device_statistics.row_statistics, device_values.flat

    def flattened(tensor):
        nonlocal alive, most
        alive = device_values.whole_bytes(tensor)
        most = max(most, waiting + alive)
        return flat(tensor)

    def made(*arguments):
        nonlocal waiting, most
        table = make(*arguments)
        waiting += table.numel() * table.element_size()
        most = max(most, waiting + alive)
        return table

    def reduced(table):
        nonlocal waiting
        waiting -= table.numel() * table.element_size()
        return reduce(table)

    monkeypatch.setattr(device_values, "flat", flattened)
    monkeypatch.setattr(device, "_table", made)
    monkeypatch.setattr(device_statistics, "row_statistics", reduced)
    torch.manual_seed(0)
    tensors = [torch.randn(100, 400)[:, ::2] for _ in range(20)] + [torch.randn(40_000)]
    give_and_record(tensors)
    for name_id, tensor in enumerate(tensors, 1):
        check(probe.rows[name_id, 7], tensor)
    if limit < 1 << 40:
        assert most <= max(limit, 100 * 200 * 4) + 8 * 2048 * 4
    else:
        assert most > 20 * 2048 * 4


def check_more(row, tensor) -> None:
    check(row, tensor)
    x = (tensor.abs() if tensor.is_complex() else tensor).double().reshape(-1)
    finite = x[torch.isfinite(x)]
    if finite.numel() == 0:
        assert all(math.isnan(row[name]) for name in ("abs_min", "abs_std", "prod"))
        return
    size = finite.abs()
    assert row["abs_min"] == size.min().item()
    assert (
        abs(row["abs_std"] - size.std(unbiased=False).item())
        <= 1e-5 * row["abs_std"] + 1e-7 * size.mean().item()
    )
    if (finite == 0).any():
        assert row["prod"] == 0
        return
    logarithm = math.fsum(map(math.log2, size.tolist()))
    expected = math.inf if logarithm >= 1024 else 2.0**logarithm
    assert abs(row["prod"]) == pytest.approx(expected, rel=1e-9, abs=1e-322)
    negative = int((finite < 0).sum()) % 2 == 1
    assert math.copysign(1, row["prod"]) == (-1 if negative else 1)


FACTORS = {
    "few": lambda: torch.tensor([2.0, -3.0, 4.0]),
    "two negative": lambda: torch.tensor([-0.5, 7.0, -11.0]),
    "beyond the range on the way": lambda: torch.cat(
        (torch.full((3000,), 1e30), torch.full((3000,), 1e-30, dtype=torch.float32))
    ),
    "near one": lambda: -1 - torch.rand(20_000) * 1e-4,
    "at the end of the range": lambda: torch.full((1023,), 2.0, dtype=torch.float64),
    "on the other side": lambda: torch.full((1023,), -2.0),
    "beyond it": lambda: torch.full((1025,), -2.0),
    "subnormal": lambda: torch.full((1060,), 0.5),
    "much smaller": lambda: torch.full((1200,), 0.5),
    "smallest of all": lambda: torch.tensor([1e-45, 1e30]),
    "with others": lambda: torch.tensor([math.nan, 3.0, math.inf, -2.0]),
}


def test_the_statistics_that_are_more_are_exact_too(probe):
    torch.manual_seed(0)
    tensors = [make() for make in (*TENSORS.values(), *FACTORS.values())]
    give_and_record(tensors, take=STATS | MORE)
    assert len(probe.rows) == len(tensors) and probe.skipped == {}
    for name_id, tensor in enumerate(tensors, 1):
        check_more(probe.rows[name_id, 7], tensor)


def test_more_statistics_of_scaled_values(probe):
    torch.manual_seed(0)
    tensors = [make() for make in FACTORS.values() if make().dtype == torch.float32]
    scaled = [tensor * 64 for tensor in tensors]
    give_and_record(scaled, torch.tensor([64.0]), STATS | MORE)
    assert len(probe.rows) == len(tensors)
    for name_id, tensor in enumerate(scaled, 1):
        check_more(probe.rows[name_id, 7], tensor / 64)


def test_more_is_asked_of_the_device_only_where_the_plan_asks(probe):
    tensors = [torch.randn(100, 30).as_subclass(OnDevice) for _ in range(3)]
    seen = []
    for take in (STATS, STATS | MORE):
        operations = Operations()
        with operations:
            give(tensors, take=take)
            device.end_step()
        seen.append(operations.seen)
    device.end_step()
    assert not any("frexp" in name for name in seen[0]) and any("frexp" in name for name in seen[1])
    assert len(seen[0]) < len(seen[1])
    # Both in one step: one copy of the results, of each its own width.
    probe.moment = (8, 0)
    for name_id, tensor in enumerate(tensors, 1):
        assert device.add(tensor, name_id, 0, None, MORE if name_id == 2 else STATS)
    operations = Operations()
    with operations:
        device.launch()
        device.end_step()
    assert sum(name.startswith("aten.copy_") for name in operations.seen) == 1
    device.end_step()
    for name_id, tensor in enumerate(tensors, 1):
        (check_more if name_id == 2 else check)(probe.rows[name_id, 8], tensor.as_subclass(torch.Tensor))
        assert ("prod" in probe.rows[name_id, 8]) == (name_id == 2)


def bits(tensor):
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return plain.reshape(-1).view(torch.uint8).tolist() if plain.numel() else []


VALUES = {
    **{name: make for name, make in TENSORS.items() if name != "over a chunk"},
    "channels last": lambda: torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(1, 3).expand(4, 3),
    "every second": lambda: torch.randn(6, 8)[:, ::2],
    "conjugate": lambda: torch.randn(7, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(7, dtype=torch.complex128).conj().imag,
    "double complex": lambda: torch.randn(9, dtype=torch.complex128),
    "bytes": lambda: torch.arange(200, dtype=torch.uint8),
    "short": lambda: torch.arange(-20, 20, dtype=torch.int16),
    "three halves": lambda: torch.randn(3).half(),
}


@pytest.mark.parametrize("on_device", [0, 64 << 20])
def test_values_arrive_as_they_are_in_c_order(probe, monkeypatch, on_device):
    """Also where they are copied to the host at once, with nothing copied on the device."""
    monkeypatch.setattr(device_values, "_MAX_ON_DEVICE", on_device)
    torch.manual_seed(0)
    tensors = {name: make() for name, make in VALUES.items()}
    if on_device == 0:
        tensors = {
            name: tensor
            for name, tensor in tensors.items()
            if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        }
    kept = [tensor.clone() for tensor in tensors.values()]
    give(tensors.values(), take=RAW | SHAPE)
    for name, tensor in tensors.items():
        if name != "expanded":
            tensor.zero_()  # The training goes on.
    device.end_step()
    device.end_step()
    assert probe.skipped == {} and probe.rows == {} and probe.shapes == {}
    for name_id, (name, tensor) in enumerate(zip(tensors, kept), 1):
        found = probe.values[name_id, 7]
        assert found["values"].shape == tensor.shape and found["take"] == RAW | SHAPE, name
        assert bits(found["values"]) == bits(tensor), name


def test_values_and_statistics_of_one_tensor_come_of_one_batch(probe):
    torch.manual_seed(0)
    tensors = [torch.randn(300) for _ in range(5)]
    operations = Operations()
    there = [tensor.as_subclass(OnDevice) for tensor in tensors]
    with operations:
        give(there, take=STATS | RAW | HISTOGRAM | MORE)
        device.end_step()
    device.end_step()
    # One copy of the values of all, one of the results.
    assert sum(name.startswith("aten.copy_") for name in operations.seen) == 2
    assert not any("_local_scalar_dense" in name for name in operations.seen)
    for name_id, tensor in enumerate(tensors, 1):
        check_more(probe.rows[name_id, 7], tensor)
        assert torch.equal(probe.values[name_id, 7]["values"], tensor)
        sample = probe.samples[name_id, 7]
        assert torch.equal(sample["values"], tensor)
        assert (sample["low"], sample["high"]) == (tensor.min().item(), tensor.max().item())
        assert sample["count"] == 300


def expected_sample(tensor, most):
    """As ForEachPiece of histogram.cc."""
    elements = tensor.reshape(-1)
    if elements.numel() <= most:
        return elements
    blocks, last = most // 64, elements.numel() - 64
    first = [0 if blocks == 1 else last * i // (blocks - 1) for i in range(blocks)]
    return torch.cat([elements[at : at + 64] for at in first])


@pytest.mark.parametrize("most", [64, 128, 1280, SAMPLE])
def test_a_histogram_is_made_of_the_sample_that_is_taken_in_main_memory(probe, most):
    probe.most = most
    torch.manual_seed(0)
    tensors = [
        torch.randn(5000),
        torch.randn(64),
        torch.randn(65),
        torch.randn(400, 300),
        torch.randn(3000).bfloat16(),
        torch.arange(3000),
        torch.arange(3000) % 2 == 0,
        torch.randn(3000, dtype=torch.complex64),
        torch.randn(90, 60)[:, ::2],
    ]
    give_and_record(tensors, take=HISTOGRAM)
    assert probe.skipped == {} and probe.events == []
    for name_id, tensor in enumerate(tensors, 1):
        check(probe.rows[name_id, 7], tensor)  # It brings the statistics with it.
        sample = probe.samples[name_id, 7]
        assert bits(sample["values"]) == bits(expected_sample(tensor, most))
        row = probe.rows[name_id, 7]
        assert (sample["count"], sample["low"], sample["high"]) == (tensor.numel(), row["min"], row["max"])


def test_values_are_divided_by_the_scale(probe):
    torch.manual_seed(0)
    tensors = [torch.randn(5000), torch.tensor([math.nan, 1.0, 0.0, -math.inf, 4.0]), torch.empty(0)]
    give_and_record([tensor * 1024 for tensor in tensors], torch.tensor([1024.0]), RAW | HISTOGRAM)
    halves = torch.randn(100).half()
    device.probe.moment = (8, 0)
    give_and_record([halves * 1024], torch.tensor([1024.0]), RAW)
    assert probe.skipped == {}
    for name_id, tensor in enumerate(tensors, 1):
        for found in (probe.values, probe.samples):
            values = found[name_id, 7]["values"]
            torch.testing.assert_close(values, tensor, rtol=0, atol=0, equal_nan=True)
        finite = tensor[torch.isfinite(tensor)]
        if finite.numel():
            sample = probe.samples[name_id, 7]
            assert (sample["low"], sample["high"]) == (finite.min().item(), finite.max().item())
    assert torch.equal(probe.values[1, 8]["values"], halves)


class Order(TorchDispatchMode):
    """Notes copies among what the stream is asked."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if str(function).startswith("aten.copy_"):
            only().cuda.calls.append("copy")
        return function(*args, **(kwargs or {}))


def test_the_users_stream_waits_for_no_copy_to_the_host_but_of_what_is_very_large(probe, monkeypatch):
    give_and_record([torch.ones(3)])
    for limit, expected in (
        (1 << 20, ["begin", "hold", "copy", "end"]),
        (0, ["begin", "copy", "hold", "end"]),
    ):
        monkeypatch.setattr(device_values, "_MAX_ON_DEVICE", limit)
        only().cuda.calls.clear()
        there = torch.ones(3).as_subclass(OnDevice)
        with Order():
            give([there], take=RAW)
        calls = [call for call in only().cuda.calls if not call.startswith("pinned")]
        assert calls == [*expected, "release"]


def test_late_values_keep_the_step_of_their_time_and_their_memory(probe, monkeypatch):
    monkeypatch.setattr(Event, "done", False)
    for step in (1, 2, 3):
        probe.moment = (step, step % 2)
        give([torch.full((40,), float(step)), torch.full((7,), float(step))], take=RAW | HISTOGRAM)
        device.end_step()
    assert probe.values == {} and probe.samples == {}
    monkeypatch.setattr(Event, "done", True)
    probe.moment = (9, 0)
    device.begin_forward()
    for found in (probe.values, probe.samples):
        assert {key: set(row["values"].tolist()) for key, row in found.items()} == {
            (name_id, step): {float(step)} for name_id in (1, 2) for step in (1, 2, 3)
        }
        assert all(row["mode"] == step % 2 for (_, step), row in found.items())


def pinned_bytes() -> int:
    return sum(int(call.split()[1]) for call in only().cuda.calls if call.startswith("pinned "))


def test_pinned_memory_for_samples_is_bounded(probe, monkeypatch):
    monkeypatch.setattr(Event, "done", False)
    tensors = [torch.randn(65_536) for _ in range(100)]
    give(tensors, take=HISTOGRAM)
    device.end_step()
    assert pinned_bytes() == 16 << 20
    assert probe.skipped == {"capture.device_histograms": 100 - 64}
    (event,) = probe.events
    assert event[:2] == ("capture.unavailable", "histograms") and "CUDA" in event[2]
    monkeypatch.setattr(Event, "done", True)
    device.end_step()
    assert len(probe.rows) == 100 and len(probe.samples) == 64
    # There is room again, in the same memory.
    for step in range(8, 20):
        probe.moment = (step, 0)
        give_and_record([torch.full((65_536,), float(step)) for _ in range(40)], take=HISTOGRAM)
        assert all(set(probe.samples[i, step]["values"].tolist()) == {float(step)} for i in range(1, 41))
    assert pinned_bytes() == 16 << 20 and len(probe.events) == 1


def test_a_device_that_comes_later_has_pinned_memory_too(monkeypatch):
    monkeypatch.setattr(device_values, "_pinned", {})
    monkeypatch.setattr(device_values, "_torch", torch)

    class Memory:
        @staticmethod
        def pinned_bytes(size):
            return torch.empty(size, dtype=torch.uint8)

    first, later = (device_values.Pool(Memory(), "samples") for _ in range(2))
    limit = 16 << 20
    while first.take(1 << 20, 64, limit) is not None:
        pass
    assert device_values._pinned == {"samples": limit}
    taken = 0
    while later.take(1 << 20, 64, limit) is not None:
        taken += 1
    assert taken == 4 and device_values._pinned == {"samples": limit + (4 << 20)}
    # Where nothing is to be taken there is none.
    assert device_values.Pool(Memory(), "values").take(64, 64, 0) is None


def test_samples_shrink_where_many_are_on_their_way(probe, monkeypatch):
    """So that it is not the same tensors each time that have no histogram."""
    monkeypatch.setattr(Event, "done", False)
    tensor = torch.randn(70_000)
    give([tensor] * 80, take=HISTOGRAM)
    device.end_step()
    monkeypatch.setattr(Event, "done", True)
    device.end_step()
    assert probe.skipped == {} and pinned_bytes() == 16 << 20
    sizes = [probe.samples[name_id, 7]["values"].numel() for name_id in range(1, 81)]
    assert sizes[0] == SAMPLE and sizes == sorted(sizes, reverse=True) and 4096 <= sizes[-1] < SAMPLE // 4
    for name_id in (1, 50, 80):
        values = probe.samples[name_id, 7]["values"]
        assert bits(values) == bits(expected_sample(tensor, values.numel()))


def test_pinned_memory_for_values_is_bounded_by_the_slab(probe, monkeypatch):
    monkeypatch.setattr(Event, "done", False)
    probe.slab = 16 << 20
    for step in range(3):
        probe.moment = (step, 0)
        give([torch.ones(1 << 18) for _ in range(10)] + [torch.ones((4 << 20) + 1)], take=RAW | SHAPE)
        device.end_step()
    assert pinned_bytes() == 16 << 20
    # The last is larger than all of it: its shape is there at once.
    assert probe.skipped == {"capture.device_values": 3 + 30 - 16}
    assert {(11, step) for step in range(3)} <= probe.shapes.keys()
    assert len(probe.shapes) == 3 + 30 - 16
    assert [event[:2] for event in probe.events] == [("capture.unavailable", "values")]
    monkeypatch.setattr(Event, "done", True)
    device.end_step()
    assert len(probe.values) == 16
    assert probe.values.keys().isdisjoint(probe.shapes.keys())


def test_a_tensor_whose_values_have_no_room_has_a_histogram_all_the_same(probe):
    probe.slab = 0
    large = torch.randn((1 << 20) + 1)
    give_and_record([large], take=RAW | HISTOGRAM)
    check(probe.rows[1, 7], large)
    assert probe.values == {} and probe.skipped == {"capture.device_values": 1}
    assert bits(probe.samples[1, 7]["values"]) == bits(expected_sample(large, SAMPLE))


def test_where_no_memory_can_be_pinned_the_statistics_are_there(probe, monkeypatch):
    asked = []

    def refuse(self, size):
        asked.append(size)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Cuda, "pinned_bytes", refuse)
    for step in (7, 8):
        probe.moment = (step, 0)
        give_and_record([torch.ones(3)], take=RAW | HISTOGRAM)
        check(probe.rows[1, step], torch.ones(3))
    assert len(asked) == 2, "once for each pool"
    assert probe.skipped == {"capture.device_values": 2, "capture.device_histograms": 2}


def test_values_that_are_lost_give_their_memory_back(probe, monkeypatch):
    """What comes too late, at the end too; and where an error comes between."""
    monkeypatch.setattr(Event, "done", False)
    for step in range(10):
        probe.moment = (step, 0)
        give([torch.ones(1 << 18)], take=RAW | SHAPE)
        device.end_step()
    assert probe.skipped == {"capture.device_late": 10 - device._BUFFERS}
    assert probe.shapes.keys() == {(1, step) for step in range(device._BUFFERS, 10)}
    pools = only().pools
    device._drain_last()
    assert probe.skipped == {"capture.device_late": 10} and len(probe.shapes) == 10
    assert not any(block.live for pool in (pools._values, pools._samples) for block in pool._blocks)
    monkeypatch.setattr(device_values, "_pinned", {})
    monkeypatch.setattr(Event, "done", True)

    def broken(*arguments):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(device, "_copy_tables", broken)
        for step in range(10, 30):
            probe.moment = (step, 0)
            with pytest.raises(RuntimeError):
                give([torch.ones(1 << 18)], take=STATS | RAW)
    for pool in (only().pools._values, only().pools._samples):
        assert not any(block.live for block in pool._blocks)
    give_and_record([torch.ones(1 << 18)], take=RAW)
    assert probe.values.keys() == {(1, 29)} and pinned_bytes() <= 8 << 20


def test_no_values_are_fetched_while_a_graph_is_captured(probe, monkeypatch):
    give_and_record([torch.ones(3)], take=RAW)
    monkeypatch.setattr(Cuda, "graph", True)
    calls = list(only().cuda.calls)
    probe.moment = (8, 0)
    give([torch.ones(2, 3)], take=RAW | HISTOGRAM | SHAPE)
    device.end_step()
    assert only().cuda.calls == calls
    assert probe.skipped == {"capture.graph": 1} and probe.shapes == {(1, 8): (2, 3)}


def test_a_ring_of_pinned_memory_gives_out_no_byte_twice():
    import random

    chance = random.Random(3)
    block = device_values.Block(torch.zeros(1000, dtype=torch.uint8))
    taken: list = []
    wrapped = refused = 0
    for _ in range(5000):
        if taken and chance.random() < 0.45:
            # Mostly the oldest, now and then another.
            taken.pop(0 if chance.random() < 0.9 else chance.randrange(len(taken))).release()
        region = block.take(chance.randrange(1, 300), chance.choice((1, 2, 4, 8, 16)))
        if region is None:
            refused += 1
            continue
        assert 0 <= region.begin < region.end <= 1000
        assert all(region.end <= other.begin or other.end <= region.begin for other in taken)
        wrapped += bool(taken) and region.begin < taken[-1].begin
        taken.append(region)
    assert wrapped > 100 and refused > 100
    for region in taken:
        region.release()
    assert not block.live and block.take(1000, 16) is not None


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


FAILING = [
    (device, "_table"),
    (device_statistics, "row_statistics"),
    (device_values.Batch, "gather"),
    (device_values.Batch, "send"),
    (Cuda, "hold_user"),
    (Cuda, "release_user"),
]


@pytest.mark.parametrize("owner, what", FAILING, ids=[what for _, what in FAILING])
def test_a_failure_between_loses_the_step_once(probe, monkeypatch, owner, what):
    """Whose rows are whose is not known any more; what is lost is counted once, the next step is whole."""
    monkeypatch.setattr(device, "_MAX_COPIED_BYTES", 0 if what == "row_statistics" else 1 << 20)
    doubles = [torch.ones(3, dtype=torch.float64), torch.ones(4, dtype=torch.float64)]
    floats = [torch.ones(5), torch.ones(1 << 18)]
    if what != "row_statistics":
        give(doubles, take=STATS | HISTOGRAM | RAW)

    def fail(*_):
        raise RuntimeError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(owner, what, fail)
        with pytest.raises(RuntimeError):
            give(floats, take=STATS | HISTOGRAM | RAW)
    before = 0 if what == "row_statistics" else 2
    # The caller counts one.
    assert probe.skipped == {"capture.failed": before + 1} and not device.waiting()
    device.end_step()
    device.end_step()
    assert probe.rows == {} and probe.values == {} and probe.samples == {}
    for pool in (only().pools._values, only().pools._samples):
        assert not any(block.live for block in pool._blocks)
    probe.moment = (8, 0)
    give_and_record(doubles + floats, take=STATS | HISTOGRAM | RAW)
    assert probe.rows.keys() == {(number, 8) for number in range(1, 5)} == probe.values.keys()
    assert probe.skipped == {"capture.failed": before + 1}


def test_a_reduction_that_fails_half_way_reduces_nothing_twice(probe, monkeypatch):
    """The memory is full when the copies of another dtype are to make room."""
    monkeypatch.setattr(device, "_CHUNK_ROWS", 2)
    large = [torch.randn(9000, dtype=torch.float64)]
    give(large)
    reduce = device_statistics.row_statistics
    calls = 0

    def second_fails(table):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("CUDA out of memory")
        return reduce(table)

    with monkeypatch.context() as patch:
        patch.setattr(device_statistics, "row_statistics", second_fails)
        patch.setattr(device, "_MAX_COPIED_BYTES", 0)
        with pytest.raises(RuntimeError):
            give([torch.ones(3)])
    device.end_step()
    device.end_step()
    assert calls == 2 and probe.rows == {} and probe.skipped == {"capture.failed": 1}
    assert only().copied == only().held == 0
    probe.moment = (8, 0)
    give_and_record(large)
    check(probe.rows[1, 8], large[0])


def test_what_a_failure_leaves_of_the_end_of_a_step_is_counted(probe, monkeypatch):
    def fail(*_):
        raise RuntimeError("CUDA out of memory")

    for where in ("row_statistics", "sum_up"):
        probe.skipped.clear()
        give([torch.ones(3), torch.ones(4)])
        with monkeypatch.context() as patch:
            patch.setattr(device_statistics, where, fail)
            with pytest.raises(RuntimeError):
                device.end_step()
        assert probe.skipped == {"capture.failed": 1}
    assert probe.rows == {}
    probe.moment = (8, 0)
    give_and_record([torch.ones(3), torch.ones(4)])
    assert probe.rows.keys() == {(1, 8), (2, 8)}


def test_an_evaluation_in_inference_mode_spoils_nothing(probe):
    with torch.inference_mode():
        give_and_record([torch.ones(9), torch.arange(9, dtype=torch.uint8)], take=STATS | HISTOGRAM | RAW)
    for step in (8, 9):
        probe.moment = (step, 0)
        give_and_record([torch.ones(9), torch.arange(9, dtype=torch.uint8)], take=STATS | HISTOGRAM | RAW)
    assert (
        probe.rows.keys()
        == {(number, step) for number in (1, 2) for step in (7, 8, 9)}
        == probe.values.keys()
    )
    assert probe.skipped == {}


def test_what_a_failure_leaves_of_a_batch_is_counted(probe, monkeypatch):
    def fail(*_):
        raise RuntimeError("CUDA out of memory")

    give_and_record([torch.ones(3)])
    monkeypatch.setattr(device, "_take", fail)
    with pytest.raises(RuntimeError):
        give(
            [
                torch.ones(3),
                torch.ones(3),
                torch.ones(3, dtype=torch.float64),
                torch.ones(3, dtype=torch.float16),
            ]
        )
    assert probe.skipped == {"capture.failed": 3} and not device.waiting()


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
