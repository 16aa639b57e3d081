# SPDX-License-Identifier: Apache-2.0
"""What is computed of tensors on a CUDA device, by torch's operations: no stream, no callback and no probe is known here.

Tensors lie one behind the other in the rows of a table, each from a row's begin, what is left of its last row is NaN
(device.py). Each statistic is one operation over all rows of a table; the rows of a tensor are summed up after it.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

ROW = 2048
"""Elements of a row."""
# What is known of each row: NaN, finite and zero elements, smallest, largest, sum, sum of absolute values, of
# squares, of squared deviations from the row's mean.
COLUMNS = 9
# Where it is asked for: smallest absolute value; squared deviations of the absolute values from their mean;
# negative elements; the product of those that are not zero as two parts of its binary logarithm, of which the
# first has whole numbers, in which nothing is lost.
MORE_COLUMNS = 5
# Factors whose mantissas, from 1/2 on, are multiplied without leaving the range of float64.
_FACTORS = 512

_torch: Any = None


def widened(piece: Any) -> Any:
    """Elements as float32, float64 or a half type: absolute values of complex ones."""
    if piece.is_complex():
        return piece.abs()
    if piece.is_floating_point():
        return piece.to(_torch.float32) if piece.element_size() == 1 else piece
    return piece.to(_torch.float64)


def row_statistics(table: Any) -> Any:
    """(rows, ROW) of any float dtype -> (rows, COLUMNS) float64."""
    return _statistics(table, table.to(_torch.float64))


def _statistics(table: Any, x: Any) -> Any:
    """`x`: the table as float64. A sum of another dtype would copy what it sums each time. What is made of a chunk
    lives no longer than it is needed: of those below three at a time.
    """
    t = _torch
    norm = t.linalg.vector_norm
    inf = math.inf
    # The norm of order 0 is the number of those that are not 0, NaN among them.
    not_zero = norm(x, 0, dim=1)
    no_nan = norm(x.nan_to_num(0.0, 1.0, 1.0), 0, dim=1)
    low = x.nan_to_num(inf, inf, inf).amin(1)
    high = x.nan_to_num(-inf, -inf, -inf).amax(1)
    # Zero where not finite, so that no sum has to look again.
    clean = x.nan_to_num(0.0, 0.0, 0.0)
    number = ROW - not_zero + norm(clean, 0, dim=1)
    at_least_one = number.clamp(min=1)
    total = clean.sum(1)
    sizes = norm(clean, 1, dim=1)
    squares = norm(clean, 2, dim=1).square_()
    del clean
    spread = _spread(table, x, total / at_least_one, at_least_one)
    return t.stack((not_zero - no_nan, number, ROW - not_zero, low, high, total, sizes, squares, spread), 1)


def _spread(table: Any, x: Any, mean: Any, number: Any) -> Any:
    """The sum of the squared deviations of the finite elements of each row from their mean."""
    t = _torch
    # Rounded as the elements are, so that equal ones deviate by nothing; what it is off by is taken back.
    exact = t.float64 if table.dtype == t.float64 else t.float32
    off = (x - mean.to(exact).to(t.float64)[:, None]).nan_to_num_(0.0, 0.0, 0.0)
    squares = t.linalg.vector_norm(off, 2, dim=1).square_()
    return (squares - off.sum(1).square_() / number).clamp_(min=0)


def all_statistics(table: Any) -> Any:
    """As row_statistics, and what MORE_COLUMNS are."""
    t = _torch
    x = table.to(t.float64)
    base = _statistics(table, x)
    negative = t.linalg.vector_norm(x.nan_to_num(0.0, 0.0, 0.0).clamp_(max=0), 0, dim=1)
    size = x.abs()
    del x
    least = size.nan_to_num(math.inf, math.inf, math.inf).amin(1)
    number = base[:, 1].clamp(min=1)
    spread = _spread(table, size, base[:, 6] / number, number)
    # Factors by mantissa, from 1/2 to 1, and exponent; what is no factor is 1.
    factors = size.nan_to_num_(1.0, 1.0, 1.0)
    mantissa, exponent = t.frexp(factors.masked_fill_(factors == 0, 1.0))
    del size, factors
    part, shift = t.frexp(mantissa.reshape(-1, ROW // _FACTORS, _FACTORS).prod(2))
    del mantissa
    power = exponent.to(t.float64).sum(1) + shift.to(t.float64).sum(1)
    return t.cat((base, t.stack((least, spread, negative, power, part.prod(1).log2()), 1)), 1)


def sum_up(rows: Any, lengths: Any) -> Any:
    """Of the rows of tensors the tensors'; `lengths`: rows of each, on the device."""

    def segments(data: Any, how: str) -> Any:
        # Unsafe: it would ask the device whether the lengths fit.
        return _torch.segment_reduce(data, how, lengths=lengths, axis=0, unsafe=True)

    low = segments(rows[:, 3:4].contiguous(), "min")
    high = segments(rows[:, 4:5].contiguous(), "max")
    sums = segments(rows.contiguous(), "sum")
    number = rows[:, 1]

    def spread(within: int, of: int) -> Any:
        """The parallel variance: within the rows, and of the rows' means about the tensor's."""
        mean = sums[:, of] / sums[:, 1].clamp(min=1)
        means = _torch.repeat_interleave(mean, lengths, output_size=rows.shape[0])
        between = number * (rows[:, of] / number.clamp(min=1) - means).square()
        return (sums[:, within] + segments(between[:, None].contiguous(), "sum")[:, 0])[:, None]

    columns = [sums[:, :3], low, high, sums[:, 5:8], spread(8, 5)]
    if rows.shape[1] > COLUMNS:
        columns += [segments(rows[:, 9:10].contiguous(), "min"), spread(10, 6), sums[:, 11:]]
    return _torch.cat(columns, 1)


