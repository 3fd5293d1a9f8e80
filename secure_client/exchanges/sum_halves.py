"""Halves of sums at a site: what a protection makes of a vector on its way out, and of a result on its way in.

    plain                :class:`PlainSumHalf` sends vectors in the clear
    masked               :class:`MaskedSumHalf` takes the steps of :mod:`secure_client.protocol.secure_aggregation`
    ckks                 :class:`CkksSumHalf` encrypts vectors and decrypts the sum
    ckks, FedPC          :class:`MixedGroupsHalf` also makes a leader's means of its group's sum
    a third party's      :class:`DeclaredSumHalf`

A half is abstract where it differs, so that a protection without a half, or a half without a step, cannot start a run.

No answer of a half depends on a decryption (Li and Micciancio, eprint 2020/1533): the site acknowledges an implausible
result like any other and keeps its base, but states the result's hash from then on.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agreement import Agreement
from agreement.derived.encrypted_sums import CountedSum, EncryptedGroups, EncryptedSum, ExtensionSum
from agreement.derived.means import Means
from agreement.derived.payload_shapes import limits_of, longest_mean, sums_shape
from agreement.registry.protections import SumHalves
from agreement.registry.round_plan import load_half
from algorithms.gram_matrix import Float
from crypto.ckks.group_mixing import MixingSite
from crypto.ckks.sums import SummingSite
from crypto.errors import ImplausibleError
from crypto.pairwise.masks import SCHEME as PAIRWISE
from crypto.plain import SCHEME as PLAIN
from crypto.plain import PlainValues
from crypto.protection import DeclaredHalf, Payload, ProtectedPayload
from crypto.sum_protection import SumSiteHalf
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.error_containment import hide_decryption_errors
from secure_client.errors import Violation
from secure_client.exchanges.exchange import ExchangeParts
from secure_client.exchanges.row_protection import attempt_context
from secure_client.protocol.secure_aggregation import Group
from secure_client.protocol.sent_values import Answer, check_cleartext_agreed

_log = logging.getLogger("protoseal.site")

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class SumStep:
    """Step of a sum: its key and request, the group that this site accepted, and the function of its vector (L,).

    Only the step that sends values calls ``vector``, which may train, pay for noise or use it up.
    """

    key: PhaseKey
    request: bytes
    group: Group
    vector: Callable[[Group], Vector]


class SumHalf(ABC):
    """A protection's half of a run's sums at one site."""

    def __init__(self, parts: ExchangeParts) -> None:
        self._agreement = parts.agreement
        self._site = parts.site
        self._setup = parts.setup
        self._masks = parts.masks

    @abstractmethod
    def answer(self, step: SumStep) -> Answer:
        """Answer a step."""

    @abstractmethod
    def read_means(self, payload: Payload) -> Means:
        """Return the means in a result.

        Raises :class:`Violation` for faults that the coordinator can see too, and
        :class:`crypto.errors.ImplausibleError` for a fault that only a decryption shows, which the coordinator must not
        learn.
        """


def build_sum_half(parts: ExchangeParts) -> SumHalf:
    """Return the agreed protection's half; raise ``ValueError`` if the protection has none for sums."""
    half: SumHalf = load_half(parts.agreement.plan.site_half, SumHalf)(parts)
    return half


class PlainSumHalf(SumHalf):
    """Sums in the clear; raises :class:`secure_client.errors.Unprotected` unless ``plain`` is agreed."""

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        check_cleartext_agreed(self._agreement)

    def answer(self, step: SumStep) -> Answer:
        """Answer VALUES with the vector as it is."""
        check_cleartext_agreed(self._agreement)
        return ProtectedPayload(PlainValues(), step.vector(step.group))

    def read_means(self, payload: Payload) -> Means:
        """Return the means that the coordinator computed."""
        return read_cleartext_means(self._agreement, payload, PLAIN)


class MaskedSumHalf(SumHalf):
    """Sums under pairwise masks: SHARES, VALUES, SURVIVORS and UNMASK. The coordinator sees the sum and divides it."""

    def answer(self, step: SumStep) -> Answer:
        """Answer one of the steps of secure aggregation."""
        return self._masks.step(step.key, step.group, step.request, step.vector)

    def read_means(self, payload: Payload) -> Means:
        """Return the means that the coordinator computed from the opened sum."""
        return read_cleartext_means(self._agreement, payload, PAIRWISE)


class CkksSumHalf(SumHalf):
    """Sums of ciphertexts: VALUES, then a result that is the encrypted sum, which each site divides into means."""

    def answer(self, step: SumStep) -> Answer:
        """Answer VALUES with the encrypted vector, and with the counts that divide the sum."""
        layout = EncryptedSum(self._agreement)
        counted = layout.vector(step.vector(step.group), step.group.cohort.held_by(self._site))
        return ProtectedPayload(SummingSite(self._setup.ckks_key(), layout.form), counted)

    def read_means(self, payload: Payload) -> Means:
        """Decrypt a sum and divide it into means."""
        with hide_decryption_errors("a result"):
            return self.open_sum(payload)

    def open_sum(self, payload: Payload) -> Means:
        """Return the means of an encrypted sum; raise :class:`ImplausibleError` for no possible sum."""
        layout = EncryptedSum(self._agreement)
        half = SummingSite(self._setup.ckks_key(), layout.form)
        values = half.unprotect(payload, self._agreement.max_sites)
        return layout.means(layout.opened(values))


