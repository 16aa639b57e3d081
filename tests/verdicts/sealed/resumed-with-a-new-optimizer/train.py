# SPDX-License-Identifier: Apache-2.0
"""A training is stopped after eight of ten epochs and goes on from its checkpoint. The loss jumps up and the last two epochs are spent
to get back: the second job loads the weights alone (load_from_checkpoint) and does not give the checkpoint to fit(), so that the
optimizer's momentum is empty and the learning rate, which had come down, starts again at its top."""

import logging
import os
import shutil
import sys
import tempfile
import time
import warnings

import lightning
import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.manual_seed(0)
torch.set_num_threads(1)
CLASSES, WIDTH, EPOCHS, TOP = 10, 32, 10, 0.2

centres = torch.randn(CLASSES, WIDTH) * 0.5
labels = torch.randint(0, CLASSES, (2560,))
signals = centres[labels] + torch.randn(2560, WIDTH)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 96), nn.ReLU(), nn.Linear(96, CLASSES))
        self.losses, self.rates = [], []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        time.sleep(0.006)
        self.losses.append(loss.item())
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        return loss

    def on_train_epoch_end(self):
        print(
            f"epoch {self.current_epoch} loss {sum(self.losses[-40:]) / 40:.3f} learning rate {self.rates[-1]:.4f}",
            flush=True,
        )

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=TOP, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


def trainer(epochs):
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


folder = tempfile.mkdtemp()
path = os.path.join(folder, "last.ckpt")
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(signals, labels), 64, shuffle=True)

# The first job: its time is up after eight epochs.
model = Classifier()
job = trainer(EPOCHS - 2)
job.fit(model, loader)
job.save_checkpoint(path)
rate_before, loss_before = model.rates[-1], sum(model.losses[-40:]) / 40

# The second job goes on.
print("resume", flush=True)
if CURED:
    model = Classifier()
    trainer(EPOCHS).fit(model, loader, ckpt_path=path)
else:
    model = Classifier.load_from_checkpoint(path)
    trainer(2).fit(model, loader)
rate_after, loss_after = model.rates[0], sum(model.losses[:40]) / 40
shutil.rmtree(folder)
print(
    f"truth: learning rate {rate_before:.4f} before and {rate_after:.4f} after the resume, loss {loss_before:.3f} and {loss_after:.3f}"
)
