"""Units whose gradient is clipped as a whole in a step of DP-SGD: records, or subjects by their records' mean.

With subjects, a step samples subjects: each takes part with probability equal to the sampling rate, with all its
records or none. A subject's gradient is the mean of its records' gradients, so that the clip has the same scale as for
records, and is clipped as a whole, so that a subject changes a step's sum by at most the clip, however many records it
has. A subject's records are consecutive and may continue in the next physical batch; their partial sum is held until
the last record.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Records:
    """Units of one record each."""

    def __init__(self, number: int) -> None:
        self.number = number

    def records(self, chosen: Sequence[int]) -> list[int]:
        """Return the chosen records unchanged."""
        return list(chosen)

    def joined(self, rows: Tensor) -> Tensor:
        """Return the gradients unchanged."""
        return rows


class Subjects:
    """Units of all records of a subject; ``owners`` int64 (N,) has the subject's number of each record."""

    def __init__(self, owners: NDArray[np.int64]) -> None:
        self._order = np.argsort(owners, kind="stable")
        found = np.unique(owners[self._order], return_index=True, return_counts=True)
        _, self._starts, self._counts = found
        self.number = len(self._starts)
        self._held: Tensor | None = None
        self._start_units([])

    def records(self, chosen: Sequence[int]) -> list[int]:
        """Return all records of the chosen subjects, one subject after the other."""
        self._start_units(chosen)
        spans = ((self._starts[each], self._counts[each]) for each in chosen)
        return [record for start, count in spans for record in self._order[start : start + count].tolist()]

    def joined(self, rows: Tensor) -> Tensor:
        """Return the mean gradient of each subject's records."""
        coming = self._coming[self._at : self._at + len(rows)]
        self._at += len(coming)
        place = torch.from_numpy(coming - coming[0]).to(rows.device)
        sums = rows.new_zeros(int(place[-1]) + 1, rows.shape[1])
        if self._held is not None:
            sums[0] = self._held  # first, so that a batch's end does not change the rounding of a sum
        sums.index_add_(0, place, rows)
        goes_on = self._at < len(self._coming) and self._coming[self._at] == coming[-1]
        self._held = sums[-1].clone() if goes_on else None
        complete = sums[: len(sums) - int(goes_on)]
        counts = torch.from_numpy(self._of_chosen[coming[0] :][: len(complete)]).to(rows.device)
        return complete / counts.unsqueeze(1)

    def _start_units(self, chosen: Sequence[int]) -> None:
        """Start with the first record of the first chosen subject."""
        self._of_chosen = self._counts[list(chosen)]
        self._coming = np.repeat(np.arange(len(chosen)), self._of_chosen)
        self._at, self._held = 0, None
