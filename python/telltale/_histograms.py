# SPDX-License-Identifier: Apache-2.0
"""Histograms of one tensor over its steps: what Tensor.histograms() gives."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from . import _pictures
from ._views import as_float, numpy_module
from .errors import ReadError

if TYPE_CHECKING:
    import numpy
    import pyarrow

QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_BINS = 64
# Of values: so many elements of all steps together, yet at least so many of a step. More would keep a notebook
# waiting, and read files of many GB.
_ELEMENTS = 1 << 24
_ELEMENTS_A_STEP = 1 << 16
_BLOCK = 64
_MODES = ("TRAIN", "EVAL", "PREDICT", "GLOBAL")


def _sample(elements: Any, most: int) -> Any:
    """At most so many elements of an array of one dimension, the first and the last among them."""
    if elements.size <= most:
        return elements
    numpy = numpy_module()
    begins = numpy.linspace(0, elements.size - _BLOCK, most // _BLOCK).astype(numpy.int64)
    return elements[(begins[:, None] + numpy.arange(_BLOCK)).reshape(-1)]


@dataclasses.dataclass(frozen=True)
class Histograms:
    """Of n steps, b bins a step; all arrays go along `steps`, which ascend."""

    name: str
    steps: numpy.ndarray[Any, Any]
    """(n,) int64."""
    min: numpy.ndarray[Any, Any]
    """(n,) float64: lower edge of the first bin."""
    max: numpy.ndarray[Any, Any]
    """(n,) float64: upper edge of the last bin, inclusive."""
    counts: numpy.ndarray[Any, Any]
    """(n, b) int64: elements in each bin; the bins of a step are of equal width."""
    quantiles: numpy.ndarray[Any, Any]
    """(n, 9) float64, of the ranks in `telltale._histograms.QUANTILES`: 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9,
    0.95, 0.99."""

    @classmethod
    def of_table(cls, name: str, table: pyarrow.Table, mode: str | None, rank: int | None) -> Histograms:
        """Of the rows of the table histograms that are of one mode and rank; of a step the newest row."""
        rows = table.to_pylist()
        present = {row["mode"] for row in rows}
        mode = mode or next((one for one in _MODES if one in present), None)
        ranks = [row["rank"] for row in rows if row["mode"] == mode]
        rank = min(ranks, default=None) if rank is None else rank
        # Without a finite element there is nothing to show.
        newest = {
            row["step"]: row
            for row in rows
            if row["mode"] == mode and row["rank"] == rank and row["taken"] and row["min"] == row["min"]
        }
        if not newest:
            raise ReadError(2, f"no histogram of {name!r} was recorded in mode {mode} by rank {rank}")
        chosen = [newest[step] for step in sorted(newest)]
        bins = [json.loads(row["bins"]) for row in chosen]
        width = max(map(len, bins))
        chosen = [row for row, counts in zip(chosen, bins) if len(counts) == width]
        bins = [counts for counts in bins if len(counts) == width]
        quantiles = [json.loads(row["quantiles"] or "[]") for row in chosen]
        nan = [float("nan")] * len(QUANTILES)
        return cls._of(
            name,
            [row["step"] for row in chosen],
            [row["min"] for row in chosen],
            [row["max"] for row in chosen],
            bins,
            [given if len(given) == len(QUANTILES) else nan for given in quantiles],
        )

    @classmethod
    def of_values(cls, name: str, values: list[tuple[int, Any]]) -> Histograms:
        """Computed of the values of some steps, over their finite elements; of large tensors over a sample, as
        the recorded ones are: blocks spread evenly over it.
        """
        numpy = numpy_module()
        rows = []
        most = max(_ELEMENTS // max(len(values), 1), _ELEMENTS_A_STEP)
        for step, array in values:
            elements = as_float(_sample(array.reshape(-1), most))
            elements = elements[numpy.isfinite(elements)]
            if not len(elements):
                continue
            counts, edges = numpy.histogram(elements, bins=_BINS)
            rows.append((step, edges[0], edges[-1], counts, numpy.quantile(elements, QUANTILES)))
        if not rows:
            raise ReadError(2, f"no finite element of {name!r} was recorded")
        return cls._of(name, *zip(*rows))

    @classmethod
    def _of(cls, name: str, steps: Any, low: Any, high: Any, counts: Any, quantiles: Any) -> Histograms:
        numpy = numpy_module()
        return cls(
            name=name,
            steps=numpy.array(steps, numpy.int64),
            min=numpy.array(low, numpy.float64),
            max=numpy.array(high, numpy.float64),
            counts=numpy.array(counts, numpy.int64),
            quantiles=numpy.array(quantiles, numpy.float64),
        )

    def edges(self, index: int) -> numpy.ndarray[Any, Any]:
        """(b + 1,) float64: the edges of the bins of the step at `index`."""
        return numpy_module().linspace(self.min[index], self.max[index], self.counts.shape[1] + 1)

    def __len__(self) -> int:
        return len(self.steps)

    def svg(self) -> str:
        """A heat map: steps to the right, values upwards, how many as colour."""
        steps = [int(step) for step in self.steps]
        return _pictures.histogram_svg(self.name, steps, self.min, self.max, self.counts)

    def plot(self) -> Any:
        """The heat map: Axes of matplotlib where that is installed, else a Picture (SVG)."""
        try:
            from matplotlib import pyplot
        except ImportError:
            return _pictures.Picture(self.svg().encode(), self.name, False)
        numpy = numpy_module()
        low, high = float(self.min.min()), float(self.max.max())
        if high <= low:
            low, high = low - 0.5, high + 0.5
        # Each step has bins of its own: drawn on one scale, by where the middles of the cells lie.
        middles = numpy.linspace(low, high, 200)
        image = numpy.zeros((len(middles), len(self)))
        for column in range(len(self)):
            edges = self.edges(column)
            index = numpy.searchsorted(edges, middles, side="right") - 1
            inside = (index >= 0) & (index < self.counts.shape[1])
            image[inside, column] = self.counts[column][index[inside]]
        axes = pyplot.subplots()[1]
        axes.imshow(
            numpy.sqrt(image),
            aspect="auto",
            origin="lower",
            extent=(float(self.steps[0]), float(self.steps[-1]) + 1, low, high),
        )
        axes.set(title=self.name, xlabel="step")
        return axes

    def _repr_html_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return f"<histograms of {self.name}: {len(self)} steps, {self.counts.shape[1]} bins>"
