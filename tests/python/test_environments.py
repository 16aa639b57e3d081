# SPDX-License-Identifier: Apache-2.0
"""What an agent does in an environment of Gymnasium's is no evaluation. A stand-in for the library lies beside the script."""

from __future__ import annotations

import sys

LIBRARY = """
class Env:
    def reset(self): raise NotImplementedError
    def step(self, action): raise NotImplementedError

class Wrapper(Env):
    def __init__(self, env): self.env = env
    def reset(self): return self.env.reset()
    def step(self, action): return self.env.step(action)
"""
PRELUDE = """
import gymnasium, torch, torch.nn as nn
class Own(gymnasium.Env):
    def reset(self): return torch.zeros(4)
    def step(self, action): return torch.randn(4)
torch.manual_seed(0)
policy = nn.Linear(4, 2)
opt = torch.optim.Adam(policy.parameters(), 0.01)
def learn(batch):
    opt.zero_grad(); policy(batch).pow(2).mean().backward(); opt.step()
"""
PLAY = """
for i in range(5):
    seen = []
    policy.eval()
    for _ in range(8):
        with torch.no_grad():
            action = policy(state.unsqueeze(0))
        state = env.step(action)
        seen.append(state)
    policy.train()
    learn(torch.stack(seen))
"""


def test_passes_of_an_agent_that_acts_are_no_evaluation(telltale):
    telltale.script(LIBRARY, "gymnasium/__init__.py")
    run = telltale.python(
        PRELUDE
        + "env = gymnasium.Wrapper(Own()); state = env.reset()"
        + PLAY
        + "assert gymnasium.Wrapper.step.__qualname__ == 'Wrapper.step'"
    ).assert_clean()
    assert run.steps("EVAL") == []
    steps = run.steps()
    assert [(row["micro_steps"], row["optimizer_calls"], row["batch_size"]) for row in steps] == [
        (1, 1, 8)
    ] * 5
    assert len(run.events("environment")) == 1
    assert "evaluation" not in run.span_counts()


def test_the_optimizers_of_an_agent_that_learns_from_a_target_network_make_one_step(telltale):
    telltale.script(LIBRARY, "gymnasium/__init__.py")
    run = telltale.python(
        PRELUDE
        + """
env = gymnasium.Wrapper(Own()); state = env.reset()
critic, target = nn.Linear(4, 1), nn.Linear(4, 1)
opt_critic = torch.optim.Adam(critic.parameters(), 0.01)
for i in range(6):
    with torch.no_grad():
        action = policy(state.unsqueeze(0))
    state = env.step(action)
    for again in range(2):
        batch = torch.randn(8, 4)
        learn(batch)
        with torch.no_grad():
            wanted = target(batch)
        opt_critic.zero_grad(); (critic(batch) - wanted).pow(2).mean().backward(); opt_critic.step()
"""
    ).assert_clean()
    assert run.steps("EVAL") == []
    assert [(row["optimizer_calls"], row["batch_size"]) for row in run.steps()] == [(2, 16)] * 12


def test_an_evaluation_by_a_loader_is_one_also_beside_an_agent(telltale):
    telltale.script(LIBRARY, "gymnasium/__init__.py")
    run = telltale.python(
        PRELUDE
        + "env = gymnasium.Wrapper(Own()); state = env.reset()"
        + PLAY
        + """
data = torch.utils.data.TensorDataset(torch.randn(12, 4))
with torch.no_grad():
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4):
        policy(batch)
"""
    ).assert_clean()
    assert [row["batch_size"] for row in run.steps("EVAL")] == [4, 4, 4]
    assert len(run.steps()) == 5


def test_passes_without_gradients_are_evaluations_where_no_environment_is(telltale):
    telltale.script(LIBRARY, "gymnasium/__init__.py")
    run = telltale.python(
        PRELUDE
        + """
for i in range(3):
    learn(torch.randn(8, 4))
    with torch.no_grad():
        policy(torch.randn(6, 4))
"""
    ).assert_clean()
    assert [row["batch_size"] for row in run.steps("EVAL")] == [6, 6, 6]
    assert run.events("environment") == []


def test_the_methods_look_as_they_are_and_an_exception_has_the_same_traceback(telltale):
    telltale.script(LIBRARY, "gymnasium/__init__.py")
    script = telltale.script(
        """
import gymnasium, inspect, pickle
class Broken(gymnasium.Env):
    def reset(self): return 0
    def step(self, action): raise ValueError("the robot fell")
env = gymnasium.Wrapper(Broken())
env.reset()
step = gymnasium.Wrapper.step
print(inspect.getsource(step), inspect.signature(env.step), inspect.isfunction(step), step.__class__)
print(step.__code__.co_names, sorted(vars(step)), pickle.loads(pickle.dumps(step)) is step)
env.step(action=3)
"""
    )
    run, plain = telltale.run([sys.executable, script]), telltale.plain([sys.executable, script])
    assert (run.code, run.err) == (plain.returncode, plain.stderr)
    assert "the robot fell" in run.err
    assert run.out == plain.stdout
