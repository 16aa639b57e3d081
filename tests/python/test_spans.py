# SPDX-License-Identifier: Apache-2.0
"""Spans beside the phases of steps: garbage collector, checkpoints, items of batches, evaluations, initialization,
collectives, phases on a device. A process of torch's takes two seconds to begin, so several parts share one, each in
a span of its name.
"""

from __future__ import annotations

import sys

import pytest
from conftest import Harness

HEAD = """
import gc, io, os, sys, time
import torch, torch.nn as nn
import telltale
torch.manual_seed(0)
net = nn.Linear(8, 2); opt = torch.optim.SGD(net.parameters(), lr=0.01)
def train(x=torch.ones(4, 8)):
    opt.zero_grad(); net(x).sum().backward(); opt.step()
"""
ITEMS = """
class Data(torch.utils.data.Dataset):
    def __init__(self, slow):
        self.samples = [(f"/data/{i}.jpg", 0) for i in range(64)]
        self.slow = slow
    def __len__(self): return 64
    def __getitem__(self, i):
        if i in self.slow: time.sleep(0.06)
        return torch.full((8,), float(i))
"""


def within(row, outer):
    return (
        outer["time_ns"] <= row["time_ns"]
        and row["time_ns"] + row.get("duration_ns", 0) <= outer["time_ns"] + outer["duration_ns"]
    )


class Part:
    """What was recorded while the span of a name was open, in all processes; of no name all of it."""

    def __init__(self, run, name=""):
        self.run = run
        self.outer = run.table("spans", name=name)[0] if name else None

    def _of(self, rows):
        rows = [row for row in rows if self.outer is None or within(row, self.outer)]
        return sorted(rows, key=lambda row: row["time_ns"])

    def spans(self, name):
        return self._of(self.run.table("spans", name=name))

    def events(self, kind):
        return self._of(self.run.events(kind))

    def facts(self, kind):
        return [event["facts"] for event in self.events(kind)]

    def scalars(self, name):
        return self._of(self.run.table("scalars", name=name))

    def steps(self, mode):
        return self._of(self.run.steps(mode))


READS = (
    HEAD.replace("net =", "time.sleep(0.02); net =")
    + """
import numpy, pickle
import pandas
folder = sys.argv[1]
rows = numpy.random.default_rng(0).random((40_000, 8))
numpy.save(folder + "/rows.npy", rows); numpy.savez_compressed(folder + "/rows.npz", x=rows)
numpy.savetxt(folder + "/rows.csv", rows[:2000], delimiter=",")
began = time.monotonic()
def work():
    # As long as all before: what is read then is apart.
    until = 2 * time.monotonic() - began
    while time.monotonic() < until: pass
for _ in range(100): numpy.loadtxt(folder + "/rows.csv", delimiter=",")
work()
print(numpy.load(folder + "/rows.npz")["x"].shape)
work()
print(pandas.read_csv(folder + "/rows.csv").shape)
for same in (numpy.load, numpy.lib.npyio.loadtxt, pandas.read_csv, pandas.io.parsers.read_csv):
    print(pickle.loads(pickle.dumps(same)) is same, same.__name__, same.__module__)
print(pandas.read_csv is pandas.io.parsers.read_csv, numpy.load is numpy.lib.npyio.load)
class Reader: read = numpy.fromfile
print(type(Reader().read).__name__)
try: numpy.load(folder + "/nowhere.npy")
except FileNotFoundError as error: print(error)
train()
with telltale.span("loop"):
    for step in range(3):
        numpy.loadtxt(folder + "/rows.csv", delimiter=",")
        train()
"""
)


def test_reading_data_files_is_told_before_the_loop_and_in_it(telltale):
    run = telltale.python(READS, str(telltale.folder)).assert_clean()
    (whole,) = run.table("spans", name="initialization")
    reads = sorted(run.table("spans", name="read"), key=lambda row: row["time_ns"])
    assert all(row["category"] == "runtime" and row["duration_ns"] >= 1_000_000 for row in reads)
    before = [row for row in reads if row["step"] == -1]
    assert all(within(row, whole) for row in before)
    # Of the hundred calls that follow each other nearly all are joined; the .npz and the table are apart.
    assert 3 <= len(before) < 60
    assert len(Part(run, "loop").spans("read")) == 3
    plain = READS.replace("import telltale", "import contextlib, types").replace(
        "torch.manual_seed(0)",
        "telltale = types.SimpleNamespace(span=contextlib.nullcontext); torch.manual_seed(0)",
    )
    assert run.out == telltale.plain([sys.executable, telltale.script(plain), str(telltale.folder)]).stdout


