# SPDX-License-Identifier: Apache-2.0
"""A training on a cluster ends with nothing but "User defined signal 1" and no checkpoint. The batch system was told to warn the job some
time before its time limit (--signal=USR1), the program has no handler for the signal, and what a process does by default is to die.
(A child process stands for the batch system.)"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
torch.manual_seed(0)
torch.set_num_threads(1)
CLASSES, WIDTH, WARNING_AFTER = 10, 40, 8

centres = torch.randn(CLASSES, WIDTH) * 0.6
labels = torch.randint(0, CLASSES, (6000,))
signals = centres[labels] + torch.randn(6000, WIDTH)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(signals, labels), 64, shuffle=True)
model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)

warned = False


def on_warning(number, frame):
    global warned
    warned = True


if CURED:
    signal.signal(signal.SIGUSR1, on_warning)
batch_system = subprocess.Popen(["sh", "-c", f"sleep {WARNING_AFTER}; kill -USR1 {os.getpid()}"])
handler = "none" if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL else "yes"
print(
    f"truth: handler of SIGUSR1: {handler}, the warning comes in {WARNING_AFTER} s, the checkpoint only after the last epoch",
    flush=True,
)
step, epoch = 0, 0
while epoch < 100 and not warned:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.005)
        step += 1
        if warned:
            break
    epoch += 1

folder = tempfile.mkdtemp()
path = os.path.join(folder, "checkpoint.pt")
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
saved = os.path.exists(path)
shutil.rmtree(folder)
batch_system.wait()
print(
    f"truth: handler of SIGUSR1: {handler}, warned in step {step}, checkpoint saved: {saved}, loss {loss.item():.2f}"
)
