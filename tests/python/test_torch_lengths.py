# SPDX-License-Identifier: Apache-2.0
"""Lengths of data sets are known without a call of the user's own code."""

from __future__ import annotations

import sys

import pytest

HEAD = """
import collections, torch, torch.nn as nn, numpy as np
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset
from telltale.adapters.torch.length import length_of
LENGTH = 11
class Of(Dataset):
    def __init__(self, value): self.value = value
    def __len__(self): return len(self.value)
    def __getitem__(self, i): return self.value[i]
"""
KNOWN = [
    ("list(range(7))", 7),
    ("Of([1, 2, 3])", 3),
    ("Of(np.zeros((5, 2)))", 5),
    ("Of(torch.zeros(6, 2))", 6),
    ("Of(Of({1: 2}))", 1),
    ("TensorDataset(torch.zeros(9, 2))", 9),
    ("Subset(Of([1] * 50), range(20))", 20),
    ("ConcatDataset([Of([1, 2, 3]), Of([4])])", 4),
    ("collections.UserList([1, 2])", 2),
    ("made('return 1 << 20')", 1 << 20),
    ("made('return LENGTH')", 11),
    ("made('return self.count', count=8)", 8),
    ("made('return (len(self.data) - 1) // self.block', data=b'x' * 100, block=8)", 12),
    ("type('List', (list,), {})([1, 2, 3])", 3),
]
# What would have to run to be known.
UNKNOWN = [
    "made('return self.find()')",
    "made('return len(self.made)', made=Of(object()))",
    "made('return self.missing')",
    "made('return max(len(self.data), 1)', data=[1])",
    "made('return -1')",
    "made('return 1.5')",
    "made('if self.data: return 3', data=[1])",
    "type('List', (list,), {'__len__': lambda self: 1 / 0})([1, 2, 3])",
    "type('Own', (Dataset,), {'count': property(lambda self: 1 / 0), '__len__': lambda self: self.count})()",
    "type('Own', (Dataset,), {'__getattribute__': lambda self, name: 1 / 0, '__len__': lambda self: self.count})()",
    "IterableDataset()",
    "iter([1, 2])",
    "Of(torch.tensor(1.0))",
]


def test_what_a_length_is_made_of_says_it(telltale):
    run = telltale.python(
        HEAD
        + """
def made(body, **attributes):
    scope = {"LENGTH": LENGTH}
    exec("def __len__(self):\\n    " + body, scope)
    data = type("Made", (Dataset,), {"__len__": scope["__len__"], "find": lambda self: 1 / 0})()
    vars(data).update(attributes)
    return data
def closed(count):
    class Own(Dataset):
        def __len__(self): return count
    return Own()
print([length_of(each) for each in ("""
        + "".join(f"{text}, " for text, _ in KNOWN)
        + """closed(4))])
print([length_of(each) for each in ("""
        + "".join(f"{text}, " for text in UNKNOWN)
        + """)])
"""
    ).assert_clean()
    assert run.out.splitlines() == [str([length for _, length in KNOWN] + [4]), str([None] * len(UNKNOWN))]
    assert telltale.probe_log() == ""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_length_of_the_users_is_asked_no_oftener_than_without_us(telltale, workers):
    script = telltale.script(
        f"""
import multiprocessing, time, torch, torch.nn as nn
asked = multiprocessing.Value("i", 0)
class Data(torch.utils.data.Dataset):
    def __len__(self):
        with asked: asked.value += 1
        return 24
    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.ones(8)
net = nn.Linear(8, 2); opt = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    for x in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers={workers}, shuffle=True):
        opt.zero_grad(); net(x).sum().backward(); opt.step()
print(asked.value)
"""
    )
    run, plain = telltale.run([sys.executable, script]), telltale.plain([sys.executable, script])
    assert run.assert_clean().out == plain.stdout and int(run.out) > 0
    assert run.events("dataloader")[0]["facts"]["length"] is None