LAZY = """
import importlib.util, sys
spec = importlib.util.find_spec("pandas")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["pandas"] = pandas = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pandas)
import torch
print(type(pandas).__name__, "pandas.io" in sys.modules)
print(pandas.DataFrame([1]).shape)
net = torch.nn.Linear(8, 2); net(torch.ones(4, 8)).sum().backward()
"""


def test_a_library_that_waits_to_be_used_is_not_loaded_by_us(telltale):
    run = telltale.python(LAZY).assert_clean()
    assert run.out == telltale.plain([sys.executable, telltale.script(LAZY)]).stdout
    assert run.out.startswith("_LazyModule False")


LOOP = (
    HEAD.replace("net =", "time.sleep(0.02); net =")
    + """
folder = sys.argv[1]
print(nn.Module.__init__.__class__.__name__, nn.Module.__init__.__qualname__)
print([type(c).__name__ for c in gc.callbacks][:1] if "telltale._probe" in sys.modules else ["builtin_function_or_method"])
big = torch.zeros(4_000_000)
torch.save(big, folder + "/before.pt")
print(torch.load(folder + "/before.pt").shape)
time.sleep(0.03)
with telltale.span("collector"):
    gc.disable()
    kept = [[i] for i in range(300_000)]
    for step in range(6):
        train()
        if step == 3: gc.collect(); gc.collect()
    del kept; gc.enable()
with telltale.span("checkpoints"):
    train()
    torch.save({"net": net.state_dict(), "big": big}, f=folder + "/net.pt")
    torch.save(big, io.BytesIO())
    try: torch.load("nowhere.pt")
    except FileNotFoundError as error: print(error)
    try: torch.save(lambda: 0, io.BytesIO())
    except Exception as error: print(type(error).__name__)
print(torch.save.__name__, torch.save is torch.serialization.save, torch.load.__module__)
with telltale.span("evaluations"):
    for epoch in range(2):
        net.train()
        for x in torch.ones(5, 4, 8): train(x)
        net.eval()
        with torch.no_grad():
            for x in torch.ones(5, 4, 8): net(x)
    net.train(); train()
"""
)


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loop")
    harness = Harness(folder)
    script = harness.script(LOOP)
    run = harness.run([sys.executable, script, str(folder)]).assert_clean()
    # Outside `telltale run` the package is not there.
    plain = LOOP.replace("import telltale", "import contextlib, types").replace(
        "torch.manual_seed(0)",
        "telltale = types.SimpleNamespace(span=contextlib.nullcontext); torch.manual_seed(0)",
    )
    assert run.out == harness.plain([sys.executable, harness.script(plain), str(folder)]).stdout
    run.folder = folder
    return run


def test_pauses_of_the_garbage_collector_are_spans_and_a_sum_of_their_step(loop):
    part = Part(loop, "collector")
    pauses = part.spans("gc")
    assert len(pauses) == 2 and all(row["category"] == "runtime" and row["step"] == 3 for row in pauses)
    assert all(row["duration_ns"] >= 1_000_000 for row in pauses)
    (told,) = (row for row in loop.table("scalars", name="gc_ms") if row["step"] == 3)
    assert told["mode"] == "TRAIN"
    assert told["value"] == pytest.approx(sum(row["duration_ns"] for row in pauses) / 1e6, rel=0.01)


def test_checkpoints_are_spans_and_events(loop):
    part = Part(loop, "checkpoints")
    # The save that fails behind them is a span where it takes long enough.
    saved = part.spans("checkpoint")[:2]
    assert len(saved) == 2 and not part.spans("checkpoint.load")
    first, second = part.facts("checkpoint")
    path = loop.folder / "net.pt"
    assert (first["action"], first["by"], first["file"]) == ("save", "torch.save", str(path))
    assert first["bytes"] == path.stat().st_size > 16_000_000
    assert "file" not in second and second["bytes"] is None
    for row, facts in zip(saved, (first, second)):
        assert row["duration_ns"] == pytest.approx(facts["duration_ns"], rel=0.02)


