# SPDX-License-Identifier: Apache-2.0
"""Transformers' Trainer on a small GPT-2: four accumulated batches an update, cosine schedule, clipped gradients."""

import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
start = torch.randint(0, 100, (1024, 1))
tokens = (start + torch.arange(32) * torch.randint(1, 4, (1024, 1))) % 100
rows = Dataset.from_dict({"input_ids": tokens.tolist(), "labels": tokens.tolist()})
model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=64, n_layer=2, n_head=2))
arguments = TrainingArguments(
    "out",
    num_train_epochs=4,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    learning_rate=1e-3,
    lr_scheduler_type="cosine",
    logging_steps=10,
    report_to="none",
    save_strategy="no",
    use_cpu=True,
    seed=0,
)
Trainer(model, arguments, train_dataset=rows).train()
