"""Samples that several simulated sites share, kept in memory once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import Dataset, Subset, TensorDataset

from secure_client.data.preprocess import Preprocessing, to_dataset
from secure_client.data.samples import Indices, Inputs, Labels, Samples


@dataclass(frozen=True)
class Pool:
    """Samples of which each site has some rows, preprocessed once for all sites with the same agreed preprocessing."""

    samples: Samples
    _made: dict[Preprocessing | None, TensorDataset] = field(default_factory=dict, repr=False)

    def dataset(self, agreed: Preprocessing | None, *, where: str) -> TensorDataset:
        """Return all samples under the agreed preprocessing: the same object each time."""
        if agreed not in self._made:
            self._made[agreed] = to_dataset(self.samples, agreed, where=where)
        return self._made[agreed]


class SharedSamples(Samples):
    """Some rows of a :class:`Pool`; each access to ``inputs`` copies them.

    ``domains`` may index other names than the pool's. The samples are for tests and have no subjects.
    """

    pool: Pool
    rows: Indices

    def __init__(self, pool: Pool, rows: Indices, domains: Labels) -> None:
        for name, value in (("pool", pool), ("rows", rows), ("domains", domains)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "labels", pool.samples.labels[rows])

    @property
    def inputs(self) -> Inputs:
        """Copy of the inputs, with the pool's shape and dtype."""
        return self.pool.samples.inputs[self.rows]

    @property
    def is_images(self) -> bool:
        """True if the pool's inputs are images."""
        return self.pool.samples.is_images

    def take(self, indices: Indices) -> Samples:
        """Return the samples at ``indices``, still of the pool."""
        return SharedSamples(self.pool, self.rows[indices], self.domains[indices])

    def subset(self, agreed: Preprocessing | None, *, where: str) -> Dataset[Any]:
        """Return these rows of the pool's data set."""
        return Subset(self.pool.dataset(agreed, where=where), self.rows.tolist())
