# SPDX-License-Identifier: Apache-2.0
"""The transformer that Lightning brings for demonstrations, with its own loader, on a text that lies where its download would."""

from pathlib import Path

from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos import LightningTransformer

seed_everything(0)
Path("data").mkdir(exist_ok=True)
Path("data/wikitext-2.txt").write_text(
    "".join(" ".join(f"w{(line * 7 + k) % 60}" for k in range(20)) + "\n" for line in range(1000))
)
trainer = Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(LightningTransformer(vocab_size=100))
