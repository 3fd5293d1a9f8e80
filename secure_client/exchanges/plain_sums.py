"""Sums at a site: of prototypes, of models, or of both, over all sites or over the site's group.

The coordinator chooses the groups, and a site cannot check the choice. A site does check that the groups are the same
in every round, that each group is large enough, that every member of its own group trains from the same result, and
that at most one sum with the site's values can open in a round, however many attempts the round takes. These checks
bound one round. Limit: a coordinator that chooses the sites' base can make training stand still, at all sites in one of
two rounds, or at all but one site in one round, and then subtract the sums.
"""

from __future__ import annotations

import hashlib
import logging

import numpy as np
from numpy.typing import NDArray

from agreement.derived.cohorts import clustering_cohort
from agreement.derived.payload_forms import limits_of, longest_mean, result_form
from algorithms.gram_matrix import Bool, Float
from crypto.errors import ImplausibleError
from crypto.pairwise.wire_values import MaskKeys
from crypto.plain import SCHEME as PLAIN
from crypto.protection import Payload, ProtectedPayload
from protoseal_wire import codec
from protoseal_wire.messages import PhaseKey, RoundStart
from secure_client.error_containment import run_or_fallback
from secure_client.errors import Violation
from secure_client.exchanges.exchange import ExchangeParts, ResultSummary
from secure_client.exchanges.groups import GroupMembers, RoundStartCheck
from secure_client.exchanges.peers import check_nothing_given
from secure_client.exchanges.row_protection import plain_values, row_protection
from secure_client.privacy.bounds import model_weight
from secure_client.protocol.secure_aggregation import Group
from secure_client.protocol.sent_values import Answer
from secure_client.training.recipes import site_method

_log = logging.getLogger("protoseal.site")


