# SPDX-License-Identifier: Apache-2.0
"""The page's types of what the server sends (web/src/api.ts) against what it really sends."""

import re
from pathlib import Path
from typing import Any

from conftest import REPO, Watched, overview_of

SOURCE = re.sub(r"//.*|/\*(?s:.*?)\*/", "", (REPO / "web/src/api.ts").read_text())
Members = dict[str, tuple[bool, str]]  # Name: optional, type.


def block(text: str, begin: int) -> str:
    """What stands between the brace at `begin` and its partner."""
    depth = 0
    for i in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[begin + 1 : i]
    raise AssertionError(text[begin : begin + 40])


def members(text: str) -> Members:
    """Of the inside of an object type."""
    parts, depth, part = [], 0, ""
    for c in text:
        depth += {"{": 1, "}": -1}.get(c, 0)
        if c == ";" and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
    found: Members = {}
    for declaration in [*parts, part]:
        if declaration.strip():
            match = re.fullmatch(r"\s*(\w+)(\??):\s*(.*\S)\s*", declaration, re.DOTALL)
            assert match, declaration
            found[match[1]] = (match[2] == "?", match[3])
    return found


def interface(name: str) -> Members:
    match = re.search(rf"interface {name} {{", SOURCE)
    assert match, name
    return members(block(SOURCE, match.end() - 1))


def finding() -> Members:
    """A selection of a table's columns, and what the server adds."""
    match = re.search(r"type Finding = Pick<\s*FindingRow,([^>]*)>\s*&\s*{", SOURCE)
    assert match
    picked: Members = dict.fromkeys(re.findall(r'"(\w+)"', match[1]), (False, ""))
    return picked | members(block(SOURCE, match.end() - 1))


def compare(where: str, value: dict[str, Any], types: Members, differences: list[str]) -> None:
    required = {name for name, (optional, _) in types.items() if not optional}
    differences += [f"{where}.{name}: only in api.ts" for name in sorted(required - value.keys())]
    differences += [f"{where}.{name}: only sent" for name in sorted(value.keys() - types.keys())]
    for name, (_, text) in types.items():
        inside = value.get(name)
        if text.endswith("[]") and inside:
            inside = inside[0]
        if isinstance(inside, dict) and text.startswith("{"):
            compare(f"{where}.{name}", inside, members(block(text, 0)), differences)


def test_the_types_name_what_the_server_sends(late: Path, finished: Path, watched: Watched) -> None:
    watched.sign_in()
    for run in ("late", "finished"):
        overview = overview_of(watched.page, run)
        differences: list[str] = []
        compare("overview", overview, interface("Overview"), differences)
        for found in overview["findings"]:
            compare("finding", found, finding(), differences)
        assert differences == []
        assert overview["exit"] in (None, {"code": 0})
        assert overview["metrics"] and overview["scalars"] and overview["attempts"]
        if run == "late":
            assert overview["findings"]


def test_the_types_name_what_the_list_has(finished: Path, watched: Watched) -> None:
    watched.sign_in()
    listing = watched.page.evaluate("async () => (await fetch('/api/runs')).json()")
    differences: list[str] = []
    compare("listing", listing, interface("Listing"), differences)
    for run in listing["runs"]:
        compare("run", run, interface("RunItem"), differences)
    assert differences == []
