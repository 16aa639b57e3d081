# SPDX-License-Identifier: Apache-2.0
"""Trains the slow and the healthy network under telltale and checks that the verdicts are true.

Called by `make demo` from the repository's root; needs build/release/bin/telltale.
"""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TELLTALE = ROOT / "build/release/bin/telltale"
OUT = ROOT / "demo-out"


def show(*command: str) -> int:
    """Runs a command of telltale from the root, as a user would type it."""
    print("\n$ telltale " + " ".join(command), flush=True)
    return subprocess.run([TELLTALE, *command], cwd=ROOT, check=False).returncode


def train(name: str) -> str:
    run = str((OUT / name).relative_to(ROOT))
    python = str(pathlib.Path(sys.executable).absolute())
    if python.startswith(str(ROOT)):
        python = str(pathlib.Path(python).relative_to(ROOT))
    code = show("run", "-o", run, "--", python, f"examples/demo/train_{name}.py")
    if code != 0:
        sys.exit(f"demo: the {name} training ended with exit code {code}")
    code = show("report", run)
    if code != 0:
        sys.exit(f"demo: telltale report {run} ended with exit code {code}")
    return run


def main() -> int:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    runs = [train("slow"), train("healthy")]
    check = [sys.executable, str(ROOT / "tools/check_demo.py"), str(TELLTALE), *runs]
    code = subprocess.run(check, cwd=ROOT, check=False).returncode
    if code != 0:
        return code
    print("\nThe verdicts are as they should be. The reports:")
    for run in runs:
        print(f"  {ROOT / run / 'report.html'}")
    print("\nBoth runs as a page in a browser:")
    print(f"  {TELLTALE.relative_to(ROOT)} serve {OUT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
