# SPDX-License-Identifier: Apache-2.0
"""A program that lies to its recorder through the Python binding, and ends with code 7: train_forged.py SEED."""

import random
import sys

import telltale
from telltale._native import probe

ENDS = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**53, 2**57, 2**62, 2**63 - 1]
VALUES = [1.0, 1e308, float("nan"), float("-inf")]
dice = random.Random(int(sys.argv[1]))
for _ in range(500):
    telltale.step()
    telltale.log(loss=dice.choice(VALUES))
    for _ in range(10):
        probe.scalar_at(
            dice.choice(["loss", "lr.0", "x"]), dice.choice(VALUES), dice.choice(ENDS), dice.randrange(4)
        )
print("recorded", telltale.active())
sys.exit(7)
