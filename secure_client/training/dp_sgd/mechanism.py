"""Mechanism of a DP-SGD step (Abadi et al. 2016, algorithm 1): Poisson sample, clipped gradients of units, noise.

A step sums clipped gradients as whole numbers. With a noise multiplier z and a clip C, the grid's step is z·C/2^20, a
unit's gradient is clipped to R = ⌊2^20/z⌋ steps and truncated towards zero, and the noise is a Gaussian with a
standard deviation of 2^20 steps, rounded to whole steps: rounding the noise equals rounding the noisy sum, which costs
no privacy, and 2^20/R ≥ z. Sums of whole numbers are exact, so one unit more or less changes a sum by C at most.

A unit is a record or a subject. With subjects, a step samples subjects: each takes part with probability equal to the
sampling rate, with all its records or none. A subject's gradient is the mean of its records' gradients, so that the
clip has the same scale as for records, and is clipped as a whole, so that a subject changes a step's sum by at most the
clip, however many records it has.

Limits. The Gaussian is float64's (:mod:`crypto.randomness`): its own grid shows nothing of the sum, since each whole
number stands for some 2^32 of its values (against Mironov 2012), but its probabilities are right to some 2^-32, and no
draw is beyond 8.6 standard deviations.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreement import DpSgdSection
from crypto.randomness import gaussian
from privacy.mechanisms.grid import SIGMA

_MARGIN = 1e-6
"""Relative margin of the radius, for float64 in a norm over up to 10^9 numbers."""


@dataclass(frozen=True)
class GradientGrid:
    """``step`` in units of a gradient, and R, the ``radius``, in steps."""

    step: float
    radius: int

    @classmethod
    def from_settings(cls, settings: DpSgdSection) -> GradientGrid:
        """Return the grid on which noise of 2^20 steps is at least the noise multiplier times R."""
        radius = math.floor(SIGMA / Fraction(settings.noise_multiplier))
        return cls(settings.noise_multiplier * settings.clip / SIGMA, radius)

    def clip_(self, rows: Tensor) -> Tensor:
        """Clip gradients of units, float64 (B, P), and truncate them to whole steps, in place; return the tensor.

        Each row then has a norm of at most R. A non-finite row becomes zero, so that no record can corrupt a step and
        thereby show its presence.
        """
        # In float64, and up to R less a margin: a norm that rounding makes too small would let a gradient exceed R.
        norms = torch.linalg.vector_norm(rows, dim=1)
        finite = norms.isfinite()
        if not bool(finite.all()):
            rows[~finite], norms[~finite] = 0.0, 0.0
        factors = (self.radius * (1 - _MARGIN) / norms).clamp(max=1 / self.step)
        # Truncation comes after the clip and only shortens a row. Rounding to nearest could lengthen it beyond R.
        return rows.mul_(factors.unsqueeze(1)).trunc_()


def poisson_sample(units: int, rate: float) -> list[int]:
    """Return the units of a step, in their order: each is drawn by itself, with probability ``rate``.

    Each draw takes 64 bits of the operating system's entropy; the probability is the rate, rounded down to a multiple
    of 2^-64.
    """
    # The accountant's amplification by sampling (Mironov, Talwar and Zhang 2019) is that of independent draws. In a
    # shuffled epoch every unit takes part once, which an adversary who knows the other batches can tell.
    if rate >= 1.0:
        return list(range(units))
    words = np.frombuffer(secrets.token_bytes(8 * units), dtype="<u8")
    return np.flatnonzero(words < np.uint64(math.floor(rate * 2**64))).tolist()


def draw_noise(count: int) -> NDArray[np.float64]:
    """Return rounded Gaussian noise with a standard deviation of 2^20 steps, whole numbers in float64 (count,)."""
    # Rounded before it is added: a sum of whole numbers is exact, and no low bits tell its terms (Mironov 2012).
    return np.rint(gaussian(count, float(SIGMA)))


class RecordUnits:
    """Units of one record each."""

    def __init__(self, count: int) -> None:
        self.count = count

    def begin_step(self, units: Sequence[int]) -> list[int]:
        """Return the records of a step's units."""
        return list(units)

    def combine(self, rows: Tensor) -> Tensor:
        """Return the gradients (B, P) unchanged."""
        return rows


class SubjectUnits:
    """Units of all records of a subject; ``owners`` int64 (N,) has the number of each record's subject.

    A subject's records are consecutive and may continue in the next physical batch; the sum of those before is carried
    over until the last record.
    """

    def __init__(self, owners: NDArray[np.int64]) -> None:
        # Subjects one after the other, so that at most one is unfinished at the end of a physical batch.
        self._order = np.argsort(owners, kind="stable")
        _, self._starts, self._sizes = np.unique(owners[self._order], return_index=True, return_counts=True)
        self.count = len(self._starts)
        self._step_sizes = self._sizes[:0]
        self._step_subjects = self._sizes[:0]
        self._next = 0
        self._carried: Tensor | None = None

    def begin_step(self, units: Sequence[int]) -> list[int]:
        """Return all records of a step's subjects, one subject after the other."""
        self._step_sizes = self._sizes[list(units)]
        # Each coming record's subject, by its place in the step: 0, 0, 0, 1, 2, 2, …
        self._step_subjects = np.repeat(np.arange(len(units)), self._step_sizes)
        self._next = 0
        self._carried = None
        spans = ((self._starts[unit], self._sizes[unit]) for unit in units)
        return [record for start, size in spans for record in self._order[start : start + size].tolist()]

    def combine(self, rows: Tensor) -> Tensor:
        """Return the mean gradient of each subject whose last record is among the next records' ``rows`` (B, P)."""
        subjects = self._step_subjects[self._next : self._next + len(rows)]
        self._next += len(subjects)
        first, last = int(subjects[0]), int(subjects[-1])
        sums = rows.new_zeros(last - first + 1, rows.shape[1])
        if self._carried is not None:
            # Before the rows, so that additions keep the records' order: a batch's end changes no rounding.
            sums[0] = self._carried
        sums.index_add_(0, torch.from_numpy(subjects - first).to(rows.device), rows)
        # The sum of a subject that continues is not returned: clipped in two parts, it could add twice the clip.
        continues = self._next < len(self._step_subjects) and self._step_subjects[self._next] == last
        self._carried = sums[-1].clone() if continues else None
        complete = sums[: len(sums) - int(continues)]
        sizes = torch.from_numpy(self._step_sizes[first : first + len(complete)]).to(rows.device)
        return complete / sizes.unsqueeze(1)
