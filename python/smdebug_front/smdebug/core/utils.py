# SPDX-License-Identifier: Apache-2.0
"""Small things that several parts need."""

import re
from functools import lru_cache

from ..exceptions import SMDebugValueError


def split(comma_separated_string):
    """["foo", "b ar"] of "foo, b ar"."""
    return [part.strip() for part in str(comma_separated_string).split(",")]


def parse_bool(value, default):
    """The boolean that a JSON value or its text means; `default` of None."""
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in ("true", "1"):
        return True
    if word in ("false", "0", ""):
        return False
    raise SMDebugValueError(f"{value!r} must be true or false")


def flatten(items):
    """A list without lists in it."""
    flat = []
    for item in items:
        flat.extend(flatten(item) if isinstance(item, (list, tuple, set)) else [item])
    return flat


@lru_cache(maxsize=4096)
def _compiled(pattern):
    return re.compile(pattern)


def match_inc(tname, include):
    """Whether one of the patterns is found anywhere in the name."""
    return any(_compiled(pattern).search(tname) for pattern in include)


def is_s3(path):
    """(whether it is one, bucket, prefix) of a path."""
    if not path.startswith("s3://"):
        return False, None, None
    bucket, _, prefix = path[5:].partition("/")
    return True, bucket, prefix
