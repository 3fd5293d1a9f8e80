"""Checkpoints of a site's model in its journal: the trained state, the targets and the base of training."""

from __future__ import annotations

import numpy as np
import safetensors.numpy
from torch import Tensor

from algorithms.gram_matrix import Bool, Float
from algorithms.prototypes import Targets
from secure_client.protocol.journal import Journal
from secure_client.site_model.round_start_state import Base
from secure_client.site_model.training_outcome import Trained

_STATE, _TARGETS, _BASE = "model", "targets", "base"
_REMEMBERED = "remembered "


class Checkpoints:
    """Latest trained state, targets and base of a site; each survives a restart bit for bit.

    :meth:`remember` keeps the three beside the current ones, for :meth:`go_back`.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def put_trained(self, trained: Trained, state: dict[str, Tensor]) -> None:
        """Keep what training gave, and the ``state`` of the model with it."""
        self.journal.put(_STATE, trained.round, trained.to_bytes(state))

    def trained(self) -> tuple[Trained, dict[str, Tensor]] | None:
        """Return what :meth:`put_trained` kept last; None before."""
        stored = self.journal.get(_STATE)
        return None if stored is None else Trained.from_bytes(*stored)

    def put_targets(self, round_number: int, rows: Float, present: Bool) -> None:
        """Keep the targets (K, d) of later rounds, read where ``present`` (K,)."""
        content = safetensors.numpy.save({"rows": np.ascontiguousarray(rows), "present": present})
        self.journal.put(_TARGETS, round_number, content)

    def targets(self) -> Targets | None:
        """Return the targets kept last; None before."""
        stored = self.journal.get(_TARGETS)
        if stored is None:
            return None
        arrays = safetensors.numpy.load(stored[1])
        return Targets.of(arrays["rows"], arrays["present"])

    def put_base(self, round_number: int, base: Base) -> None:
        """Keep the base that training starts from, of round ``round_number``."""
        self.journal.put(_BASE, round_number, base.to_bytes())

    def base(self) -> tuple[int, Base | None]:
        """Return the base kept last and its round; 0 and None before."""
        stored = self.journal.get(_BASE)
        return (0, None) if stored is None else (stored[0], Base.from_bytes(stored[1]))

    def remember(self) -> None:
        """Keep the present state beside the current one, in place of what was remembered before."""
        for name in (_STATE, _TARGETS, _BASE):
            stored = self.journal.get(name)
            if stored is not None:
                self.journal.put(_REMEMBERED + name, *stored)

    @property
    def remembered(self) -> int:
        """The round that was trained when :meth:`remember` was last called; 0 if it never was."""
        stored = self.journal.get(_REMEMBERED + _STATE)
        return 0 if stored is None else stored[0]

    def go_back(self) -> None:
        """Make the remembered state the latest one, for good."""
        for name in (_STATE, _TARGETS, _BASE):
            stored = self.journal.get(_REMEMBERED + name)
            if stored is not None:
                self.journal.put(name, *stored)
