# SPDX-License-Identifier: Apache-2.0
"""What is told of each pass over a data loader."""

from __future__ import annotations

import pytest

PRELUDE = """
import sys, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
torch.manual_seed(0)
net = torch.nn.Linear(8, 2); opt = torch.optim.SGD(net.parameters(), lr=0.01)
def step(batch): opt.zero_grad(); net(batch).sum().backward(); opt.step()
class Items(Dataset):
    def __init__(self, make): self.make = make
    def __len__(self): return 32
    def __getitem__(self, i): return self.make(i), i
"""


def _passes(run, **match):
    told = [event["facts"] for event in run.events("dataloader.epoch")]
    return [facts for facts in told if all(facts[key] == value for key, value in match.items())]


def test_passes_over_a_shuffled_loader(telltale):
    run = telltale.python(
        PRELUDE
        + """
data = TensorDataset(torch.randn(30, 8), torch.arange(30))
loader = DataLoader(data, batch_size=4, shuffle=True)
for epoch in range(3):
    for x, y in loader: step(x)
for x, y in loader:
    break
"""
    ).assert_clean()
    whole = _passes(run, complete=True)
    assert [facts["epoch"] for facts in whole] == [1, 2, 3]
    for facts in whole:
        assert (facts["batches"], facts["samples"], facts["length"]) == (8, 30, 30)
        assert facts["loader_id"] == 1 and facts["workers"] == 0 and not facts["iterable"]
        assert facts["sampler"] == "RandomSampler" and facts["shuffled"] is True
        assert facts["batches_looked_at"] == 8 and facts["batches_repeated"] == 0
        assert facts["same_as_last_epoch"] == facts["first_batch_repeats"] == 0
        assert 0 < facts["seconds"] < 200
    assert [facts["compared_with_last_epoch"] for facts in whole] == [0, 8, 8]
    (last,) = _passes(run, complete=False)
    assert last["epoch"] == last["iterators"] == 4 and last["batches"] == 1


def test_an_order_that_is_the_same_in_each_epoch(telltale):
    run = telltale.python(
        PRELUDE
        + """
loader = DataLoader(Items(lambda i: torch.full((8,), float(i)) + torch.arange(8)), batch_size=4)
for epoch in range(2):
    for x, y in loader: step(x)
"""
    ).assert_clean()
    first, second = _passes(run)
    assert first["sampler"] == "SequentialSampler" and first["shuffled"] is False
    assert first["same_as_last_epoch"] == 0 and first["compared_with_last_epoch"] == 0
    assert second["same_as_last_epoch"] == second["compared_with_last_epoch"] == 8
    assert second["batches_repeated"] == 0


def test_workers_that_give_the_same_batches(telltale):
    run = telltale.python(
        PRELUDE
        + """
class Numbers(IterableDataset):
    def __len__(self): return 16
    def __iter__(self):
        for i in range(16): yield torch.arange(8.0) * (i + 1)
class Drawn(Dataset):
    def __init__(self): self.draw = torch.Generator().manual_seed(0)
    def __len__(self): return 32
    def __getitem__(self, i): return torch.randn(8, generator=self.draw)
for data in (Numbers(), Drawn()):
    for x in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork"): step(x)
"""
    ).assert_clean()
    numbers, drawn = _passes(run)
    assert numbers["iterable"] and numbers["sampler"] is None and numbers["shuffled"] is None
    assert (numbers["samples"], numbers["length"], numbers["workers"]) == (32, 16, 2)
    assert numbers["batches_repeated"] == numbers["repeated_across_workers"] == 4
    assert not drawn["iterable"] and drawn["samples"] == drawn["length"] == 32
    assert drawn["batches_repeated"] == drawn["repeated_across_workers"] == 4


