# SPDX-License-Identifier: Apache-2.0
"""telltale.save_tensor and the binding's functions for tensors, against numpy's own numbers."""

from __future__ import annotations

import json
import math

import pytest
from conftest import AWAIT_PLAN

np = pytest.importorskip("numpy")

STATS, HISTOGRAM, RAW, SHAPE, MORE = 1, 2, 4, 8, 16
ALL_MODES = 15

ARRAYS = """
import numpy as np
def arrays():
    random = np.random.default_rng(3)
    x = random.normal(0.5, 2, (6, 50, 4))
    x[1, 2, 3], x[0, 0, 0], x[5, 49, 3], x[3] = np.nan, np.inf, -np.inf, 0
    for name in ("float32", "float64", "float16"):
        yield name, x.astype(name)
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        yield name, random.integers(0, 100, (40, 9)).astype(name)
    yield "bool", random.integers(0, 2, 70).astype(bool)
    yield "complex64", (random.normal(size=(7, 8)) + 1j * random.normal(size=(7, 8))).astype("complex64")
    yield "complex128", random.normal(size=5) + 1j * random.normal(size=5)
    y = random.normal(size=(60, 40)).astype("float32")
    yield "transposed", y.T
    yield "turned", y[::-1, ::-3]
    yield "sliced", y[5:50:7, 3:30]
    yield "expanded", np.broadcast_to(y[:, :1], (60, 1000))
    yield "scalar", np.float32(2.5).reshape(())
    yield "empty", np.zeros((0, 3), "float32")
    yield "fortran", np.asfortranarray(y)
    yield "large", random.normal(size=(300, 500)).astype("float32")
"""

SAVE = (
    ARRAYS
    + """
import time, telltale
from telltale._native import probe
telltale.step()
while probe.plan_epoch() == 0: time.sleep(0.001)
for name, array in arrays():
    assert telltale.save_tensor(name, array, collection="mine"), name
"""
)


def expected(array):
    values = np.abs(array) if np.iscomplexobj(array) else array
    values = values.astype(np.float64).ravel()
    finite = values[np.isfinite(values)]
    return values, finite


def arrays():
    scope: dict = {}
    exec(ARRAYS, scope)
    return dict(scope["arrays"]())


def number(value):
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(value, value)


def test_statistics_of_every_dtype_and_layout_are_numpys(telltale):
    run = telltale.python(SAVE, stats_every=f"1:{STATS | MORE}:{ALL_MODES}").assert_clean()
    rows = {row["name"]: row for row in run.table("statistics")}
    assert all(row["collection"] == "mine" and row["more"] for row in rows.values())
    for name, array in arrays().items():
        row = rows.pop(name)
        values, finite = expected(array)
        assert row["dtype"] == str(array.dtype)
        assert row["count"] == values.size
        assert row["nan_count"] == np.isnan(values).sum()
        assert row["inf_count"] == np.isinf(values).sum()
        assert row["zero_count"] == (values == 0).sum()
        if finite.size == 0:
            assert math.isnan(number(row["min"])) and math.isnan(number(row["prod"]))
            continue
        magnitude = np.abs(finite).mean()
        exact = 1e-6 if np.iscomplexobj(array) else 0
        assert row["min"] == pytest.approx(finite.min(), rel=exact, abs=0)
        assert row["max"] == pytest.approx(finite.max(), rel=exact, abs=0)
        assert abs(row["mean"] - finite.mean()) <= 1e-6 * magnitude
        assert row["std"] == pytest.approx(finite.std(), rel=1e-5)
        assert row["l1"] == pytest.approx(np.abs(finite).sum(), rel=1e-5)
        assert row["l2"] == pytest.approx(np.sqrt((finite**2).sum()), rel=1e-5)
        assert row["abs_min"] == pytest.approx(np.abs(finite).min(), rel=exact, abs=0)
        assert row["abs_std"] == pytest.approx(np.abs(finite).std(), rel=1e-5, abs=1e-9)
        with np.errstate(over="ignore", under="ignore"):
            product = np.prod(finite)
        # numpy's product may leave the range on the way where ours does not.
        if np.isfinite(product) and abs(product) > 1e-290:
            # numpy's absolute values of complex64 have the precision of float32.
            assert row["prod"] == pytest.approx(product, rel=1e-5 if exact else 1e-9)
    assert not rows


