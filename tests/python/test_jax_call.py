# SPDX-License-Identifier: Apache-2.0
"""telltale.jax where there is no JAX: the call makes steps of plain numbers, and fails nobody. With JAX:
tests/frameworks/test_jax.py.
"""

from __future__ import annotations

LOOP = """
import telltale.jax
for batch in telltale.jax.batches([[1.0] * 4] * 3):
    telltale.jax.step(loss=sum(batch), metrics={"a": {"b": 2}}, learning_rate=0.5, batch_size=4)
for step in range(2):
    telltale.jax.step(loss=1.5, mode="EVAL")
print("done")
"""


def test_plain_numbers_are_steps(telltale):
    run = telltale.python(LOOP).assert_clean()
    steps = run.steps()
    assert [(row["step"], row["batch_size"]) for row in steps] == [(0, 4), (1, 4), (2, 4)]
    assert all(row["data_wait_ns"] > 0 for row in steps)
    assert run.scalar("loss") == [4.0] * 3 and run.scalar("a/b") == [2.0] * 3
    assert set(run.scalar("lr")) == {0.5}
    assert run.scalar("loss", "EVAL") == [1.5] * 2
    (framework,) = run.events("framework")
    assert framework["facts"] == {"name": "jax", "version": None}


def test_what_it_cannot_read_harms_nobody(telltale):
    run = telltale.python(
        """
import telltale.jax
telltale.jax.step("x", loss=object(), params=[object()], grads={"a": 1}, metrics={1: "no number"}, mode=None)
telltale.jax.step(loss=object(), metrics={1: "no number"}, params={"a": 1})
telltale.jax.step(loss=2.0)
class Broken:
    def __iter__(self): return self
    def __next__(self): raise RuntimeError("mine")
try:
    for item in telltale.jax.batches(Broken()): pass
except RuntimeError as error:
    print(error)
"""
    )
    assert run.code == 0, run.err
    assert run.out == "mine\n"
    assert 2.0 in run.scalar("loss")


def test_without_telltale_it_does_nothing(telltale):
    import os
    import sys

    from conftest import PYTHON_DIR

    script = telltale.script(f"import sys; sys.path.insert(0, {os.fspath(PYTHON_DIR)!r})\n" + LOOP)
    done = telltale.plain([sys.executable, script])
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_what_fails_costs_its_record_and_not_the_step(telltale):
    run = telltale.python(
        """
import telltale.jax
class Late:
    def is_ready(self): raise RuntimeError("deleted")
    def is_deleted(self): return True
    def __float__(self): raise RuntimeError("deleted")
for step in range(3):
    telltale.jax.step(loss=float(step), metrics={"late": Late()}, learning_rate=object(), batch_size="four")
class Batch:
    @property
    def shape(self): raise RuntimeError("mine")
print(len(list(telltale.jax.batches([Batch()] * 2))))
"""
    )
    assert run.code == 0, run.err
    assert run.out == "2\n"
    assert [row["step"] for row in run.steps()] == [0, 1, 2]
    assert run.scalar("loss") == [0.0, 1.0, 2.0]
