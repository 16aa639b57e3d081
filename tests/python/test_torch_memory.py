# SPDX-License-Identifier: Apache-2.0
"""What holds the memory that grows: the event memory.held."""

from __future__ import annotations

import json

import pytest

LOOP = """
import collections, functools, os, torch, torch.nn as nn
from telltale.adapters.torch import held, memory
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 2), nn.Tanh()); opt = torch.optim.SGD(net.parameters(), lr=0.01)

def step(x=torch.ones(4, 8)):
    opt.zero_grad(); net(x).sum().backward(); opt.step()

def steps_until(done, work=lambda: None):
    while not done():
        step(); work()
"""
# Fills memory that belongs to no file.
GROW = "torch.ones(30_000_000)"


def newest(run):
    return run.events("memory.held")[-1]["facts"]


def test_a_list_that_grows_is_told_with_its_entries_and_their_size(telltale):
    run = telltale.python(
        LOOP
        + """
kept = []
steps_until(lambda: memory._looks)
for _ in range(20): kept.append(torch.ones(2_000_000))
step()
"""
    ).assert_clean()
    first, last = (event["facts"] for event in run.events("memory.held"))
    assert first["containers"] == []
    (kept,) = last["containers"]
    assert kept["name"] == "kept" and kept["type"] == "list" and kept["holds"] == "Tensor"
    assert (kept["first"], kept["entries"]) == (0, 20)
    assert kept["bytes_each"] == pytest.approx(8_000_000, rel=0.01)
    assert last["own_bytes"] - first["own_bytes"] > 150_000_000
    assert not kept["graph"] and not kept["data_set"] and kept["bound"] is None


@pytest.mark.parametrize(
    "more, each",
    [
        # All rows of one array.
        ("rows = torch.ones(20_000, 200); kept.extend(rows)", 800),
        ("rows = torch.ones(20_000, 200).numpy(); kept.extend(rows)", 800),
        ("rows = torch.ones(20_000, 200); kept.extend({'x': row, 'y': 1} for row in rows)", 800),
        # Two of its rows keep all of it.
        ("rows = torch.ones(64, 100_000); kept.extend(rows[:2])", 12_800_000),
        # Each has the elements of a thousand, and all have the memory of one.
        ("kept.extend(mask.expand(1000, 1_000_000) for _ in range(2))", 200_000),
    ],
)
def test_entries_that_keep_memory_together_share_it(telltale, more, each):
    run = telltale.python(
        LOOP
        + f"""
kept, other = [], []
mask = torch.ones(1_000_000)
steps_until(lambda: memory._looks)
for _ in range(10): {more}; other.append(torch.ones(2_000_000))
step()
"""
    ).assert_clean()
    kept = next(each for each in newest(run)["containers"] if each["name"] == "kept")
    assert 0.9 * each <= kept["bytes_each"] <= 1.5 * each + 400


def test_memory_that_does_not_grow_is_looked_at_once(telltale):
    run = telltale.python(LOOP + "steps_until(lambda: memory._looks); step()").assert_clean()
    assert len(run.events("memory.held")) == 1


def test_the_data_set_of_a_loop_in_a_function_is_found(telltale):
    run = telltale.python(
        LOOP
        + """
class Data(torch.utils.data.Dataset):
    def __init__(self): self.cache = collections.OrderedDict()
    def __len__(self): return 100_000
    @functools.lru_cache(maxsize=None)
    def label(self, i): return torch.ones(500_000 if len(self.cache) > 1 else 1)
    def __getitem__(self, i):
        if memory._looks and len(self.cache) < 40:
            self.cache[i] = torch.ones(1_000_000)
            self.label(i)
        return torch.ones(8)
def main():
    part = torch.utils.data.Subset(torch.utils.data.ConcatDataset([Data()]), range(100_000))
    for x in torch.utils.data.DataLoader(part):
        step(x)
        if memory._looks == 2: break
main()
"""
    ).assert_clean()
    told = newest(run)
    assert told["data_set"] == "Subset"
    cache = next(each for each in told["containers"] if each["name"].endswith(".cache"))
    assert cache["data_set"] and cache["type"] == "OrderedDict" and cache["first"] == 0
    assert cache["length"] == 100_000
    assert cache["entries"] >= 16 and cache["bytes_each"] == pytest.approx(4e6, rel=0.01)
    labels = next(each for each in told["containers"] if each["type"] == "lru_cache")
    assert labels["name"] == "Data.label" and labels["bound"] is None
    assert labels["bytes_each"] == pytest.approx(2e6, rel=0.01) and labels["holds"] == "Tensor"


