# SPDX-License-Identifier: Apache-2.0
"""What a window of 5 steps by torch's profiler does to the steps outside of it, on a real training with torch 2.

A round is three processes of bench/train_step.py under `telltale run` that take turns (bench/overhead.py says why):
one whose plan has a window, two without. Before the window stand as many turns as after it. A round gives how much
more the ratio of windowed to plain is after the window than before it, by the medians of the turns and in calm (the
2nd percentile of the steps: neighbours only ever add to one); the luck of a process's pages and addresses, which
lasts for as long as it lives, is in both ratios and falls out. The second plain one against the first gives the A/A.
Over the rounds: the median and the half-width of its distribution-free 95 % interval. The verdict is on the small
network's steps in calm and on the long steps' medians, and says inconclusive where the interval is wider than 1 %. In
calm a cost that only some steps have does not show; the medians beside it say how much of one cannot be excluded.
The import of the window, a process of its own at low priority, runs beside the turns of all three and is not in the
figures.

Printed apart, since it is the window's own price: the steps inside of it, and what its begin and its end hold the
training up for (`begin_ms`, `end_ms` of window.closed). The end comes in the first step after it, which does not count
as one outside.

usage: window_cost.py [--rounds N] [--model NAME] [--detail LIST]
       with a Python that has torch 2: .venv-frameworks/bin/python, from tools/setup frameworks
exit code 0: nothing is added that could be told from none, 1: something is, 2: could not measure, 3: inconclusive
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

from turns import STEP, TELLTALE, Trainer, WatchedTrainer, calm_ms, median_interval

WINDOW_STEPS = 5
MAX_HALF_WIDTH = 1.0  # Percent; wider says nothing.


@dataclass(frozen=True)
class Model:
    warmup: int
    turn: int  # Steps of a turn.
    skip: int  # First steps of a turn that do not count: caches that the others have filled.
    turns: int  # Before the window, and after it.


MODELS = {
    "small": Model(warmup=200, turn=40, skip=10, turns=80),
    "transformer": Model(warmup=50, turn=6, skip=1, turns=20),
    "mlp": Model(warmup=50, turn=6, skip=1, turns=20),
}


@dataclass
class Rounds:
    """A value a round."""

    added: list[float] = field(default_factory=list)  # Percent.
    plain: list[float] = field(default_factory=list)
    calm: list[float] = field(default_factory=list)
    calm_plain: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    inside_ms: list[float] = field(default_factory=list)
    begin_ms: list[float] = field(default_factory=list)
    end_ms: list[float] = field(default_factory=list)


@dataclass
class Half:
    """The turns before, or after, the window: of each process the medians and the counted steps, in ns."""

    medians: dict[str, list[float]] = field(default_factory=dict)
    steps: dict[str, list[int]] = field(default_factory=dict)

    def add(self, name: str, steps_ns: list[int]) -> None:
        self.medians.setdefault(name, []).append(statistics.median(steps_ns))
        self.steps.setdefault(name, []).extend(steps_ns)

    def ratio(self, name: str, *to: str) -> float:
        """Median over the turns of `name` to the mean of `to`."""
        bases = [statistics.mean(turn) for turn in zip(*(self.medians[other] for other in to))]
        return statistics.median(ours / base for ours, base in zip(self.medians[name], bases))

    def calm_ratio(self, name: str, *to: str) -> float:
        return calm_ms(self.steps[name]) / statistics.mean(calm_ms(self.steps[other]) for other in to)


def closed(run: pathlib.Path) -> dict[str, float]:
    """The facts of the one window of the run."""
    command = [
        str(TELLTALE), "query", str(run), "events", "--where", "kind = 'window.closed'", "--columns", "data",
        "--format", "json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = json.loads(done.stdout) if done.returncode == 0 else []
    if len(rows) != 1:
        print(
            f"window_cost: {len(rows)} windows were recorded, not 1: {done.stderr.strip()}", file=sys.stderr
        )
        sys.exit(2)
    facts: dict[str, float] = json.loads(rows[0]["data"])
    return facts


def one_round(name: str, model: Model, detail: str, rounds: Rounds) -> None:
    first = model.warmup + model.turn * model.turns + model.skip
    plain = [
        sys.executable, str(STEP), name, "--steps", str(model.turn), "--warmup", str(model.warmup), "--threads", "1",
    ]  # fmt: skip
    window = f"steps={first}:{first + WINDOW_STEPS};detail={detail}"
    with tempfile.TemporaryDirectory(prefix="telltale-window-") as path, contextlib.ExitStack() as stack:
        folder = pathlib.Path(path)

        def watched(label: str, *options: str) -> WatchedTrainer:
            command = [str(TELLTALE), "run", *options, "-o", str(folder / label), "--", *plain]
            trainer = WatchedTrainer(label, command, 1, folder)
            trainer.keep_grandchildren = True
            stack.enter_context(trainer)
            return trainer

        trainers = [watched("windowed", "--window", window), watched("plain"), watched("plain2")]
        for trainer in trainers:
            trainer.answer()
        for trainer in trainers:
            trainer.pause()
            stack.callback(trainer.resume)

        def turns(count: int) -> Half:
            half = Half()
            for _ in range(count):
                for trainer in trainers:
                    half.add(trainer.name, turn(trainer, model))
                trainers.append(trainers.pop(0))
            return half

        before = turns(model.turns)
        for trainer in trainers:
            steps = turn(trainer, model, skip=0)
            if trainer.name == "windowed":
                inside = steps[model.skip : model.skip + WINDOW_STEPS]
        after = turns(model.turns)
        stack.pop_all().close()
        facts = closed(folder / "windowed")
    if (facts["first"], facts["last"]) != (first, first + WINDOW_STEPS - 1):
        print(f"window_cost: the window holds steps {facts['first']} to {facts['last']}", file=sys.stderr)
        sys.exit(2)

    def more(kind: str, *names: str) -> float:
        return 100 * (getattr(after, kind)(*names) / getattr(before, kind)(*names) - 1)

    rounds.added.append(more("ratio", "windowed", "plain", "plain2"))
    rounds.plain.append(more("ratio", "plain2", "plain"))
    rounds.calm.append(more("calm_ratio", "windowed", "plain", "plain2"))
    rounds.calm_plain.append(more("calm_ratio", "plain2", "plain"))
    rounds.step_ms.append(statistics.median(after.medians["plain"]) / 1e6)
    rounds.inside_ms.append(statistics.median(inside) / 1e6)
    rounds.begin_ms.append(facts["begin_ms"])
    rounds.end_ms.append(facts["end_ms"])


def turn(trainer: Trainer, model: Model, skip: int | None = None) -> list[int]:
    """Takes a turn; its steps in ns, without the first `skip` (the model's)."""
    trainer.turn_ms(model.skip)
    return trainer.steps_ns[-model.turn :][model.skip if skip is None else skip :]


def verdict(values: list[float]) -> int:
    middle, half_width = median_interval(values)
    if half_width > MAX_HALF_WIDTH:
        return 3
    return 1 if middle - half_width > 0 else 0


def describe(values: list[float]) -> str:
    middle, half_width = median_interval(values)
    return f"{middle:+.2f} ± {half_width:.2f} %"


def main() -> int:
    parser = argparse.ArgumentParser(description="What a window does to the steps outside of it.")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--detail", default="ops", help="what the window records (docs/guide/windows.md)")
    options = parser.parse_args()
    version = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=False
    ).stdout.strip()  # fmt: skip
    if not version or int(version.split(".")[0]) < 2 or not TELLTALE.exists():
        print(
            f"window_cost: wants torch 2 (here: {version or 'none'}) and a built telltale. Run: tools/setup frameworks; "
            "make build; .venv-frameworks/bin/python bench/window_cost.py",
            file=sys.stderr,
        )
        return 2
    rounds = Rounds()
    for number in range(options.rounds):
        one_round(options.model, MODELS[options.model], options.detail, rounds)
        if sys.stdout.isatty():
            print(f"\r  {options.model}: round {number + 1}/{options.rounds}", end="", flush=True)
    if sys.stdout.isatty():
        print("\r\x1b[K", end="")
    code = verdict(rounds.calm) if options.model == "small" else verdict(rounds.added)
    step = statistics.median(rounds.step_ms)
    print(
        f"torch {version}, {options.model}, {options.rounds} rounds, a step takes {step:.2f} ms; "
        f"a window of {WINDOW_STEPS} steps with {options.detail}\n"
        f"  added to the steps after it   {describe(rounds.added):>18}   A/A {describe(rounds.plain):>18}\n"
        f"  the same in calm              {describe(rounds.calm):>18}   A/A {describe(rounds.calm_plain):>18}\n"
        f"  a step inside of it           {statistics.median(rounds.inside_ms):.2f} ms; its begin "
        f"{statistics.median(rounds.begin_ms):.1f} ms, its end {statistics.median(rounds.end_ms):.1f} ms, once\n"
        f"  {['pass: nothing that could be told from none', 'FAIL: it adds', '', 'inconclusive'][code]}"
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