class PlainSums:
    """Sums of a run. Round 0, if any, is FedPC's grouping; every later round sums the members of each group."""

    scheme = PLAIN
    """Scheme of results."""

    def __init__(self, parts: ExchangeParts) -> None:
        self._agreement, self._site, self._trainee = parts.agreement, parts.site, parts.trainee
        self._setup, self._participants, self._masks = parts.setup, parts.participants, parts.masks
        self._limits = limits_of(parts.agreement)
        self._starts = RoundStartCheck(parts)
        self._members = GroupMembers(parts, self._starts)

    def start(self, key: PhaseKey, start: RoundStart) -> None:
        """See :class:`secure_client.exchanges.exchange.SiteExchange`, here and below."""
        if key.round == 0:
            check_nothing_given(key, start)
            return
        caught_up = self._starts.checked(key, start, self._trainee.base_hash)
        if caught_up is not None:
            # The base belongs to the round before: a model already trained in this round from another base is
            # discarded.
            self._take(key.round - 1, start.base, caught_up)

    def stated(self, key: PhaseKey) -> tuple[bytes, MaskKeys | None]:
        """Return the hash of the base that the model was trained from, and fresh keys where the sum is masked.

        A site whose budget does not cover its share of the noise stops here with a :class:`privacy.errors.BudgetError`,
        before it takes part in the attempt. The share is paid for and drawn here, not at VALUES: the statement's anchor
        then covers the payment, and a journal and a ledger that are restored together to any later moment hold the same
        single share.
        """
        if key.round == 0:
            return b"", None
        keys = self._masks.fresh_keys(key) if self._agreement.plan.masked else None
        if self._agreement.layout.noisy:
            self._masks.keep_noise(key, self._trainee.draw_noise_share(key.round))
        return self._trainee.base_hash, keys

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """Answer VALUES: of FedPC's grouping in round 0, of a sum in later rounds."""
        if key.round == 0:
            return self._grouping(key, request)
        vector = self._vector(key, self._members.asked(key, request))
        return ProtectedPayload(plain_values(self._agreement), vector)

    def result(self, key: PhaseKey, request: bytes) -> ResultSummary:
        """Take the base that the group's members train from next."""
        payload = codec.decode_payload(request, self._limits, result_form(self._agreement))
        has = self._take(key.round, hashlib.sha256(request).digest(), payload)
        self._masks.forget(key)
        # Without sums of prototypes, no class is withheld.
        given = has if self._agreement.layout.classes else np.ones_like(has)
        return ResultSummary(self._members.known(key), given)

    def end(self) -> None:
        """Erase the secrets of an attempt that had no result, if there is one."""
        self._masks.leave()

    # Values sent

    def _grouping(self, key: PhaseKey, request: bytes) -> ProtectedPayload:
        """Return all prototypes as one row of norm at most 1, absent classes as zeros."""
        cohort = clustering_cohort(self._participants.verified(key, request), self._agreement)
        rows, _ = self._trainee.train_round(0)
        longest = self._agreement.norm_bound * np.sqrt(len(rows))
        row = np.asarray(rows.reshape(1, -1) / longest)
        return ProtectedPayload(row_protection(self._agreement, self._setup, key), row, self._site, cohort)

    def _vector(self, key: PhaseKey, group: Group) -> NDArray[np.float64]:
        """Return the vector (L,) in the order of the layout; zeros for classes withheld in the group's attempt."""
        layout = self._agreement.layout
        if layout.noisy:
            return self._noisy_vector(key, group)
        rows, counts = self._trainee.train_round(key.round)
        sent = np.where(self._sent_classes(group)[:, None], rows, 0.0) if layout.classes else rows[:0]
        samples = model_weight(counts, self._agreement.averaging.most_samples)
        return layout.contribution(sent, self._trainee.values.averaged(), samples)

    def _noisy_vector(self, key: PhaseKey, group: Group) -> NDArray[np.float64]:
        """Return the vector with a share of the noise in every class, held or not, for this attempt alone."""
        share = self._masks.take_noise(key)
        vectors, weights = self._trainee.noisy_sum_term(key.round, len(group.cohort.sites), share)
        whole = vectors.astype(np.float64), weights.astype(np.float64)
        return self._agreement.layout.noisy_contribution(*whole, self._trainee.values.averaged())

    def _sent_classes(self, group: Group) -> Bool:
        """Return the classes (K,) of which this site sends rows."""
        return np.asarray(group.cohort.holds[group.cohort.index(self._site)])

    # Results received

    def _take(self, round_number: int, base: bytes, payload: Payload) -> Bool:
        """Make a result the base of later rounds; return the classes (K,) that the result has.

        If the decryption is implausible, keep only the result's hash: a site that left would show that it is.
        """
        try:
            return self._use(round_number, base, payload)
        except ImplausibleError as error:
            _log.error("the result of round %d is discarded: %s", round_number, error)
            self._trainee.keep_base(round_number, base)
            return np.zeros(len(self._agreement.classes), dtype=np.bool_)

    def _use(self, round_number: int, base: bytes, payload: Payload) -> Bool:
        rows, has, averaged = self._read(payload)
        targets, present = self._targets(rows, has)
        self._trainee.take_base(round_number, base, targets, present, averaged)
        return has

    def _targets(self, rows: Float, has: Bool) -> tuple[Float, Bool]:
        """Return the targets of the site's features: the means, or the method's own function of these."""
        method = self._agreement.method
        make = site_method(method).targets
        if self._agreement.distributed_noise:  # no site has released its own prototypes
            return rows, has
        if make is None or not self._trainee.has_trained:
            return rows, has
        settings, trainee = self._agreement.settings_of(method), self._trainee
        return run_or_fallback(
            lambda: make(settings, trainee.values.latest(), trainee.values.scores(), (rows, has)),
            lambda: (rows, has),
            "the fusion of targets",
        )

    def _read(self, payload: Payload) -> tuple[Float, Bool, Float]:
        """Return the parts of a result whose form is checked: (rows (K, d), has (K,), model (p + q,))."""
        if payload.scheme != self.scheme:
            raise Violation(f"the result has scheme {payload.scheme!r}, but {self.scheme!r} is agreed")
        vector, has = payload.arrays
        rows, averaged = self._agreement.layout.split(vector)
        if not len(rows):
            rows = np.zeros((len(has), self._agreement.dim))
            if has.any():
                raise Violation("the result has prototypes, but the agreed method sums none")
        self._check_plausible(rows, has)
        return rows, has == 1.0, averaged

    def _check_plausible(self, rows: Float, has: Float) -> None:
        """Check a result as the coordinator does before sending, whoever corrupted the result."""
        if not np.isin(has, (0.0, 1.0)).all():
            raise Violation("the result's presence flag of a class is neither 0 nor 1")
        if np.linalg.norm(rows, axis=1).max() > longest_mean(self._agreement):
            raise Violation("the result has a prototype longer than the norm bound")