def test_histograms_and_quantiles_are_numpys(telltale):
    run = telltale.python(SAVE, stats_every=f"1:{HISTOGRAM}:{ALL_MODES}").assert_clean()
    rows = {row["name"]: row for row in run.table("histograms")}
    ranks = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]
    for name, array in arrays().items():
        row = rows[name]
        values, finite = expected(array)
        bins, quantiles = json.loads(row["bins"]), json.loads(row["quantiles"])
        assert row["count"] == values.size
        if values.size > 65536:
            assert row["taken"] == 65536 == sum(bins)
            assert quantiles == pytest.approx(np.quantile(finite, ranks), abs=0.05)
            continue
        assert row["taken"] == finite.size
        if finite.size == 0:
            assert sum(bins) == 0 and quantiles == [None] * 9
            continue
        if np.iscomplexobj(array):  # Our absolute values have the precision of double.
            assert sum(bins) == finite.size
            assert quantiles == pytest.approx(np.quantile(finite, ranks), rel=1e-6)
            continue
        counts, edges = np.histogram(finite, 64)
        assert (row["min"], row["max"]) == (edges[0], edges[-1])
        assert bins == counts.tolist(), name
        assert quantiles == np.quantile(finite, ranks).tolist(), name


def test_values_and_shapes_come_through_in_c_order(telltale):
    run = telltale.python(SAVE, stats_every=f"1:{RAW}:{ALL_MODES}").assert_clean()
    rows = {row["name"]: row for row in run.table("values")}
    for name, array in arrays().items():
        row = rows[name]
        assert row["shape"] == list(array.shape)
        assert bytes.fromhex(row["hex"]) == np.ascontiguousarray(array).tobytes(), name
    assert run.processes()[0]["raw_dropped"] == 0
    shapes = telltale.python(SAVE, stats_every=f"1:{SHAPE}:{ALL_MODES}").assert_clean().table("tensors")
    assert {row["name"]: json.loads(row["shape"]) for row in shapes} == {
        name: list(array.shape) for name, array in arrays().items()
    }


def test_a_tensor_of_a_step_and_a_mode_that_the_script_names(telltale):
    script = """
        import time, telltale
        from telltale._native import probe
        telltale.step()
        while probe.plan_epoch() == 0: time.sleep(0.001)
        print(telltale.save_tensor("a", 1.0, step=4, mode="GLOBAL"))
        print(telltale.save_tensor("a", 1.0, step=5, mode="EVAL"))
        print(telltale.save_tensor("a", 1.0, mode="PREDICT"))
        for wrong in ({"step": "4"}, {"mode": "global"}, {"mode": 3}):
            try: telltale.save_tensor("a", 1.0, **wrong)
            except (TypeError, ValueError) as error: print(type(error).__name__)
    """
    run = telltale.python(script, stats_every=f"2:{STATS}:{ALL_MODES}").assert_clean()
    assert run.out == "True\nFalse\nTrue\nTypeError\nValueError\nValueError\n"
    assert [(row["step"], row["mode"]) for row in run.table("statistics")] == [(4, "GLOBAL"), (0, "PREDICT")]


def test_lists_of_numbers_need_no_numpy(telltale):
    script = """
        import sys, time, telltale
        from telltale._native import probe
        telltale.step()
        while probe.plan_epoch() == 0: time.sleep(0.001)
        for value in ([1.0, 3], (1, 2, 3), [], [[1.0]], ["a"]):
            print(telltale.save_tensor("a", value, step=2))
        print("numpy" in sys.modules)
    """
    run = telltale.python(script, stats_every=f"2:{STATS | SHAPE}:{ALL_MODES}").assert_clean()
    assert run.out == "True\nTrue\nTrue\nFalse\nFalse\nFalse\n"
    assert [(row["count"], row["mean"]) for row in run.table("statistics")][:2] == [(2, 2.0), (3, 2.0)]