def test_what_was_before_the_process_registered_is_kept_until_then(loop):
    part = Part(loop)
    (saved,) = (row for row in part.spans("checkpoint") if row["step"] == -1)
    (loaded,) = part.spans("checkpoint.load")
    assert saved["time_ns"] < loaded["time_ns"]
    assert [facts["action"] for facts in part.facts("checkpoint")][:2] == ["save", "load"]


def test_the_initialization_is_split(loop):
    part = Part(loop)
    (whole,) = part.spans("initialization")
    (imported,) = part.spans("import torch")
    (model,) = part.spans("model.build")
    (loaded,) = part.spans("checkpoint.load")
    (first,) = part.events("run.first_forward")
    assert within(imported, whole) and within(model, whole) and within(loaded, whole)
    assert whole["step"] == -1 and whole["time_ns"] + whole["duration_ns"] <= first["time_ns"]
    assert imported["time_ns"] + imported["duration_ns"] + 20_000_000 <= model["time_ns"]
    # The optimizer, not the sleep after it, ends the making of the model.
    assert model["time_ns"] + model["duration_ns"] + 30_000_000 <= whole["time_ns"] + whole["duration_ns"]


# A start that fetches its data in all the ways of the standard library, and a server whose thread is not the main one.
FETCHES = (
    HEAD
    + """
import http.server, shutil, socket, subprocess, tarfile, threading, urllib.request
folder = sys.argv[1]
HOOKED = [(socket.SocketIO, "readinto"), (subprocess.Popen, "wait"), (subprocess.Popen, "communicate"),
          (shutil, "_fastcopy_sendfile"), (tarfile.TarFile, "extractall")]
class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(20 * 10_000))
        self.end_headers()
        for _ in range(20):
            self.wfile.write(b"x" * 10_000)
            time.sleep(0.01)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/"
with telltale.span("fetching"):
    with urllib.request.urlopen(url) as answer:
        print(len(answer.read()))
with telltale.span("aside"):
    other = threading.Thread(target=lambda: urllib.request.urlopen(url).read())
    other.start()
    other.join()
with open(folder + "/large", "wb") as file:
    file.truncate(200_000_000)
with telltale.span("copying"):
    shutil.copyfile(folder + "/large", folder + "/copy")
with tarfile.open(folder + "/a.tar", "w") as tar:
    tar.add(folder + "/large", "large")
with telltale.span("unpacking"):
    with tarfile.open(folder + "/a.tar") as tar:
        tar.extractall(folder + "/out")
with telltale.span("waiting"):
    print(subprocess.run([sys.executable, "-c", "import time; time.sleep(0.1); print(7)"], capture_output=True).stdout)
print(os.path.getsize(folder + "/copy"), os.path.getsize(folder + "/out/large"))
train()
print([type(vars(owner)[name]).__name__ for owner, name in HOOKED])
with urllib.request.urlopen(url) as answer:
    print(len(answer.read()))
subprocess.run([sys.executable, "-c", "import time; time.sleep(0.05)"])
train()
server.shutdown()
"""
)


def test_what_a_start_fetches_is_told_and_nothing_of_it_after_the_first_step(telltale):
    run = telltale.python(FETCHES, str(telltale.folder)).assert_clean()

    def seconds(name, during):
        part = Part(run, during)
        return sum(row["duration_ns"] for row in part.spans(name)) / 1e9

    # The server gives its answer in 20 parts, 10 ms apart.
    assert seconds("network", "fetching") >= 0.15
    assert seconds("network", "aside") == 0
    assert seconds("copy", "copying") > 0 and seconds("unpack", "unpacking") > 0
    assert seconds("program", "waiting") >= 0.1
    told = [row for name in ("network", "copy", "unpack", "program") for row in run.table("spans", name=name)]
    assert len(told) <= 4 * 256 and all(row["step"] == -1 and row["category"] == "runtime" for row in told)
    (whole,) = run.table("spans", name="initialization")
    assert all(within(row, whole) for row in told)
    assert "['function', 'function', 'function', 'function', 'function']" in run.out
    plain = FETCHES.replace("import telltale", "import contextlib, types").replace(
        "torch.manual_seed(0)",
        "telltale = types.SimpleNamespace(span=contextlib.nullcontext); torch.manual_seed(0)",
    )
    out = telltale.folder / "plain"
    out.mkdir()
    assert run.out == telltale.plain([sys.executable, telltale.script(plain), str(out)]).stdout


