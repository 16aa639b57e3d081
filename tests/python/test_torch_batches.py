# SPDX-License-Identifier: Apache-2.0
"""What is told of batches: classes, images, tokens."""

from __future__ import annotations

from collections import Counter

PRELUDE = """
import time
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
def train(net, batches, loss=F.cross_entropy):
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    for x, y in batches:
        opt.zero_grad(); loss(net(x), y).backward(); opt.step()
"""


def _facts(run, kind):
    return [event["facts"] for event in run.events(kind)]


def _counts(events):
    counted = Counter()
    for facts in events:
        for label, predicted, count in facts["counts"]:
            counted[label, predicted] += count
    return counted


# Scores are what the model is given, so that what it predicts is known.
SCORES = """
class Same(nn.Module):
    def __init__(self): super().__init__(); self.one = nn.Parameter(torch.ones(()))
    def forward(self, x): return x * self.one
scores = torch.eye(5)[torch.tensor([0, 1, 2, 3, 4, 0])] * 9
labels = torch.tensor([0, 1, 2, 3, 3, 4])
"""
PAIRS = {(0, 0), (1, 1), (2, 2), (3, 3), (3, 4), (4, 0)}


def test_classes_of_a_loss_are_counted(telltale):
    run = telltale.python(
        PRELUDE + SCORES + "train(Same(), [(scores, labels)] * 400, nn.CrossEntropyLoss())\n"
    ).assert_clean()
    told = _facts(run, "batch.classes")
    counts = _counts(told)
    assert set(counts) == PAIRS and len(set(counts.values())) == 1
    assert {facts["mode"] for facts in told} == {"TRAIN"}
    assert {facts["function"] for facts in told} == {"cross_entropy"}
    assert {facts["classes"] for facts in told} == {5}
    assert sum(facts["samples"] for facts in told) == sum(counts.values())


def test_padding_counts_for_no_class(telltale):
    body = "train(Same(), [(scores, torch.tensor([0, -100, 2, -100, 3, 4]))] * 40)\n"
    run = telltale.python(PRELUDE + SCORES + body).assert_clean()
    assert set(_counts(_facts(run, "batch.classes"))) == {(0, 0), (2, 2), (3, 4), (4, 0)}


def test_classes_of_evaluations_are_counted_apart(telltale):
    body = """
net = Same()
train(net, [(scores, labels)] * 40)
net.eval()
with torch.no_grad():
    for loss in (F.cross_entropy, nn.CrossEntropyLoss()):
        for _ in range(10): loss(net(scores), torch.zeros(6, dtype=torch.long))
"""
    run = telltale.python(PRELUDE + SCORES + body).assert_clean()
    told = _facts(run, "batch.classes")
    assert set(_counts(facts for facts in told if facts["mode"] == "TRAIN")) == PAIRS
    assert set(_counts(facts for facts in told if facts["mode"] == "EVAL")) == {(0, p) for p in range(5)}


def test_targets_between_two_classes_count_for_none(telltale):
    body = """
x = torch.tensor([[3.0], [-3.0], [3.0], [1.0]])
train(Same(), [(x, torch.tensor([[1.0], [1.0], [0.0], [0.9]]))] * 40, nn.BCEWithLogitsLoss())
"""
    run = telltale.python(PRELUDE + SCORES + body).assert_clean()
    assert set(_counts(_facts(run, "batch.classes"))) == {(1, 1), (1, 0), (0, 1)}


def test_losses_of_numbers_have_no_classes(telltale):
    body = "train(Same(), [(scores, scores)] * 40, nn.MSELoss())\n"
    run = telltale.python(PRELUDE + SCORES + body).assert_clean()
    assert not run.events("batch.classes")


CONVOLUTION = """
x, y = torch.rand(20, 3, 6, 6) * 2 + torch.tensor([0.0, 5.0, 9.0])[:, None, None], torch.zeros(20, dtype=torch.long)
def net(*behind): return nn.Sequential(nn.Conv2d(3, 4, 3), *behind, nn.Flatten(), nn.Linear(64, 2))
"""


