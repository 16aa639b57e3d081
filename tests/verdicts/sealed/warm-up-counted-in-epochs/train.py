# SPDX-License-Identifier: Apache-2.0
"""A Lightning module warms its learning rate up over 300 steps. The training learns far too slowly: configure_optimizers gives the
scheduler without interval="step", so that Lightning steps it once an epoch, and after ten epochs the warm-up is at 11 of 300."""

import logging
import sys
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
CLASSES, WIDTH, WARM_UP, PEAK, EPOCHS = 12, 48, 300, 0.05, 10

centres = torch.randn(CLASSES, WIDTH) * 0.4
labels = torch.randint(0, CLASSES, (3840,))
signals = centres[labels] + torch.randn(3840, WIDTH)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))
        self.recent = None

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        time.sleep(0.005)
        value = loss.item()
        self.recent = value if self.recent is None else 0.95 * self.recent + 0.05 * value
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {self.recent:.3f}", flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=PEAK, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
        plan = {"scheduler": scheduler}
        if CURED:
            plan["interval"] = "step"
        return {"optimizer": optimizer, "lr_scheduler": plan}


model = Classifier()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(signals, labels), 64, shuffle=True)
trainer = lightning.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader)
rate = trainer.optimizers[0].param_groups[0]["lr"]
print(
    f"truth: learning rate {rate:.4f} of {PEAK} after {trainer.global_step} steps (a warm-up of {WARM_UP} was asked for), loss {model.recent:.2f}"
)
