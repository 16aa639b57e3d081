# SPDX-License-Identifier: Apache-2.0
"""Data loaders: the wait for the next batch in the training process, the work of fetching it where
it is done (in the process or in workers), of which the longest item is told.
"""

from __future__ import annotations

import collections
from types import ModuleType

from ..._native import probe
from ..hooking import FETCH, ITER, NEXT, hook


def install(torch: ModuleType) -> None:
    dataloader = torch.utils.data.dataloader
    fetch = torch.utils.data._utils.fetch
    hook(dataloader._BaseDataLoaderIter, "__next__", NEXT)
    hook(dataloader.DataLoader, "__iter__", ITER)
    hook(fetch._MapDatasetFetcher, "fetch", FETCH, "dataset")
    hook(fetch._IterableDatasetFetcher, "fetch", FETCH, "dataset_iter")
    probe.configure(user_dict_type=collections.UserDict)
