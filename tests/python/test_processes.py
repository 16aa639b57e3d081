# SPDX-License-Identifier: Apache-2.0
"""Every way to start Python: the training is recorded, and runs as it would without us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PYTHON_DIR

TRAIN = """
import sys, torch
net = torch.nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(5):
    opt.zero_grad(); net(torch.ones(3, 4)).sum().backward(); opt.step()
"""
SHOW = """
print(__name__, sys.argv, globals().get("__file__"), globals().get("__spec__") is None)
print(sys.path[0] if sys.path[0] in ("",) or sys.path[0].startswith("/tmp") else "other")
print([name for name in sys.path if "boot" in name], sorted(globals())[:9], __package__)
"""
BOOT = str(PYTHON_DIR / "boot" / "boot.py")


TRAIN_A_LITTLE = """
import torch
net = torch.nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(3):
    opt.zero_grad(); net(torch.ones(1, 4)).sum().backward(); opt.step()
"""


def test_a_script(telltale):
    script = telltale.script(TRAIN + SHOW)
    run = telltale.run([sys.executable, script, "a", "-b"]).assert_clean()
    assert len(run.steps()) == 5
    assert run.out == telltale.plain([sys.executable, script, "a", "-b"]).stdout


def test_a_module(telltale):
    telltale.script(TRAIN + SHOW, "package/train.py")
    command = [sys.executable, "-m", "package.train", "a"]
    run = telltale.run(command).assert_clean()
    assert len(run.steps()) == 5
    assert run.out == telltale.plain(command).stdout


def test_a_command(telltale):
    command = [sys.executable, "-c", TRAIN + SHOW, "a"]
    run = telltale.run(command).assert_clean()
    assert len(run.steps()) == 5
    assert run.out == telltale.plain(command).stdout


def test_a_shell_wrapper_and_exec(telltale):
    script = telltale.script(TRAIN)
    launcher = telltale.script(
        f"import os, sys, torch\nos.execv(sys.executable, [sys.executable, {script!r}])", "exec.py"
    )
    run = telltale.run(["sh", "-c", f"exec {sys.executable} {launcher}"]).assert_clean()
    assert len(run.steps()) == 5


@pytest.mark.parametrize("flag", ["-I", "-E", "-s"])
@pytest.mark.parametrize("form", ["script", "module", "command", "error"])
def test_an_interpreter_that_ignores_the_environment(telltale, flag, form):
    script = telltale.script(TRAIN + SHOW + ("\n1 / 0" if form == "error" else ""))
    arguments = {
        "module": ["-m", "train", "x"],
        "command": ["-c", TRAIN + SHOW, "x"],
    }.get(form, [script, "x"])
    if form == "module" and flag == "-I":
        arguments = ["-m", "cProfile", "-o", "/dev/null", script, "x"]  # Ours is not on the path.
    # As the supervisor rewrites it.
    run = telltale.run([sys.executable, flag, BOOT, *arguments])
    plain = telltale.plain([sys.executable, flag, *arguments])
    assert run.code == plain.returncode
    assert len(run.steps()) == 5
    assert run.err == plain.stderr
    if form != "module" or flag != "-I":
        assert run.out == plain.stdout


@pytest.mark.parametrize("flag", ["-S", "-IS", "-ES"])
@pytest.mark.parametrize("form", ["script", "command", "error"])
def test_an_interpreter_without_site(telltale, flag, form):
    found = "import sys; sys.path += {!r}\n".format([p for p in sys.path if p.endswith("-packages")])
    text = found + TRAIN + SHOW + "print('site' in sys.modules)\n"
    text += "1 / 0" if form == "error" else ""
    script = telltale.script(text)
    arguments = ["-c", text, "x"] if form == "command" else [script, "x"]
    run = telltale.run([sys.executable, flag, BOOT, *arguments])
    plain = telltale.plain([sys.executable, flag, *arguments])
    assert run.code == plain.returncode
    assert len(run.steps()) == 5
    assert (run.out, run.err) == (plain.stdout, plain.stderr)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_an_isolated_interpreter(telltale, method):
    text = f"""
    import multiprocessing, torch
    def train(n):
        net = torch.nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(n): net(torch.ones(3, 4)).sum().backward(); opt.step()
    if __name__ == "__main__":
        child = multiprocessing.get_context({method!r}).Process(target=train, args=(3,))
        child.start(); child.join(); print(child.exitcode)
    """
    run = telltale.run([sys.executable, "-I", BOOT, telltale.script(text)]).assert_clean()
    assert run.out == "0\n" and len(run.steps()) == 3


def test_a_missing_script_is_pythons_own_error(telltale):
    run = telltale.run([sys.executable, "-I", BOOT, "nowhere.py"])
    plain = telltale.plain([sys.executable, "-I", "nowhere.py"])
    assert (run.code, run.out, run.err) == (plain.returncode, plain.stdout, plain.stderr)


def virtual_environment(python: Path | str, folder: Path) -> tuple[str, Path]:
    """One with its own sitecustomize, which sets sys.theirs: its interpreter, and that file."""
    subprocess.run([str(python), "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    theirs = site / "sitecustomize.py"
    theirs.write_text("import sys; sys.theirs = __file__\n")
    # Debian's interpreter has one of its own in the standard library, which hides that of any venv
    # that is not in front of it.
    in_front = "import os, sys; at = sys.path.index(os.path.dirname(os.__file__))"
    (site / "in_front.pth").write_text(f"{in_front}; sys.path.insert(at, {str(site)!r})\n")
    return str(folder / "bin" / "python"), theirs


def test_a_virtual_environment_with_its_own_sitecustomize(telltale, tmp_path):
    python, theirs = virtual_environment(versions()[-1], tmp_path / "venv")
    text = "import sys, sitecustomize, telltale; print(telltale.active())\n"
    text += "print(sys.theirs, sitecustomize.__file__)"
    plain = telltale.plain([python, "-c", "import sitecustomize; print(sitecustomize.__file__)"])
    assert plain.stdout.strip() == str(theirs)
    run = telltale.run([python, telltale.script(text)]).assert_clean()
    assert run.out.split() == ["True", str(theirs), str(theirs)]


def test_a_sitecustomize_on_pythonpath_runs_and_the_training_is_recorded(telltale, tmp_path):
    theirs = tmp_path / "theirs" / "sitecustomize.py"
    theirs.parent.mkdir()
    theirs.write_text("import sys; sys.theirs = __file__\n")
    text = TRAIN_A_LITTLE + "import sys, sitecustomize, telltale\n"
    text += "print(sys.theirs, sitecustomize.__file__, telltale.active())\n"
    text += "print([entry for entry in sys.path if entry.endswith(('boot', 'theirs'))])"
    run = telltale.run([sys.executable, telltale.script(text)], env={"PYTHONPATH": str(theirs.parent)})
    run.assert_clean()
    assert run.out.splitlines() == [f"{theirs} {theirs} True", str([str(theirs.parent)])]
    assert len(run.steps()) == 3


def test_a_sitecustomize_that_fails_fails_as_always(telltale, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("raise KeyError('theirs')\n")
    script = telltale.script("print('on')")
    command = [sys.executable, script]
    run = telltale.run(command, env={"PYTHONPATH": str(tmp_path / "theirs")})
    plain = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "theirs")},
    )
    assert (run.code, run.out, run.err) == (plain.returncode, plain.stdout, plain.stderr)


def test_a_module_named_telltale_of_the_users_stays_theirs(telltale):
    telltale.script("name = 'theirs'", "telltale.py")
    script = telltale.script("import telltale, torch; print(telltale.name)")
    run = telltale.run([sys.executable, script])
    assert (run.code, run.out, run.err) == (0, "theirs\n", "")


def test_a_module_named_telltale_is_not_executed_for_us_and_the_training_recorded(telltale):
    telltale.script("print('executed')", "telltale.py")
    run = telltale.python(TRAIN_A_LITTLE).assert_clean()
    assert run.out == "" and len(run.steps()) == 3


def test_a_folder_named_telltale_hides_neither_us_nor_itself(telltale):
    telltale.script("name = 'theirs'", "telltale/theirs.py")
    run = telltale.python(
        TRAIN_A_LITTLE + "import telltale.theirs; print(telltale.theirs.name, telltale.active())"
    )
    run.assert_clean()
    assert run.out == "theirs True\n" and len(run.steps()) == 3


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_that_train_are_trainers_of_their_own(telltale, method):
    run = telltale.python(
        f"""
        import multiprocessing, torch
        def train(n):
            net = torch.nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), lr=0.1)
            for i in range(n): net(torch.ones(3, 4)).sum().backward(); opt.step()
        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            if {method!r} == "fork": train(2)
            children = [context.Process(target=train, args=(3 + i,)) for i in range(2)]
            for child in children: child.start()
            for child in children: child.join()
        """
    ).assert_clean()
    counts = sorted(
        len([row for row in run.steps() if row["pid"] == process["pid"]]) for process in run.processes()
    )
    assert counts == ([2, 3, 4] if method == "fork" else [3, 4])
    assert all(process["kind"] == 0 for process in run.processes())


def test_a_forked_trainer_tells_of_an_optimizer_that_its_parent_has_told_of(telltale):
    run = telltale.python(
        """
        import os, torch
        net = torch.nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        def train(): net(torch.ones(1, 4)).sum().backward(); opt.step()
        train()
        pid = os.fork()
        train(); train()
        if pid != 0: os.waitpid(pid, 0)
        """
    ).assert_clean()
    assert {event["pid"] for event in run.events("optimizer")} == {
        process["pid"] for process in run.processes()
    }
    assert len(run.events("optimizer")) == 2
    assert {event["facts"]["lr"] for event in run.events("optimizer")} == {0.1}


def test_a_fork_while_threads_record_neither_hangs_nor_mixes(telltale):
    run = telltale.python(
        """
        import os, sys, threading, telltale, torch
        stop = threading.Event()
        def busy():
            while not stop.is_set():
                with telltale.span("busy"): telltale.log(x=1.0)
        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads: thread.start()
        children = []
        for i in range(8):
            pid = os.fork()
            if pid == 0:
                with telltale.span("child"): pass
                os._exit(0)
            children.append(pid)
        codes = [os.waitpid(pid, 0)[1] for pid in children]
        stop.set()
        for thread in threads: thread.join()
        print(codes)
        """
    )
    assert run.code == 0 and run.out.strip() == str([0] * 8) and run.err == ""
    children = run.table("spans", name="child")
    assert len({row["pid"] for row in children}) == 8
    parent = {row["pid"] for row in run.table("spans", name="busy")}
    assert len(parent) == 1 and parent.isdisjoint({row["pid"] for row in children})


def test_a_killed_training_loses_at_most_the_open_step(telltale):
    run = telltale.python(TRAIN + "\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run.code == 128 + 9
    assert [row["step"] for row in run.steps()] == [0, 1, 2, 3]


def test_two_ranks(telltale):
    script = telltale.script(
        """
        import torch, torch.distributed as dist, time
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(6):
            opt.zero_grad(); net(torch.ones(3, 4)).sum().backward()
            for p in net.parameters(): dist.all_reduce(p.grad)
            opt.step()
        dist.barrier()
        """
    )
    run = telltale.run(
        [sys.executable, "-m", "torch.distributed.run", "-r", "1", "-t", "1"]
        + ["--nproc_per_node", "2", "--master_port", str(29500 + os.getpid() % 1000), script],
        env={"OMP_NUM_THREADS": "1"},
    )
    assert run.code == 0, run.err
    for rank in (0, 1):
        steps = run.steps(rank=rank)
        assert [row["step"] for row in steps] == list(range(6))
        assert all(row["comm_wait_ns"] > 0 for row in steps)
    assert len({row["pid"] for row in run.steps()}) == 2


def versions() -> list[Path]:
    return sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")) or [Path(sys.executable)]


@pytest.mark.parametrize("python", versions(), ids=lambda path: path.parts[-3])
def test_the_binding_loads_in_every_supported_python(telltale, python):
    check = "import sys; raise SystemExit(not (3, 9) <= sys.version_info < (3, 14))"
    if subprocess.run([str(python), "-c", check]).returncode != 0:
        pytest.skip("not a supported version")
    script = telltale.script(
        """
        import telltale
        from telltale._native import probe
        with telltale.span("outer"):
            with telltale.span("inner"): pass
        @telltale.span("decorated")
        def twice(x, *, by=2): return x * by
        assert twice(4, by=3) == 12
        telltale.log(value=1.5)
        class Module:
            training = True
            def __call__(self, a, *rest, b=2, **more): return (a, rest, b, more)
        Module.__call__ = probe.Hook(Module.__call__, 0)
        assert Module()(1) == (1, (), 2, {})
        assert Module()(1, 2, b=3, c=4) == (1, (2,), 3, {"c": 4})
        assert Module().__call__(*[5], **{"b": 6}) == (5, (), 6, {})
        try: Module()()
        except TypeError as error: assert "missing 1 required positional" in str(error), error
        else: raise AssertionError
        telltale.step()
        print(telltale.active())
        """
    )
    run = telltale.run([str(python), script]).assert_clean()
    assert run.out == "True\n"
    assert run.span_counts() == {"outer": 1, "inner": 1, "decorated": 1} | {
        name: count for name, count in run.span_counts().items() if name in ("forward", "gc")
    }
    assert run.table("scalars", name="value")[0]["value"] == 1.5


def other_versions() -> list[Path]:
    return sorted(Path.home().glob(".pyenv/versions/*/bin/python"))


@pytest.mark.parametrize("python", other_versions(), ids=lambda path: path.parts[-3])
def test_any_python_starts_as_always(telltale, python):
    command = [str(python), "-c", "import json, sys; print(sys.version); sys.exit(3)"]
    run, plain = telltale.run(command), telltale.plain(command)
    assert (run.code, run.out, run.err) == (plain.returncode, plain.stdout, plain.stderr) and run.code == 3


def test_the_start_of_python_imports_nothing_more(telltale):
    show = [sys.executable, "-c", "import sys; print(*sorted(sys.modules))"]
    run = telltale.run(show).assert_clean()
    plain = telltale.plain(show)
    assert set(run.out.split()) - set(plain.stdout.split()) <= {"telltale_boot", "sitecustomize"}
    assert run.processes() == []