@pytest.mark.parametrize("kept", [True, False])
def test_graphs_without_a_backward_are_counted_as_long_as_they_exist(telltale, kept):
    run = telltale.python(
        LOOP
        + f"""
curve = []
x = torch.ones(50_000, 8)
def validate():
    loss = net(x).pow(2).mean()
    curve.append(loss if {kept} else loss.item())
steps_until(lambda: memory._looks and len(memory._marks) >= 24 and (not {kept} or memory._graphs()["bytes_each"] > 0), validate)
big = {GROW}
"""
    ).assert_clean()
    graphs = newest(run)["graphs"]
    assert graphs["looked"] >= 16
    if kept:
        # Each second forward is a validation; the step's own are freed.
        assert graphs["kept"] == pytest.approx(graphs["looked"] / 2, abs=2)
        assert graphs["early_kept"] > 0
        # The results of tanh, 50,000 x 2 numbers; the input is not the graph's own.
        assert 400_000 <= graphs["bytes_each"] < 500_000 and 0 < graphs["steps"] <= graphs["looked"]
    else:
        assert graphs["kept"] == 0 and graphs["since_step"] == -1


def test_a_loss_that_is_kept_behind_its_backward_holds_no_graph(telltale):
    run = telltale.python(
        LOOP
        + f"""
losses = []
def own_step():
    opt.zero_grad(); loss = net(torch.ones(4, 8)).sum(); loss.backward(); opt.step(); losses.append(loss)
while not memory._looks or len(memory._marks) < 16: own_step()
big = {GROW}
"""
    ).assert_clean()
    graphs = newest(run)["graphs"]
    assert graphs["kept"] == 0 and graphs["spent"] > 8


def test_a_mark_keeps_no_graph_alive(telltale):
    run = telltale.python(
        LOOP
        + """
steps_until(lambda: len(memory._marks) >= 12)
print(sum(reference() is not None for *_, reference in memory._marks))
"""
    ).assert_clean()
    assert int(run.out) <= 1


def test_an_array_is_own_where_this_process_alone_has_its_pages(telltale):
    run = telltale.python(
        LOOP
        + """
import json, numpy as np
array = np.ones(8_000_000, np.float32)
def shares(data):
    walk = held.Walk(); walk.data_set(data)
    return {each.name: [held.own_share(each), held.digest(each)] for each in walk.arrays}
class Data:
    def __init__(self): self.array, self.cache = array, None
alone = shares(Data())
data = Data()
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    data.own = np.ones(8_000_000, np.float32)
    os.write(writer, json.dumps([alone, shares(data)]).encode()); os._exit(0)
os.waitpid(pid, 0)
print(os.read(reader, 4000).decode())
"""
    ).assert_clean()
    alone, forked = json.loads(run.out.splitlines()[-1])
    if alone["Data.array"][0] is None:
        pytest.skip("the kernel does not tell whose a page is")
    assert alone["Data.array"][0] >= 0.9
    assert forked["Data.array"][0] <= 0.1 and forked["Data.own"][0] >= 0.9
    assert forked["Data.array"][1] == forked["Data.own"][1] is not None


def test_open_figures_are_counted(telltale):
    run = telltale.python(
        LOOP
        + """
import sys, types
class Canvas:
    def get_width_height(self): return 200, 100
managers = [types.SimpleNamespace(canvas=Canvas()) for _ in range(3)]
helpers = types.ModuleType("matplotlib._pylab_helpers")
helpers.Gcf = types.SimpleNamespace(figs=dict(enumerate(managers)))
sys.modules["matplotlib._pylab_helpers"] = helpers
steps_until(lambda: memory._looks)
"""
    ).assert_clean()
    told = newest(run)
    assert told["figures"] == 3 and told["figure_bytes"] == 3 * 4 * 200 * 100


def test_a_worker_tells_the_large_list_of_its_data_set(telltale):
    run = telltale.python(
        LOOP
        + """
class Data(torch.utils.data.Dataset):
    def __init__(self): self.names = [str(i) for i in range(60_000)]
    def __len__(self): return 64
    def __getitem__(self, i): return torch.ones(8)
for x in torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=1): step(x)
"""
    ).assert_clean()
    told = next(event["facts"] for event in run.events("memory.held") if event["facts"]["worker"])
    (names,) = told["containers"]
    assert names["name"] == "Data.names" and names["entries"] == names["first"] == 60_000


def test_no_graph_is_marked_once_torch_compiles_backward_passes(telltale):
    """A stand-in for torch 2's module: it is switched on after the forward, as `with` around a backward does."""
    run = telltale.python(
        LOOP
        + """
import sys, types
compiled = sys.modules["torch._dynamo.compiled_autograd"] = types.ModuleType("compiled_autograd")
compiled.compiled_autograd_enabled = False
steps_until(lambda: len(memory._marks) >= 8)
kept = []
while not any(graph is not None for *_, graph in ((*each[:2], each[2]()) for each in memory._marks)):
    kept.append(net(torch.ones(4, 8)).sum())
hooks = []
kept[-1].register_hook(lambda gradient: hooks.append([len(memory._marks)]))
compiled.compiled_autograd_enabled = True
for loss in kept: loss.backward()
print(hooks, memory._marks)
for _ in range(200): step()
compiled.compiled_autograd_enabled = False
for _ in range(200): step()
print(memory._marks)
"""
    ).assert_clean()
    assert run.out == "[[0]] []\n[]\n"
    assert telltale.probe_log().count("graphs are not marked") == 1
