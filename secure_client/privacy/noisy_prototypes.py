"""Noisy prototypes of a site: those of its last release, stored with the training state.

Where sites share the noise of a sum, a site has no individual release after round 0: the site pays for its share of the
noise and draws the share before it states its presence in an attempt, and stores the share with the attempt's secrets
until the share is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from algorithms.fedplcc import LocalClusters
from algorithms.gram_matrix import Bool
from algorithms.prototypes import Clusters, Guide
from privacy.ledger.hash_chain import Anchor
from privacy.mechanisms.cell_query import Cells
from secure_client.privacy.bounds import PrototypeBounds
from secure_client.privacy.releases import Batches, Releases

_SEQ, _HEAD = "protoseal.ledger-seq", "protoseal.ledger-head"
_COUNTS, _ROWS, _ROUND = "protoseal.noisy-counts", "protoseal.released", "protoseal.released-in"
_LOCAL = "protoseal.released-local-"
_SUMS_DRAWN, _COUNTS_DRAWN, _DRAWS = "protoseal.sums-drawn", "protoseal.counts-drawn", "protoseal.draws"


@dataclass(frozen=True)
class ReleasedPrototypes:
    """Release that the site uses from ``round`` on: ``rows`` (K, d) as sent, and noisy ``counts`` int64 (K,).

    A class that is not present by its noisy count has count 0 and a row of zeros; the others have 1 or more. Where a
    class may have several prototypes, ``local`` has these with their noisy counts, and ``rows`` has their means. A
    ``round`` that sends no prototypes stands for a site that has had no release, and has no class.
    """

    round: int
    rows: NDArray[np.float64]
    counts: NDArray[np.int64]
    local: LocalClusters | None = None

    @property
    def present(self) -> Bool:
        """Classes that are present, (K,)."""
        return np.asarray(self.counts > 0)


@dataclass(frozen=True)
class Draws:
    """Total of the noisy sums (K, d) and counts (K,) of ``number`` releases of one query of the same features."""

    sums: NDArray[np.float64]
    counts: NDArray[np.float64]
    number: int


class NoisyPrototypes:
    """Source of noisy prototypes: drawn in a round with a release, once paid for, and kept until the next one.

    Where a later release asks the same query of the same features again (:attr:`Releases.averages`), its prototypes are
    those of the mean noisy sums and counts of all releases so far: sums and counts are averaged before the division,
    since a mean of ratios would keep the error of their noisy denominators.
    """

    def __init__(
        self,
        releases: Releases,
        bounds: PrototypeBounds,
        classes: int,
        *,
        clustered: bool = False,
        owners: NDArray[np.int64] | None = None,
    ) -> None:
        """Clip released rows to ``bounds``, which costs no privacy. ``classes`` is K.

        ``clustered``: a class has one prototype for each cluster of the last result, of the records nearest to the
        cluster's centre. ``owners`` (N,) has the owner of each embedded record: see :meth:`Releases.release`.
        """
        self.releases = releases
        self._bounds = bounds
        self._classes = classes
        self._clustered = clustered
        self._owners = owners
        self._last: ReleasedPrototypes | None = None
        self._draws: Draws | None = None

    def release_round(
        self, number: int, embedded: Iterable[tuple[Tensor, Tensor]], guide: Guide | None = None
    ) -> ReleasedPrototypes:
        """Return the release of a round. ``embedded``, features (B, d) and labels (B,), is read if there is a new one.

        ``guide`` is the guide of the site's training, which has the clusters, if any. Where the round's noise is
        shared, the site has no class by itself and draws nothing yet. Before the first release, a round that sends no
        prototypes leaves the site without any.
        """
        # Round 0 has no masked sum, so that its release is the site's own under shared noise too.
        if number and self.releases.distributed:
            self._last = self._empty(number)
        elif self.releases.is_due(number, None if self._last is None else self._last.round):
            batches = as_arrays(embedded)
            self._last = (
                self._release_cells(number, batches, guide)
                if self._clustered
                else self._release_classes(number, batches)
            )
        elif self._last is None:
            self.releases.log_missed(number)
            self._last = self._empty(number)
        return self._last

    def _empty(self, number: int) -> ReleasedPrototypes:
        rows, counts = np.zeros((self._classes, self.releases.dim)), np.zeros(self._classes, dtype=np.int64)
        local = LocalClusters(rows[:0], counts[:0], counts[:0]) if self._clustered else None
        return ReleasedPrototypes(number, rows, counts, local)

    def _release_classes(self, number: int, batches: Batches) -> ReleasedPrototypes:
        drawn = self.releases.release(number, batches, self._owners)
        if self.releases.averages:
            # Sums and counts are averaged before the division: a mean of ratios would keep their denominators' error.
            before = self._draws or Draws(np.zeros_like(drawn.sums), np.zeros_like(drawn.counts), 0)
            self._draws = Draws(before.sums + drawn.sums, before.counts + drawn.counts, before.number + 1)
            draws = self._draws.number
            drawn = self.releases.mean(self._draws.sums / draws, self._draws.counts / draws, draws)
        counts = np.where(drawn.present, _whole(drawn.counts), 0)
        return ReleasedPrototypes(number, self._bounds.bound(drawn.rows).rows, counts)

    def _release_cells(self, number: int, batches: Batches, guide: Guide | None) -> ReleasedPrototypes:
        drawn = self.releases.release_cells(number, batches, self._cells(guide), self._owners)
        rows = self._bounds.bound(drawn.rows).rows
        local = LocalClusters(rows, drawn.labels, _whole(drawn.counts))
        counts = np.bincount(local.labels, weights=local.counts, minlength=self._classes).astype(np.int64)
        means = np.zeros((self._classes, rows.shape[1]))
        np.add.at(means, local.labels, rows * local.counts[:, None])
        return ReleasedPrototypes(number, means / np.maximum(counts, 1)[:, None], counts, local)

    def _cells(self, guide: Guide | None) -> Cells:
        if not isinstance(guide, Clusters):
            return Cells.around(np.zeros((0, self.releases.dim)), np.zeros(0, dtype=np.int64), self._classes)
        return Cells.around(guide.rows.double().numpy(), guide.labels.numpy(), self._classes)

    def state(self) -> dict[str, Tensor]:
        """Return the state to be stored, which :meth:`load` restores."""
        if self._last is None:
            return {}
        # With the anchor of the ledger: the stored release is valid only beside the entry that paid for it.
        anchor, local = (
            self.releases.ledger.anchor,
            {} if self._last.local is None else vars(self._last.local),
        )
        draws: dict[str, Tensor] = {}
        if self._draws is not None:
            draws = {
                _SUMS_DRAWN: torch.tensor(self._draws.sums),
                _COUNTS_DRAWN: torch.tensor(self._draws.counts),
                _DRAWS: torch.tensor(self._draws.number),
            }
        return {
            **draws,
            **{_LOCAL + name: torch.tensor(array) for name, array in local.items()},
            _SEQ: torch.tensor(anchor.seq),
            _HEAD: torch.tensor(list(bytes.fromhex(anchor.head)), dtype=torch.uint8),
            _ROUND: torch.tensor(self._last.round),
            _ROWS: torch.tensor(self._last.rows),  # a copy, since the learner stores the same rows too
            _COUNTS: torch.tensor(self._last.counts),
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore the state that :meth:`state` returned.

        Raises :class:`privacy.errors.RolledBackError` if the ledger lacks an entry that it had then: the site would
        spend a new budget.
        """
        self._last = self._draws = None
        if _DRAWS in state:
            sums, counts = state.pop(_SUMS_DRAWN).numpy(), state.pop(_COUNTS_DRAWN).numpy()
            self._draws = Draws(sums, counts, int(state.pop(_DRAWS)))
        if _ROUND in state:
            # With an older ledger the site would spend again what it has spent: nothing of the state is used then.
            head = state.pop(_HEAD).numpy().tobytes().hex()
            self.releases.ledger.check_anchor(Anchor(int(state.pop(_SEQ)), head))
            names = [name for name in state if name.startswith(_LOCAL)]
            local = {name.removeprefix(_LOCAL): state.pop(name).numpy() for name in names}
            self._last = ReleasedPrototypes(
                int(state.pop(_ROUND)),
                state.pop(_ROWS).numpy(),
                state.pop(_COUNTS).numpy(),
                LocalClusters(**local) if local else None,
            )


def _whole(counts: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round noisy counts to whole records, 1 or more."""
    return np.maximum(np.rint(counts), 1.0).astype(np.int64)


def as_arrays(
    embedded: Iterable[tuple[Tensor, Tensor]],
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Yield the features float64 (B, d) and labels int64 (B,) of each batch."""
    for features, labels in embedded:
        yield features.double().cpu().numpy(), labels.long().cpu().numpy()
