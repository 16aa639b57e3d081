# SPDX-License-Identifier: Apache-2.0
"""Gives arrays of every dtype that numpy has at each of N steps: argv: N.

Element i of the array of step s is (s + i) % 100, so that what was stored shows by itself what it is.
"""

import sys
import time

import numpy as np

DTYPES = ["f4", "f8", "f2", "i8", "i4", "i2", "i1", "u1", "u2", "u4", "u8", "?", "c8", "c16"]


def array(step: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """The array that the test expects."""
    count = int(np.prod(shape))
    return ((np.arange(count) + step) % 100).astype(dtype).reshape(shape)


def main() -> None:
    import telltale  # The test imports what is above, without Telltale on its path.

    steps = int(sys.argv[1])
    for step in range(steps):
        telltale.step()
        for dtype in DTYPES:
            telltale.save_tensor(f"of.{dtype}", array(step, dtype, (3, 4)))
        telltale.save_tensor("turned", array(step, "f4", (5, 7)).T)
        telltale.save_tensor("large", array(step, "f4", (50, 100)))
        telltale.save_tensor("empty", array(step, "f4", (0, 3)))
        telltale.save_tensor("scalar", array(step, "f8", ()))
        time.sleep(0.002)


if __name__ == "__main__":
    main()
