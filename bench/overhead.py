# SPDX-License-Identifier: Apache-2.0
"""What Telltale costs a training: step times of processes with and without it, taking turns.

Protocol. A round is three or four processes of bench/train_step.py at once: two plain ones, one watched by
`telltale run` (default plan; agent, watcher and server running; none of its streams a terminal), and one under smdebug's
hook that saves nothing. They start and warm up one after the other, in an order that is drawn for every round, for at
least 50 steps, and then only one of them runs at a time: a turn of a few steps each, in an order that is drawn for every cycle of turns (from a fixed
seed; nobody twice in a row), the rest waiting for their turn. What the machine does by itself lasts longer than a turn
and so hits all of them alike, which processes one after the other do not achieve: on a machine with neighbours two
plain ones differ by 10 %. A turn's result is the median of its steps without the first ones (caches that the others have
filled). All have the same number of threads in torch and in OpenBLAS, whose own default is one a core: they wait in a
busy loop and take the core from everything else. With one thread the main threads of all but smdebug's stay on one
core after the warm-up; agent and watcher run where they like, as a rule on another one, which so is always free for
them. All get their large blocks in huge pages: with small ones two plain processes differ by 2 % for as long as they
live (measured here: 0.9 % then), by the luck of the pages they got.

Where a step is long, what the machine does changes within it, and whole steps are too long a turn: the trainings of
"resnet18", "transformer" and "mlp" make their steps in slices of 5 ms (slices.py), in which only one of
them runs; a step's time is what it had of its process's slices, a cycle the same step of each. Under the
default plan the agent runs all through.
What is left of a step is 2 to 4 % (standard deviation) that two processes differ by, another one at the next step, and
some 0.5 % for as long as they live, so a turn is of many steps. smdebug is in every third round. All that is Telltale's
runs beside all of them there, and what it slows a training down by is added: its share of a core times what a core that
computes all the time slows a training by, measured in the first rounds by one in whose slices another core does. (The
watched one has a quarter of the time there, so of the helpers' share what comes with each step is a quarter too.)

A cycle of turns gives a ratio of the watched process to each of the two plain ones and one A/A
ratio of the second plain one to the first; a round's ratio is the median of its cycles, plus what the
statistics of weights and gradients take, which come once in 100 steps and so not into a median: by how much the
steps that have them are longer than the watched process's others at the same place of a turn, over 100 steps. Over the rounds: the median and the
half-width of its distribution-free 95 % interval (order statistics of the binomial). Passes where the median is within
the limit and the half-width is at most 0.5 points; fails where even the median less the half-width is above the
limit, or where it can tell and the median is; else, or with fewer than 20 rounds, or where two plain processes
differ by more than 0.5 points for certain, it is inconclusive.

Beside it, "whole turns": the same with the sums of whole turns in place of medians, first steps included, where what
the agent and the watcher do as soon as they may run again shows too. "In calm": of the 2nd percentile of all of a process's
counted steps in a round, in place of the cycles. Neighbours on the machine only ever add to a step's time (0.53 ms of
the small network in calm, 0.85 in the median of the same minute), so the fastest steps of processes that take turns are
those which none of them touched; a cost that only some steps have does not show there. "Accounted": what the probe
says by itself (probe_ns of a step, and the statistics' share): it is what the page shows and the governor keeps below
--overhead, and less than what is measured, since the framework's dispatch to the hooks and what their calls do to the
caches are not in it. "Helpers": what Telltale's own processes take of a core in the watched one's turns.

With --level all everything is asked for at every step, and the governor has to keep it inside its budget of 1 %:
what capturing took is then measured on the steps that captured, beside the watched process's others. These trainings
go by slices too. They warm up under the default plan; then the watched one alone is asked for everything by `telltale
capture`, and goes on by itself for some turns, for the governor to settle: what it finds while others have the core
too, it would give back only over hundreds of steps. Then the agent is stopped until the slices are over: in them a step
is three times as long by the clock, beside captures that it knows from before, and it would take them twice as often.
What it left holds in the slices ("stretch"; each round's report has to say what was thinned), and what a capture takes
is spread over so many steps. A round without a capture in its slices is taken again, which leaves out the cheapest. "Helpers" is of the turns by itself.

All of Telltale's own processes are stopped (SIGSTOP) while it is not the watched one's turn, so that the plain
ones are as without it.

It goes on after --rounds, up to --max-rounds, until the interval is narrow enough. That looks only at the
interval's width, not at where it lies.

usage: overhead.py [--rounds N] [--max-rounds N] [--models LIST] [--level LEVEL] [--threads LIST] [--threads-rounds N] [--quick] [--no-smdebug] [--json FILE] [--go-on]
exit code 0: all passed, 1: a limit was exceeded, 2: could not measure, 3: something was inconclusive
"""

