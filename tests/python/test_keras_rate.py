# SPDX-License-Identifier: Apache-2.0
"""The learning rate of Keras' optimizers, where no Keras is: what has to be waited for is left alone in the midst of an
epoch. With Keras: tests/frameworks/test_keras.py.
"""

from __future__ import annotations

PRELUDE = """
import math
from telltale.adapters.keras.rate import Rate
from telltale.adapters.keras.steps import place

class Value:
    ready, reads = False, 0
    def is_ready(self): return self.ready
    def __float__(self):
        self.reads += 1
        return 0.5
class Variable:
    def __init__(self): self.value = Value()
    def assign(self, value): pass
class Optimizer:
    def __init__(self): self._learning_rate = Variable()
optimizer = Optimizer()
value = optimizer._learning_rate.value
rate = Rate(lambda: optimizer)
"""


def test_a_rate_on_a_device_is_read_at_the_begin_of_an_epoch_alone(telltale):
    run = telltale.python(
        PRELUDE
        + """
got = [rate.now() for _ in range(40)]
print(got[0], all(math.isnan(each) for each in got[1:]), value.reads)
place.epoch += 1
print(rate.now(), math.isnan(rate.now()), value.reads)
"""
    ).assert_clean()
    assert run.out == "0.5 True 1\n0.5 True 2\n"


def test_a_rate_that_is_there_is_read_now_and_then(telltale):
    run = telltale.python(
        PRELUDE
        + """
value.ready = True
print([number for number in range(40) if rate.now() == 0.5])
"""
    ).assert_clean()
    assert run.out == "[0, 16, 32]\n"


def test_gradients_are_counted_by_batches(telltale):
    """An update every four batches, of which a call of the model's function has one, two or eight."""
    run = telltale.python(
        """
from telltale.adapters.keras.steps import Accumulation
class Number: value = 0
class Optimizer: gradient_accumulation_steps, _iterations = 4, Number
for batches in (1, 2, 8):
    gathered = Accumulation(Optimizer)
    print([gathered.updates(batches) for _ in range(4)])
"""
    ).assert_clean()
    assert run.out.splitlines() == [
        "[False, False, False, True]",
        "[False, True, False, True]",
        "[True, True, True, True]",
    ]
