"""Sums under ``masked``: each group's sum out of masked vectors, whoever drops out on the way.

The coordinator relays keys, shares and signatures, and learns each group's sum and nothing of its terms. It checks
what it relays, so that a bad answer is refused to its sender and not by everyone else. The limits: what is sealed
in a share, whether a released share is right and what is under the masks show only at the end, when a sum does not
come out. Its group then has no result, the others have theirs without it; whose fault it was can be told of some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from crypto.errors import MalformedError, VerificationError
from crypto.fixed_point import FixedPoint
from crypto.pairwise.binding import Binding, threshold
from crypto.pairwise.parts import MaskKeys, ReleasedShare, SealedShare
from crypto.pairwise.release import check_released
from crypto.pairwise.scheme import SCHEME, words_of
from crypto.pairwise.shares import verify_share
from crypto.pairwise.survivors import verify_survivor
from crypto.pairwise.unmask import unmask
from crypto.protection import Payload, Words
from protoseal.config import Agreement
from protoseal.terms import group_cohort, values_form
from protoseal_wire import codec
from protoseal_wire.codec import Limits
from protoseal_wire.messages import (
    Phase,
    ReceivedShares,
    SignedSurvivors,
    SurvivorSet,
    SurvivorSignature,
)
from secure_server.errors import BadPayload
from secure_server.exchanges.attempt import Attempt, GroupFailure, Outcome
from secure_server.exchanges.mixing import GroupSum, check_means, for_members, results_of
from secure_server.exchanges.suspicions import Released, suspicions
from secure_server.run_state import Quorum


class ReadOneByOne(Mapping[str, Words]):
    """Masked vectors by site, each read and decoded when it is looked at, and not kept."""

    def __init__(self, sites: Sequence[str], read: Callable[[str], Words]) -> None:
        self._sites, self._read = sites, read

    def __getitem__(self, site: str) -> Words:
        if site not in self._sites:
            raise KeyError(site)
        return self._read(site)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)


class PairwiseSums:
    """SHARES, VALUES, SURVIVORS and UNMASK of all groups, side by side."""

    masked = True
    summing: tuple[Phase, ...] = (Phase.SHARES, Phase.VALUES)
    """Steps that need enough holders of all that is added up."""

    def __init__(self, agreement: Agreement, limits: Limits) -> None:
        self._agreement, self._limits = agreement, limits
        self._relayed: tuple[tuple[object, ...], dict[str, tuple[SealedShare, ...]]] | None = None

    def quorums(self, attempt: Attempt) -> tuple[Quorum, ...]:
        """Of each group: enough for the threshold, and while vectors come in, for each active class too."""
        return tuple(quorum for group in attempt.groups for quorum in self.quorums_of(attempt, group))

    # What is added up

    def fixed_point(self, attempt: Attempt) -> FixedPoint:  # noqa: ARG002 (elsewhere it hangs on the attempt)
        """How vectors become words."""
        return self._agreement.fixed_point()

    def broadcast(self, attempt: Attempt, group: tuple[str, ...]) -> bytes:
        """The hash of what all members were sent: the base that each stated, as the check of its presence saw to."""
        return attempt.statement(group[0]).base

    def check_sum(self, attempt: Attempt, found: GroupSum) -> None:  # noqa: ARG002 (elsewhere it hangs on the attempt)
        """Raise :class:`MalformedError` for a sum that members who keep to their bounds cannot have."""
        check_means(self._agreement, found)

    def results(self, attempt: Attempt, sums: Sequence[GroupSum]) -> list[Payload]:  # noqa: ARG002 (as above)
        """Each group's result."""
        return results_of(self._agreement, sums, SCHEME)

    # How many it takes

    def quorums_of(self, attempt: Attempt, group: tuple[str, ...]) -> Iterator[Quorum]:
        """Those of one group."""
        least, members = threshold(len(group)), frozenset(group)
        cohort = group_cohort(attempt.active, group, self._agreement)
        for phase in self.summing:
            yield Quorum(phase, members, max(least, self._agreement.min_holders))
            for k in np.flatnonzero(cohort.counts):
                holders = frozenset(cohort.sites[i] for i in np.flatnonzero(cohort.holds[:, k]))
                yield Quorum(phase, holders, self._agreement.min_holders)
        for phase in (Phase.SURVIVORS, Phase.UNMASK):
            yield Quorum(phase, members, least)

    # What is asked

    def request(self, attempt: Attempt, phase: Phase, site: str) -> bytes:
        """What the step relays to the site, from its own group alone."""
        group = attempt.group_of(site)
        match phase:
            case Phase.SHARES:
                return codec.encode_active_list(attempt.active)
            case Phase.VALUES:
                return codec.encode_received_shares(ReceivedShares(self._shares_for(attempt, group, site)))
            case Phase.SURVIVORS:
                return codec.encode_survivor_set(SurvivorSet(attempt.among(group, Phase.VALUES)))
            case _:
                return codec.encode_signed_survivors(self._signed(attempt, group))

    def _shares_for(self, attempt: Attempt, group: tuple[str, ...], site: str) -> tuple[SealedShare, ...]:
        made = self._all_shares(attempt)
        return tuple(
            share
            for sender in attempt.among(group, Phase.SHARES)
            for share in made[sender]
            if share.recipient == site
        )

    def _all_shares(self, attempt: Attempt) -> dict[str, tuple[SealedShare, ...]]:
        """By sender. As many as pairs of sites, and asked for by each of them: decoded once."""
        senders = attempt.survivors[Phase.SHARES]
        key, relayed = (attempt.key, senders), self._relayed  # which another thread may replace meanwhile
        if relayed is None or relayed[0] != key:
            made = {
                sender: codec.decode_shares_made(attempt.answer(Phase.SHARES, sender), self._limits).shares
                for sender in senders
            }
            relayed = self._relayed = (key, made)
        return relayed[1]

    def _signed(self, attempt: Attempt, group: tuple[str, ...]) -> SignedSurvivors:
        signatures = tuple(self._signature(attempt, site) for site in attempt.among(group, Phase.SURVIVORS))
        return SignedSurvivors(attempt.among(group, Phase.VALUES), signatures)

    def _signature(self, attempt: Attempt, site: str) -> SurvivorSignature:
        return codec.decode_survivor_signature(attempt.answer(Phase.SURVIVORS, site), self._limits)

    # What is a good answer

    def check(self, attempt: Attempt, phase: Phase, site: str, content: bytes) -> None:
        """As :class:`secure_server.exchanges.attempt.Exchange` says."""
        match phase:
            case Phase.SHARES:
                self._check_shares(attempt, site, content)
            case Phase.VALUES:
                self._words(attempt, content)
            case Phase.SURVIVORS:
                self._check_signature(attempt, site, content)
            case _:
                self._check_released(attempt, site, content)

    def _check_shares(self, attempt: Attempt, site: str, content: bytes) -> None:
        shares, group = codec.decode_shares_made(content, self._limits).shares, attempt.group_of(site)
        if sorted(share.recipient for share in shares) != sorted(set(group) - {site}):
            raise BadPayload(f"{site} must seal shares to each other member of its group, once")
        binding = self._binding(attempt, group)
        for share in shares:
            verify_share(share, attempt.roster.members[site], binding, share.recipient)

    def _check_signature(self, attempt: Attempt, site: str, content: bytes) -> None:
        signed, group = codec.decode_survivor_signature(content, self._limits), attempt.group_of(site)
        if signed.site != site:
            raise BadPayload(f"{site} must sign for itself, not for {signed.site}")
        survivors = attempt.among(group, Phase.VALUES)
        binding = self._binding(attempt, group)
        verify_survivor(attempt.roster.members[site], binding, survivors, signed.signature)

    def _check_released(self, attempt: Attempt, site: str, content: bytes) -> None:
        group = attempt.group_of(site)
        check_released(
            self._released(content),
            self._binding(attempt, group),
            attempt.among(group, Phase.SHARES),
            attempt.among(group, Phase.VALUES),
        )

    # What follows

    def outcome(self, attempt: Attempt) -> Outcome:
        """The result of its group for each participant, also for those who dropped out of the sum.

        A group whose sum does not come out is left out of what groups are mixed of, as if it did not take part.
        """
        sums: dict[tuple[str, ...], GroupSum] = {}
        failures = []
        for group in attempt.groups:
            released = self._all_released(attempt, group)
            try:
                sums[group] = self._sum(attempt, group, released)
            except (MalformedError, VerificationError) as error:
                failures.append(GroupFailure(group, str(error), self._suspicions(attempt, group, released)))
        results = self.results(attempt, list(sums.values())) if sums else []
        return replace(for_members(tuple(sums), results), failures=tuple(failures))

    def _sum(self, attempt: Attempt, group: tuple[str, ...], released: Released) -> GroupSum:
        survivors = attempt.among(group, Phase.VALUES)
        words = unmask(
            ReadOneByOne(survivors, lambda site: self._words(attempt, attempt.answer(Phase.VALUES, site))),
            released,
            self._binding(attempt, group),
            attempt.among(group, Phase.SHARES),
            survivors,
            _public(attempt, group),
        )
        total = self.fixed_point(attempt).decode_sum(words, len(survivors))
        found = GroupSum(group_cohort(attempt.active, group, self._agreement), survivors, total)
        self.check_sum(attempt, found)
        return found

    def _all_released(self, attempt: Attempt, group: tuple[str, ...]) -> Released:
        return {
            site: self._released(attempt.answer(Phase.UNMASK, site))
            for site in attempt.among(group, Phase.UNMASK)
        }

    def _suspicions(self, attempt: Attempt, group: tuple[str, ...], released: Released) -> tuple[str, ...]:
        sharers = attempt.among(group, Phase.SHARES)
        return suspicions(released, self._binding(attempt, group), sharers, _public(attempt, group))

    def _words(self, attempt: Attempt, content: bytes) -> Words:
        payload = codec.decode_payload(content, self._limits, values_form(self._agreement, attempt.key.round))
        fixed_point = self.fixed_point(attempt)
        return words_of(payload, fixed_point.ring_bits, fixed_point.length)

    def _released(self, content: bytes) -> tuple[ReleasedShare, ...]:
        return codec.decode_released_shares(content, self._limits).shares

    def _binding(self, attempt: Attempt, group: tuple[str, ...]) -> Binding:
        key, broadcast = attempt.key, self.broadcast(attempt, group)
        return Binding(
            key.run, key.round, key.attempt, attempt.roster.hash, self._agreement.hash(), group, broadcast
        )


def _public(attempt: Attempt, group: tuple[str, ...]) -> Mapping[str, MaskKeys]:
    stated = {site: attempt.statement(site).keys for site in group}
    return {site: keys for site, keys in stated.items() if keys is not None}
