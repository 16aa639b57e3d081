# SPDX-License-Identifier: Apache-2.0
"""A JAX and Optax loop with one call of telltale.jax a step."""

from __future__ import annotations

import json

from conftest import AWAIT_PLAN, EVERYTHING, TOLD, what_was_told

SHAPES_TOO = '[collections.all]\ninterval = 1\ntake = ["statistics", "shape"]\n'
LOOP = (
    TOLD
    + """
import hashlib
import jax, jax.numpy as jnp, optax
import telltale.jax
"""
    + AWAIT_PLAN
    + """
rng = np.random.default_rng(0)
x = rng.normal(size=(48, 6)).astype("float32")
y = rng.normal(size=(48, 1)).astype("float32")
params = {"params": {"dense": {"kernel": jnp.asarray(rng.normal(size=(6, 4)), "float32"),
                               "bias": jnp.zeros(4)},
                     "head": {"kernel": jnp.asarray(rng.normal(size=(4, 1)), "bfloat16")}}}
optimizer = optax.adam(1e-2)
opt_state = optimizer.init(params)

def loss_of(params, a, b):
    p = params["params"]
    h = jnp.tanh(a @ p["dense"]["kernel"] + p["dense"]["bias"])
    return jnp.mean((h @ p["head"]["kernel"].astype("float32") - b) ** 2)

@jax.jit
def update(params, opt_state, a, b):
    loss, grads = jax.value_and_grad(loss_of)(params, a, b)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return loss, grads, optax.apply_updates(params, updates), opt_state

def loader():
    for step in range(6):
        yield x[step % 3 * 16:step % 3 * 16 + 16], y[step % 3 * 16:step % 3 * 16 + 16]

for step, (a, b) in enumerate(telltale.jax.batches(loader())):
    loss, grads, new_params, new_state = update(params, opt_state, a, b)
    telltale.jax.step(step, params=params, grads=grads, loss=loss, opt_state=opt_state,
                      metrics={"norm": optax.global_norm(grads), "own": {"half": step / 2}},
                      learning_rate=1e-2)
    told(step, "params/dense/kernel", params["params"]["dense"]["kernel"])
    told(step, "params/head/kernel", params["params"]["head"]["kernel"])
    told(step, "gradient/params/dense/bias", grads["params"]["dense"]["bias"])
    told(step, "opt_state/0/mu/params/dense/kernel", opt_state[0].mu["params"]["dense"]["kernel"])
    print("LOSS", repr(float(loss)))
    params, opt_state = new_params, new_state
print("DIGEST", hashlib.sha256(b"".join(np.asarray(p).tobytes() for p in jax.tree.leaves(params))).hexdigest())
"""
)


def lines(output: str, word: str) -> list[str]:
    return [line[len(word) + 1 :] for line in output.splitlines() if line.startswith(word + " ")]


def test_names_steps_losses_and_statistics(run, same):
    recorded = run(LOOP, plan=SHAPES_TOO)
    assert recorded.code == 0, recorded.err
    steps = recorded.steps()
    assert [row["step"] for row in steps] == list(range(6))
    assert all(row["batch_size"] == 16 and row["data_wait_ns"] > 0 for row in steps)
    losses = [float(line) for line in lines(recorded.out, "LOSS")]
    assert [recorded.scalar("loss")[step] for step in range(6)] == losses
    assert recorded.scalar("own/half") == {step: step / 2 for step in range(6)}
    assert set(recorded.scalar("norm")) == set(range(6))
    rows = recorded.statistics()
    shapes = {(row["name"], row["step"]): json.loads(row["shape"]) for row in recorded.table("tensors")}
    told = what_was_told(recorded.out)
    assert {row["step"] for row in told} == set(range(6))
    for expected in told:
        where = (expected["name"], expected["step"])
        same(rows[where], expected)
        assert shapes[where] == expected["shape"]
    assert rows["params/head/kernel", 3]["dtype"] == "bfloat16"
    assert recorded.names("biases") == {"params/dense/bias"}
    assert "gradient/params/head/kernel" in recorded.names("gradients")


def test_the_result_is_the_same_without_telltale(run):
    recorded = run(LOOP, plan=EVERYTHING)
    plain = run.plain(LOOP, env={"PYTHONPATH": str(package_folder())})
    assert lines(recorded.out, "DIGEST") == lines(plain.stdout, "DIGEST") != []


def package_folder():
    from conftest import TELLTALE

    return TELLTALE.parent.parent / "lib" / "telltale" / "python"


