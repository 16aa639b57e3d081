# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md against the --help of every command: neither may say what the other does not."""

import re

import pytest
from conftest import REPO, Telltale

PAGE = (REPO / "docs/cli.md").read_text()
EVERYWHERE = {2, 4, 5}


def table(first_header: str) -> list[list[str]]:
    """Cells of the rows of the table whose first column has that header."""
    (after,) = PAGE.split(f"| {first_header} ")[1:]
    rows = []
    for line in after.splitlines()[2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


def section(help_text: str, title: str) -> list[str]:
    """Lines of a section of a help text, without those that only go on with a description."""
    match = re.search(rf"^{title}:\n((?:  .*\n)+)", help_text, re.MULTILINE)
    return [line for line in match.group(1).splitlines() if line[2] != " "] if match else []


def arguments(help_text: str) -> list[str]:
    return [line.split()[0] for line in section(help_text, "Positionals")]


def options(help_text: str) -> list[str]:
    words = [line.split()[0].split(",") for line in section(help_text, "Options")]
    return [name for names in words for name in names if name not in ("-h", "--help")]


def commands(help_text: str) -> list[str]:
    return [line.split()[0] for line in section(help_text, "Subcommands")]


def exit_codes(help_text: str) -> dict[int, str]:
    (_, codes) = help_text.split("Exit codes: ")
    pairs = (code.split(maxsplit=1) for code in " ".join(codes.split()).split(";"))
    return {int(code): words for code, words in pairs}


def help_of(telltale: Telltale, command: str) -> str:
    done = telltale(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


REFERENCE = {row[0].strip("`"): row[1:] for row in table("Command | Arguments | Options besides `--help`")}
SYNOPSES = [row[0] for row in table("Command | Does | `--json` prints")]


def test_every_command_is_on_the_page(telltale: Telltale) -> None:
    found = commands(help_of(telltale, ""))
    found += [f"rules {name}" for name in commands(help_of(telltale, "rules"))]
    assert len(found) >= 12
    assert sorted(REFERENCE) == sorted(found)
    described = {word for cell in SYNOPSES for word in re.findall(r"`([\w-]+)", cell)}
    assert described == {name.split()[0] for name in found}


@pytest.mark.parametrize("command", REFERENCE)
def test_the_page_says_what_the_help_says(telltale: Telltale, command: str) -> None:
    names, flags, codes = REFERENCE[command]
    text = help_of(telltale, command)
    assert f"telltale {command} " in text.split("Usage: ")[1].splitlines()[0] + " "
    assert re.findall(r"`(\w+)`", names) == arguments(text)
    assert re.findall(r"`(-[^`]*)`", flags) == options(text)
    assert {int(code) for code in re.findall(r"\d+", codes)} | EVERYWHERE == set(exit_codes(text))
    for synopsis in SYNOPSES:
        for form in re.findall(r"`([^`]*)`", synopsis):
            if form == command or form.startswith(command + " "):
                assert set(re.findall(r"(?<!\w)--?\w[\w-]*", form)) <= set(options(text))


def test_exit_codes_have_the_same_words_everywhere(telltale: Telltale) -> None:
    page = {int(code): words.replace("`", "") for code, words in table("Exit code | Means")}
    assert exit_codes(help_of(telltale, "")) == page
    for command in REFERENCE:
        assert exit_codes(help_of(telltale, command)).items() <= page.items()
