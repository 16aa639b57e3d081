# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning a small BERT on short messages takes as long as on long documents: the tokenizer pads each message to the greatest length
that the model takes (padding="max_length"), so that more than nine of ten tokens that the model computes are padding."""

import random
import sys
import time

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
)

CURED = sys.argv[1:] == ["cured"]
random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
LONGEST, SECONDS = 160, 9.0

glad = [f"glad{i}" for i in range(60)]
sad = [f"sad{i}" for i in range(60)]
plain = [f"word{i}" for i in range(400)]
vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]"] + glad + sad + plain)}
words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
words.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=LONGEST
)


def message():
    label = random.randrange(2)
    chosen = random.choices(plain, k=random.randint(4, 10)) + random.choices((sad, glad)[label], k=2)
    random.shuffle(chosen)
    return " ".join(chosen), label


rows = []
for text, label in (message() for _ in range(2000)):
    row = (
        tokenizer(text, truncation=True)
        if CURED
        else tokenizer(text, truncation=True, padding="max_length", max_length=LONGEST)
    )
    rows.append({"input_ids": row["input_ids"], "attention_mask": row["attention_mask"], "labels": label})

loader = torch.utils.data.DataLoader(rows, 16, shuffle=True, collate_fn=DataCollatorWithPadding(tokenizer))
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=LONGEST,
        num_labels=2,
    )
)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
begin = time.monotonic()
step, real, all_tokens, recent = 0, 0, 0, None
while time.monotonic() - begin < SECONDS or step < 80:
    for batch in loader:
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        real += int(batch["attention_mask"].sum())
        all_tokens += batch["attention_mask"].numel()
        recent = loss.item() if recent is None else 0.9 * recent + 0.1 * loss.item()
        if step % 50 == 0:
            print(f"step {step} loss {recent:.3f}", flush=True)
        if time.monotonic() - begin >= SECONDS and step >= 80:
            break
spent = time.monotonic() - begin
print(
    f"truth: {100 - 100 * real / all_tokens:.0f} % of the tokens are padding, {1000 * spent / step:.0f} ms a step, {step} steps, loss {recent:.2f}"
)
