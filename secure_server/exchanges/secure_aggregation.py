"""Secure aggregation at the coordinator: each group's sum from masked vectors, also when sites drop out on the way.

The coordinator relays keys, shares and signatures, and learns each group's sum and none of its terms. It checks the
relayed messages, so that a bad answer is refused to its sender, not by everyone else. The limits: a sealed share, the
correctness of a released share and the values under masks show only at the end, when a sum fails. The group then has
no result, and the others have theirs without it; in some cases the fault can be attributed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from agreement.derived.cohorts import group_cohort
from agreement.derived.payload_shapes import values_shape
from crypto.errors import MalformedError, VerificationError
from crypto.fixed_point import FixedPoint
from crypto.pairwise.attempt import Binding, MaskKeys, threshold
from crypto.pairwise.masks import masked_words
from crypto.pairwise.member_signatures import verify_sharers, verify_survivor
from crypto.pairwise.neighbour_graph import Graph
from crypto.pairwise.shares import ReleasedShare, SealedShare, check_released, verify_share
from crypto.pairwise.unmask import unmask
from crypto.protection import Payload, Words
from protoseal_wire import codec
from protoseal_wire.messages import (
    MaskedValues,
    Phase,
    ReceivedShares,
    SignedSurvivors,
    SumMembers,
    SurvivorSet,
    SurvivorSignature,
)
from secure_server.errors import BadPayload
from secure_server.exchanges.exchange import (
    Attempt,
    AttemptCache,
    Exchange,
    ExchangeParts,
    GroupFailure,
    Outcome,
)
from secure_server.exchanges.fault_attribution import Released, suspicions
from secure_server.exchanges.group_results import GroupSum, check_means, for_members
from secure_server.rounds.state import Quorum


class LazyVectors(Mapping[str, Words]):
    """Masked vectors by site; each access reads and decodes a vector, and no vector is cached."""

    def __init__(self, sites: Sequence[str], read: Callable[[str], Words]) -> None:
        self._sites = sites
        self._read = read

    def __getitem__(self, site: str) -> Words:
        if site not in self._sites:
            raise KeyError(site)
        return self._read(site)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)


class SecureAggregation(Exchange):
    """SHARES, VALUES, SURVIVORS and UNMASK of all groups, side by side. A subclass says what is summed."""

    masked = True
    summing: tuple[Phase, ...] = (Phase.SHARES, Phase.VALUES)
    """Steps that need enough holders of every class in the sum."""

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        self._values_shape = values_shape(parts.agreement, 1)
        self._fixed_point = parts.agreement.fixed_point()
        self._relayed = AttemptCache[Mapping[str, list[SealedShare]]]()
        self._on_sharers = AttemptCache[dict[str, bytes]]()
        self._on_survivors = AttemptCache[Mapping[tuple[str, ...], tuple[SurvivorSignature, ...]]]()

    # What is summed

    @abstractmethod
    def results(self, attempt: Attempt, sums: Sequence[GroupSum]) -> list[Payload]:
        """Return each group's result."""

    def repeatable(self, sums: Sequence[GroupSum], results: Sequence[Payload]) -> Sequence[Payload]:  # noqa: ARG002 (elsewhere it depends on the sums)
        """Return what rounds whose sums have no prototypes repeat of each group: its whole result."""
        return results

    def check_sum(self, attempt: Attempt, group_sum: GroupSum) -> None:  # noqa: ARG002 (over clusters it depends on the attempt)
        """Raise :class:`MalformedError` for a sum that members who keep to their bounds cannot have.

        Sites would refuse a result made of such a sum.
        """
        check_means(self._agreement, group_sum)

    def fixed_point(self, attempt: Attempt) -> FixedPoint:  # noqa: ARG002 (over clusters it depends on the attempt)
        """Return the fixed-point encoding of vectors as words."""
        return self._fixed_point

    def broadcast(self, attempt: Attempt, group: tuple[str, ...]) -> bytes:
        """Return the hash of the broadcast to all members: the base that each member stated in PRESENCE."""
        return attempt.statement(group[0]).base

    def quorums(self, attempt: Attempt) -> tuple[Quorum, ...]:
        """Return each group's quorums: the threshold, and for vectors also enough holders of each active class."""
        return tuple(quorum for group in attempt.groups for quorum in self.quorums_of(attempt, group))

    def quorums_of(self, attempt: Attempt, group: tuple[str, ...]) -> Iterator[Quorum]:
        """Return the quorums of one group."""
        # Shares of fewer than the threshold open nothing, so a step with fewer answers fails the group at once.
        least, members = threshold(len(group)), frozenset(group)
        cohort = group_cohort(attempt.active, group, self._agreement)
        for phase in self.summing:
            yield Quorum(phase, members, max(least, self._agreement.min_holders))
            # A sum over fewer holders of a class than agreed would show their rows: sites would refuse to open it.
            for k in np.flatnonzero(cohort.counts):
                holders = frozenset(cohort.sites[i] for i in np.flatnonzero(cohort.holds[:, k]))
                yield Quorum(phase, holders, self._agreement.min_holders)
        for phase in (Phase.SURVIVORS, Phase.UNMASK):
            yield Quorum(phase, members, least)

    # Requests

    def request(self, attempt: Attempt, phase: Phase, site: str) -> bytes:
        """Return the messages that the step relays to the site, from its own group alone."""
        group = attempt.group_of(site)
        # Bonawitz et al. 2017, figure 4: PRESENCE advertises keys (round 0), SHARES is round 1, VALUES collects masked
        # inputs (round 2), SURVIVORS is the consistency check (round 3) and UNMASK round 4.
        match phase:
            case Phase.VALUES:
                return codec.encode_received_shares(self._received(attempt, group, site))
            case Phase.SURVIVORS:
                return codec.encode_survivor_set(SurvivorSet(attempt.among(group, Phase.VALUES)))
            case Phase.UNMASK:
                return codec.encode_signed_survivors(self._signed(attempt, group, site))
            case _:
                return super().request(attempt, phase, site)

    def _received(self, attempt: Attempt, group: tuple[str, ...], site: str) -> ReceivedShares:
        """Return the received shares, in a sparse graph with the names of all that made shares."""
        sparse = self._graph(attempt, group).sparse
        sharers = attempt.among(group, Phase.SHARES) if sparse else ()
        return ReceivedShares(self._shares_for(attempt, site), sharers)

    def _shares_for(self, attempt: Attempt, site: str) -> tuple[SealedShare, ...]:
        """Return the shares for a recipient, by sender."""
        senders = attempt.survivors[Phase.SHARES]
        relayed = self._relayed.of((attempt.key, senders), lambda: self._all_shares(attempt, senders))
        return tuple(relayed.get(site, ()))

    def _all_shares(self, attempt: Attempt, senders: Sequence[str]) -> Mapping[str, list[SealedShare]]:
        """Return all shares, by recipient. There may be as many as pairs of sites."""
        made: defaultdict[str, list[SealedShare]] = defaultdict(list)
        for sender in senders:
            content = attempt.answer(Phase.SHARES, sender)
            for share in codec.decode_shares_made(content, self._limits).shares:
                made[share.recipient].append(share)
        return made

    def _signed(self, attempt: Attempt, group: tuple[str, ...], site: str) -> SignedSurvivors:
        signed, survivors = attempt.survivors[Phase.SURVIVORS], attempt.among(group, Phase.VALUES)
        signatures = self._on_survivors.of(
            (attempt.key, signed),
            lambda: {other: self._all_signed(attempt, other) for other in attempt.groups},
        )
        return SignedSurvivors(
            survivors, signatures[group], self._owner_signatures(attempt, group, survivors, site)
        )

    def sum_members(self, attempt: Attempt, group_sum: GroupSum) -> SumMembers:
        """Return the members of an opened sum with their signatures, for a site that took no part in it."""
        group = group_sum.cohort.sites
        return SumMembers(
            attempt.key.round,
            attempt.key.attempt,
            group,
            self.broadcast(attempt, group),
            SignedSurvivors(group_sum.members, self._all_signed(attempt, group)),
        )

    def _all_signed(self, attempt: Attempt, group: tuple[str, ...]) -> tuple[SurvivorSignature, ...]:
        return tuple(self._signature(attempt, site) for site in attempt.among(group, Phase.SURVIVORS))

    def _owner_signatures(
        self, attempt: Attempt, group: tuple[str, ...], survivors: tuple[str, ...], site: str
    ) -> tuple[SurvivorSignature, ...]:
        """Return, in a sparse graph, the survivors' mask partners, for whose seeds the site is to release shares."""
        if not self._graph(attempt, group).sparse:
            return ()
        staying = frozenset(survivors)
        owners = [share.sender for share in self._shares_for(attempt, site) if share.sender in staying]
        return tuple(SurvivorSignature(owner, self._signed_sharers(attempt, owner)) for owner in owners)

    def _signed_sharers(self, attempt: Attempt, site: str) -> bytes:
        """Return the sharers that a site signed; after a restart, read them from the site's upload, a whole vector."""
        signatures = self._signatures(attempt)
        if site not in signatures:
            signatures[site] = self._decode_values(attempt.answer(Phase.VALUES, site)).signature
        return signatures[site]

    def _signatures(self, attempt: Attempt) -> dict[str, bytes]:
        """Return the cached signatures on the sharers of this attempt, by site; the dict is filled as they arrive."""
        return self._on_sharers.of((attempt.key, attempt.survivors[Phase.SHARES]), dict)

    def _signature(self, attempt: Attempt, site: str) -> SurvivorSignature:
        return codec.decode_survivor_signature(attempt.answer(Phase.SURVIVORS, site), self._limits)

    # Checks of answers

    def check(self, attempt: Attempt, phase: Phase, site: str, content: bytes) -> None:
        """Check an answer, as :meth:`secure_server.exchanges.exchange.Exchange.check` does."""
        match phase:
            case Phase.SHARES:
                self._check_shares(attempt, site, content)
            case Phase.VALUES:
                self._check_values(attempt, site, content)
            case Phase.SURVIVORS:
                self._check_signature(attempt, site, content)
            case _:
                self._check_released(attempt, site, content)

    def _check_shares(self, attempt: Attempt, site: str, content: bytes) -> None:
        shares, group = codec.decode_shares_made(content, self._limits).shares, attempt.group_of(site)
        holders, recipients = self._graph(attempt, group).holders, {share.recipient for share in shares}
        # One holder more than agreed, and fewer colluders than agreed could open this site's secrets.
        if not recipients <= set(group) - {site} or not len(shares) == len(recipients) == holders:
            raise BadPayload(f"{site} must seal one share to each of {holders} other members of its group")
        binding = self._binding(attempt, group)
        for share in shares:
            verify_share(share, attempt.roster.members[site], binding, share.recipient)

    def _check_values(self, attempt: Attempt, site: str, content: bytes) -> None:
        group = attempt.group_of(site)
        if not self._graph(attempt, group).sparse:
            self._read_words(attempt, site, content)
            return
        values, sharers = self._decode_values(content), attempt.among(group, Phase.SHARES)
        self._words(attempt, values.payload)
        binding = self._binding(attempt, group)
        verify_sharers(attempt.roster.members[site], binding, sharers, values.signature)
        self._signatures(attempt)[site] = values.signature

    def _check_signature(self, attempt: Attempt, site: str, content: bytes) -> None:
        signed, group = codec.decode_survivor_signature(content, self._limits), attempt.group_of(site)
        if signed.site != site:
            raise BadPayload(f"{site} must sign as itself, not as {signed.site}")
        survivors = attempt.among(group, Phase.VALUES)
        binding = self._binding(attempt, group)
        verify_survivor(attempt.roster.members[site], binding, survivors, signed.signature)

    def _check_released(self, attempt: Attempt, site: str, content: bytes) -> None:
        group, released = attempt.group_of(site), self._released(content)
        sharers = attempt.among(group, Phase.SHARES)
        check_released(released, self._binding(attempt, group), sharers, attempt.among(group, Phase.VALUES))
        # In a sparse graph a site holds shares of those that drew it, and could otherwise answer for anyone.
        held = {site, *(share.sender for share in self._shares_for(attempt, site))}
        if not {share.owner for share in released} <= held:
            raise BadPayload(f"{site} releases a share that was not made for {site}")

    # Outcome

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return the result of its group for each participant, also for those who dropped out of the sum.

        A group whose sum fails is left out of the mixture of groups, as if it did not take part.
        """
        sums: dict[tuple[str, ...], GroupSum] = {}
        failures = []
        for group in attempt.groups:
            released = self._all_released(attempt, group)
            # One bad group must not take the others' results with it.
            try:
                sums[group] = self._sum(attempt, group, released)
            except (MalformedError, VerificationError) as error:
                failures.append(GroupFailure(group, str(error), self._suspicions(attempt, group, released)))
        results = self.results(attempt, list(sums.values())) if sums else []
        last: Sequence[Payload] = ()
        if self._agreement.repeats_rows(attempt.key.round):
            last = self.repeatable(list(sums.values()), results)
        return replace(for_members(tuple(sums), results, last), failures=tuple(failures))

    def _sum(self, attempt: Attempt, group: tuple[str, ...], released: Released) -> GroupSum:
        survivors = attempt.among(group, Phase.VALUES)
        words = unmask(
            # Vectors have megabytes: together they would fill the memory.
            LazyVectors(
                survivors, lambda site: self._read_words(attempt, site, attempt.answer(Phase.VALUES, site))
            ),
            released,
            self._binding(attempt, group),
            attempt.among(group, Phase.SHARES),
            survivors,
            _public(attempt, group),
            self._graph(attempt, group),
        )
        total = self.fixed_point(attempt).decode_sum(words, len(survivors))
        group_sum = GroupSum(group_cohort(attempt.active, group, self._agreement), survivors, total)
        self.check_sum(attempt, group_sum)
        return group_sum

    def _all_released(self, attempt: Attempt, group: tuple[str, ...]) -> Released:
        return {
            site: self._released(attempt.answer(Phase.UNMASK, site))
            for site in attempt.among(group, Phase.UNMASK)
        }

    def _suspicions(self, attempt: Attempt, group: tuple[str, ...], released: Released) -> tuple[str, ...]:
        sharers = attempt.among(group, Phase.SHARES)
        binding, graph = self._binding(attempt, group), self._graph(attempt, group)
        return suspicions(released, binding, sharers, _public(attempt, group), graph)

    def _read_words(self, attempt: Attempt, site: str, content: bytes) -> Words:
        # In a sparse graph, a vector has its sender's signature on its mask partners beside it.
        if self._graph(attempt, attempt.group_of(site)).sparse:
            return self._words(attempt, self._decode_values(content).payload)
        return self._words(attempt, codec.decode_payload(content, self._limits, self._values_shape))

    def _words(self, attempt: Attempt, payload: Payload) -> Words:
        fixed_point = self.fixed_point(attempt)
        return masked_words(payload, fixed_point.ring_bits, fixed_point.length)

    def _decode_values(self, content: bytes) -> MaskedValues:
        """Return the answer to VALUES of a site in a sparse graph."""
        return codec.decode_masked_values(content, self._limits, self._values_shape)

    def _graph(self, attempt: Attempt, group: tuple[str, ...]) -> Graph:
        return self._agreement.masking.graph(len(attempt.roster.members), len(group))

    def _released(self, content: bytes) -> tuple[ReleasedShare, ...]:
        return codec.decode_released_shares(content, self._limits).shares

    def _binding(self, attempt: Attempt, group: tuple[str, ...]) -> Binding:
        key, broadcast = attempt.key, self.broadcast(attempt, group)
        return Binding(
            key.run, key.round, key.attempt, attempt.roster.hash, self._agreement.hash(), group, broadcast
        )


def _public(attempt: Attempt, group: tuple[str, ...]) -> Mapping[str, MaskKeys]:
    stated = {statement.site: statement.keys for statement in attempt.active.statements}
    return {site: keys for site in group if (keys := stated[site]) is not None}
