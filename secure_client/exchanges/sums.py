"""Sums at a site: of prototypes, of models, or of both, over all sites or over the site's group.

:mod:`secure_client.exchanges.groups` has the checks of groups and bases, which bound what one round reveals, and
:mod:`secure_client.exchanges.sum_halves` what each protection makes of a vector. FedPC's grouping, its round 0, is here
too; the coordinator's part of it is :mod:`secure_server.exchanges.site_grouping`.

Limit: a coordinator that chooses the sites' base can freeze training (for all sites in one of two rounds, or for all
but one site in one round) and subtract the two sums.
"""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
from numpy.typing import NDArray

from agreement import Agreement
from agreement.derived.cohorts import clustering_cohort
from algorithms.gram_matrix import Bool, Float
from crypto.errors import ImplausibleError
from crypto.protection import Payload, ProtectedPayload
from protoseal_wire.messages import PhaseKey, RoundStart
from secure_client.checkpoints.exchanged_values import ExchangedValues
from secure_client.error_containment import run_or_fallback
from secure_client.exchanges.exchange import ExchangeParts, PresenceBase, check_nothing_given
from secure_client.exchanges.groups import GroupExchange
from secure_client.exchanges.row_protection import row_protection
from secure_client.exchanges.sum_halves import SumStep, build_sum_half
from secure_client.privacy.bounds import model_weight
from secure_client.protocol.secure_aggregation import Group
from secure_client.protocol.sent_values import Answer
from secure_client.training.recipes import site_method

_log = logging.getLogger("protoseal.site")


class SumExchange(GroupExchange):
    """Sums of a run. Round 0, if any, is FedPC's grouping; every later round sums the members of each group."""

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        self._setup = parts.setup
        self._participants = parts.participants
        self._half = build_sum_half(parts)

    def start(self, key: PhaseKey, start: RoundStart) -> None:
        """See :class:`secure_client.exchanges.exchange.SiteExchange`, here and below."""
        if key.round == 0:  # the grouping has no groups yet, and no result before it
            check_nothing_given(key, start)
        else:
            super().start(key, start)

    def presence(self, key: PhaseKey) -> PresenceBase:
        """Return the hash of the base that the model was trained from, and fresh keys where the sum is masked.

        A site whose budget does not cover its share of the noise stops here with a :class:`privacy.errors.BudgetError`,
        before it takes part in the attempt. The share is paid for and drawn here, not at VALUES: the statement's anchor
        then covers the payment, and a journal and a ledger that are restored together to any later moment hold the same
        single share.
        """
        if key.round == 0:
            return PresenceBase()
        stated = super().presence(key)
        if self._layout.noisy:
            self._masks.keep_noise(key, self._learner.draw_noise_share(key.round))
        return stated

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """Answer VALUES of FedPC's grouping in round 0; in later rounds the steps of the protection's half."""
        if key.round == 0:
            return self._answer_grouping(key, request)
        group = self._members.group_of_step(key, request)
        return self._half.answer(SumStep(key, request, group, partial(self._vector, key)))

    def take_catch_up(self, key: PhaseKey, base: bytes, payload: Payload) -> None:
        """See :class:`secure_client.exchanges.groups.GroupExchange`."""
        self._take(key.round - 1, base, payload)

    def take_result(self, key: PhaseKey, base: bytes, payload: Payload) -> Bool:
        """See :class:`secure_client.exchanges.groups.GroupExchange`."""
        has = self._take(key.round, base, payload)
        # Without sums of prototypes, no class is withheld.
        return has if self._layout.classes else np.ones_like(has)

    # Values sent

    def _answer_grouping(self, key: PhaseKey, request: bytes) -> ProtectedPayload:
        """Return all prototypes as one row of norm at most 1, absent classes as zeros (FedPC, section on grouping).

        The coordinator computes inner products of these rows, which a rotation leaves unchanged.
        """
        cohort = clustering_cohort(self._participants.verify_list(key, request), self._agreement)
        rows, _ = self._learner.train_round(0)
        row = grouping_row(rows, self._agreement.norm_bound)
        return ProtectedPayload(row_protection(self._agreement, self._setup, key), row, self._site, cohort)

    def _vector(self, key: PhaseKey, group: Group) -> NDArray[np.float64]:
        """Return the vector (L,) in the order of the layout; zeros for classes withheld in the group's attempt."""
        layout = self._layout
        averaged = self._learner.values.averaged_part
        if layout.noisy:
            # Noise lies in every class, held or not, for this attempt alone: a class without noise would show that the
            # site lacks it.
            share = self._masks.take_noise(key)
            vectors, weights = self._learner.noisy_sum_term(key.round, len(group.cohort.sites), share)
            return layout.noisy_contribution(
                vectors.astype(np.float64), weights.astype(np.float64), averaged()
            )
        rows, counts = self._learner.train_round(key.round)
        sent = np.where(group.cohort.held_by(self._site)[:, None], rows, 0.0) if layout.classes else rows[:0]
        samples = model_weight(counts, self._agreement.averaging.most_samples)
        return layout.contribution(sent, averaged(), samples)

    # Results received

    def _take(self, round_number: int, base: bytes, payload: Payload) -> Bool:
        """Make a result the base of later rounds; return the classes (K,) that the result has.

        If the decryption is implausible, keep only the result's hash: a site that left would show that it is.
        """
        try:
            means = self._half.read_means(payload)
        except ImplausibleError as error:
            _log.error("the result of round %d is discarded: %s", round_number, error)
            self._learner.received.keep_base(round_number, base)
            return np.zeros(len(self._agreement.classes), dtype=np.bool_)
        rows = means.rows if len(means.rows) else np.zeros((len(means.has), self._agreement.dim))
        targets, present = self._targets(rows, means.has)
        self._learner.received.take_base(round_number, base, targets, present, means.model)
        return means.has

    def _targets(self, rows: Float, has: Bool) -> tuple[Float, Bool]:
        """Return the targets of the site's features: the means, or the method's own function of these."""
        if self._agreement.distributed_noise or not self._learner.values.has_trained:
            return rows, has  # no site has released its own prototypes
        return fuse_targets(self._agreement, self._learner.values, rows, has)


def fuse_targets(agreement: Agreement, values: ExchangedValues, rows: Float, has: Bool) -> tuple[Float, Bool]:
    """Return a site's targets (K, d), (K,), from the means, its own prototypes and their scores, as the method has it.

    Without such a function of the method, and after an error in it, these are the means.
    """
    method = agreement.method
    make = site_method(method).targets
    if make is None:
        return rows, has
    settings = agreement.settings_of(method)
    return run_or_fallback(
        lambda: make(settings, values.latest(), values.scores(), (rows, has)),
        lambda: (rows, has),
        "the fusion of targets",
    )


def grouping_row(rows: Float, norm_bound: float) -> Float:
    """Return prototypes (K, d) within the norm bound as one row (1, K·d) of norm at most 1."""
    # K prototypes within the bound have norm √K · bound together, and a half refuses rows longer than 1.
    return np.asarray(rows.reshape(1, -1) / (norm_bound * np.sqrt(len(rows))))
