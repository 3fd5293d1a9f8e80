"""Sums at the coordinator: in the clear, under masks, of ciphertexts, and FedPC's mixture of encrypted groups.

Under ``plain`` the coordinator sees every site's prototypes and model, under ``masked`` each group's sum
(:mod:`secure_server.exchanges.secure_aggregation`). Under ``ckks`` or a third party's protection it adds payloads that
it cannot read, and sees sizes, times and which site has which class. Limits: see :mod:`crypto.ckks.sums`.

FedPC under ``ckks``: a group's leader, the first of its participants by name, turns the group's sum into means and
encrypts these again; the coordinator mixes them between groups. The leader learns its group's means, which other
members do not, and is trusted to return them unchanged. Once a leader has been asked, no other sum of the round is
taken: the leader could subtract the two.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agreement import AveragingSection
from agreement.derived.cohorts import group_cohort
from agreement.derived.encrypted_sums import EncryptedGroups, EncryptedSum
from agreement.derived.payload_shapes import result_shape, sums_shape
from agreement.registry.protections import SumHalves
from algorithms.gram_matrix import Bool
from crypto.ckks.group_mixing import MixingServer
from crypto.ckks.sums import SummingServer
from crypto.errors import MalformedError
from crypto.pairwise.masks import SCHEME as PAIRWISE
from crypto.plain import SCHEME, only_array
from crypto.protection import NORM_SLACK, Payload
from crypto.sum_protection import SumServerHalf
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_server.exchanges.exchange import (
    Attempt,
    Exchange,
    ExchangeParts,
    Outcome,
    SinglePhaseExchange,
    repeated_sum,
)
from secure_server.exchanges.group_results import (
    GroupSum,
    Vector,
    for_members,
    group_payloads,
    summed_rows,
    with_last_rows,
)
from secure_server.exchanges.secure_aggregation import SecureAggregation


class PlainSumHalf(SinglePhaseExchange):
    """Vectors in the clear: one vector (L,) from each site, as :class:`agreement.Layout` says."""

    def validate(self, payload: Payload, site: str, attempt: Attempt) -> None:
        """Raise :class:`MalformedError` for values that masked sums would not carry, or a row of no active class."""
        vector, layout = only_array(payload, SCHEME), self._agreement.layout
        rows, model = layout.split(vector)
        if layout.classes:
            cohort = group_cohort(attempt.active, attempt.group_of(site), self._agreement)
            _check_rows(rows, cohort.held_by(site), self._agreement.norm_bound)
        weight = float(vector[-1]) if layout.weighted else 1.0
        check_weight(weight, self._agreement.averaging.most_samples)
        check_model(model / weight if layout.weighted else model, self._agreement.averaging)

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
    parts = np.split(model, [agreed.parameters])
    for part, bound in zip(parts, (agreed.parameter_bound, agreed.buffer_bound), strict=True):
        if max(part.max(initial=0.0), -part.min(initial=0.0)) > bound * (1.0 + NORM_SLACK):
            raise MalformedError(f"a value of the averaged model exceeds its agreed bound of {bound:g}")


class MaskedSumHalf(SecureAggregation):
    """Vectors under pairwise masks, whose sums the coordinator opens and divides into means."""

    def results(self, attempt: Attempt, sums: Sequence[GroupSum]) -> list[Payload]:
        """Return each group's means, or their mixture with other groups' means."""
        repeated = [with_last_rows(self._agreement, attempt, group_sum, self._limits) for group_sum in sums]
        return group_payloads(self._agreement, repeated, PAIRWISE)

    def repeatable(self, sums: Sequence[GroupSum], results: Sequence[Payload]) -> Sequence[Payload]:  # noqa: ARG002 (the interface's argument)
        """Return the sums of rows, with their holders, and without the models, which each round sums anew."""
        return [summed_rows(self._agreement, group_sum) for group_sum in sums]


class PeerSumHalf(SecureAggregation):
    """Rows of PFPL under pairwise masks: each member gets the sum itself, from which it subtracts its own row."""

    def results(self, attempt: Attempt, sums: Sequence[GroupSum]) -> list[Payload]:
        """Return each group's sum, the numbers of holders in it, and its members with their signatures.

        In a round whose sums have no prototypes this is the last sum, with the members of that sum.
        """
        form = result_shape(self._agreement)
        return [
            repeated_sum(self._agreement, attempt, group_sum.cohort.sites, form, self._limits)
            or self._signed_sum(attempt, group_sum)
            for group_sum in sums
        ]

    def _signed_sum(self, attempt: Attempt, group_sum: GroupSum) -> Payload:
        arrays = (group_sum.total, group_sum.holders.astype(np.float64))
        members = codec.encode_sum_members(self.sum_members(attempt, group_sum))
        return Payload(PAIRWISE, arrays=arrays, blobs=(members,))


class AddedSumHalf(SinglePhaseExchange):
    """Payloads that a server half of :mod:`crypto` adds unread; sites divide the sum into means themselves."""

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        self._server = self.build_server(parts)

    @abstractmethod
    def build_server(self, parts: ExchangeParts) -> SumServerHalf:
        """Return the half that validates and adds payloads; raise ``ValueError`` if the protection has none."""

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
        return repeated_sum(self._agreement, attempt, group, self._values_shape, self._limits)

    def sum_over(self, attempt: Attempt, group: tuple[str, ...]) -> Payload:
        """Return the sum of payloads that are read one at a time."""
        return self._server.add(self.payload(attempt, site) for site in group)


class CkksSumHalf(AddedSumHalf):
    """Ciphertexts, which are added slot by slot."""

    def build_server(self, parts: ExchangeParts) -> SumServerHalf:
        """Return the half for the layout of the run's sums."""
        return SummingServer(EncryptedSum(parts.agreement).form)