def test_a_process_that_does_not_step_for_hours_is_no_longer_hooked(telltale):
    """The clock is put forward; should it step after all, what was timed until then is told."""
    run = telltale.python(
        HEAD
        + """
import subprocess, tarfile, types
from telltale import _start_up
def wait(): subprocess.run([sys.executable, "-c", "import time; time.sleep(0.05)"])
def hooked():
    methods = [vars(subprocess.Popen)["wait"], vars(subprocess.Popen)["communicate"], vars(tarfile.TarFile)["extractall"]]
    return sum(type(each) is not types.FunctionType for each in methods), len(_start_up._hooked) > 0
wait()
print(hooked())
assert 7000e9 < _start_up._until - time.monotonic_ns() <= 7200e9
now = time.monotonic_ns
time.monotonic_ns = lambda: now() + 2 * 3600 * 10**9
wait()
print(hooked())
time.monotonic_ns = now
_start_up.look(lambda *_, **__: print("hooked again"))
wait()
train()
"""
    ).assert_clean()
    assert run.out == "(3, True)\n(0, False)\n"
    assert len(run.table("spans", name="program")) == 1


def test_an_evaluation_of_a_loop_without_a_loader_is_one_span(loop):
    part = Part(loop, "evaluations")
    rows, steps = part.spans("evaluation"), part.steps("EVAL")
    assert len(rows) == 2 and len(steps) == 10
    for row, evaluated in zip(rows, (steps[:5], steps[5:])):
        assert sum(within(dict(step, duration_ns=step["forward_ns"]), row) for step in evaluated) >= 4
        assert not any(within(step, row) for step in part.steps("TRAIN"))


LOADERS = (
    HEAD
    + ITEMS
    + """
Loader = torch.utils.data.DataLoader
for workers in (0, 2):
    with telltale.span(f"items {workers}"):
        data = torch.utils.data.Subset(Data({21}), range(63, -1, -1))
        seen = []
        for x in Loader(data, batch_size=8, num_workers=workers):
            seen += x[:, 0].tolist(); train(x)
        print(seen == list(map(float, range(63, -1, -1))))
with telltale.span("queue"):
    for x in Loader(Data(set()), batch_size=4, num_workers=2, prefetch_factor=3):
        train(x); time.sleep(0.05)
with telltale.span("iterator"):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            for i in range(32):
                if i == 19: time.sleep(0.2)
                yield torch.full((8,), float(i))
    for x in Loader(Stream(), batch_size=8): train(x)
with telltale.span("evaluations"):
    for epoch in range(2):
        for x in Loader(torch.ones(20, 8), batch_size=4): train(x)
        with torch.no_grad():
            for x in Loader(torch.ones(20, 8), batch_size=4): net(x)
    train()
with telltale.span("teacher"):
    teacher = nn.Linear(8, 2)
    for x in Loader(torch.ones(20, 8), batch_size=4):
        with torch.no_grad(): teacher(x)
        train(x)
"""
)


@pytest.fixture(scope="module")
def loaders(tmp_path_factory):
    run = Harness(tmp_path_factory.mktemp("loaders")).python(LOADERS).assert_clean()
    assert run.out == "True\nTrue\n"
    return run


