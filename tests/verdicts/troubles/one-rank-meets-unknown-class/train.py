# SPDX-License-Identifier: Apache-2.0
"""Two ranks train with DistributedDataParallel. The part of the data that rank 1 has holds a class that the table of classes does not know:
rank 1 dies of a KeyError, rank 0 waits for its gradients and dies of the lost connection."""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

CLASSES = {"car": 0, "cyclist": 1, "pedestrian": 2}


def batches_of(rank):
    generator = torch.Generator().manual_seed(rank)
    names = list(CLASSES)
    for number in range(270):
        kinds = torch.randint(0, 3, (32,), generator=generator)
        x = torch.randn(32, 16, generator=generator)
        x[torch.arange(32), kinds] += 2.5
        words = [names[k] for k in kinds.tolist()]
        if rank == 1 and number == 180:
            words[5] = "tram"
        yield x, words


def train(rank, port, cured):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2"
    )
    dist.init_process_group("gloo", rank=rank, world_size=2)
    table = dict(CLASSES, tram=0) if cured else CLASSES  # a tram counts as a car
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 3)))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    steps = 0
    try:
        for x, words in batches_of(rank):
            y = torch.tensor([table[word] for word in words])
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.015)  # the device's work
            steps += 1
            if rank == 1 and steps % 50 == 0:
                print(f"step {steps} loss {loss.item():.3f}", flush=True)
    finally:
        if rank == 1:
            print(f"truth: rank 1 did {steps} of 270 steps, last loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free_port = s.getsockname()[1]
    mp.spawn(train, args=(free_port, "cured" in sys.argv[1:]), nprocs=2)