def test_the_same_batch_taken_of_a_new_iterator_each_time(telltale):
    run = telltale.python(
        PRELUDE
        + """
data = TensorDataset(torch.randn(32, 8))
same, other = DataLoader(data, batch_size=4), DataLoader(data, batch_size=4, shuffle=True)
for i in range(200): step(next(iter(same))[0]); step(next(iter(other))[0])
"""
    ).assert_clean()
    by_loader = {1: _passes(run, loader_id=1), 2: _passes(run, loader_id=2)}
    for passes in by_loader.values():
        assert [facts["iterators"] for facts in passes] == [1, 2, 4, 8, 16, 32, 64, 128, 200]
        assert all(facts["batches"] == 1 and not facts["complete"] for facts in passes)
        assert passes[-1]["first_batches_looked_at"] > 64
    last = by_loader[1][-1]
    assert last["first_batch_repeats"] == last["first_batches_looked_at"]
    assert by_loader[2][-1]["first_batch_repeats"] == 0


@pytest.mark.parametrize(
    "make, looked",
    [
        ("torch.arange(8.0) * (i + 1)", 8),
        ("torch.zeros(8)", 0),  # Many tensors are like it.
        ("(torch.arange(8) * (i + 1) % 251).to(torch.uint8)", 8),
        ("(torch.arange(8) * (i + 1)).t().expand(2, 8).t()", 8),
        ("{'label': torch.zeros(8), 'input': torch.arange(8.0) * (i + 1)}", 8),
        ("[torch.arange(8.0) * (i + 1), torch.zeros(1)]", 8),
        ("torch.tensor(i)", 0),  # Too few elements to tell batches apart.
        ("'text'", 0),
    ],
)
def test_which_batches_are_looked_at(telltale, make, looked):
    run = telltale.python(
        PRELUDE
        + f"""
loader = DataLoader(Items(lambda i: {make}), batch_size=4)
for batch, _ in loader: step(torch.ones(1, 8))
"""
    ).assert_clean()
    (facts,) = _passes(run)
    assert facts["batches"] == 8 and facts["batches_looked_at"] == looked and facts["batches_repeated"] == 0


def test_batches_that_repeat_within_a_pass(telltale):
    run = telltale.python(
        PRELUDE
        + """
loader = DataLoader(Items(lambda i: torch.arange(8.0) * (i % 8 + 1)), batch_size=4)
for x, _ in loader: step(x)
"""
    ).assert_clean()
    (facts,) = _passes(run)
    assert facts["batches_repeated"] == 6 and facts["repeated_across_workers"] == 0


def test_many_epochs_are_told_in_bounded_number_and_persistent_workers_like_others(telltale):
    run = telltale.python(
        PRELUDE
        + """
loader = DataLoader(TensorDataset(torch.randn(8, 8)), batch_size=4)
for epoch in range(200):
    for (x,) in loader: step(x)
again = DataLoader(TensorDataset(torch.randn(16, 8)), batch_size=4, num_workers=1, persistent_workers=True,
                   multiprocessing_context="fork")
for epoch in range(2):
    for (x,) in again: step(x)
"""
    ).assert_clean()
    assert [facts["epoch"] for facts in _passes(run, loader_id=1)] == [*range(1, 65), 128]
    assert [(facts["epoch"], facts["batches"]) for facts in _passes(run, loader_id=2)] == [(1, 4), (2, 4)]


def test_nothing_refers_to_batches_and_loaders_are_freed(telltale):
    run = telltale.python(
        PRELUDE
        + """
import gc, weakref
class Batch(list): pass
gone = []
def collate(items):
    batch = Batch([torch.stack([x for x, _ in items])]); gone.append(weakref.ref(batch)); return batch
loader = DataLoader(Items(lambda i: torch.randn(8)), batch_size=4, collate_fn=collate)
for batch in loader: step(batch[0])
del batch
gone.append(weakref.ref(loader)); del loader; gc.collect()
assert all(each() is None for each in gone)
"""
    ).assert_clean()
    assert len(_passes(run, complete=True)) == 1