def test_a_call_inside_a_compiled_function_is_told_and_harmless(run):
    script = """
import jax, jax.numpy as jnp
import telltale.jax
@jax.jit
def f(a):
    loss = (a ** 2).sum()
    telltale.jax.step(loss=loss)
    return loss
print(float(f(jnp.arange(3.0))))
telltale.jax.step(loss="not a number", params=object(), metrics={"x": None}, mode="NONE")
telltale.jax.step(loss=jnp.ones(3))
"""
    recorded = run(script)
    assert recorded.code == 0, recorded.err
    assert recorded.out.strip() == "5.0"
    (event,) = recorded.events("capture.unavailable")
    assert "compiled" in event["message"]


def test_what_cannot_be_read_costs_neither_the_step_nor_the_others(run):
    """Arrays whose memory was donated, keys of jax.random, numbers that were donated before they were there."""
    script = (
        """
import functools
import jax, jax.numpy as jnp
import telltale.jax
"""
        + AWAIT_PLAN
        + """
@functools.partial(jax.jit, donate_argnums=0)
def update(params, metrics): return {"w": params["w"] * 0.5, "key": params["key"]}, metrics + 1
params = {"w": jnp.arange(8.0), "key": jax.random.key(1)}
metrics = jnp.float32(0)
for step in range(4):
    old = params
    params, metrics = update(params, metrics)
    assert old["w"].is_deleted()
    telltale.jax.step(params=old, grads=params, loss=jnp.float32(step), metrics={"count": metrics})
print(params["w"].sum())
"""
    )
    recorded = run(script, plan=EVERYTHING)
    assert recorded.code == 0, recorded.err
    assert recorded.probe_log() == ""
    assert [row["step"] for row in recorded.steps()] == list(range(4))
    assert recorded.scalar("loss") == {0: 0, 1: 1, 2: 2, 3: 3}
    rows = recorded.statistics()
    assert {step for name, step in rows if name == "gradient/params/w"} == set(range(4))
    assert sum(row["value"] for row in recorded.table("ledger", name="probe.skipped")) >= 2 * 3


def test_an_array_keeps_no_copy_on_the_host(run):
    """JAX keeps what it once copied as long as the array lives: of arrays over several devices, for one."""
    script = (
        """
import jax, numpy as np
import telltale.jax
"""
        + AWAIT_PLAN
        + """
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("x",))
w = jax.device_put(np.arange(64.0, dtype="float32"), NamedSharding(mesh, PartitionSpec("x")))
for step in range(3):
    telltale.jax.step(params={"w": w}, loss=1.0)
    print(w._npy_value is None)
"""
    )
    recorded = run(script, plan=EVERYTHING, env={"XLA_FLAGS": "--xla_force_host_platform_device_count=2"})
    assert recorded.code == 0, recorded.err
    assert recorded.out.split() == ["True"] * 3
    assert {step for name, step in recorded.statistics() if name == "params/w"} == {0, 1, 2}


def test_a_large_array_over_several_devices_is_read_in_pieces(run, same):
    script = (
        TOLD
        + """
import jax
import telltale.jax
"""
        + AWAIT_PLAN
        + """
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("x",))
values = np.random.default_rng(4).normal(size=(20002, 250)).astype("float32")
values[7, 7], values[20000, 1] = np.inf, np.nan
w = jax.device_put(values, NamedSharding(mesh, PartitionSpec("x")))
for step in range(3):
    telltale.jax.step(params={"w": w}, loss=1.0)
    assert w._npy_value is None
    told(step, "params/w", values)
"""
    )
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    recorded = run(script, plan=SHAPES_TOO, env=env)
    assert recorded.code == 0, recorded.err
    rows = recorded.statistics()
    shapes = {(row["name"], row["step"]): json.loads(row["shape"]) for row in recorded.table("tensors")}
    told = what_was_told(recorded.out)
    assert len(told) == 3
    for expected in told:
        same(rows["params/w", expected["step"]], expected)
        assert shapes["params/w", expected["step"]] == [20002, 250]


def test_evaluation_has_steps_of_its_own(run):
    script = """
import jax.numpy as jnp
import telltale.jax
for step in range(3):
    telltale.jax.step(loss=jnp.float32(step), batch_size=4)
for step in range(2):
    telltale.jax.step(loss=jnp.float32(10 + step), mode="EVAL")
telltale.jax.step(700, loss=jnp.float32(3))
"""
    recorded = run(script).assert_clean()
    assert recorded.scalar("loss") == {0: 0, 1: 1, 2: 2, 3: 3}
    assert recorded.scalar("loss", "EVAL") == {0: 10, 1: 11}
    assert recorded.scalar("own_step") == {3: 700}
    assert [row["batch_size"] for row in recorded.steps()] == [4, 4, 4, 0]