import argparse
import collections.abc
import contextlib
import functools
import hashlib
import html
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from slices import BusyTrainer, take_slices
from smdebug_peer import smdebug_python
from turns import (
    ROOT,
    STEP,
    TELLTALE,
    Trainer,
    WatchedTrainer,
    calm_ms,
    fail,
    histogram_threads,
    median_interval,
    query,
)

CPUINFO = pathlib.Path("/proc/cpuinfo")
BLAS = pathlib.Path("/usr/lib/x86_64-linux-gnu/libblas.so.3")
MAX_HALF_WIDTH = 0.5
MIN_ROUNDS = 20
MAX_AGAIN = 20


DEFAULT_LEVEL = "steps"
STATISTICS_EVERY = 100  # Steps; the default plan's.
SMDEBUG_EVERY = 3
BUSY_ROUNDS = 6  # With a training beside a busy core, where they go by slices.


@dataclass(frozen=True)
class Model:
    limit_percent: float
    warmup: int
    turn: int  # Steps of a turn; of GOVERNED's more than lie between two captures as a rule.
    skip: int  # First steps of a turn that do not count.
    cycles: int
    settle: int = 0  # Turns that the watched one takes by itself, under --level, before those that count.
    sliced: bool = False  # One turn, in slices within its steps: slices.py.


# warmup + turn * cycles is beyond STATISTICS_EVERY, so that each run has statistics at least once.
MODELS = {
    "small": Model(limit_percent=3.0, warmup=200, turn=40, skip=10, cycles=240),
    "transformer": Model(limit_percent=1.0, warmup=50, turn=100, skip=0, cycles=1, sliced=True),
    "resnet18": Model(limit_percent=1.0, warmup=50, turn=60, skip=0, cycles=1, sliced=True),
}
# With --level all, where the governor has to thin out: it may take its budget of 1 % and a fifth.
GOVERNED_LIMIT_PERCENT = 1.2
GOVERNED = {
    "mlp": Model(GOVERNED_LIMIT_PERCENT, warmup=50, turn=75, skip=0, cycles=1, settle=6, sliced=True),
    "transformer": Model(GOVERNED_LIMIT_PERCENT, warmup=50, turn=75, skip=0, cycles=1, settle=6, sliced=True),
    "resnet18": Model(GOVERNED_LIMIT_PERCENT, warmup=20, turn=50, skip=0, cycles=1, settle=3, sliced=True),
}


@dataclass
class Ratios:
    """Percent above 1 of each round, and what goes with them."""

    watched: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    smdebug: list[float] = field(default_factory=list)
    plain_ms: list[float] = field(default_factory=list)
    statistics: list[float] = field(default_factory=list)  # Percent; contained in `watched`.
    accounted: list[float] = field(default_factory=list)  # Percent, as the probe says; with `statistics`.
    # The same two by the steps in calm (see calm_ms); the watched one holds `statistics` too.
    calm: list[float] = field(default_factory=list)
    calm_plain: list[float] = field(default_factory=list)
    calm_ms: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)  # As `watched`, by whole turns.
    stretch: list[float] = field(
        default_factory=list
    )  # The governor's, at the end; with --level all in the slices.
    again: int = 0  # Rounds that were taken again: with --level all, what costs less than the others.
    exceeded: list[int] = field(default_factory=list)  # How often it had nothing left to stretch.
    thinned: list[str] = field(default_factory=list)  # What the report says of that; with --level all alone.
    # Of each round: what the medians are of.
    cycles: list[dict[str, list[float]]] = field(default_factory=list)
    steps_ns: list[dict[str, list[int]]] = field(default_factory=list)  # Of all turns, of each process.
    # Telltale's processes in the watched one's turns, percent of a core.
    helpers: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)  # Percent that a busy core beside it slows a training by.
    # What the rounds were made with: rounds of another protocol are not to be counted with them.
    protocol: dict[str, Any] = field(default_factory=dict)