def test_what_no_plan_asks_for_is_not_taken(telltale):
    script = """
        import telltale
        telltale.step()
        print(telltale.save_tensor("a", [1.0, 2.0]))
        class Trap:
            def __getattr__(self, name): raise RuntimeError("was looked at")
        print(telltale.save_tensor("b", Trap()))
        try: telltale.save_tensor(3, [1.0])
        except TypeError: print("TypeError")
    """
    run = telltale.python(script).assert_clean()
    assert run.out == "False\nFalse\nTypeError\n"
    assert run.table("statistics") == []
    assert run.processes()[0]["skipped"] == 0


def test_names_made_anew_at_each_call_keep_no_memory(telltale):
    script = """
        import pathlib, telltale
        telltale.step()
        def resident():
            return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) << 12
        def grows(name, collection, count):
            before = resident()
            for i in range(count):
                telltale.save_tensor(f"{name}{i}", None, collection=f"{collection}{i}")
                telltale.log(**{f"{name}{i}": "no number"})
            return resident() - before
        for name, collection, count in (("x" * (1 << 20), "mine", 300), ("x", "mine", 400_000)):
            grown = grows(name, collection, count)
            assert grown < 64 << 20, (grown, count)
    """
    telltale.python(script).assert_clean()


def test_a_name_that_is_cut_is_counted(telltale):
    script = """
        import telltale
        telltale.step()
        for name in ("x" * 5000 + "1", "x" * 5000 + "2", "x"):
            telltale.save_tensor(name, [1.0], collection="mine")
        telltale.save_tensor("x", [1.0], collection="y" * 300)
    """
    run = telltale.python(script, stats_every=f"1:{STATS}:{ALL_MODES}").assert_clean()
    assert run.processes()[0]["names_folded"] == 3
    names = {row["name"] for row in run.table("statistics")}
    assert len(names) == 3, "two that differ behind the cut are two"


FILL = """
from telltale._native import probe
at = 0
while probe.tensor("fill", str(at)):
    at += 1
"""


def test_what_has_no_name_is_counted_at_each_step_where_it_is_due(telltale):
    script = (
        SAVE
        + FILL
        + """
for step in range(4):
    assert not telltale.save_tensor("late", [1.0], collection="mine")
    telltale.step()
"""
    )
    run = telltale.python(script, stats_every=f"2:{STATS}").assert_clean()
    assert run.table("statistics", name="late") == []
    assert run.processes()[0]["skipped"] == 2


def test_a_model_without_names_is_counted_at_each_step(telltale):
    pytest.importorskip("torch")
    script = (
        "import torch\n"
        + AWAIT_PLAN
        + """
def train(parts):
    net = torch.nn.Sequential()
    for name in parts:
        net.add_module(name, torch.nn.Linear(4, 4))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        optimizer.zero_grad(); net(torch.ones(2, 4)).mean().backward(); optimizer.step()
train("ab")
"""
        + "{fill}"
        + """
train("cd")
"""
    )
    whole = telltale.python(script.format(fill=""), stats_every=f"1:{STATS}").assert_clean()
    run = telltale.python(script.format(fill=FILL), stats_every=f"1:{STATS}").assert_clean()
    missing = len(whole.table("statistics")) - len(run.table("statistics"))
    assert missing > 3 * 2 * 2 * 2
    assert [process["skipped"] for process in whole.processes() + run.processes()] == [0, missing]


