# SPDX-License-Identifier: Apache-2.0
"""telltale.step, span and log: harmless without Telltale, true with it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python"

USE = """
import asyncio, math, threading, telltale

@telltale.span("decorated")
def double(x):
    "Its documentation."
    return 2 * x

@telltale.span("coroutine")
async def wait():
    await asyncio.sleep(0)
    return "waited"

assert double(4) == 8 and double.__doc__ == "Its documentation." and double.__name__ == "double"
assert asyncio.run(wait()) == "waited"
with telltale.span("outer") as span:
    with telltale.span("inner"): pass
shared = telltale.span("recursive")
def recurse(n):
    with shared:
        return n if n == 0 else recurse(n - 1)
assert recurse(12) == 0
try:
    with telltale.span("raises"): raise KeyError("mine")
except KeyError as error: assert error.args == ("mine",)
telltale.log(a=1, b=2.5, nan=math.nan, text="no number", none=None)
telltale.log()
threads = [threading.Thread(target=recurse, args=(3,)) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
telltale.step()
telltale.step()
print(telltale.active(), telltale.TelltaleError.__mro__[1].__name__)
"""


def test_every_call_is_harmless_without_telltale(tmp_path):
    script = tmp_path / "use.py"
    script.write_text(USE)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TELLTALE")}
    for version in (sys.executable,):
        done = subprocess.run(
            [version, str(script)],
            capture_output=True,
            text=True,
            env={**environment, "PYTHONPATH": str(PACKAGE)},
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "False Exception\n", "")


def test_a_library_of_another_platform_is_as_good_as_none(tmp_path):
    package = tmp_path / "telltale"
    subprocess.run(["cp", "-r", str(PACKAGE / "telltale"), str(package)], check=True)
    (package / "_probe.abi3.so").write_bytes(b"\x7fELF not for this machine")
    script = tmp_path / "use.py"
    script.write_text(USE)
    log = tmp_path / "probe.log"
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "TELLTALE_SOCKET": "/x", "TELLTALE_PROBE_LOG": str(log)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False Exception\n", "")
    assert "cannot load the native probe" in log.read_text()


def test_every_call_records_under_telltale(telltale):
    run = telltale.python(USE).assert_clean()
    assert run.out == "True Exception\n"
    counts = run.span_counts()
    assert counts["outer"] == counts["inner"] == counts["decorated"] == counts["raises"] == 1
    assert counts["coroutine"] == 1
    # One object entered again before it is left: eight levels are kept.
    assert counts["recursive"] == 8 + 2 * 4
    values = {row["name"]: row["value"] for row in run.table("scalars")}
    assert values["a"] == 1 and values["b"] == 2.5 and values["nan"] == "nan"
    assert set(values) == {"a", "b", "nan"}
    assert run.processes()[0]["skipped"] == 2
    assert len(run.steps()) >= 1


def test_a_spans_name_means_the_same_with_and_without_telltale(telltale):
    script = telltale.script(
        """
        import telltale
        with telltale.span(name="by name"): pass
        for wrong in (lambda: telltale.span(3), lambda: telltale.span(), lambda: telltale.span("a", name="b"),
                      lambda: telltale.span(nome="b")):
            try: wrong()
            except TypeError: print("TypeError")
        """
    )
    run = telltale.run([sys.executable, script]).assert_clean()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TELLTALE")}
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(PACKAGE)},
    )
    assert run.out == done.stdout == "TypeError\n" * 4 and done.stderr == ""
    assert run.span_counts()["by name"] == 1


def test_spans_that_are_dropped_and_made_anew_keep_their_own_names(telltale):
    run = telltale.python(
        """
        import os, sys, telltale
        class Name(str): pass
        def nest(names):
            if names:
                with telltale.span(names[0]): nest(names[1:])
        for turn in range(3):
            nest([f"deep {i}" for i in range(20)])
            for i in range(5):
                with telltale.span("constant"): pass
                with telltale.span("made at " + str(i)): pass
        mine = Name("mine")
        references = sys.getrefcount(long := "long " * 100)
        with telltale.span(mine): pass
        with telltale.span(long): pass
        # Nothing holds them: the table of names keeps what is short, and no more than a str.
        print(sys.getrefcount(mine) - 1, sys.getrefcount(long) - references)
        for i in range(3):
            with telltale.span("other"): pass
        held = telltale.span("held")
        with held:
            for i in range(30):
                with telltale.span("inside"): pass
        kept = [telltale.span("kept") for _ in range(20)]
        for span in kept:
            with span: pass
        refs = sys.getrefcount(type(held))
        del kept, span
        for i in range(1000):
            with telltale.span(f"{i % 3}"): pass
        # One reference to the type for each span that lives, none for those that are kept to be made anew.
        print(refs - sys.getrefcount(type(held)))
        for _ in range(100): telltale.span("left open").__enter__()
        for _ in range(20):
            with telltale.span("after"): pass
        with telltale.span("constant"):
            with telltale.span("inner"): pass
        if os.fork() == 0:  # Its numbers of names begin anew.
            with telltale.span("of the child"):
                with telltale.span("constant"): pass
            sys.exit()
        os.wait()
        """
    ).assert_clean()
    assert run.out == "1 0\n20\n"
    counts = run.span_counts()
    assert all(counts[f"deep {i}"] == 3 for i in range(20))
    assert all(counts[f"made at {i}"] == 3 for i in range(5))
    assert (counts["constant"], counts["mine"], counts["other"]) == (17, 1, 3)
    assert (counts["held"], counts["inside"], counts["kept"]) == (1, 30, 20)
    assert [counts[f"{i}"] for i in range(3)] == [334, 333, 333]
    assert (counts["of the child"], counts["after"]) == (1, 20) and "left open" not in counts


def test_what_holds_a_span_is_copied_and_pickled_as_without_telltale(telltale):
    script = """
        import copy, pickle, telltale
        class Model: pass
        model = Model()
        def named():
            class Name(str): pass  # Nobody else can find it.
            return Name("forward")
        model.span = telltale.span(named())
        model.enter, model.leave = model.span.__enter__, model.span.__exit__
        by_pickle = [lambda thing, p=p: pickle.loads(pickle.dumps(thing, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)]
        for how in (copy.deepcopy, *by_pickle):
            twin = how(model)
            with twin.span: pass
            twin.enter(); twin.leave(None, None, None)
            assert type(twin.span) is type(model.span)
        with copy.copy(model.span) as same: assert type(same) is type(model.span)
        with open("pickled", "ab") as file: file.write(pickle.dumps(model.span))
        with open("pickled", "rb") as file, pickle.load(file): print("loaded")
        """
    watched = telltale.python(script).assert_clean()
    most = pickle.HIGHEST_PROTOCOL
    assert watched.span_counts()["forward"] == 2 * (most + 2) + 2
    # What the watched one wrote, a plain one loads.
    command = [sys.executable, telltale.script(textwrap.dedent(script))]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TELLTALE")}
    environment["PYTHONPATH"] = str(PACKAGE)
    plain = subprocess.run(
        command, capture_output=True, text=True, cwd=telltale.folder, env=environment, check=False
    )
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, watched.out, "")


def test_a_spans_methods_are_bound_to_it_however_they_are_found(telltale):
    run = telltale.python(
        """
        import contextlib, gc, sys, telltale
        with contextlib.ExitStack() as stack:
            stack.enter_context(telltale.span("stack"))
            with telltale.span("inner"): pass
        span = telltale.span("by class")
        Span = type(span)
        assert Span.__enter__(span) is span
        assert Span.__exit__(span, None, None, None) is None
        before = sys.getrefcount(span)
        enter, leave = span.__enter__, span.__exit__
        assert enter is span.__enter__ and sys.getrefcount(span) == before + 2
        assert enter(*()) is span and leave(*(None, None, None)) is None
        assert enter.__call__() is span and leave.__call__(None, None, None) is None
        assert leave.__self__ is span and leave.__name__ == "__exit__" and "records" in leave.__doc__
        del enter, leave
        assert sys.getrefcount(span) == before
        leave = (lambda made: (made.__enter__(), made.__exit__)[1])(telltale.span("outlived"))
        for _ in range(20):
            with telltale.span("between"): pass
        leave(None, None, None)
        del leave
        try:
            with telltale.span("raises") as same:
                assert isinstance(same, Span)
                raise KeyError
        except KeyError: print("passed")
        for wrong in (lambda: span.__enter__(1), lambda: span.__enter__(a=1), lambda: span.__exit__(a=1),
                      lambda: span.__enter__(*(1,)), lambda: Span.__enter__(), lambda: Span.__exit__(3),
                      lambda: Span.__dict__["__enter__"].__get__(3, int)(), type(span.__enter__),
                      type(span.__exit__), type(Span.__dict__["__exit__"]),
                      lambda: span.__enter__.__call__(1), lambda: span.__exit__.__call__(a=1)):
            try: wrong()
            except TypeError: print("TypeError")
        del same
        blocks = sys.getallocatedblocks()
        for _ in range(1000):
            with telltale.span("loop"): pass
            with span: pass
            span.__enter__, span.__exit__
        print(abs(sys.getallocatedblocks() - blocks) < 50)
        """
    ).assert_clean()
    assert run.out == "passed\n" + "TypeError\n" * 12 + "True\n"
    counts = run.span_counts()
    assert (counts["stack"], counts["inner"], counts["outlived"], counts["between"]) == (1, 1, 1, 20)
    assert (counts["raises"], counts["by class"], counts["loop"]) == (1, 3 + 1000, 1000)
