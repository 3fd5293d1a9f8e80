"""The noisy prototypes that a site goes by: those of its last release, kept with what it trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from algorithms.linear import Bool
from secure_client.bounds import PrototypeBounds
from secure_client.privacy.chain import Anchor
from secure_client.privacy.releases import Releases, Spent

_SEQ, _HEAD = "protoseal.ledger-seq", "protoseal.ledger-head"
_PRESENT, _ROWS, _ROUND = "protoseal.present", "protoseal.released", "protoseal.released-in"


@dataclass(frozen=True)
class _Release:
    """``rows`` (K, d) as they are sent, and which classes are ``present`` (K,), by noisy counts; of which round."""

    round: int
    rows: NDArray[np.float64]
    present: Bool


class NoisyPrototypes:
    """Draws prototypes in rounds that have a release, once they are paid for, and has the same until the next."""

    def __init__(self, releases: Releases, bounds: PrototypeBounds) -> None:
        """Released rows are brought within the ``bounds``, which costs nothing."""
        self._releases, self._bounds = releases, bounds
        self._last: _Release | None = None

    def pay_for_training(self, number: int) -> None:
        """Before a round's training, which is then to be done once: see :meth:`Releases.pay_for_training`."""
        self._releases.pay_for_training(number)

    def of_round(self, number: int, embedded: Iterable[tuple[Tensor, Tensor]]) -> NDArray[np.float64]:
        """Rows (K, d) for a round. ``embedded`` are features (B, d) and labels (B,), read if there is a release."""
        if self._last is None or self._releases.due(number, self._last.round):
            drawn = self._releases.release(
                number,
                ((given.double().cpu().numpy(), labels.long().cpu().numpy()) for given, labels in embedded),
            )
            self._last = _Release(number, self._bounds.bounded(drawn.rows).rows, drawn.present)
        return self._last.rows

    @property
    def present(self) -> Bool:
        """The classes (K,) that the last release has; it must have been drawn."""
        if self._last is None:
            raise RuntimeError("asked for the classes of a release before there was one")
        return self._last.present

    @property
    def spent(self) -> Spent:
        """Of the data set's budget, over all runs."""
        return self._releases.spent

    def state(self) -> dict[str, Tensor]:
        """To be kept; what :meth:`load` takes up."""
        if self._last is None:
            return {}
        anchor = self._releases.anchor
        return {
            _SEQ: torch.tensor(anchor.seq),
            _HEAD: torch.tensor(list(bytes.fromhex(anchor.head)), dtype=torch.uint8),
            _ROUND: torch.tensor(self._last.round),
            _ROWS: torch.tensor(self._last.rows),  # a copy: the trainee keeps the same rows beside it
            _PRESENT: torch.from_numpy(self._last.present),
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take its own out of what was kept.

        :class:`RolledBackError` where the ledger has not what it had then: the site would pay from a new budget.
        """
        self._last = None
        if _ROUND in state:
            head = state.pop(_HEAD).numpy().tobytes().hex()
            self._releases.check_anchor(Anchor(int(state.pop(_SEQ)), head))
            self._last = _Release(
                int(state.pop(_ROUND)), state.pop(_ROWS).numpy(), state.pop(_PRESENT).numpy()
            )