class DeclaredSumHalf(AddedSumHalf):
    """Payloads of a protection that gives its halves as functions, such as a third party's."""

    def build_server(self, parts: ExchangeParts) -> SumServerHalf:
        """Return the declared half; raise ``ValueError`` if the protection declares none for sums."""
        protection = parts.agreement.protection
        if not isinstance(protection.sums, SumHalves):
            raise ValueError(f"protection {protection.value!r} declares no half of sums")
        return protection.sums.server(parts.agreement.settings_of(protection), parts.agreement.sum_facts)


class MixedGroupsHalf(Exchange):
    """FedPC's sums of ciphertexts: VALUES from everyone, then MEANS from each group's leader."""

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        self._sums = CkksSumHalf(parts)
        self._mixing = MixingServer(EncryptedGroups(parts.agreement).form, parts.keys_path, parts.executor)

    def request(self, attempt: Attempt, phase: Phase, site: str) -> bytes:
        """Return the list of participants; for a leader, its group's sum.

        In a round whose sums have no prototypes, the group's last sum of prototypes precedes it.
        """
        if phase is not Phase.MEANS:
            return super().request(attempt, phase, site)
        group = attempt.group_of(site)
        total, last = self._sums.sum_over(attempt, group), self._sums.last_sum(attempt, group)
        return codec.encode_payload(total if last is None else replace(total, blobs=last.blobs + total.blobs))

    def check(self, attempt: Attempt, phase: Phase, site: str, content: bytes) -> None:
        """See :class:`secure_server.exchanges.exchange.Exchange`."""
        if phase is Phase.MEANS:
            self._mixing.validate(self._decode_means(content))
        else:
            self._sums.check(attempt, phase, site, content)

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return, for each participant, its group's means mixed with those of other groups."""
        leaders = [min(group) for group in attempt.groups]
        results = self._mixing.mix(
            [self._decode_means(attempt.answer(Phase.MEANS, leader)) for leader in leaders]
        )
        if not self._agreement.repeats_rows(attempt.key.round):
            return for_members(attempt.groups, results)
        sums = [self._sums.sum_over(attempt, group) for group in attempt.groups]
        return for_members(attempt.groups, results, sums)

    def _decode_means(self, content: bytes) -> Payload:
        return codec.decode_payload(content, self._limits, sums_shape(self._agreement))
