# SPDX-License-Identifier: Apache-2.0
"""Switching the refreshing of trials off and on."""

from contextlib import contextmanager


@contextmanager
def _refreshing(trials, on):
    each = list(trials) if isinstance(trials, (list, tuple)) else [trials]
    before = [trial.dynamic_refresh for trial in each]
    for trial in each:
        trial.dynamic_refresh = on
    try:
        yield trials
    finally:
        for trial, was in zip(each, before):
            trial.dynamic_refresh = was


def no_refresh(trials):
    """Inside the block the trial, or each of a list, stays as it is."""
    return _refreshing(trials, False)


def refresh(trials):
    """Inside the block the trial, or each of a list, looks for what is new."""
    return _refreshing(trials, True)