def test_means_of_images(telltale):
    run = telltale.python(PRELUDE + CONVOLUTION + "train(net(), [(x, y)] * 20)\n").assert_clean()
    told = _facts(run, "batch.images")
    assert len(told) >= 1
    facts = told[0]
    assert facts["shape"] == [20, 3, 6, 6] and facts["images"] == 10 and facts["normalized"] is False
    assert [round(mean) for mean in facts["means"]] == [1, 6, 10]
    variances = [square - mean * mean for square, mean in zip(facts["squares"], facts["means"])]
    assert all(abs(variance - 1 / 3) < 0.05 for variance in variances)


def test_a_normalization_behind_the_images(telltale):
    run = telltale.python(
        PRELUDE + CONVOLUTION + "train(net(nn.BatchNorm2d(4)), [(x, y)] * 20)\n"
    ).assert_clean()
    assert all(facts["normalized"] for facts in _facts(run, "batch.images"))


def test_what_a_layer_gives_is_no_image(telltale):
    body = "train(nn.Sequential(nn.BatchNorm2d(3), net()), [(x, y)] * 20)\n"
    run = telltale.python(PRELUDE + CONVOLUTION + body).assert_clean()
    assert not run.events("batch.images")


TOKENS = """
class Words(nn.Module):
    def __init__(self, padding):
        super().__init__()
        self.words, self.kinds = nn.Embedding(50, 4, padding_idx=padding), nn.Embedding(2, 4)
        self.last = nn.Linear(4, 2)
    def forward(self, x): return self.last((self.words(x) + self.kinds(torch.zeros_like(x))).mean(1))
x = torch.randint(1, 50, (16, 10)); x[:, 4:] = 0
y = torch.zeros(16, dtype=torch.long)
"""


def test_padding_that_the_embedding_names(telltale):
    run = telltale.python(PRELUDE + TOKENS + "train(Words(0), [(x, y)] * 20)\n").assert_clean()
    facts = _facts(run, "batch.tokens")[0]
    assert facts == {
        "tokens": 160,
        "rows": 16,
        "shape": [16, 10],
        "named": True,
        "token": 0,
        "share": 0.6,
        "edges": 1.0,
    }


def test_padding_that_rows_end_with(telltale):
    run = telltale.python(PRELUDE + TOKENS + "train(Words(None), [(x, y)] * 20)\n").assert_clean()
    facts = _facts(run, "batch.tokens")[0]
    assert (facts["named"], facts["token"], facts["share"], facts["edges"]) == (False, 0, 0.6, 1.0)


def test_nothing_is_kept_and_the_training_is_the_same(telltale):
    body = """
import gc, weakref
def once():
    model = net(); inputs = x.clone()
    train(model, [(inputs, y)] * 40)
    return weakref.ref(inputs), [p.sum().item() for p in model.parameters()]
gone, _ = once()
gc.collect()
print(gone() is None)
"""
    assert "True" in telltale.python(PRELUDE + CONVOLUTION + body).assert_clean().out


def test_outputs_without_slope_of_tanh_and_sigmoid_are_counted(telltale):
    body = """
class Scale(nn.Module):
    def __init__(self, by): super().__init__(); self.by = by
    def forward(self, x): return x * self.by
net = nn.Sequential(nn.Linear(1, 4), Scale(100.0), nn.Tanh(), nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 2), nn.Tanh())
with torch.no_grad():
    net[0].weight.fill_(1.0); net[0].bias.zero_()
    net[3].weight.zero_(); net[3].bias.zero_()
x = torch.tensor([[1.0], [-1.0], [0.01], [2.0]])
train(net, [(x, torch.zeros(4, 2))] * 20, F.mse_loss)
"""
    told = _facts(telltale.python(PRELUDE + body).assert_clean(), "batch.gates")
    # The last tanh lies before no layer: what it gives is the model's answer.
    assert told and all(
        [layer["function"] for layer in facts["layers"]] == ["tanh", "sigmoid"] for facts in told
    )
    assert all([layer["share"] for layer in facts["layers"]] == [0.75, 0] for facts in told)
    assert told[0]["layers"][0] == {"function": "tanh", "shape": [4, 4], "values": 16, "share": 0.75}
