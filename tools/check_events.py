#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the kinds of events that the source writes and reads with docs/formats/events.md; run by ctest.

usage: tools/check_events.py [ROOT]    exit code 1 and one line for each kind that only one of them has
"""

from __future__ import annotations

import pathlib
import re
import sys

PAGE = "docs/formats/events.md"
ROW = re.compile(r"^\| `([\w.]+)`", re.M)
# Each way in which a kind is written, then how it is read. A new way of writing belongs here.
WRITTEN_CXX = (
    re.compile(r'\b(?!request\.)\w+\.kind\s*=\s*"([^"]+)"'),  # Requests have kinds of their own: requests.md.
    re.compile(r'\bNewEvent\(\s*"([^"]+)"'),
    re.compile(r'\bevents_\.push_back\(\s*\{\s*"([^"]+)"'),
    re.compile(r'\bEvent\(\s*producer_->Intern\(\s*"([^"]+)"'),
    re.compile(r'\bkind\s*=\s*producer_->Intern\(\s*"([^"]+)"'),
    re.compile(r'\{"(action\.\w+)",\s'),
)
READ_CXX = (re.compile(r'\b(?:row|event)(?:\.|->)kind\s*[!=]=\s*"([^"]+)"'),)
# The binding's calls that write a kind of their own.
WRITTEN_NATIVE = (
    re.compile(r'"(plan\.request)"'),
    re.compile(r'\b(?:tt_event\(\s*tt_name|TellEvent)\(\s*"([^"]+)"'),
)
WRITTEN_PYTHON = (re.compile(r'\b(?:probe\.event|_?emit|_say)\(\s*"([^"]+)"'),)


def kinds(
    root: pathlib.Path, folder: str, suffixes: set[str], patterns: tuple[re.Pattern[str], ...]
) -> dict[str, str]:
    """Kind -> where it stands first."""
    found: dict[str, str] = {}
    for path in sorted((root / folder).rglob("*")):
        if path.suffix not in suffixes or path.stem.endswith("_test"):
            continue
        text = path.read_text(encoding="utf-8")
        for pattern in patterns:
            for match in pattern.finditer(text):
                # Importers' rows of slices have a kind of their own; the events that they write have a dot.
                if path.parent.name == "interchange" and "." not in match.group(1):
                    continue
                line = text.count("\n", 0, match.start()) + 1
                found.setdefault(match.group(1), f"{path.relative_to(root)}:{line}")
    return found


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    written = kinds(root, "src", {".cc", ".h"}, WRITTEN_CXX) | kinds(root, "python", {".py"}, WRITTEN_PYTHON)
    written |= kinds(root, "python", {".cc"}, WRITTEN_NATIVE)
    read = kinds(root, "src", {".cc", ".h"}, READ_CXX)
    page = root / PAGE
    documented = set(ROW.findall(page.read_text(encoding="utf-8"))) if page.exists() else set()
    problems = [
        f"{where}: the kind of event '{kind}' is not in {PAGE}"
        for kind, where in sorted((read | written).items())
        if kind not in documented
    ]
    problems += [
        f"{PAGE}: nothing writes '{kind}', or tools/check_events.py does not know how"
        for kind in sorted(documented - written.keys())
    ]
    if not written:
        problems.append(f"{root}: no kind of event is written; is it the repository?")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