def accounted_percent(run: pathlib.Path, step_ms: float) -> float:
    """What the probe says it took: of a step in all, and of that what the steps with statistics take more
    than the others, spread over all; percent of a step."""
    probe = {int(step): int(ns) for step, ns in query(run, "steps", "step,probe_ns")}
    captured = captured_steps(run) & probe.keys()
    if not captured:
        fail(f"{run} has no statistics: were there fewer than {STATISTICS_EVERY} steps?")
    usual = statistics.median(probe.values())
    extra_ns = statistics.median(probe[step] for step in captured) - usual
    step_ns = step_ms * 1e6
    return 100 * (usual + extra_ns / STATISTICS_EVERY) / step_ns


def captured_steps(run: pathlib.Path) -> set[int]:
    return {int(step) for (step,) in query(run, "statistics", "step")}


def governor_says(run: pathlib.Path) -> tuple[float, int]:
    """The stretch of all intervals, where the governor has left it (1: it has changed nothing), and how often it said
    that it has nothing left to take less often."""
    rows = query(run, "events", "kind,data")
    stretches = [json.loads(data)["stretch"] for kind, data in rows if kind == "governor"]
    return float(stretches[-1]) if stretches else 1.0, sum(kind == "budget.exceeded" for kind, _ in rows)


def governed_percent(run: pathlib.Path, warmup: int) -> float:
    """What the probe says it took of the steps after the warm-up, as the governor sees it: of the time by the wall
    clock, in which the others' slices are both in the steps and in what the probe did."""
    rows = query(run, "steps", "step,duration_ns,probe_ns")
    steps = sorted((int(step), int(duration), int(probe)) for step, duration, probe in rows)
    # The last one lasts until the others are done too.
    counted = [one for one in steps[:-1] if one[0] >= warmup]
    return 100 * sum(probe for _, _, probe in counted) / sum(duration for _, duration, _ in counted)


def report_of(run: pathlib.Path) -> str:
    """The run's page."""
    page = run.with_suffix(".html")
    command = [str(TELLTALE), "report", str(run), "-o", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"{' '.join(command)}: {done.stderr.strip()}")
    return page.read_text(encoding="utf-8")


def thinned_words(page: str) -> str:
    """What a report says was taken less often or no more, at last; "" where it says nothing."""
    said = re.findall(
        r"tensors are taken \d+ times less often than planned \([^<)]*\)|not taken any more: [^<]*", page
    )
    return html.unescape(said[-1]) if said else ""


def captured_percent(
    captured: set[int], steps_ns: list[int], turn: int, warmup: int, every: int | None, step_ms: float
) -> float:
    """What capturing took of a step, by the times of the turns' steps at which the plan took anything, beside the
    median of the others at the same place of a turn (its first step finds the caches filled by others): spread over all
    steps of the turns, or over `every` steps where it comes once in so many. Not by the probe's account, which it
    is to check."""
    times = list(enumerate(steps_ns, start=warmup))
    others: list[list[int]] = [[] for _ in range(turn)]
    for step, ns in times:
        if step not in captured:
            others[(step - warmup) % turn].append(ns)
    usual = [statistics.median(same or steps_ns) for same in others]
    more = [ns - usual[(step - warmup) % turn] for step, ns in times if step in captured]
    if not more:
        return 0.0
    per_step = statistics.mean(more) / every if every else sum(more) / len(times)
    return 100 * per_step / (step_ms * 1e6)


def start_order(names: list[str], number: int) -> list[str]:
    """In which order the processes of a round are started: each as likely as any other."""
    return random.Random(-1 - number).sample(names, len(names))


def orders(names: list[str], seed: int) -> collections.abc.Iterator[list[str]]:
    """An order of turns a cycle, for ever: whoever was last is not first, so that nobody takes two turns in a row
    and finds the caches filled; who comes after whom is drawn, so that nobody always meets the same one's."""
    drawn = random.Random(seed)
    order = list(names)
    while True:
        last = order[-1]
        drawn.shuffle(order)
        while order[0] == last:
            drawn.shuffle(order)
        yield list(order)


