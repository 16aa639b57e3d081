# SPDX-License-Identifier: Apache-2.0
"""What the agent takes while it samples every 100 ms: of this machine with a small training (`agent`), and of a large
node made of files (`node`).

usage: agent_cost.py agent|node [SECONDS]    exit code 1 beyond a limit
The agent's share is of its steady state; with the sealing of what was recorded, once at the end, it stands beside.

The first is run once more without a GPU, and beside it at the same time and at the same period:
- a psutil loop for the same metrics that writes its samples as JSON lines. What psutil does not have (pressure, control
  group, page faults, run queues, TCP) it reads from the files; the records of the training are the agent's alone;
- our sampler with what psutil itself has, without writing, beside that part of the loop;
- bare reads of the same files: what the kernel takes to make their texts, which nobody can do without.
Both that agent and the sampler alone may take a fifth of what the loop takes.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import machine_tree

ROOT = pathlib.Path(__file__).resolve().parents[1]
TELLTALE = ROOT / "build/release/bin/telltale"
TRAINER = ROOT / "build/release/tests/steady_trainer"
SAMPLER_LOOP = ROOT / "build/release/bench/sampler_loop"
FAKE_NVML = ROOT / "build/release/tests/fake_nvml"
PYTHON = "/usr/bin/python3"  # Debian's has psutil; nothing of ours is loaded.
INTERVAL_MS = 100
WARM_UP_S = 5.0
MOST_PRIVATE_MIB = 128
MOST_PERCENT = {"agent": 1.0, "node": 3.0}
LEAST_RATIO = 5.0
RECORDS_A_SECOND = 2000
TICKS = os.sysconf("SC_CLK_TCK")
# Loader workers that read a little, beside the training.
WORKER_COUNT = 4
WORKERS = """
import os, time
for _ in range(int(os.environ['WORKERS'])):
    if os.fork() == 0:
        with open(os.environ['TRAINED'], 'rb') as data:
            while os.getppid() != 1:
                data.seek(0)
                data.read(65536)
                time.sleep(0.02)
        os._exit(0)
os.execv(os.environ['TRAINER'], [os.environ['TRAINER'], os.environ['FOLDER'], os.environ['RATE'], os.environ['LASTS']])
"""


def cpu_s(pid: int) -> float | None:
    """User and system time of all threads; a zombie keeps it, in ticks, until it is reaped."""
    with contextlib.suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3): nanoseconds.
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS


def private_mib(pid: int) -> float:
    kib = 0
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:")):
            kib += int(line.split()[1])
    return kib / 1024


def child_of(supervisor: int, is_agent: bool) -> int:
    """Pid of the supervisor's agent, or of the training, once it is there."""
    for _ in range(500):
        for child in pathlib.Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
            words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            ours = words[0].endswith(b"telltale")
            if (ours and words[1:2] == [b"agent"]) if is_agent else (words[0] != b"" and not ours):
                return int(child)
        time.sleep(0.02)
    sys.exit("agent_cost: the agent or the training did not start")


class Measured:
    """The agent from the end of its warm-up on."""

    def __init__(self, run: subprocess.Popen[bytes], seconds: float) -> None:
        agent = child_of(run.pid, is_agent=True)
        time.sleep(WARM_UP_S)
        begin, begin_cpu = time.monotonic(), cpu_s(agent)
        time.sleep(seconds)
        self.seconds = time.monotonic() - begin
        end_cpu = cpu_s(agent)
        if begin_cpu is None or end_cpu is None:
            sys.exit("agent_cost: the agent has ended")
        self.percent = 100 * (end_cpu - begin_cpu) / self.seconds
        self.private_mib = private_mib(agent)
        last = end_cpu
        while (now := cpu_s(agent)) is not None and run.poll() is None:
            last = now
            time.sleep(0.01)
        self.sealed_percent = 100 * (last - begin_cpu) / self.seconds
        if run.wait() != 0:
            sys.exit(f"agent_cost: telltale run ended with exit code {run.returncode}")

    def show(self, what: str, limit: float) -> bool:
        print(
            f"  {what:22} {self.percent:7.3f} % of a core (limit {limit:g}), {self.sealed_percent:.3f} with the sealing "
            f"at the end; private memory {self.private_mib:.1f} MiB (limit {MOST_PRIVATE_MIB})"
        )
        return self.percent <= limit and self.private_mib <= MOST_PRIVATE_MIB


def rows_of(run: pathlib.Path) -> int:
    done = subprocess.run(
        [TELLTALE, "query", run, "ledger", "--format", "json"], capture_output=True, text=True, check=True
    )
    rows = (
        json.loads(done.stdout) if done.stdout.startswith("[") else map(json.loads, done.stdout.splitlines())
    )
    return max((row["value"] for row in rows if row["name"] == "agent.rows"), default=0)


def command(out: pathlib.Path, *what: object) -> list[str]:
    return [
        str(TELLTALE),
        "run",
        "--quiet",
        "--interval",
        str(INTERVAL_MS),
        "-o",
        str(out),
        "--",
        *map(str, what),
    ]


def await_workers(training: int, count: int) -> None:
    for _ in range(500):
        if len(pathlib.Path(f"/proc/{training}/task/{training}/children").read_text().split()) == count:
            return
        time.sleep(0.02)
    sys.exit("agent_cost: the training has not started its workers")


