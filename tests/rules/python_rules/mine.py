# SPDX-License-Identifier: Apache-2.0
"""Rules of a user's own, for tests/rules/python_*.test."""

import time

import telltale


class LossAbove(telltale.Rule):
    tables = ("scalars",)
    summary = "The loss is above a limit."
    advice = "Lower the learning rate."

    def __init__(self, limit="5"):
        self.limit = float(limit)

    def on_record(self, record):
        if record.name != "loss":
            return
        if record.value > self.limit:
            self.report("loss", severity="high", evidence={"loss": record.value, "limit": self.limit})
        else:
            self.recover("loss")


class AtSteps(telltale.Rule):
    """smdebug's form."""

    def invoke_at_step(self, step):
        return 20 <= step < 30


class Loops(LossAbove):
    def on_record(self, record):
        super().on_record(record)
        while record.step >= 50:
            time.sleep(0.01)


class EatsMemory(LossAbove):
    def on_record(self, record):
        super().on_record(record)
        kept = []
        while record.step >= 50:
            kept.append(bytearray(1 << 20))