def one_round(
    model: Model, arguments: list[str], threads: int, level: str, smdebug: str | None, ratios: Ratios
) -> None:
    plain = [sys.executable, *arguments]
    with tempfile.TemporaryDirectory(prefix="telltale-overhead-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        run = folder / "run"
        commands = {
            "plain": plain,
            "plain2": plain,
            "watched": [str(TELLTALE), "run", "-o", str(run), "--", *plain],
        }
        number = len(ratios.watched)
        # Of rounds by slices there are many, and what is beside them needs no interval as narrow.
        if smdebug and not (model.sliced and number % SMDEBUG_EVERY):
            commands["smdebug"] = [smdebug, *arguments, "--smdebug", str(folder / "smdebug")]
        if model.sliced and number < BUSY_ROUNDS:
            commands["busy"] = plain
        settled = model.warmup + model.settle * model.turn
        trainers: dict[str, Trainer] = {}
        # Which memory a process finds for the rest of its life must not hang on what it is.
        for one in start_order(list(commands), number):
            if one == "watched":
                trainers[one] = watched = WatchedTrainer(one, commands[one], threads, folder)
            else:
                kind = BusyTrainer if one == "busy" else Trainer
                trainers[one] = kind(one, commands[one], threads, folder)
            stack.enter_context(trainers[one])
            if not model.sliced:
                ready(trainers[one], stack)
        if model.sliced:
            for trainer in trainers.values():
                ready(trainer, stack)
        if level != DEFAULT_LEVEL:
            stretch = settle(watched, run, level, model.settle)
        cycles: dict[str, list[float]] = {"watched": [], "plain": [], "smdebug": [], "busy": []}
        plain_ms = []
        for ms in cycles_ms(model, trainers, seed=number):
            base = (ms["plain"] + ms["plain2"]) / 2
            plain_ms.append(base)
            cycles["plain"].append(100 * (ms["plain2"] / ms["plain"] - 1))
            for one in ("watched", "smdebug", "busy"):
                if one in ms:
                    cycles[one] += to_each_plain(ms[one], ms["plain"], ms["plain2"])
        stack.pop_all().close()  # The run is whole from here on.
        # Within a turn by slices every step is like the others.
        turn = 1 if model.sliced else model.turn
        step_ms = statistics.median(plain_ms)
        captured = captured_steps(run)
        if level == DEFAULT_LEVEL:
            accounted = accounted_percent(run, step_ms)
            # Where the governor has stretched that, none may be in the turns, and the line below says so.
            every = round(STATISTICS_EVERY * governor_says(run)[0])
            extra = captured_percent(captured, watched.steps_ns, turn, settled, every, step_ms)
        else:
            accounted = governed_percent(run, settled)
            every = round(stretch)
            extra = captured_percent(captured, watched.steps_ns, turn, settled, every, step_ms)
            if not any(step >= settled for step in captured):
                print(
                    f"  a round is taken again: it took something each {every} steps, none of them its turn's"
                )
                ratios.again += 1
                return
            if stretch > 1:
                ratios.thinned.append(thinned_words(report_of(run)))
        ratios.plain_ms.append(step_ms)
        ratios.cycles.append(cycles)
        ratios.steps_ns.append({name: trainer.steps_ns for name, trainer in trainers.items()})
        ratios.statistics.append(extra)
        ratios.accounted.append(accounted)
        ratios.helpers.append(100 * watched.helpers_ns / (watched.turns_s * 1e9))
        at_last, exceeded = governor_says(run)
        ratios.stretch.append(at_last if level == DEFAULT_LEVEL else stretch)
        ratios.exceeded.append(exceeded)
        ratios.watched.append(statistics.median(cycles["watched"]) + extra)
        ratios.plain.append(statistics.median(cycles["plain"]))
        calm = {name: calm_ms(trainer.counted_ns) for name, trainer in trainers.items()}
        base = (calm["plain"] + calm["plain2"]) / 2
        ratios.calm_ms.append(base)
        # What capturing takes is in percent of the usual step.
        ratios.calm.append(100 * (calm["watched"] / base - 1) + extra * step_ms / base)
        ratios.calm_plain.append(100 * (calm["plain2"] / calm["plain"] - 1))
        of_turns = {name: trainer.steps_ns for name, trainer in trainers.items()}
        if model.sliced:  # One turn, which would hold `extra` already.
            plan_took = [step - settled for step in captured]
            of_turns = {name: without(times, plan_took) for name, times in of_turns.items()}
            turn = len(of_turns["plain"])
        whole = {name: whole_turns(times, turn) for name, times in of_turns.items()}
        ratios.whole.append(
            extra
            + statistics.median(
                ratio
                for times in zip(whole["watched"], whole["plain"], whole["plain2"], strict=True)
                for ratio in to_each_plain(*times)
            )
        )
        if cycles["smdebug"]:
            ratios.smdebug.append(statistics.median(cycles["smdebug"]))
        if cycles["busy"]:
            ratios.busy.append(statistics.median(cycles["busy"]))


def to_each_plain(one: float, plain: float, plain2: float) -> list[float]:
    """Percent above each of them, and not above their mean: a machine now and then makes a step much longer, so the mean
    of two lies above the median of one, and what costs nothing would come out below nothing."""
    return [100 * (one / plain - 1), 100 * (one / plain2 - 1)]


def ready(trainer: Trainer, stack: contextlib.ExitStack) -> None:
    """Waits for the end of its warm-up."""
    trainer.answer()
    if isinstance(trainer, WatchedTrainer):
        trainer.pause()
        stack.callback(trainer.resume)


def settle(watched: WatchedTrainer, run: pathlib.Path, level: str, turns: int) -> float:
    """Asks the watched one for another level, and lets it go on by itself for so many turns: until the governor is where
    it would be without the others. Gives the stretch that it leaves."""
    watched.resume()
    command = [str(TELLTALE), "capture", str(run), "--level", level]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"{' '.join(command)}: {done.stderr.strip()}")
    free = False
    for _ in range(turns):
        watched.go()
        while not watched.has_answered():
            free = free or free_helper(watched)
            time.sleep(0.002)
        watched.answer()
    if not free:
        fail(f"{run} has no thread that makes histograms, after {turns} turns under --level {level}")
    watched.turn_ends(watched.resumed_at)
    return governor_says(run)[0]


