"""Sums in one step at the coordinator: in the clear, of ciphertexts, and FedPC's mixture of encrypted groups.

Under ``plain`` the coordinator sees every site's prototypes and model. Under ``ckks`` or a third party's protection it
adds payloads that it cannot read, and sees sizes, times and which site has which class. Limits: see
:mod:`crypto.ckks.sums`.

FedPC under ``ckks``: a group's leader, the first of its participants by name, turns the group's sum into means and
encrypts these again; the coordinator mixes them between groups. The leader learns its group's means, which other
members do not, and is trusted to return them unchanged. Once a leader has been asked, no other sum of the round is
taken: the leader could subtract the two.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import numpy as np

from agreement import Agreement, AveragingSection
from agreement.derived.cohorts import group_cohort
from agreement.derived.encrypted_sums import EncryptedGroups, EncryptedSum
from agreement.derived.payload_shapes import sums_shape, values_shape
from algorithms.gram_matrix import Bool
from crypto.ckks.group_mixing import MixingServer
from crypto.ckks.sums import SummingServer
from crypto.errors import MalformedError
from crypto.plain import SCHEME, only_array
from crypto.protection import NORM_SLACK, Payload
from crypto.sum_protection import SumServerHalf
from protoseal_wire import codec
from protoseal_wire.codec import Limits
from protoseal_wire.messages import Phase
from secure_server.exchanges.exchange import Attempt, Outcome, SinglePhaseExchange, repeated_sum
from secure_server.exchanges.group_results import (
    GroupSum,
    Vector,
    for_members,
    group_payloads,
    summed_rows,
    with_last_rows,
)


class PlainSums(SinglePhaseExchange):
    """One vector (L,) from each site, as :class:`agreement.Layout` says."""

    def validate(self, payload: Payload, site: str, attempt: Attempt) -> None:
        """Raise :class:`MalformedError` for values that masked sums would not carry, or a row of no active class."""
        vector, layout = only_array(payload, SCHEME), self._agreement.layout
        rows, model = layout.split(vector)
        if layout.classes:
            cohort = group_cohort(attempt.active, attempt.group_of(site), self._agreement)
            _check_rows(rows, cohort.holds[cohort.index(site)], self._agreement.norm_bound)
        weight = float(vector[-1]) if layout.weighted else 1.0
        check_weight(weight, self._agreement.averaging.most_samples)
        check_model(model / weight, self._agreement.averaging)

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return the result of its group for each participant."""
        sums = [self._sum(attempt, group) for group in attempt.groups]
        results = group_payloads(self._agreement, sums, SCHEME)
        if not self._agreement.repeats_rows(attempt.key.round):
            return for_members(attempt.groups, results)
        return for_members(
            attempt.groups, results, [summed_rows(self._agreement, group_sum) for group_sum in sums]
        )

    def _sum(self, attempt: Attempt, group: tuple[str, ...]) -> GroupSum:
        """Add vectors that are read one at a time."""
        total = np.zeros(self._agreement.layout.length)
        for site in group:
            total += only_array(self.payload(attempt, site), SCHEME)
        added = GroupSum(group_cohort(attempt.active, group, self._agreement), group, total)
        return with_last_rows(self._agreement, attempt, added, self._limits)


def _check_rows(rows: Vector, holds: Bool, bound: float) -> None:
    if rows[~holds].any():
        raise MalformedError("a row is not zero for a class that the site does not hold")
    longest = float(np.linalg.norm(rows, axis=1).max(initial=0.0))
    if longest > bound * (1.0 + NORM_SLACK):
        raise MalformedError(f"a prototype has norm {longest:.9g}; the agreed bound is {bound:g}")


def check_weight(weight: float, most: int) -> None:
    """Raise :class:`MalformedError` unless the weight is a number of samples, ``most`` at most."""
    if not 1.0 <= weight <= most or weight != int(weight):
        raise MalformedError(f"weight {weight:g} is not a number of samples from 1 to {most}")


