# SPDX-License-Identifier: Apache-2.0
"""PyKEEN's pipeline on the data set that it brings: embeddings of nations and what they do to each other."""

from pykeen.pipeline import pipeline

result = pipeline(
    dataset="nations",
    model="TransE",
    random_seed=0,
    device="cpu",
    training_kwargs={"num_epochs": 100, "use_tqdm": False},
)
print(result.get_metric("hits_at_10"))