def free_helper(watched: WatchedTrainer) -> bool:
    """Lets the thread that makes histograms run where it likes, as it does where it is there before train_step.py keeps
    its main thread, and so the threads that this one makes, on a core; False: it is not there yet."""
    for task in (task for pid in watched.processes() for task in histogram_threads(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), os.sched_getaffinity(0))
            return True
    return False


def beside_percent(ratios: Ratios) -> float:
    """What Telltale's own processes slow a training down by that runs beside them, where that is not in the rounds'
    ratios: percent of a step."""
    return statistics.median(ratios.busy) * statistics.median(ratios.helpers) / 100 if ratios.busy else 0.0


def cycles_ms(
    model: Model, trainers: dict[str, Trainer], seed: int
) -> collections.abc.Iterator[dict[str, float]]:
    """What a step takes in each of them, in ms, a cycle of turns or, by slices, a step of all after the other."""
    if not model.sliced:
        for order in itertools.islice(orders(list(trainers), seed), model.cycles):
            yield {name: trainers[name].turn_ms(model.skip) for name in order}
        return
    take_slices(trainers, seed, watching=model.settle == 0)
    for times in zip(*(trainer.steps_ns for trainer in trainers.values()), strict=True):
        yield {name: ns / 1e6 for name, ns in zip(trainers, times, strict=True)}


def without(steps_ns: list[int], left_out: collections.abc.Collection[int]) -> list[int]:
    return [ns for step, ns in enumerate(steps_ns) if step not in left_out]


def whole_turns(steps_ns: list[int], turn: int) -> list[int]:
    """What each turn took, all of its steps together."""
    return [sum(steps_ns[first : first + turn]) for first in range(0, len(steps_ns), turn)]


# Called after each round: hours of measuring are not to be lost with the session.
Keep = collections.abc.Callable[[Ratios], None]


