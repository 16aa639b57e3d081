# SPDX-License-Identifier: Apache-2.0
"""Two ranks train with DistributedSampler(shuffle=True), but each epoch gives each rank the same samples in the same batches and in the
same order: nobody calls sampler.set_epoch(epoch), and the sampler's shuffle is seeded by the epoch that it was told."""

import datetime
import os
import shutil
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, CLASSES, WIDTH = 10, 10, 40


class Signals(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, CLASSES, (4096,), generator=generator)
        centres = torch.randn(CLASSES, WIDTH, generator=generator) * 0.7
        self.signals = centres[self.labels] + torch.randn(4096, WIDTH, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.signals[i], self.labels[i], i


def train(rank, cured, folder):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=60),
    )
    data = Signals()
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, 64, sampler=sampler)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    orders = []
    for epoch in range(EPOCHS):
        if cured:
            sampler.set_epoch(epoch)
        seen = []
        for x, y, i in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.015)
            seen += i.tolist()
        orders.append(tuple(seen))
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(
            f"truth: {len(set(orders))} different order(s) in {EPOCHS} epochs, rank 0 has seen {len(set(sum(orders, ())))} of {len(data)} samples, "
            f"loss {loss.item():.2f}",
            flush=True,
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    place = tempfile.mkdtemp()
    try:
        mp.spawn(train, args=(sys.argv[1:] == ["cured"], place), nprocs=2)
    finally:
        shutil.rmtree(place)
