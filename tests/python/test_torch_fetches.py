# SPDX-License-Identifier: Apache-2.0
"""What batches cost where they are made: the events dataloader.fetches, .held_by, .item and .handover."""

from __future__ import annotations

import collections

import pytest

COSTS = """
import hashlib, io, json, multiprocessing, os, threading, time, zlib
import numpy as np, torch, torch.nn as nn
torch.set_num_threads(1)

def train(data, epochs=1, **options):
    net = nn.Linear(8, 2); opt = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(data, **options)
    for epoch in range(epochs):
        for x in loader:
            opt.zero_grad(); net(x.float()[:, :8]).sum().backward(); opt.step()

class Data(torch.utils.data.Dataset):
    def __init__(self, make, length=32): self.make, self.length = make, length
    def __len__(self): return self.length
    def __getitem__(self, i): return self.make(i)
"""


def sums(run, kind="dataloader.fetches"):
    """The fields of all such events, added up."""
    total = collections.Counter()
    for event in run.events(kind):
        total.update(event["facts"])
    return total


def test_a_fetch_that_sleeps_waits_and_does_not_compute(telltale):
    run = telltale.python(
        COSTS + "train(Data(lambda i: time.sleep(0.01) or torch.zeros(8)), batch_size=4)"
    ).assert_clean()
    told = sums(run)
    assert told["fetches"] > 0 and told["items"] == 4 * told["fetches"]
    assert told["items_ns"] >= 40_000_000 * told["fetches"]
    assert told["items_ns"] + told["collate_ns"] == pytest.approx(told["wall_ns"], abs=10 * told["fetches"])
    assert told["cpu_ns"] < told["wall_ns"] / 2
    assert told["read_calls"] == told["read_bytes"] == 0
    # Of each batch that was looked at: 4 x 8 numbers of 4 bytes.
    assert told["batch_bytes"] == 128 * told["looked"] and told["batch_tensors"] == told["looked"]


def test_a_fetch_that_computes_has_its_time_on_a_core(telltale):
    run = telltale.python(
        COSTS
        + """
def make(i):
    end = time.thread_time() + 0.02
    while time.thread_time() < end: pass
    return torch.zeros(8)
train(Data(make), batch_size=4)
"""
    ).assert_clean()
    told = sums(run)
    assert told["cpu_ns"] >= 80_000_000 * told["fetches"] > 0
    # The two clocks run at rates of their own, which differ by some millionths.
    assert told["looked_cpu_ns"] <= told["looked_wall_ns"] * 1.001


@pytest.mark.parametrize("workers", [0, 1])
def test_reads_of_files_are_those_of_the_fetch(telltale, workers):
    # A worker reads pipes besides: its orders, and who asks for its batches.
    run = telltale.python(
        COSTS
        + f"""
path = os.path.join(os.path.dirname(__file__), "data.bin")
open(path, "wb").write(os.urandom(8000))
def make(i):
    file = os.open(path, os.O_RDONLY); data = os.read(file, 8000); os.close(file)
    return torch.frombuffer(bytearray(data[:8]), dtype=torch.uint8)
train(Data(make, 64), batch_size=4, num_workers={workers})
"""
    ).assert_clean()
    told = sums(run)
    assert told["looked"] > 0
    assert told["read_calls"] == 4 * told["looked"]
    assert told["read_bytes"] == 4 * 8000 * told["looked"]


def test_the_first_fetch_of_a_process_does_not_count(telltale):
    run = telltale.python(
        COSTS
        + """
seen = []
def make(i):
    if not seen: time.sleep(0.5)
    seen.append(i)
    return torch.zeros(8)
train(Data(make), batch_size=4)
"""
    ).assert_clean()
    told = sums(run)
    assert told["fetches"] > 0 and told["wall_ns"] < 500_000_000


def test_items_are_compared_across_epochs_and_workers(telltale):
    run = telltale.python(
        COSTS
        + """
def same(i):
    time.sleep(0.001)
    return torch.arange(8) + i
train(Data(same), epochs=3, batch_size=4, num_workers=2)
"""
    ).assert_clean()
    digests = collections.defaultdict(list)
    for event in run.events("dataloader.item"):
        digests[event["facts"]["index"]].append(event["facts"]["digest"])
        assert event["facts"]["of"] == 32 and event["facts"]["bytes"] == 64
        assert event["facts"]["duration_ns"] >= 1_000_000
    assert 8 <= len(digests) <= 32
    assert all(len(values) == 3 and len(set(values)) == 1 for values in digests.values())
    assert len({values[0] for values in digests.values()}) == len(digests)