@functools.cache
def subject() -> dict[str, str]:
    """What is measured, with what, where: rounds of different ones do not belong together."""
    files = [TELLTALE, TELLTALE.parents[1] / "lib/telltale/python/telltale/_probe.abi3.so", STEP]
    files += sorted((TELLTALE.parents[1] / "lib/telltale/python").rglob("*.py"))
    files += [ROOT / "bench/turns.py", ROOT / "bench/slices.py", pathlib.Path(__file__)]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes() if file.exists() else b"")
    cpu = [line for line in CPUINFO.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
    return {
        "files": digest.hexdigest()[:16],
        "cpu": cpu[0].partition(":")[2].strip() if cpu else "",
        "python": sys.version,
    }


def models_of(level: str) -> dict[str, Model]:
    return MODELS if level == DEFAULT_LEVEL else GOVERNED


def measure(name: str, threads: int, options: argparse.Namespace, smdebug: str | None, keep: Keep) -> Ratios:
    model = models_of(options.level)[name]
    arguments = [
        str(STEP), name, "--steps", str(model.turn), "--warmup", str(model.warmup), "--threads", str(threads),
    ]  # fmt: skip
    protocol = {"level": options.level, "smdebug": smdebug is not None, **asdict(model), **subject()}
    kept = kept_rounds(options).get(f"{name}/{threads}")
    if kept is not None and kept.get("protocol") != protocol:
        fail(
            f"the rounds of {name} in {options.json} are of another protocol or machine ({kept.get('protocol')}) "
            f"than these ({protocol}). Run as before, or without --go-on"
        )
    ratios = Ratios(**kept) if kept is not None else Ratios(protocol=protocol)
    while True:
        number = len(ratios.watched)
        enough = threads != 1 or number >= options.max_rounds
        if number >= options.rounds and (enough or can_tell(ratios.watched)):
            break
        if sys.stdout.isatty():
            print(f"\r  {name}, {threads} thread(s): round {number + 1}", end="", flush=True)
        one_round(model, arguments, threads, options.level, smdebug, ratios)
        if ratios.again > MAX_AGAIN:
            fail(f"{ratios.again} rounds of {name} took no tensor in their turns: is the machine quiet?")
        keep(ratios)
    if sys.stdout.isatty():
        print("\r\x1b[K", end="")
    return ratios


def kept_rounds(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What an interrupted run with the same options has left in --json, where it is to be gone on with."""
    path = pathlib.Path(options.json)
    if not options.go_on or not path.exists():
        return {}
    kept: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def can_tell(values: list[float]) -> bool:
    return median_interval(values)[1] <= MAX_HALF_WIDTH


def verdict(values: list[float], plain: list[float], limit: float) -> str:
    """Of the rounds' ratios and their A/A ratios, in percent."""
    middle, half_width = median_interval(values)
    if middle - half_width > limit or (middle > limit and half_width <= MAX_HALF_WIDTH):
        return "FAIL"
    plain_middle, plain_half_width = median_interval(plain)
    crooked = abs(plain_middle) - plain_half_width > MAX_HALF_WIDTH
    if len(values) < MIN_ROUNDS or half_width > MAX_HALF_WIDTH or crooked:
        return "inconclusive"
    return "pass"


def describe(values: list[float]) -> str:
    if not values:
        return "-"
    middle, half_width = median_interval(values)
    return f"{middle:+.2f} ± {half_width:.2f} %"


def check_can_measure() -> None:
    if not TELLTALE.exists():
        fail(f"{TELLTALE} is missing; run: make build")
    if "openblas" not in str(BLAS.resolve()):
        fail(f"{BLAS} is not OpenBLAS; the reference BLAS would flatter every ratio. Run: tools/setup test")
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"overhead: the machine is not quiet (load {load:.1f}); expect wide intervals")


def main() -> int:
    parser = argparse.ArgumentParser(description="Overhead of the default plan on real trainings.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--max-rounds",
        type=int,
        default=40,
        help="go on beyond --rounds up to here until the interval is narrow enough (default 40)",
    )
    parser.add_argument("--models", help="comma-separated: " + ", ".join({**MODELS, **GOVERNED}))
    parser.add_argument(
        "--level",
        choices=[DEFAULT_LEVEL, "all"],
        default=DEFAULT_LEVEL,
        help=f"capture level; all: limit {GOVERNED_LIMIT_PERCENT:g} %%",
    )
    parser.add_argument("--threads", default="1,2", help="torch threads; limits hold for 1")
    parser.add_argument("--threads-rounds", type=int, help="rounds where threads is not 1; default a third")
    parser.add_argument("--quick", action="store_true", help="6 rounds: does it run at all (nothing passes)")
    parser.add_argument("--no-smdebug", action="store_true")
    parser.add_argument("--json", default=str(ROOT / "build/overhead.json"), help="raw ratios go here")
    parser.add_argument(
        "--go-on", action="store_true", help="with the rounds that --json has from a run before"
    )
    options = parser.parse_args()
    # Its trainings are stopped or wait: they are to end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.quick:
        options.rounds = options.max_rounds = min(options.rounds, 6)
    check_can_measure()
    smdebug = None if options.no_smdebug else smdebug_python()

    columns = shutil.get_terminal_size((180, 24)).columns
    print(
        f"{'model':<12} {'threads':>7} {'step':>9} {'telltale':>18} {'accounted':>10} {'A/A':>18} {'in calm':>18}"
        f" {'A/A in calm':>18} {'whole turns':>18} {'smdebug':>18}"
        f" {'statistics':>10} {'stretch':>8} {'helpers':>8}  verdict"[:columns]
    )
    raw = kept_rounds(options)
    pathlib.Path(options.json).parent.mkdir(parents=True, exist_ok=True)

    def keep(name: str, threads: int, ratios: Ratios) -> None:
        raw[f"{name}/{threads}"] = vars(ratios)
        written = pathlib.Path(f"{options.json}.tmp")
        written.write_text(json.dumps(raw), encoding="utf-8")
        written.replace(options.json)

    names = (options.models or ",".join(models_of(options.level))).split(",")
    if unknown := set(names) - set(models_of(options.level)):
        fail(
            f"--level {options.level} has no model {', '.join(sorted(unknown))}: {', '.join(models_of(options.level))}"
        )
    said_all = set()
    all_rounds = options.rounds
    for threads in [int(t) for t in options.threads.split(",")]:
        options.rounds = all_rounds if threads == 1 else options.threads_rounds or max(6, all_rounds // 3)
        for name in names:
            ratios = measure(name, threads, options, smdebug, functools.partial(keep, name, threads))
            model = models_of(options.level)[name]
            limit = model.limit_percent
            beside = beside_percent(ratios)
            watched, calm, whole = (
                [value + beside for value in values] for values in (ratios.watched, ratios.calm, ratios.whole)
            )
            said = verdict(watched, ratios.plain, limit) if threads == 1 else "beside"
            if (unsaid := sum(not words for words in ratios.thinned)) and threads == 1:
                said = "FAIL"
            said_all.add(said)
            print(
                f"{name:<12} {threads:>7} {statistics.median(ratios.plain_ms):>6.2f} ms"
                f" {describe(watched):>18} {statistics.median(ratios.accounted):>8.2f} %"
                f" {describe(ratios.plain):>18}"
                f" {describe(calm):>18} {describe(ratios.calm_plain):>18} {describe(whole):>18}"
                f" {describe(ratios.smdebug):>18} {statistics.median(ratios.statistics):>8.2f} %"
                f" {statistics.median(ratios.stretch):>8.1f} {statistics.median(ratios.helpers):>6.2f} %  {said} (limit {limit:g} %)",
                flush=True,
            )
            if ratios.busy:
                print(
                    f"  a busy core beside a training slows it by {statistics.median(ratios.busy):.1f} %:"
                    f" of telltale's figures {beside:.2f} % are that, by the helpers' share"
                )
            if unsaid:
                print(
                    f"  the report of {unsaid} of {len(ratios.thinned)} rounds does not say what was thinned"
                )
            elif ratios.thinned:
                print(f"  the last round's report: {ratios.thinned[-1]}")
            if options.level == DEFAULT_LEVEL and (thinned := sum(stretch > 1 for stretch in ratios.stretch)):
                print(
                    f"  in {thinned} of {len(ratios.stretch)} rounds the governor thinned the statistics at the end"
                )
            if over := sum(1 for times in ratios.exceeded if times):
                print(
                    f"  in {over} of {len(ratios.exceeded)} rounds the governor had nothing left to take less often"
                )
    return 1 if "FAIL" in said_all else 3 if "inconclusive" in said_all else 0


if __name__ == "__main__":
    sys.exit(main())
