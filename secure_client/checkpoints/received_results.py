"""Results that a site has received: the base that its next training starts from, and the targets of its features."""

from __future__ import annotations

from dataclasses import replace

from algorithms.fedplcc import GlobalClusters
from algorithms.gram_matrix import Bool, Float
from algorithms.prototypes import Guide, Targets
from secure_client.checkpoints.checkpoints import Base, Checkpoints
from secure_client.checkpoints.exchanged_values import ExchangedValues
from secure_client.training.learner import Learner


class ReceivedResults:
    """Present base and targets of a site, each stored before it is used."""

    def __init__(self, learner: Learner, checkpoints: Checkpoints, values: ExchangedValues) -> None:
        self._learner = learner
        self._checkpoints = checkpoints
        self._values = values
        self.base: Base | None = None
        """Base of training; None before the group's first result."""
        self.base_round = 0
        """Round whose result is the base."""
        self.guide: Guide | None = None
        """Targets of training; None before the first useful result."""

    @property
    def base_hash(self) -> bytes:
        """Hash of the base of training; empty before the group's first result."""
        return b"" if self.base is None else self.base.hash

    def load(self) -> None:
        """Read what the journal has."""
        self.base_round, self.base = self._checkpoints.load_base()
        # A method has either a base, whose rows are the targets, or targets alone.
        self.guide = self._checkpoints.load_targets() if self.base is None else self.base.guide()

    def take_targets(self, round_number: int, rows: Float, present: Bool) -> None:
        """Set the targets of later rounds: (K, d), valid where ``present`` (K,) is true."""
        self.guide = Targets.of(rows, present)
        self._checkpoints.put_targets(round_number, rows, present)

    def take_base(self, round_number: int, base: bytes, rows: Float, has: Bool, averaged: Float) -> None:
        """Take the base of later rounds: the result of round ``round_number``, of hash ``base``.

        ``rows`` (K, d) become the targets where ``has`` (K,) is true, ``averaged`` is (p + q,). A site that catches up
        passes the number of the round *before* the starting round: its training after that round, from another base, is
        then discarded and repeated, so that the site never adds a model to a sum under another base than the model's.
        Raises ``ValueError`` for unsuitable shapes or non-finite values.
        """
        self._take(round_number, Base.of(base, rows, has, averaged))

    def take_clusters(
        self, round_number: int, base: bytes, clusters: GlobalClusters, averaged: Float
    ) -> None:
        """Take a base as :meth:`take_base` does, with several prototypes of a class."""
        self._take(round_number, Base.of_clusters(base, clusters, averaged))

    def keep_base(self, round_number: int, base: bytes) -> None:
        """Keep the present base under the hash of an unusable result.

        Before the first result the base is the site's own model, without targets.
        """
        # Under the new hash: a site that went on stating the old one would show that it could not use the result.
        present = self.base or Base(b"", {}, self._values.averaged_part())
        self._take(round_number, replace(present, hash=base))

    def _take(self, round_number: int, base: Base) -> None:
        if len(base.averaged) != sum(self._learner.averaged_sizes):
            raise ValueError(
                f"{len(base.averaged)} averaged numbers do not fit the averaged part of this site's model"
            )
        self.base_round = round_number
        self.base = base
        self.guide = base.guide()
        self._checkpoints.put_base(round_number, base)
