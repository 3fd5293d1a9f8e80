"""Steps of masked and encrypted sums, asked one at a time of real sites by a coordinator in the tests' hands."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Protection
from agreement.derived.cohorts import group_cohort
from agreement.derived.encrypted_sums import EncryptedGroups, EncryptedSum
from agreement.derived.payload_shapes import sums_shape, values_shape
from agreement.registry.round_plan import PayloadKind
from crypto.ckks.group_mixing import MixingServer
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.sums import SumLayout, SummingServer, SummingSite
from crypto.fixed_point import FixedPoint
from crypto.pairwise.attempt import Binding, MaskKeys
from crypto.pairwise.masks import SCHEME, masked_words
from crypto.pairwise.neighbour_graph import Graph
from crypto.pairwise.shares import ReleasedShare, SealedShare
from crypto.pairwise.unmask import unmask
from crypto.protection import Payload, Words
from protoseal_wire import codec
from protoseal_wire.messages import (
    ActiveList,
    Phase,
    ReceivedShares,
    RoundStart,
    SignedSurvivors,
    SumMembers,
    SurvivorSet,
    SurvivorSignature,
)
from secure_client.protocol.setup import make_group_secret
from tests.support.grouped import EVERYONE
from tests.support.scripted_coordinator import ScriptedCoordinator

Vector = NDArray[np.float64]
Groups = tuple[tuple[str, ...], ...]


class ScriptedSums(ScriptedCoordinator):
    """Sites of a run under masks, for the coordinator to ask."""

    def cluster(self, *names: str, attempt: int = 1) -> dict[str, Payload]:
        """Round 0: each site's turned row."""
        active = self.begin(*names, round_number=0, attempt=attempt)
        return self.all_values(active, round_number=0, attempt=attempt)

    def attempt(
        self,
        *names: str,
        round_number: int = 1,
        attempt: int = 1,
        groups: Groups = (EVERYONE,),
        start: Mapping[str, tuple[bytes, Payload | None]] | None = None,
    ) -> SumAttempt:
        """PRESENCE of these sites in a new attempt. ``start``: (base, result to catch up with) by site."""
        statements = []
        for name in names:
            base, catch_up = (start or {}).get(name, (self.site(name).learner.received.base_hash, None))
            begun = RoundStart(groups, base, catch_up)
            statements.append(self.presence(name, round_number=round_number, attempt=attempt, start=begun))
        group = next(group for group in groups if names[0] in group)
        return SumAttempt(self, ActiveList(tuple(statements)), group, round_number, attempt)

    def vector(self, name: str, begun: SumAttempt) -> Vector:
        """Return a site's secret: what it adds to the sum, (L,)."""
        learner, cohort = self.site(name).learner, begun.cohort
        rows, _ = learner.train_round(begun.round)
        rows = np.where(cohort.held_by(name)[:, None], rows, 0.0)
        return np.concatenate([rows.ravel(), learner.values.averaged_part()])

    def rounding(self, terms: int = 1) -> Vector:
        """Return how far a sum of so many encoded vectors may be from the sum itself, (L,)."""
        return np.asarray(terms * self.agreement.fixed_point().resolution / 2 + 1e-12)

    def result_of(self, sum_: Vector, begun: SumAttempt, survivors: Iterable[str]) -> Payload:
        """Return the means of a single group, or PFPL's sum, as its members are sent them."""
        members = tuple(survivors)
        stay = [begun.cohort.index(site) for site in members]
        holders = begun.cohort.holds[stay].sum(axis=0)
        if self.agreement.plan.result is PayloadKind.PEER_SUMS:
            signed = SignedSurvivors(
                members, tuple(begun.signed[site] for site in members if site in begun.signed)
            )
            told = SumMembers(begun.round, begun.number, begun.members, begun.broadcast, signed)
            return Payload(SCHEME, (sum_, holders.astype(np.float64)), (codec.encode_sum_members(told),))
        split = holders.size * self.agreement.dim
        rows = sum_[:split].reshape(holders.size, -1) / np.maximum(holders, 1)[:, None]
        has = (holders > 0).astype(np.float64)
        return Payload(SCHEME, arrays=(np.concatenate([rows.ravel(), sum_[split:] / len(stay)]), has))

    def play_sum(
        self, *names: str, round_number: int = 1, attempt: int = 1, dropped: Iterable[str] = ()
    ) -> Payload:
        """Play an honest attempt of the group ``EVERYONE`` up to RESULT; ``dropped`` go after they made shares."""
        begun = self.attempt(*names, round_number=round_number, attempt=attempt)
        survivors = tuple(name for name in names if name not in dropped)
        result = self.result_of(begun.carried_out(survivors), begun, survivors)
        for name in survivors:
            self.give_result(name, result, round_number=round_number, attempt=attempt)
        return result


