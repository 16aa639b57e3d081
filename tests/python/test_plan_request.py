# SPDX-License-Identifier: Apache-2.0
"""What telltale.capture() sends: plans of every form; what is none never ends a training."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import MappingProxyType

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "python"))

import telltale
from telltale._plan import MAX_BYTES, request_of

TEXT = "[collections.losses]\ninterval = 1\n"


def body(plan, add=False):
    text = request_of(plan, add)
    assert len(text.encode()) <= MAX_BYTES
    return json.loads(text)


def test_every_form_of_a_plan(tmp_path):
    assert body("tensors") == {"base": "none", "asked": True, "plan": {"level": "tensors"}}
    assert body({"level": "all"}, add=True) == {"base": "current", "asked": True, "plan": {"level": "all"}}
    assert body(MappingProxyType({"level": "all"}))["plan"] == {"level": "all"}
    assert body(TEXT) == {"base": "none", "asked": True, "toml": TEXT}
    assert body("level = 'all'")["toml"] == "level = 'all'"
    # An equals sign in a path is none of a text.
    file = tmp_path / "lr=0.1" / "plan.toml"
    file.parent.mkdir()
    file.write_text(TEXT, encoding="utf-8-sig")
    for path in (file, str(file)):
        assert body(path) == {"base": "none", "asked": True, "toml": TEXT, "where": "plan.toml"}


def test_numbers_of_numpy_are_numbers():
    np = pytest.importorskip("numpy")
    when = {"interval": np.int64(5), "steps": np.array([1, 2]), "include": {"b", "a"}}
    sent = body({"collections": {"a": when}})["plan"]["collections"]["a"]
    assert sent == {"interval": 5, "steps": [1, 2], "include": ["a", "b"]}


class Hostile:
    def __getattr__(self, name):
        raise RuntimeError("no")


def test_what_cannot_be_sent_becomes_a_refusal_and_no_exception(tmp_path):
    circle: dict = {}
    circle["plan"] = circle
    latin = tmp_path / "latin.toml"
    latin.write_bytes("# \xfc\n".encode("latin-1"))
    for wrong, named in (
        ("tensor", "no level and no plan file 'tensor'"),
        (tmp_path / "nowhere.toml", "nowhere.toml"),
        (tmp_path, "no plan file"),
        (latin, "UnicodeDecodeError"),
        ({"collections": {"a": object()}}, "object"),
        ({"collections": {"a": Hostile()}}, "RuntimeError"),
        (circle, "Circular"),
        ("# " + "x" * MAX_BYTES + "\n", "--plan FILE"),
        ("\U0001f600" * 300 + "\0", "no level"),
    ):
        sent = body(wrong, add=True)
        assert set(sent) == {"base", "asked", "trouble"} and named in sent["trouble"], sent


@pytest.mark.parametrize("wrong", [3, None, ["all"], b"all"])
def test_what_is_no_plan_is_a_type_error_recorded_or_not(wrong):
    with pytest.raises(TypeError, match=r"telltale\.capture"):
        telltale.capture(wrong)
