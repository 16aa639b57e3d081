# SPDX-License-Identifier: Apache-2.0
"""Exceptions that torch catches in a loader's worker, or in a thread of its own, to raise them again elsewhere."""

from __future__ import annotations

from types import ModuleType

from ... import _exceptions


def install(torch: ModuleType) -> None:
    def worker() -> int | None:
        info = torch.utils.data.get_worker_info()
        return None if info is None else int(info.id)

    _exceptions.find_worker_with(worker)
    _exceptions.watch_multiprocessing()
    _exceptions.hook_caught(torch._utils.ExceptionWrapper, "__init__", _exceptions.of_worker)