def check_model(model: Vector, agreed: AveragingSection) -> None:
    """Raise :class:`MalformedError` for a model (p + q,) that exceeds the range of masked sums."""
    parts = np.split(np.abs(model), [agreed.parameters])
    for part, bound in zip(parts, (agreed.parameter_bound, agreed.buffer_bound), strict=True):
        if part.max(initial=0.0) > bound * (1.0 + NORM_SLACK):
            raise MalformedError(f"a value of the averaged model exceeds its agreed bound of {bound:g}")


class EncryptedSums(SinglePhaseExchange):
    """One step, from everyone; sites divide the sum into means themselves."""

    def __init__(self, agreement: Agreement, limits: Limits, server: SumServerHalf | None = None) -> None:
        """Use ``server``, by default that of ``ckks``."""
        super().__init__(agreement, limits)
        self._server: SumServerHalf = server or SummingServer(EncryptedSum(agreement).form)

    def validate(self, payload: Payload, _site: str, _attempt: Attempt) -> None:
        """Raise :class:`crypto.errors.MalformedError` unless the payload can be added; its content is encrypted."""
        self._server.validate(payload)

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return the sum over its group for each participant, or the group's last sum if this one has no prototypes.

        Rows that do not change come without models, or with models that do not change either, so that the last sum is
        the whole result.
        """
        sums = [self.last_sum(attempt, group) or self.sum_over(attempt, group) for group in attempt.groups]
        repeated = sums if self._agreement.repeats_rows(attempt.key.round) else ()
        return for_members(attempt.groups, sums, repeated)

    def last_sum(self, attempt: Attempt, group: tuple[str, ...]) -> Payload | None:
        """Return the group's :func:`repeated_sum`."""
        form = values_shape(self._agreement, attempt.key.round)
        return repeated_sum(self._agreement, attempt, group, form, self._limits)

    def sum_over(self, attempt: Attempt, group: tuple[str, ...]) -> Payload:
        """Return the sum of payloads that are read one at a time."""
        return self._server.add(self.payload(attempt, site) for site in group)


class EncryptedGroupSums(EncryptedSums):
    """VALUES from everyone, then MEANS from each group's leader."""

    def __init__(
        self, agreement: Agreement, limits: Limits, keys_path: Path, executor: Executor | None
    ) -> None:
        super().__init__(agreement, limits)
        self._mixing = MixingServer(EncryptedGroups(agreement).form, keys_path, executor)

    def request(self, attempt: Attempt, phase: Phase, site: str) -> bytes:
        """Return the list of participants; for a leader, its group's sum.

        In a round whose sums have no prototypes, the group's last sum of prototypes precedes it.
        """
        if phase is not Phase.MEANS:
            return super().request(attempt, phase, site)
        group = attempt.group_of(site)
        total, last = self.sum_over(attempt, group), self.last_sum(attempt, group)
        return codec.encode_payload(total if last is None else replace(total, blobs=last.blobs + total.blobs))

    def check(self, attempt: Attempt, phase: Phase, site: str, content: bytes) -> None:
        """Check an answer, as :meth:`secure_server.exchanges.exchange.Exchange.check` does."""
        if phase is not Phase.MEANS:
            super().check(attempt, phase, site, content)
        else:
            self._mixing.validate(self._means(content))

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return, for each participant, its group's means mixed with those of other groups."""
        leaders = [min(group) for group in attempt.groups]
        means = [self._means(attempt.answer(Phase.MEANS, leader)) for leader in leaders]
        results = self._mixing.mix(means)
        if not self._agreement.repeats_rows(attempt.key.round):
            return for_members(attempt.groups, results)
        return for_members(
            attempt.groups, results, [self.sum_over(attempt, group) for group in attempt.groups]
        )

    def _means(self, content: bytes) -> Payload:
        return codec.decode_payload(content, self._limits, sums_shape(self._agreement))