def test_keys_that_are_objects_of_the_program_are_not_asked_for_their_index(telltale):
    run = telltale.python(
        COSTS
        + """
asked = []
class Key:
    def __init__(self, i): self.i = i
    def __index__(self):
        asked.append(self.i)
        return self.i
def make(key):
    time.sleep(0.001)
    return torch.arange(8) + key.i
train(Data(make), epochs=2, batch_size=4, sampler=[Key(i) for i in range(32)])
print("asked", asked)
train(Data(lambda i: (time.sleep(0.001), torch.arange(8) + i)[1]), epochs=2, batch_size=4, sampler=torch.arange(32))
"""
    ).assert_clean()
    assert "asked []" in run.out
    # Those of a tensor are numbers.
    assert len(run.events("dataloader.item")) >= 8


def test_a_data_set_at_the_address_of_one_that_is_gone_has_its_own_size(telltale):
    run = telltale.python(
        COSTS
        + """
def make(i):
    time.sleep(0.001)
    return torch.zeros(8)
data = Data(make)
places = set()
for length in range(20, 23):
    train(data, batch_size=4)
    places.add(id(data)); del data
    data = Data(make, length)
train(data, batch_size=4)
print("places", len(places))
"""
    ).assert_clean()
    assert "places 3" not in run.out, "no address was used again"
    assert {event["facts"]["of"] for event in run.events("dataloader.item")} == {32, *range(20, 23)}


def test_items_that_are_random_differ(telltale):
    run = telltale.python(
        COSTS
        + """
def make(i):
    time.sleep(0.001)
    return np.random.rand(8), {"label": i, "name": "x"}
def collate(batch): return torch.tensor(np.stack([x for x, _ in batch]))
train(Data(make), epochs=2, batch_size=4, collate_fn=collate)
"""
    ).assert_clean()
    digests = collections.defaultdict(list)
    for event in run.events("dataloader.item"):
        digests[event["facts"]["index"]].append(event["facts"]["digest"])
    assert digests and all(len(values) == 2 and values[0] != values[1] for values in digests.values())


def test_cheap_items_and_those_without_a_form_are_not_compared(telltale):
    run = telltale.python(
        COSTS
        + """
train(Data(lambda i: torch.zeros(8)), epochs=2, batch_size=4)
class Thing: pass
def make(i):
    time.sleep(0.001)
    return Thing()
train(Data(make, 33), batch_size=4, collate_fn=lambda batch: torch.zeros(4, 8))
"""
    ).assert_clean()
    facts = [event["facts"] for event in run.events("dataloader.item")]
    without_form = [each for each in facts if each["of"] == 33]
    assert without_form and all(each["digest"] is None for each in without_form)
    # A cheap item may have waited for a core.
    assert all(each["duration_ns"] >= 200_000 for each in facts if each["of"] == 32)


@pytest.mark.parametrize(
    "body, library, function",
    [
        ("time.sleep(0.005)", "time.sleep", "sleep"),
        ("json.loads('[' + '1,' * 20000 + '1]')", "json", "loads"),
        ("np.linalg.svd(np.ones((64, 64)))", "numpy", "svd"),
        ("torch.load(io.BytesIO(SAVED))", "torch.load", "load"),
        ("SHARED.acquire(timeout=0.005)", "multiprocessing.Lock", "acquire"),
        ("LOCAL.acquire(timeout=0.005)", "threading", "acquire"),
        ("own(3000)", "", None),
    ],
)
def test_the_library_that_holds_a_fetch_is_named(telltale, body, library, function):
    run = telltale.python(
        COSTS
        + f"""
saved = io.BytesIO(); torch.save([torch.zeros(20000) for _ in range(20)], saved); SAVED = saved.getvalue()
SHARED = multiprocessing.Lock(); SHARED.acquire(); LOCAL = threading.Lock(); LOCAL.acquire()
def own(n):
    total = 0
    for i in range(n * 20): total += i * i
    return total
def make(i):
    {body}
    return torch.zeros(8)
train(Data(make), batch_size=4, epochs=2)
"""
    ).assert_clean()
    (event, *_) = run.events("dataloader.held_by")
    facts = event["facts"]
    assert facts["library"] == library, facts
    assert facts["share"] > 0.5
    assert facts["file"] == "train.py" and facts["line"] > 0
    if function is not None:
        assert facts["function"].endswith(function)


def test_time_before_a_call_is_that_of_the_line_which_calls(telltale):
    """Not that of the function which is called: NumPy's dispatchers are made at run time, in no file."""
    run = telltale.python(
        COSTS
        + """
exec(compile("def made(): return 0", "<made>", "exec"))
def make(i):
    total = 0
    for k in range(40000): total += k * k
    made()
    return torch.zeros(8)
train(Data(make), batch_size=4, epochs=2)
"""
    ).assert_clean()
    (event, *_) = run.events("dataloader.held_by")
    assert (event["facts"]["library"], event["facts"]["file"]) == ("", "train.py"), event["facts"]


