# SPDX-License-Identifier: Apache-2.0
"""What capturing on a CUDA device adds to a step, of trainings that take turns on one device.

For each model: two plain processes, and one under `telltale run` for each wish: the default plan and everything
(`--level all`), both under the default's budget of 1 %; and without a budget, so that nothing is thinned, at every step
all reductions of all weights and gradients, and histograms of them. One takes its turn at a time, whole turns between
two waits for the device, in an order that is turned round each cycle; what one adds is its turn less the mean of the
plain ones' of the same cycle, and the second plain one beside the first says how far that can be believed (A/A). Beside
it stands the physical limit: one read of the weights and gradients by torch's sum.

Runs in the Python whose torch has a device. TELLTALE_BIN names the binary, by default that of build/release.

usage: gpu_capture.py [--models A,B] [--cycles N]       exit code 2: nothing could be measured
"""

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from turns import ROOT, Trainer, fail, median_interval

TELLTALE = pathlib.Path(os.environ.get("TELLTALE_BIN", ROOT / "build/release/bin/telltale"))
# Steps of a turn, and of the warm-up, in which the governor settles too.
MODELS = {"resnet50": (20, 60), "transformer": (20, 60), "mlp": (300, 1500)}
TAKES = {"reductions": '["statistics", "more"]', "histograms": '["statistics", "histogram"]'}


def plan_of(take: str) -> str:
    return "".join(
        f"[collections.{name}]\ntake = {take}\ninterval = 1\n\n"
        for name in ("weights", "biases", "gradients")
    )


def load_torch() -> Any:
    """Untyped: what its stubs say differs by version."""
    import torch

    return torch


def make(model: str) -> tuple[Any, Any, Any]:
    """The network on the device, and one batch."""
    torch = load_torch()
    nn = torch.nn

    if model == "resnet50":
        import torchvision

        network = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
        images = torch.randn(128, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        return network, images, torch.randint(0, 1000, (128,), device="cuda")
    if model == "transformer":
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        network = nn.Sequential(nn.Embedding(32000, 1024), encoder, nn.Flatten(0, 1), nn.Linear(1024, 32000))
        tokens = torch.randint(0, 32000, (8, 512), device="cuda")
        return network.cuda(), tokens, tokens.flatten()
    # Small: what its step takes is the host's calls.
    layers: list[Any] = []
    for _ in range(8):
        layers += [nn.Linear(1024, 1024), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(1024, 10))
    return network.cuda(), torch.randn(256, 1024, device="cuda"), torch.randint(0, 10, (256,), device="cuda")


def child(model: str, steps: int, warmup: int) -> None:
    """As bench/train_step.py, but that a turn's answer is one time, the mean over its steps."""
    torch = load_torch()
    torch.manual_seed(0)
    network, inputs, targets = make(model)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)

    def train(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = criterion(network(inputs), targets)
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()

    train(warmup)
    print(json.dumps({"begin_ns": [], "step_ns": []}), flush=True)
    while sys.stdin.readline():
        begin = time.perf_counter_ns()
        train(steps)
        taken = (time.perf_counter_ns() - begin) // steps
        print(json.dumps({"begin_ns": [begin], "step_ns": [taken]}), flush=True)


def read_ms(model: str) -> tuple[float, float]:
    """One read of all weights and gradients by torch's sum, in ms, and their megabytes."""
    torch = load_torch()
    numel = sum(p.numel() for p in make(model)[0].parameters())
    # Several, so that none is found in the cache.
    copies = [torch.randn(2 * numel, device="cuda") for _ in range(8)]
    best = float("inf")
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for data in copies:
            data.sum()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / len(copies))
    return best, 8 * numel / 1e6


def report_of(run: pathlib.Path) -> tuple[int, str]:
    """Records lost by the counters, and the newest word of the governor's."""

    def rows(table: str) -> list[dict[str, Any]]:
        command = [str(TELLTALE), "query", str(run), table, "--format", "json"]
        found: list[dict[str, Any]] = json.loads(
            subprocess.run(command, capture_output=True, check=True).stdout
        )
        return found

    lost = sum(int(row["value"]) for row in rows("ledger") if row["loss"])
    said = [str(row["message"]) for row in rows("events") if row["kind"].startswith("governor")]
    return lost, said[-1] if said else ""


def measure(model: str, cycles: int) -> None:
    turn, _ = MODELS[model]
    plain = [sys.executable, str(pathlib.Path(__file__).resolve()), "--child", model]
    read, megabytes = read_ms(model)
    with tempfile.TemporaryDirectory(prefix="telltale-gpu-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        wishes: dict[str, list[str]] = {"default": ["--overhead", "1%"]}
        for wish, take in TAKES.items():
            plan = folder / f"{wish}.toml"
            plan.write_text(plan_of(take), encoding="utf-8")
            wishes[wish] = ["--plan", str(plan), "--overhead", "100%"]
        wishes["governed"] = ["--level", "all", "--overhead", "1%"]
        commands = {"plain": plain, "plain2": plain}
        for wish, options in wishes.items():
            commands[wish] = [
                str(TELLTALE),
                "run",
                "--quiet",
                *options,
                "-o",
                str(folder / wish),
                "--",
                *plain,
            ]
        trainers: list[Trainer] = []
        for each, command in commands.items():
            # One after the other: what they settle at is of a device that is theirs.
            trainers.append(stack.enter_context(Trainer(each, command, 4, folder)))
            trainers[-1].answer()
        for trainer in trainers:
            trainer.turn_ms(0)
        added: dict[str, list[float]] = {each: [] for each in commands if each != "plain"}
        base: list[float] = []
        for _ in range(cycles):
            ms = {trainer.name: trainer.turn_ms(0) for trainer in trainers}
            trainers.reverse()
            base.append((ms["plain"] + ms["plain2"]) / 2)
            for each, values in added.items():
                values.append(ms[each] - (ms["plain"] if each == "plain2" else base[-1]))
        stack.pop_all().close()
        step = statistics.median(base)
        print(
            f"{model}: {turn} steps a turn, {cycles} cycles, a step {step:.3f} ms; one read of {megabytes:.0f} MB {read:.3f} ms"
        )
        for each, values in added.items():
            middle, half = median_interval(values)
            line = f"  {each if each != 'plain2' else 'A/A':11} {middle:+8.3f} ± {half:.3f} ms  {100 * middle / step:+6.2f} %"
            if each in TAKES:
                line += f"  {middle / read:5.1f} reads"
            if each != "plain2":
                lost, said = report_of(folder / each)
                line += f"  lost {lost}" + (f"; {said}" if said else "")
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--cycles", type=int, default=9)
    parser.add_argument("--child", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, *MODELS[options.child])
        return
    try:
        torch = load_torch()
    except ImportError:
        fail("no torch in this Python")
    if not torch.cuda.is_available():
        fail("no CUDA device that torch knows")
    models = options.models.split(",")
    unknown = [model for model in models if model not in MODELS]
    if unknown:
        fail(f"--models: no model {', '.join(unknown)}: choose of {', '.join(MODELS)}")
    if "resnet50" in models and importlib.util.find_spec("torchvision") is None:
        fail(
            "resnet50 is torchvision's, which this Python has not: install it, or name --models transformer,mlp"
        )
    for model in models:
        measure(model, options.cycles)


if __name__ == "__main__":
    main()
