# SPDX-License-Identifier: Apache-2.0
"""The pictures are on a storage server in another building. The data set asks the server for one picture after the other, each time
over a new connection, and each answer comes after 15 ms. One loader worker makes six such requests for a batch, one by one."""

import http.server
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

cured = "cured" in sys.argv[1:]
COUNT = 400


def picture(i):
    rng = np.random.default_rng(i)
    image = rng.integers(0, 120, (24, 24), dtype="uint8")
    r, c = divmod(i % 4, 2)
    image[12 * r : 12 * r + 12, 12 * c : 12 * c + 12] += 60
    return image.tobytes()


class Storage(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.015)  # the way there and back
        body = picture(int(self.path.rsplit("/", 1)[1]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class StorageServer(http.server.ThreadingHTTPServer):
    request_queue_size = 64


def serve(port):
    server = StorageServer(("127.0.0.1", 0), Storage)
    port.send(server.server_port)
    server.serve_forever()


def fetch(url, i):
    with urllib.request.urlopen(f"{url}/{i}") as answer:
        return answer.read()


class Pictures(Dataset):
    def __init__(self, url, cache):
        self.url, self.cache = url, cache
        if cured:  # once, sixteen at a time, onto the disk of this machine
            with ThreadPoolExecutor(16) as pool:
                for i, body in enumerate(pool.map(lambda i: fetch(url, i), range(COUNT))):
                    with open(os.path.join(cache, str(i)), "wb") as f:
                        f.write(body)

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        if cured:
            with open(os.path.join(self.cache, str(i)), "rb") as f:
                body = f.read()
        else:
            body = fetch(self.url, i)
        image = np.frombuffer(body, "uint8").reshape(1, 24, 24)
        return image.astype("float32") / 255, i % 4


def stack(samples):
    x, y = zip(*samples)
    return np.stack(x), np.array(y)


if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}/pictures"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cache = tempfile.mkdtemp()
    pictures = Pictures(url, cache)
    model = nn.Sequential(nn.Conv2d(1, 8, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    order = RandomSampler(pictures, replacement=True, num_samples=100000)
    batches = iter(DataLoader(pictures, batch_size=6, sampler=order, num_workers=1, collate_fn=stack))
    next(batches)  # the worker has started
    start = time.perf_counter()
    waited, losses = 0.0, []
    while time.perf_counter() - start < 10:
        t = time.perf_counter()
        x, y = map(torch.from_numpy, next(batches))
        waited += time.perf_counter() - t
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)  # the rest of the network, on a device
        losses.append(loss.item())
        if len(losses) % 20 == 0:
            print(f"step {len(losses)} loss {np.mean(losses[-20:]):.3f}", flush=True)
    total = time.perf_counter() - start
    del batches
    server.terminate()
    shutil.rmtree(cache)
    print(f"loss {losses[0]:.3f} -> {np.mean(losses[-10:]):.3f} in {len(losses)} steps")
    print(f"truth: {100 * waited / total:.0f} % of {total:.1f} s waited for data", flush=True)