def test_a_profiler_of_the_users_is_left_alone(telltale):
    run = telltale.python(
        COSTS
        + """
import sys
calls = []
def profile(frame, event, arg): calls.append(event)
def make(i):
    time.sleep(0.002)
    assert sys.getprofile() is profile
    return torch.zeros(8)
sys.setprofile(profile)
train(Data(make), batch_size=4)
sys.setprofile(None)
assert calls
"""
    ).assert_clean()
    assert not run.events("dataloader.held_by")


# Each begins a profiler that counts calls of `make`, and ends it: calls().
PROFILERS = {
    "cProfile": """
import cProfile
profiler = cProfile.Profile()
def begin(): profiler.enable()
def calls():
    profiler.disable()
    return next(each.callcount for each in profiler.getstats() if getattr(each.code, "co_name", "") == "make")
""",
    # As yappi does, which gives the interpreter no object of Python's: sys.getprofile() is None all the while.
    "in C, without an object": """
import ctypes
counted = []
@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object, ctypes.c_int, ctypes.c_void_p)
def function(nothing, frame, event, argument):
    counted.append(event == 0 and frame.f_code.co_name == "make")
    return 0
def begin():
    ctypes.pythonapi.PyEval_SetProfile(function, None)
    assert sys.getprofile() is None
def calls():
    ctypes.pythonapi.PyEval_SetProfile(None, None)
    return sum(counted)
""",
}


@pytest.mark.parametrize("profiler", PROFILERS)
def test_a_profiler_in_c_is_left_alone_and_misses_no_call(telltale, profiler):
    run = telltale.python(
        COSTS
        + "import sys\n"
        + PROFILERS[profiler]
        + """
def make(i):
    time.sleep(0.002)
    return torch.zeros(8)
begin()
train(Data(make, 100), batch_size=4)
print(calls())
"""
    ).assert_clean()
    assert run.out == "100\n"
    assert not run.events("dataloader.held_by")


def test_fetches_are_profiled_once_the_profiler_of_the_users_has_ended(telltale):
    run = telltale.python(
        COSTS
        + "import sys\n"
        + PROFILERS["in C, without an object"]
        + """
begin(); calls()
def make(i):
    time.sleep(0.002)
    return torch.zeros(8)
train(Data(make), batch_size=4)
"""
    ).assert_clean()
    assert run.events("dataloader.held_by")


def test_a_profiler_that_begins_within_a_fetch_is_left_alone(telltale):
    run = telltale.python(
        COSTS
        + """
import sys
from telltale.adapters.torch import holders
seen = []
def profile(frame, event, arg): seen.append(event)
def make(i):
    time.sleep(0.002)
    if holders._running is not None and sys.getprofile() is holders._running: sys.setprofile(profile)
    return torch.zeros(8)
train(Data(make), batch_size=4)
assert sys.getprofile() is profile and seen
sys.setprofile(None)
"""
    ).assert_clean()
    assert len(run.events("dataloader.held_by")) == 1


def test_no_profile_is_left_behind(telltale):
    run = telltale.python(
        COSTS
        + """
import sys
def make(i):
    time.sleep(0.002)
    if i == 20: raise KeyError("bad item")
    return torch.zeros(8)
try: train(Data(make), batch_size=2)
except KeyError: pass
else: raise SystemExit("no error")
assert sys.getprofile() is None
"""
    ).assert_clean()
    assert run.events("dataloader.held_by")


def test_handing_over_is_timed_where_batches_are_ready(telltale):
    run = telltale.python(
        COSTS
        + """
data = Data(lambda i: torch.zeros(8), 400)
net = nn.Linear(8, 2); opt = torch.optim.SGD(net.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
    opt.zero_grad(); net(x).sum().backward(); opt.step()
    time.sleep(0.03)
"""
    ).assert_clean()
    told = [event["facts"] for event in run.events("dataloader.handover")]
    assert told and told[0]["batches"] == 8
    assert 0 < told[0]["low_ns"] <= told[0]["median_ns"] < 1_000_000_000


def test_what_a_library_calls_is_told_beside_it(telltale):
    run = telltale.python(
        COSTS
        + """
packed = io.BytesIO(); np.savez_compressed(packed, x=np.random.rand(64, 1000)); PACKED = packed.getvalue()
train(Data(lambda i: torch.from_numpy(np.load(io.BytesIO(PACKED))["x"][0])), batch_size=4)
"""
    ).assert_clean()
    (event, *_) = run.events("dataloader.held_by")
    assert event["facts"]["library"].startswith("numpy")
    assert event["facts"]["inner"] in ("zlib", "zipfile")
