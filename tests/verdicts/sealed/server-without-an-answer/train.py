# SPDX-License-Identifier: Apache-2.0
"""A training sends its new weights to a generation server every 40 steps. One day it stands still and says nothing: the server has taken
the request and does not answer, and the request was made without a timeout, so that the training waits for it without end.
(Here the server answers at last after 45 s, so that the program ends.)"""

import http.server
import io
import sys
import threading
import time
import urllib.error
import urllib.request

import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
torch.manual_seed(0)
torch.set_num_threads(1)
CLASSES, WIDTH, STEPS, EVERY = 10, 40, 400, 40


class Generation(http.server.BaseHTTPRequestHandler):
    count = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Generation.count += 1
        if Generation.count == 8:
            time.sleep(45)
        try:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")
        except OSError:
            pass

    def log_message(self, *values):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Generation)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}/update_weights"


def send_weights(model):
    packed = io.BytesIO()
    torch.save(model.state_dict(), packed)
    if not CURED:
        urllib.request.urlopen(address, packed.getvalue()).read()
        return
    for attempt in range(3):
        try:
            urllib.request.urlopen(address, packed.getvalue(), timeout=0.5).read()
            return
        except (urllib.error.URLError, TimeoutError):
            print("the generation server does not answer, once more", flush=True)


centres = torch.randn(CLASSES, WIDTH) * 0.6
labels = torch.randint(0, CLASSES, (6000,))
signals = centres[labels] + torch.randn(6000, WIDTH)
model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
longest = 0.0
for step in range(1, STEPS + 1):
    index = torch.randint(0, len(signals), (64,))
    loss = nn.functional.cross_entropy(model(signals[index]), labels[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
    if step % EVERY == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)
        begin = time.monotonic()
        send_weights(model)
        longest = max(longest, time.monotonic() - begin)
server.shutdown()
print(
    f"truth: the training stood still for {longest:.1f} s in one request, {STEPS} steps, loss {loss.item():.2f}"
)
