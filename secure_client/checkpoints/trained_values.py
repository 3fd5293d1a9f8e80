"""Values of a site's last training, as the journal keeps them with the model: a restart changes no bit of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import torch as torch_tensors
from torch import Tensor

from algorithms.fedplcc import LocalClusters
from algorithms.gram_matrix import Bool, Float
from secure_client.training.job import Losses

_OWN, _COUNTS, _FROM = "protoseal.prototypes", "protoseal.counts", "protoseal.trained-from"
_SCORES, _LOSSES, _LOCAL = "protoseal.scores", "protoseal.losses", "protoseal.local-"
_SHORTENED, _RELEASED = "protoseal.shortened", "protoseal.values-released-in"


@dataclass(frozen=True, repr=False)
class TrainedValues:
    """The outcome of a round's training, beside the model: a secret of the site.

    ``counts`` int64 (K,) are samples of each class; ``rows`` float64 (K, d) the prototypes, or None; ``scores`` float64
    (K, d) Fisher scores; ``base`` the hash of what the training started from. ``losses`` are None where training
    failed, and in round 0. ``shortened`` is the number of sent prototypes that were shortened to the norm bound, None
    where no exact prototypes are sent. ``released`` is the round of the noisy release that made counts and prototypes,
    None if they are exact; under noise nothing else may leave the site
    (:func:`secure_client.protocol.sent_values.check_released`).
    """

    round: int
    counts: NDArray[np.int64]
    base: bytes
    rows: Float | None = None
    scores: Float | None = None
    local: LocalClusters | None = None
    losses: Losses | None = None
    shortened: int | None = None
    released: int | None = None

    def __repr__(self) -> str:
        return f"TrainedValues(round={self.round}, …)"

    def held_classes(self) -> Bool:
        """Return the classes (K,) of the training samples, or, with noise, those present by the noisy counts."""
        return self.counts > 0

    @property
    def shortened_share(self) -> float | None:
        """Share of the sent prototypes that were shortened; None where ``shortened`` is."""
        if self.shortened is None:
            return None
        sent = int(self.held_classes().sum()) if self.local is None else len(self.local.rows)
        return self.shortened / sent if sent else 0.0

    def to_bytes(self, model: Mapping[str, Tensor]) -> bytes:
        """Return this outcome and the ``model``'s state as one safetensors file."""
        # One file for model and values, so that no crash leaves the values of one training beside another's model.
        state = {**model, _COUNTS: torch.from_numpy(self.counts)}
        state[_FROM] = torch.tensor(list(self.base), dtype=torch.uint8)
        if self.rows is not None:
            state[_OWN] = torch.from_numpy(self.rows)
        if self.scores is not None:
            state[_SCORES] = torch.from_numpy(self.scores)
        if self.local is not None:
            state |= {_LOCAL + name: torch.from_numpy(array) for name, array in vars(self.local).items()}
        if self.losses is not None:
            state[_LOSSES] = torch.tensor(astuple(self.losses), dtype=torch.float64)
        if self.shortened is not None:
            state[_SHORTENED] = torch.tensor(self.shortened)
        if self.released is not None:
            state[_RELEASED] = torch.tensor(self.released)
        return torch_tensors.save(state)

    @classmethod
    def from_bytes(cls, number: int, content: bytes) -> tuple[Self, dict[str, Tensor]]:
        """Return what :meth:`to_bytes` stored for round ``number``, and the model's state."""
        state = torch_tensors.load(content)
        local = {name: state.pop(name).numpy() for name in list(state) if name.startswith(_LOCAL)}
        values = cls(
            number,
            counts=state.pop(_COUNTS).numpy(),
            base=state.pop(_FROM).numpy().tobytes(),
            rows=state.pop(_OWN).numpy() if _OWN in state else None,
            scores=state.pop(_SCORES).numpy() if _SCORES in state else None,
            local=LocalClusters(**{name.removeprefix(_LOCAL): array for name, array in local.items()})
            if local
            else None,
            losses=Losses(*state.pop(_LOSSES).tolist()) if _LOSSES in state else None,
            shortened=int(state.pop(_SHORTENED)) if _SHORTENED in state else None,
            released=int(state.pop(_RELEASED)) if _RELEASED in state else None,
        )
        return values, state