class MixedGroupsHalf(SumHalf):
    """FedPC's sums in encrypted groups: a leader answers MEANS with its group's means; the result mixes the means.

    A leader sends means that it encrypted itself, or, where it cannot read its group's sum, means without effect.
    """

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        self._limits = limits_of(parts.agreement)
        self._sums = CkksSumHalf(parts)

    def answer(self, step: SumStep) -> Answer:
        """Answer VALUES as for any encrypted sum; a leader also answers MEANS."""
        if step.key.phase is not Phase.MEANS:
            return self._sums.answer(step)
        self._check_leads(step.group)
        payload = codec.decode_payload(step.request, self._limits, sums_shape(self._agreement))
        layout = EncryptedGroups(self._agreement)
        direction, means = self._direction_and_vector(step.key, layout, payload)
        return ProtectedPayload(MixingSite(self._setup.ckks_key(), layout.form), direction, means)

    def read_means(self, payload: Payload) -> Means:
        """Decrypt the mixture of all groups' means that this site's group got."""
        layout = EncryptedGroups(self._agreement)
        with hide_decryption_errors("a result"):
            return layout.mixed(MixingSite(self._setup.ckks_key(), layout.form).unprotect(payload))

    def _direction_and_vector(
        self, key: PhaseKey, layout: EncryptedGroups, payload: Payload
    ) -> tuple[Float, Float]:
        """Return what is mixed: the group's direction (M,) and its vector (L,), zeros for an implausible sum."""
        try:
            with hide_decryption_errors(f"the sum of round {key.round}"):
                return layout.parts(self._means_of_group(key, payload))
        except ImplausibleError as error:
            # A refusal would tell the coordinator about a decryption, so this site, its group's leader, sends a message
            # of the same form.
            _log.error("the sum of this site's group in round %d is discarded: %s", key.round, error)
            return layout.nothing()

    def _means_of_group(self, key: PhaseKey, payload: Payload) -> Means:
        """Return the means of the group's sum; prototypes of its last sum of these, in a round whose sums have none."""
        ends = len(EncryptedSum(self._agreement).form.answers)
        now = replace(payload, blobs=payload.blobs[ends:])
        if self._agreement.sends_rows(key.round) or not now.blobs:
            return self._sums.open_sum(payload)
        last = self._sums.open_sum(replace(payload, blobs=payload.blobs[:ends]))
        return replace(last, model=self._sums.open_sum(now).model)

    def _check_leads(self, group: Group) -> None:
        """Raise :class:`Violation` unless this site is the prescribed leader, which alone reads the sum."""
        leader = min(group.cohort.sites)
        if leader != self._site:
            raise Violation(
                f"the coordinator asked this site for its group's means, but {leader} leads the group"
            )


class DeclaredSumHalf(SumHalf):
    """Sums under a protection that gives its halves as functions, such as a third party's: one step, then the sum.

    Only sites can read the sum, so only they notice a result that is out of bounds. As under ``ckks``, the site
    acknowledges such a result like any other, because a refusal would tell the coordinator about it, and trains on from
    its earlier result.
    """

    def __init__(self, parts: ExchangeParts) -> None:
        """Raise ``ValueError`` if the protection declares no halves of sums."""
        super().__init__(parts)
        halves = parts.agreement.protection.sums
        if not isinstance(halves, SumHalves):
            raise ValueError(f"protection {parts.agreement.protection.value!r} declares no half of sums")
        self._make = halves.site

    def answer(self, step: SumStep) -> Answer:
        """Answer VALUES with the third party's payload."""
        half = self._half()
        counted = self._layout(half).vector(step.vector(step.group), step.group.cohort.held_by(self._site))
        context = attempt_context(self._agreement, self._setup, step.key, step.group.cohort, step.group.base)
        return ProtectedPayload(DeclaredHalf(half), counted, self._site, step.group.cohort, context)

    def read_means(self, payload: Payload) -> Means:
        """Return the means of the sum that the third party's half reads."""
        with hide_decryption_errors("a result"):
            half = self._half()
            layout = self._layout(half)
            # The copy keeps the checks' in-place rounding out of an array that the third party may hold.
            return layout.means(layout.opened(half.unprotect(payload).copy()))

    def _layout(self, half: SumSiteHalf) -> CountedSum:
        return ExtensionSum(self._agreement, half.error())

    def _half(self) -> SumSiteHalf:
        agreement = self._agreement
        settings = agreement.settings_of(agreement.protection)
        return self._make(settings, self._setup.group_secret(), agreement.sum_facts)


def read_cleartext_means(agreement: Agreement, payload: Payload, scheme: str) -> Means:
    """Return the means in a result that the coordinator could read.

    Raises :class:`Violation` for a result that no honest coordinator sends; a site may have corrupted it.
    """
    if payload.scheme != scheme:
        raise Violation(f"the result has scheme {payload.scheme!r}, but {scheme!r} is agreed")
    vector, has = payload.arrays
    rows, model = agreement.layout.split(vector)
    if not len(rows):
        rows = np.zeros((len(has), agreement.dim))
        if has.any():
            raise Violation("the result has prototypes, but the agreed method sums none")
    if not np.isin(has, (0.0, 1.0)).all():
        raise Violation("the result's presence flag of a class is neither 0 nor 1")
    if np.linalg.norm(rows, axis=1).max() > longest_mean(agreement):
        raise Violation("the result has a prototype longer than the norm bound")
    return Means(rows, has == 1.0, model)
