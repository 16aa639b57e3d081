# SPDX-License-Identifier: Apache-2.0
"""Sentence Transformers' trainer: an embedding of words that is tuned on pairs of sentences."""

import random

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

random.seed(0)
torch.manual_seed(0)
words = [f"w{index}" for index in range(300)]
tokenizer = Tokenizer(
    models.WordLevel({word: index for index, word in enumerate(["[PAD]", "[UNK]", *words])}, "[UNK]")
)
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
    "base"
)
BertModel(
    BertConfig(
        vocab_size=302, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
).save_pretrained("base")
texts = [random.sample(words, 12) for _ in range(800)]
pairs = Dataset.from_dict(
    {
        "anchor": [" ".join(text) for text in texts],
        "positive": [" ".join(random.sample(text, 8)) for text in texts],
    }
)
body = Transformer("base", max_seq_length=32)
model = SentenceTransformer(modules=[body, Pooling(64)], device="cpu")
arguments = SentenceTransformerTrainingArguments(
    "out",
    num_train_epochs=4,
    per_device_train_batch_size=32,
    learning_rate=1e-3,
    warmup_ratio=0.1,
    report_to="none",
    save_strategy="no",
    use_cpu=True,
    seed=0,
)
SentenceTransformerTrainer(
    model, arguments, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model)
).train()