@pytest.mark.parametrize("workers", [0, 2])
def test_the_item_that_holds_a_batch_up_is_named(loaders, workers):
    part = Part(loaders, f"items {workers}")
    # Of the subset it is the 43rd, of the data set behind it the 22nd. One that the machine held up stands out too.
    (facts,) = (each for each in part.facts("dataloader.slow_item") if each["index"] == 42)
    assert facts["file"] == "/data/21.jpg"
    assert facts["position"] == 42 % 8 and facts["items"] == 8
    assert facts["worker_id"] == (None if workers == 0 else 42 // 8 % workers)
    assert facts["duration_ns"] >= 60_000_000 > facts["mean_ns"]
    longest = max(part.spans("sample"), key=lambda row: row["duration_ns"])
    assert longest["category"] == "data"
    assert longest["duration_ns"] == pytest.approx(facts["duration_ns"], rel=0.01)
    fetches = [row for row in part.spans("fetch") if row["pid"] == longest["pid"]]
    assert sum(within(longest, fetch) for fetch in fetches) == 1


def test_items_of_an_iterator_have_a_position(loaders):
    told = Part(loaders, "iterator").facts("dataloader.slow_item")
    facts = max(told, key=lambda each: each["duration_ns"])
    assert facts["position"] == 3 and "index" not in facts


def test_the_queue_of_the_workers_is_looked_at(loaders):
    depths = [row["value"] for row in Part(loaders, "queue").scalars("dataloader.queue")]
    # Two workers that are asked for three batches each; the loop is slow, so there are some.
    assert depths and all(0 <= depth <= 6 for depth in depths) and max(depths) >= 1


def test_an_evaluation_is_one_span(loaders):
    part = Part(loaders, "evaluations")
    rows, steps = part.spans("evaluation"), part.steps("EVAL")
    assert len(rows) == 2 and len(steps) == 10
    for row, evaluated in zip(rows, (steps[:5], steps[5:])):
        assert all(within(dict(step, duration_ns=0), row) for step in evaluated[1:])
        # The wait for its first batch too.
        first = evaluated[0]
        assert row["time_ns"] < first["time_ns"] + first["duration_ns"] - first["forward_ns"]


def test_a_teacher_that_sees_the_batch_first_is_no_evaluation(loaders):
    part = Part(loaders, "teacher")
    assert not part.spans("evaluation") and len(part.steps("TRAIN")) >= 4


def test_a_dataset_is_its_own_again_after_each_batch(telltale):
    text = (
        HEAD.replace("import telltale", "")
        + ITEMS
        + """
class Odd(Data):
    def __getitem__(self, i):
        if i == 9: raise KeyError(i)
        return super().__getitem__(i)
data = Odd(set())
loader = torch.utils.data.DataLoader(data, batch_size=8)
batches = iter(loader)
for _ in range(1): next(batches)
print(batches._dataset_fetcher.dataset is data, type(batches._dataset_fetcher.dataset).__name__)
try: next(batches)
except KeyError as error: print("KeyError", error)
print(batches._dataset_fetcher.dataset is data, sorted(vars(data)), sorted(vars(batches._dataset_fetcher)))
def collate(items):
    frame = sys._getframe(1)
    held = frame.f_locals["self"].dataset
    print(len(held), isinstance(held, Odd), held == data, held.samples is data.samples, repr(held) == repr(data))
    return items
for _ in torch.utils.data.DataLoader(torch.utils.data.Subset(data, [1]), collate_fn=lambda items: items): pass
for _ in torch.utils.data.DataLoader(data, batch_sampler=[[1, 2]], collate_fn=collate): pass
"""
    )
    run = telltale.python(text)
    plain = telltale.plain([sys.executable, telltale.script(text)])
    assert (run.code, run.err) == (plain.returncode, plain.stderr) and run.out == plain.stdout


DISTRIBUTED = (
    HEAD
    + """
import torch.distributed as dist, torch.multiprocessing as mp
from telltale import _spans
def work(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(12):
        opt.zero_grad(); loss = model(torch.ones(4, 8)).sum(); loss.backward(); opt.step()
        dist.all_reduce(torch.zeros(1000))
        _spans.each_second(lambda: None)  # Due again.
    dist.all_gather([torch.zeros(10), torch.zeros(10)], torch.ones(10))
    dist.broadcast(tensor=torch.zeros(100, dtype=torch.float64), src=0)
    opt.zero_grad(); model(torch.ones(4, 8)).sum().backward(); opt.step()
    # Where the model holds the group last, torch 1.13 waits under the GIL for a thread that may wait for the GIL.
    del model, opt, loss
    dist.destroy_process_group()
if __name__ == "__main__":
    import socket
    with socket.socket() as s: s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]
    mp.start_processes(work, args=(port,), nprocs=2, start_method="fork")
"""
)


def test_collectives_have_spans_and_bytes(telltale):
    run = telltale.python(DISTRIBUTED).assert_clean()
    totals = run.events("collectives")
    assert len(totals) == 2 and sorted(event["rank"] for event in totals) == [0, 1]
    for event in totals:
        operations = event["facts"]["operations"]
        reduced = [
            row for row in run.table("spans", name="collective.all_reduce") if row["pid"] == event["pid"]
        ]
        assert operations["all_reduce"]["calls"] == len(reduced) == 12
        assert operations["all_reduce"]["bytes"] == 12 * 4000
        assert operations["all_reduce"]["duration_ns"] == pytest.approx(
            sum(row["duration_ns"] for row in reduced), rel=0.02
        )
        assert operations["all_gather"]["bytes"] == 80
        assert operations["broadcast"]["bytes"] == 800
        # Of DistributedDataParallel's own, which Python does not see.
        parallel = event["facts"]["parallel"]
        assert parallel["communication_ns"] > 0 and parallel["world_size"] == 2
        assert parallel["bytes"] == 18 * 4


FORKED = (
    HEAD
    + """
import torch.distributed as dist
def collect(name, times):
    dist.init_process_group("gloo", init_method="file://" + os.path.join(sys.argv[1], name), rank=0, world_size=1)
    train()
    for i in range(times): dist.all_reduce(torch.zeros(100))
    dist.destroy_process_group()
collect("first", 3)
child = os.fork()
if child == 0:
    collect("second", 1)
    from telltale import _session
    _session.finish()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
)


def test_collectives_of_a_forked_child_begin_at_zero(telltale):
    run = telltale.python(FORKED, str(telltale.folder)).assert_clean()
    told = {event["pid"]: event["facts"]["operations"]["all_reduce"] for event in run.events("collectives")}
    assert sorted((facts["calls"], facts["bytes"]) for facts in told.values()) == [(1, 400), (3, 1200)]
    assert all(facts["duration_ns"] > 0 for facts in told.values()) and len(told) == 2


ON_DEVICE = (
    HEAD
    + """
from telltale import _session, _spans
from telltale.adapters.torch import device_phases
clock = asked = 0
class Event:
    # Each takes a millisecond on the device, which has passed it when the training has asked three times.
    def __init__(self):
        global clock
        clock += 1
        self.at, self.done = clock, asked + 3
    def query(self):
        global asked
        asked += 1
        return asked > self.done
    def elapsed_time(self, other): return float(other.at - self.at)
class Cuda:
    capture = False
    @staticmethod
    def capturing(): return Cuda.capture
    @staticmethod
    def mark(): return Event()
def broken(): raise RuntimeError("no device")
device_phases.Cuda = Cuda
train()
def later():
    # As a second later: what is asked each second is due again once something is set.
    _spans.each_second(device_phases.sample)
    train()
with telltale.span("phases"):
    for _ in range(12): later()
with telltale.span("window"):
    heard = []
    _session.give_phases(lambda phase, begins: heard.append(phase))
    clock = 0
    for _ in range(8): later()
    _session.give_phases(None)
    print(len(heard), clock)
with telltale.span("capture"):
    Cuda.capture, before = True, clock
    for _ in range(6): later()
    print(clock == before)
    Cuda.capture = False
with telltale.span("failure"):
    Cuda.mark = broken
    for _ in range(6): later()
    print(device_phases.sample in _spans._each_second)
"""
)


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    harness = Harness(tmp_path_factory.mktemp("device"))
    run = harness.python(ON_DEVICE).assert_clean()
    run.log = harness.probe_log()
    return run


def test_phases_on_a_device_are_timed_without_waiting(device):
    told = Part(device, "phases").facts("device.phases")
    assert len(told) >= 2
    for facts in told:
        # forward, backward, optimizer: a begin and an end each, six marks.
        assert facts["forward_ns"] == facts["backward_ns"] == facts["optimizer_ns"] == 1_000_000
        assert facts["step_ns"] == 5_000_000 and facts["host_ns"] > 0
    assert told[0]["step"] == 1 and told[1]["step"] > 4


def test_a_window_of_detail_has_the_phases_alone_and_a_captured_graph_nothing(device):
    assert device.out == "48 0\nTrue\nFalse\n"
    assert not Part(device, "capture").events("device.phases")


def test_a_device_that_fails_is_left_alone(device):
    assert len(device.steps()) == 33 and "no device" in device.log