class SumAttempt:
    """One attempt of one group's sum. Every step asks the sites named, or lets their refusal through."""

    def __init__(
        self, play: ScriptedSums, active: ActiveList, group: tuple[str, ...], round_number: int, attempt: int
    ) -> None:
        self.play, self.active, self.round, self.number = play, active, round_number, attempt
        self.cohort = group_cohort(active, group, play.agreement)
        self.made: dict[str, tuple[SealedShare, ...]] = {}
        self.masked: dict[str, Words] = {}
        self.masks_with: dict[str, SurvivorSignature] = {}
        self.released: dict[str, tuple[ReleasedShare, ...]] = {}
        self.signed: dict[str, SurvivorSignature] = {}

    @property
    def members(self) -> tuple[str, ...]:
        """The group's members that answered PRESENCE."""
        return self.cohort.sites

    @property
    def public(self) -> dict[str, MaskKeys]:
        """The keys that they stated."""
        return {each.site: each.keys for each in self.active.statements if each.keys is not None}

    @property
    def binding(self) -> Binding:
        """Binding of an honest member of the group."""
        play = self.play
        roster = play.site(self.members[0]).session._setup.roster()
        return Binding(
            play.agreement.run,
            self.round,
            self.number,
            roster.hash,
            play.agreement.hash(),
            self.members,
            self.broadcast,
        )

    @property
    def graph(self) -> Graph:
        """Graph of the holders of each member's shares."""
        roster = self.play.site(self.members[0]).session._setup.roster()
        return self.play.agreement.masking.graph(len(roster.members), len(self.members))

    @property
    def broadcast(self) -> bytes:
        """Name that the members give to the broadcast that all of them received."""
        return next(each.base for each in self.active.statements if each.site == self.members[0])

    @property
    def fixed_point(self) -> FixedPoint:
        """Encoding of vectors as words."""
        return self.play.agreement.fixed_point()

    def ask(self, name: str, phase: Phase, content: bytes) -> bytes:
        """Ask one site."""
        return self.play.ask(name, phase, content, round_number=self.round, attempt=self.number)

    # The steps

    def share(self, *names: str, active: ActiveList | None = None) -> None:
        """SHARES."""
        for name in names:
            answer = self.ask(name, Phase.SHARES, codec.encode_active_list(active or self.active))
            self.made[name] = codec.decode_shares_made(answer, self.play.limits).shares

    def shares_for(self, name: str) -> tuple[SealedShare, ...]:
        """Return the shares that the others made for one site."""
        return tuple(each for made in self.made.values() for each in made if each.recipient == name)

    def mask(
        self,
        *names: str,
        shares: tuple[SealedShare, ...] | None = None,
        sharers: tuple[str, ...] | None = None,
    ) -> None:
        """VALUES, with all shares made so far, and who made them in a sparse graph, unless others are given."""
        bits, length = self.play.agreement.ring_bits, self.fixed_point.length
        told = tuple(sorted(self.made)) if self.graph.sparse else ()
        for name in names:
            received = ReceivedShares(
                self.shares_for(name) if shares is None else shares, told if sharers is None else sharers
            )
            answer = self.ask(name, Phase.VALUES, codec.encode_received_shares(received))
            self.masked[name] = masked_words(self._payload(name, answer), bits, length)

    def _payload(self, name: str, answer: bytes) -> Payload:
        if not self.graph.sparse:
            return self.play.payload(answer, self.round)
        form = values_shape(self.play.agreement, self.round)
        values = codec.decode_masked_values(answer, self.play.limits, form)
        self.masks_with[name] = SurvivorSignature(name, values.signature)
        return values.payload

    def sign(self, survivors: Iterable[str], *names: str) -> tuple[SurvivorSignature, ...]:
        """SURVIVORS."""
        content = codec.encode_survivor_set(SurvivorSet(tuple(survivors)))
        answers = [self.ask(name, Phase.SURVIVORS, content) for name in names]
        signed = tuple(codec.decode_survivor_signature(each, self.play.limits) for each in answers)
        self.signed |= {each.site: each for each in signed}
        return signed

    def release(
        self,
        survivors: Iterable[str],
        signatures: tuple[SurvivorSignature, ...],
        *names: str,
        sharers: tuple[SurvivorSignature, ...] | None = None,
    ) -> dict[str, tuple[ReleasedShare, ...]]:
        """UNMASK, in a sparse graph with the owners' signatures on whom they mask with unless others are given."""
        stay = tuple(survivors)
        answers = {}
        for name in names:
            owners = self.owners(name, stay) if sharers is None else sharers
            content = codec.encode_signed_survivors(SignedSurvivors(stay, signatures, owners))
            answers[name] = self.ask(name, Phase.UNMASK, content)
        return {
            name: codec.decode_released_shares(each, self.play.limits).shares
            for name, each in answers.items()
        }

    def owners(self, name: str, survivors: tuple[str, ...]) -> tuple[SurvivorSignature, ...]:
        """Return, in a sparse graph, the signatures on mask partners by those survivors whose shares the site
        received.
        """
        if not self.graph.sparse:
            return ()
        return tuple(
            self.masks_with[each.sender] for each in self.shares_for(name) if each.sender in survivors
        )

    def carried_out(self, survivors: tuple[str, ...]) -> Vector:
        """Play everything from SHARES to the sum, honestly; a site that does not survive goes after it made shares."""
        self.share(*self.members)
        self.mask(*survivors)
        return self.opened(survivors)

    def check_opens(self, survivors: tuple[str, ...]) -> None:
        """Carry it out; ``AssertionError`` if the sum is not that of the survivors' vectors."""
        expected = np.sum([self.play.vector(name, self) for name in survivors], axis=0)
        error = np.abs(self.carried_out(survivors) - expected)
        assert (error <= self.play.rounding(len(survivors))).all()

    def opened(self, survivors: tuple[str, ...]) -> Vector:
        """SURVIVORS, UNMASK and the sum, (L,)."""
        released = self.release(survivors, self.sign(survivors, *survivors), *survivors)
        return self.sum(survivors, released)

    # What the coordinator computes

    def sum(self, survivors: tuple[str, ...], released: Mapping[str, tuple[ReleasedShare, ...]]) -> Vector:
        """Open the sum as the honest coordinator does."""
        masked = {name: self.masked[name] for name in survivors}
        sharers = tuple(sorted(self.made))
        words = unmask(masked, released, self.binding, sharers, survivors, self.public, self.graph)
        return self.fixed_point.decode_sum(words, len(survivors))