def test_the_binding_takes_buffers_addresses_and_nonsense(telltale):
    script = f"""
        import array, ctypes, time
        from telltale._native import probe
        STATS = {STATS}
        probe.ready(0)
        probe.step()
        while probe.plan_epoch() == 0: time.sleep(0.001)
        t = probe.tensor("c", "n")
        assert t == probe.tensor(collection="c", name="n") != probe.tensor("d", "n")
        assert probe.current() == (0, 0)
        assert probe.due(0) == probe.due(t) == probe.due(t, step=4, mode=0) == STATS
        assert probe.wanted("c") in (0, STATS) and probe.plan_epoch() > 0
        assert probe.record_buffer(t, array.array("d", [1, 2, 3]), STATS)
        assert probe.record_buffer(t, memoryview(bytes(8))[::2], STATS, step=7, mode=1)
        for wrong in (None, 3, "text", memoryview(bytearray(16)).cast("P"), object()):
            assert not probe.record_buffer(t, wrong, STATS)
        memory = (ctypes.c_float * 6)(1, 2, 3, 4, 5, 6)
        probe.record(t, ctypes.addressof(memory), 0, (3,), (2,), STATS, None, -1)
        probe.record(t, ctypes.addressof(memory), 0, [2, 3], None, STATS, step=9, mode=2)
        probe.record(t, ctypes.addressof(memory), 0, (1,) * 17, None, STATS)
        probe.record(t, ctypes.addressof(memory), 99, (1,), None, STATS)
        probe.record(t, ctypes.addressof(memory), 0, (2, 3), (1,), STATS)
        probe.record_computed(t, 3, 10, 1, 2, 3, -1.0, 1.0, 0.5, 0.25, 4.0, 2.0, step=11)
        for call in (lambda: probe.tensor("c"), lambda: probe.tensor("c", 3), lambda: probe.due(1, 2, 3, 4),
                     lambda: probe.due(1, stepp=3), lambda: probe.record(t, 0, 0, 3, None, STATS),
                     lambda: probe.request_plan(3)):
            try: call()
            except TypeError: print("TypeError")
        try: probe.request_plan("x" * 5000)
        except ValueError: print("ValueError")
        assert probe.request_plan('{{"level":"steps"}}')
        probe.scalar_at("s", 0.5, 21, 1)
    """
    run = telltale.python(script, stats_every=f"1:{STATS}:{ALL_MODES}").assert_clean()
    assert run.out == "TypeError\n" * 6 + "ValueError\n"
    rows = run.table("statistics", name="n", collection="c")
    assert [(row["count"], row["mean"], row["step"], row["mode"]) for row in rows] == [
        (3, 2, 0, "TRAIN"),
        (4, 0, 7, "EVAL"),
        (3, 3, 0, "TRAIN"),
        (6, 3.5, 9, "PREDICT"),
        (10, 0.5, 11, "TRAIN"),
    ]
    assert rows[4]["dtype"] == "bfloat16" and rows[4]["nan_count"] == 1
    assert run.table("scalars", name="s")[0]["step"] == 21
    assert run.events("plan.request")[0]["facts"] == {"level": "steps"}
    assert run.processes()[0]["skipped"] == 3


def test_what_is_measured_around_a_record_counts_once(telltale):
    script = f"""
        import ctypes, time
        from telltale._native import probe
        probe.ready(0)
        probe.step()
        t = probe.tensor("c", "n")
        memory = (ctypes.c_float * 8_000_000)()
        outer, clock, used = probe.now(), time.perf_counter_ns(), time.thread_time_ns()
        inner = probe.now()
        probe.record(t, ctypes.addressof(memory), 0, (8_000_000,), None, {STATS})
        probe.account(inner)
        probe.account(outer)
        used, took = time.thread_time_ns() - used, time.perf_counter_ns() - clock
        while time.perf_counter_ns() - clock < 5 * took: pass
        probe.step()
        print(used, took)
    """
    run = telltale.python(script).assert_clean()
    used, took = map(int, run.out.split())
    probe_ns = next(row["probe_ns"] for row in run.steps() if row["step"] == 0)
    # What it computed, and of the time in which others had the processor at most all of it.
    assert 0.5 * used < probe_ns < used + 0.5 * took, "once, not once for each who measures"


def test_a_framework_without_hooks_can_drive_the_steps(telltale):
    script = """
        from telltale._native import probe
        for step in range(3):
            probe.fetch_begin()
            probe.fetch_end(32)
            probe.forward_begin(0)
            probe.forward_end()
            probe.backward_begin()
            probe.backward_end(0.5 + step)
            probe.optimizer_begin(1)
            probe.optimizer_end(1, step == 1, 0.1)
        probe.fetch_begin()
        probe.fetch_end(8)
        probe.forward_begin(mode=1)
        assert probe.current() == (0, 1)
        probe.forward_end(batch=8)
    """
    run = telltale.python(script).assert_clean()
    steps = run.steps()
    assert [(row["step"], row["batch_size"], row["skipped"]) for row in steps] == [
        (0, 32, False),
        (1, 32, True),
        (2, 32, False),
    ]
    assert run.scalar("loss") == [0.5, 1.5, 2.5]
    assert run.scalar("lr") == [0.1]
    assert [row["batch_size"] for row in run.steps("EVAL")] == [8]