def inverse_of(scale: Any, device: Any) -> Any:
    """What is to be multiplied by, one element on the device."""
    inverse = scale.detach().to(device=device, dtype=_torch.float64, non_blocking=True)
    return inverse.reshape(()).reciprocal()


def divided(matrix: Any, inverse: Any) -> Any:
    """Of the statistics of scaled values those of the values."""
    one, square = _torch.ones_like(inverse), inverse.square()
    factors = [one] * 3 + [inverse] * 4 + [square] * 2
    more = matrix.shape[1] > COLUMNS
    if more:
        factors += [inverse, square, one, one, one]
    matrix = matrix * _torch.stack(factors)
    if more:
        # Each finite element is a factor of the product.
        matrix[:, 12].add_(matrix[:, 1] * inverse.log2())
    return matrix


def summary(row: list[float], count: int, padding: int) -> tuple[tuple[Any, ...], dict[str, float]]:
    """Of a tensor's results, of `count` elements beside which `padding` NaN stood in its rows: count, NaN, infinities,
    zeros, min, max, mean, std, l1, l2 (of finite elements; NaN where there are none), and by name what is more.
    """
    nan, finite, zero, low, high, total, l1, squares, spread = row[:COLUMNS]
    nan -= padding
    infinite = count - finite - nan
    if finite > 0:
        mean, std, l2 = total / finite, math.sqrt(spread / finite), math.sqrt(squares)
    else:
        low = high = mean = std = l1 = l2 = math.nan
    more = {}
    if len(row) > COLUMNS:
        abs_min, abs_spread, negative, exponent, fraction = row[COLUMNS:]
        more = {"abs_min": math.nan, "abs_std": math.nan, "prod": math.nan}
        if finite > 0:
            product = 0.0 if zero > 0 else _power_of_two(exponent, fraction)
            more = {
                "abs_min": abs_min,
                "abs_std": math.sqrt(abs_spread / finite),
                "prod": -product if negative % 2 and not zero else product,
            }
    return (count, int(nan), int(infinite), int(zero), low, high, mean, std, l1, l2), more


def _power_of_two(exponent: float, fraction: float) -> float:
    """2 to the power of the sum of both; infinite or 0 where it leaves the range of float64."""
    if not math.isfinite(exponent) or not math.isfinite(fraction):
        return math.nan
    whole = math.floor(exponent)
    rest = exponent - whole + fraction
    carried = math.floor(rest)
    try:
        return math.ldexp(2.0 ** (rest - carried), max(whole + carried, -1100))
    except OverflowError:
        return math.inf


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