def base_of(result: Payload) -> bytes:
    """Return the name of a result in the rounds after it."""
    return hashlib.sha256(codec.encode_payload(result)).digest()


_TERMS = 8
"""Number of equal terms in a forged sum: its values may be that many times their bounds."""


@cache
def one_secret(_: Protection) -> tuple[bytes, bytes]:
    """Return one group secret for all runs of a test process, since a fresh one takes half a second."""
    return make_group_secret(Protection.CKKS)


MAKES_SECRETS = "secure_client.protocol.setup.make_group_secret"


def play_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all runs one group secret."""
    monkeypatch.setattr(MAKES_SECRETS, one_secret)


def key_of(play: ScriptedSums) -> CkksSecret:
    """Return the sites' key, which no coordinator has."""
    return play.site(EVERYONE[0]).session._setup.ckks_key()


def forged(secret: CkksSecret, form: SumLayout, values: Vector) -> Payload:
    """Return a sum that decrypts to these values (L,), in the form of an honest one."""
    term = SummingSite(secret, form).protect(values / _TERMS)
    return SummingServer(form).add([term] * _TERMS)


def hash_of(result: Payload) -> bytes:
    """Return the hash that a site states once it was given this result."""
    return hashlib.sha256(codec.encode_payload(result)).digest()


class EncryptedAttempt(SumAttempt):
    """One attempt of a sum over all sites, or over one of ``groups``; PRESENCE of these sites is asked at once."""

    def __init__(
        self,
        play: ScriptedSums,
        *names: str,
        round_number: int = 1,
        attempt: int = 1,
        groups: Groups = (EVERYONE,),
    ) -> None:
        begun = play.attempt(*names, round_number=round_number, attempt=attempt, groups=groups)
        super().__init__(play, begun.active, groups[0], round_number, attempt)
        self.sums = EncryptedSum(play.agreement)
        self.uploads: dict[str, Payload] = {}

    def values(self, *names: str) -> None:
        """VALUES."""
        for name in names:
            answer = self.ask(name, Phase.VALUES, codec.encode_active_list(self.active))
            self.uploads[name] = self.play.payload(answer, self.round)

    def sum_over(self, names: Iterable[str]) -> Payload:
        """Return the sum that an honest coordinator makes of these sites' values."""
        return SummingServer(self.sums.form).add(self.uploads[name] for name in names)

    def summed(self, *names: str) -> Payload:
        """VALUES of these sites, and their sum."""
        self.values(*names)
        return self.sum_over(names)

    def read(self, total: Payload) -> Vector:
        """Read a sum as any site does, (L,)."""
        return SummingSite(key_of(self.play), self.sums.form).unprotect(total, self.play.agreement.max_sites)

    def means(self, leader: str, total: Payload) -> Payload:
        """MEANS of a group's leader."""
        answer = self.ask(leader, Phase.MEANS, codec.encode_payload(total))
        return codec.decode_payload(answer, self.play.limits, sums_shape(self.play.agreement))

    def give(self, name: str, result: Payload) -> bytes:
        """RESULT."""
        return self.play.give_result(name, result, round_number=self.round, attempt=self.number)


def mixed(play: ScriptedSums, *means: Payload) -> list[Payload]:
    """Return the mixes that an honest coordinator makes of groups' means, in their order."""
    return MixingServer(EncryptedGroups(play.agreement).form, play._keys_path, None).mix(means)