class Loop:
    """A loop beside the agent that samples the same processes; it is measured for so many seconds."""

    def __init__(self, what: list[object]) -> None:
        self.words = [str(word) for word in what]
        self.process = subprocess.Popen(self.words, stdout=subprocess.PIPE)

    def result(self) -> dict[str, float]:
        out = self.process.communicate()[0]
        if self.process.returncode != 0:
            sys.exit(f"agent_cost: {self.words} ended with exit code {self.process.returncode}")
        return dict(json.loads(out))


def agent(folder: pathlib.Path, seconds: float) -> bool:
    (folder / "go").touch()
    (folder / "data").write_bytes(os.urandom(65536))
    (folder / "gpus").write_text("utilization 87\nmemory_used 60000000000\n")
    lasts = seconds + WARM_UP_S
    environment = os.environ | {
        "TRAINER": str(TRAINER), "WORKERS": str(WORKER_COUNT), "FOLDER": str(folder), "RATE": str(RECORDS_A_SECOND),
        "LASTS": str(int(lasts + WARM_UP_S)), "TRAINED": str(folder / "data"),
    }  # fmt: skip
    gpus = {"LD_LIBRARY_PATH": str(FAKE_NVML), "TELLTALE_FAKE_NVML": str(folder / "gpus")}

    run = subprocess.Popen(command(folder / "all", PYTHON, "-c", WORKERS), env=environment | gpus)
    await_workers(child_of(run.pid, is_agent=False), WORKER_COUNT)
    fine = Measured(run, seconds).show("agent, 100 ms", MOST_PERCENT["agent"])

    run = subprocess.Popen(command(folder / "run", PYTHON, "-c", WORKERS), env=environment)
    training = child_of(run.pid, is_agent=False)
    await_workers(training, WORKER_COUNT)
    peer = Loop([PYTHON, ROOT / "bench/sampler_psutil.py", "--tree", training, lasts, folder / "lines"])
    loops = {how: Loop([SAMPLER_LOOP, how, training, lasts]) for how in ("sampler", "bare")}
    measured = Measured(run, seconds)
    psutil = peer.result()
    ours, bare = (loops[how].result()["percent_of_a_core"] for how in ("sampler", "bare"))
    whole, writing, beyond = (
        psutil[key] for key in ("percent_of_a_core", "writing_percent", "beyond_percent")
    )
    common = whole - writing - beyond
    alike, of_agent = common / max(ours, 1e-9), whole / max(measured.percent, 1e-9)
    print(
        f"  the same without GPU   {measured.percent:7.3f} %\n"
        f"  loop with psutil       {whole:7.3f} %, of it {writing:.3f} to write JSON lines and {beyond:.3f} for what psutil "
        f"does not have: x {of_agent:.1f} of the agent without GPU (at least {LEAST_RATIO:g}); without what psutil does "
        f"not have x {(whole - beyond) / max(measured.percent, 1e-9):.1f}\n"
        f"  our sampler alone      {ours:7.3f} %, with the metrics that psutil has itself, no writing: psutil takes "
        f"{common:.3f} %, x {alike:.1f} (at least {LEAST_RATIO:g})\n"
        f"  bare reads             {bare:7.3f} % of the files of these metrics: the kernel's part of both"
    )
    return fine and min(alike, of_agent) >= LEAST_RATIO


@contextlib.contextmanager
def moving(root: pathlib.Path) -> Iterator[None]:
    """The cores of the node work: /proc/stat goes on every 50 ms."""
    stop = threading.Event()

    def move() -> None:
        with (root / "proc/stat").open("r+b", buffering=0) as out:
            round_ = 0
            while not stop.wait(0.05):
                round_ += 1
                os.pwrite(out.fileno(), machine_tree.stat_text(round_).encode(), 0)

    thread = threading.Thread(target=move)
    thread.start()
    yield
    stop.set()
    thread.join()


def node(folder: pathlib.Path, seconds: float) -> bool:
    root = folder / "node"
    root.mkdir()
    machine_tree.make(root)
    last = int(pathlib.Path("/proc/loadavg").read_text().split()[4])
    machine_tree.stand_for_root(root, range(last + 1, last + 3001))
    (folder / "gpus").write_text(machine_tree.gpu_script())
    environment = os.environ | {
        "TELLTALE_SYSTEM_ROOT": str(root), "LD_LIBRARY_PATH": str(FAKE_NVML),
        "TELLTALE_FAKE_NVML": str(folder / "gpus"),
    }  # fmt: skip
    with moving(root):
        run = subprocess.Popen(
            command(folder / "run", "sleep", int(seconds + 2 * WARM_UP_S)), env=environment
        )
        measured = Measured(run, seconds)
    fine = measured.show("node, 100 ms", MOST_PERCENT["node"])
    rows = rows_of(folder / "run") / (seconds + 2 * WARM_UP_S)
    print(
        f"  {machine_tree.CORES} cores, {machine_tree.GPUS} GPUs, {machine_tree.RANKS * (machine_tree.WORKERS + 1) + 1} "
        f"processes: {rows:,.0f} rows a second"
    )
    return fine


def main() -> int:
    what = sys.argv[1]
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 40
    # In memory, as /proc is.
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="telltale-agent-cost-", dir=base))
    try:
        fine = {"agent": agent, "node": node}[what](folder, seconds)
    finally:
        shutil.rmtree(folder)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
