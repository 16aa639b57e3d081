# SPDX-License-Identifier: Apache-2.0
"""Transformers' Trainer tunes a small BERT on sequences of two kinds, with warm-up and a linear schedule."""

import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
tokens = torch.randint(5, 200, (1600, 24))
labels = (tokens[:, :12].sum(1) > tokens[:, 12:].sum(1)).long()
rows = Dataset.from_dict({"input_ids": tokens.tolist(), "labels": labels.tolist()})
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
)
arguments = TrainingArguments(
    "out",
    num_train_epochs=3,
    per_device_train_batch_size=16,
    learning_rate=2e-5,
    warmup_steps=30,
    eval_strategy="epoch",
    logging_steps=20,
    report_to="none",
    save_strategy="epoch",
    use_cpu=True,
    seed=0,
)
Trainer(
    model, arguments, train_dataset=rows.select(range(1400)), eval_dataset=rows.select(range(1400, 1600))
).train()
