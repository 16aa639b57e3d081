# SPDX-License-Identifier: Apache-2.0
"""Data loaders: the wait in the training process, the work in the workers."""

from __future__ import annotations

import pytest

LOADER = """
import sys, threading
import torch, torch.nn as nn

class Data(torch.utils.data.Dataset):
    def __len__(self): return 32
    def __getitem__(self, i): return torch.full((8,), float(i)), i % 2

def main(workers, context, **options):
    torch.manual_seed(0)
    net = nn.Linear(8, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(
        Data(), batch_size=4, num_workers=workers, multiprocessing_context=context, **options)
    for epoch in range(2):
        for x, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            opt.step()
    # The end of the process would stop one that is giving up its semaphore: "leaked", multiprocessing says then.
    del loader
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread": thread.join(60)
"""


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_are_processes_of_their_own(telltale, context):
    run = telltale.python(LOADER + f"\nif __name__ == '__main__': main(2, {context!r})\n").assert_clean()
    trainers = [process for process in run.processes() if process["kind"] == 0]
    workers = [process for process in run.processes() if process["kind"] == 1]
    assert len(trainers) == 1 and len(workers) == 4  # Two an epoch.
    trainer = trainers[0]["pid"]
    assert len(run.steps()) == 16 and {row["pid"] for row in run.steps()} == {trainer}
    fetches = run.table("spans", name="fetch")
    assert len(fetches) == 16 and trainer not in {row["pid"] for row in fetches}
    assert all(row["category"] == "data" for row in fetches)
    assert sorted(event["facts"]["worker_id"] for event in run.events("worker.start")) == [0, 0, 1, 1]
    (loader,) = run.events("dataloader")
    assert loader["facts"]["workers"] == 2
    assert all(row["data_wait_ns"] > 0 and row["batch_size"] == 4 for row in run.steps())


def test_persistent_workers_stay_one_process_each(telltale):
    run = telltale.python(LOADER + "\nmain(2, 'fork', persistent_workers=True)\n").assert_clean()
    assert len([process for process in run.processes() if process["kind"] == 1]) == 2
    assert len(run.steps()) == 16
    assert run.events("dataloader")[0]["facts"]["persistent_workers"] is True


def test_fetches_in_the_process_lie_inside_the_wait(telltale):
    run = telltale.python(LOADER + "\nmain(0, None)\n").assert_clean()
    assert len(run.processes()) == 1
    assert run.span_counts()["fetch"] == 16
    fetch = sum(row["duration_ns"] for row in run.table("spans", name="fetch"))
    wait = sum(row["data_wait_ns"] for row in run.steps())
    assert 0 < fetch <= wait


@pytest.mark.parametrize(
    "batch, size",
    [
        ("x", 4),
        ("[x, y]", 4),
        ("{'a': x, 'b': y}", 4),
        ("(('text',) * 4, [x])", 4),
        ("['a', 'b', 'c']", 3),
        ("__import__('collections').UserDict(a=x)", 4),
        # Of a batch that says nothing the size is that of what the model is given.
        ("object()", 4),
    ],
)
def test_the_batch_size_is_found_in_a_batch_of_any_form(telltale, batch, size):
    run = telltale.python(
        f"""
        import torch
        x, y = torch.zeros(4, 8), torch.zeros(4)
        class Data(torch.utils.data.IterableDataset):
            def __iter__(self):
                for i in range(3): yield {batch}
        w = torch.nn.Linear(8, 1); opt = torch.optim.SGD(w.parameters(), lr=0.1)
        for batch in torch.utils.data.DataLoader(Data(), batch_size=None, collate_fn=lambda b: b):
            w(x).sum().backward(); opt.step()
        """
    ).assert_clean()
    assert [row["batch_size"] for row in run.steps()] == [size] * 3


def test_a_thread_that_prefetches_does_not_take_the_steps(telltale):
    run = telltale.python(
        LOADER
        + """
import threading, queue
ready = queue.Queue(2)
def feed():
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4): ready.put(batch)
    ready.put(None)
threading.Thread(target=feed).start()
net = nn.Linear(8, 2); opt = torch.optim.SGD(net.parameters(), lr=0.01)
while (batch := ready.get()) is not None:
    opt.zero_grad(); net(batch[0]).sum().backward(); opt.step()
"""
    ).assert_clean()
    assert len(run.steps()) == 8


def test_an_error_in_a_dataset_reaches_the_user_unchanged(telltale):
    text = """
    import torch
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, i):
            if i == 5: raise ValueError("bad item")
            return torch.zeros(2)
    for batch in torch.utils.data.DataLoader(Data(), batch_size=2): pass
    """
    run = telltale.python(text)
    import sys

    plain = telltale.plain([sys.executable, telltale.script(text)])
    assert run.code == plain.returncode == 1
    assert run.err == plain.stderr


def test_modules_inside_a_fetch_are_part_of_the_wait(telltale):
    run = telltale.python(
        """
        import time, torch, torch.nn as nn
        class Transform(nn.Module):
            def forward(self, x):
                time.sleep(0.1)
                return x
        class Data(torch.utils.data.Dataset):
            transform = Transform()
            def __len__(self): return 12
            def __getitem__(self, i): return self.transform(torch.ones(8))
        net = nn.Linear(8, 2); opt = torch.optim.SGD(net.parameters(), lr=0.01)
        for x in torch.utils.data.DataLoader(Data(), batch_size=4):
            opt.zero_grad(); net(x).sum().backward(); opt.step()
        """
    ).assert_clean()
    steps = run.steps()
    assert len(steps) == 3 and not run.steps("EVAL")
    assert all(row["data_wait_ns"] >= 400_000_000 for row in steps)
    assert all(row["forward_ns"] < 400_000_000 for row in steps[1:])
    assert len(run.events("model")) == 1
    (first,) = run.events("run.first_forward")
    assert first["time_ns"] >= steps[0]["time_ns"] + 400_000_000


def test_odd_values_of_a_loader_or_optimizer_do_not_switch_us_off(telltale):
    run = telltale.python(
        """
        import math, numpy as np, torch, torch.nn as nn
        class Loader(torch.utils.data.DataLoader):
            @property
            def prefetch_factor(self): return 2
            @prefetch_factor.setter
            def prefetch_factor(self, value): pass
        data = torch.utils.data.TensorDataset(torch.ones(8, 4))
        loader = Loader(data, batch_size=4, num_workers=np.int64(0))
        net = nn.Linear(4, 2); opts = [torch.optim.SGD(net.parameters(), lr=0.0) for _ in range(200)]
        opts[0].param_groups[0]["lr"] = math.nan
        for i in range(2):
            for (x,) in loader:
                net(x).sum().backward()
                for opt in opts: opt.step()
        """
    ).assert_clean()
    (loader,) = run.events("dataloader")
    assert loader["facts"]["workers"] == 0 and loader["facts"]["batch_size"] == 4
    optimizers = run.events("optimizer")
    assert len(optimizers) == 200 and optimizers[0]["facts"]["lr"] == "nan"
