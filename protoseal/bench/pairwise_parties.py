"""A site and the coordinator of one masked sum, for ``protoseal bench pairwise``.

Each says and checks what :mod:`secure_client.protocol.masked_sum` and :mod:`secure_server.exchanges.masked_sums` do, in
contents of :mod:`protoseal_wire.codec`, without a network, a journal and a state to store. A site checks a share once,
where one that reads its journal again checks it in each step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from crypto.fixed_point import FixedPoint
from crypto.pairwise.attempt_binding import Binding
from crypto.pairwise.attempt_secrets import AttemptSecrets, SharePair
from crypto.pairwise.masks import mask
from crypto.pairwise.neighbour_graph import Graph
from crypto.pairwise.scheme import payload_of, words_of
from crypto.pairwise.share_release import check_released, release
from crypto.pairwise.sharer_signatures import sign_sharers, verify_sharers, verify_signed_sharers
from crypto.pairwise.shares import make_shares, open_share, verify_share
from crypto.pairwise.survivor_signatures import sign_survivors, verify_signed_survivors, verify_survivor
from crypto.pairwise.unmask import unmask
from crypto.pairwise.wire_values import MaskKeys, ReleasedShare, SealedShare
from crypto.pki import Credentials
from crypto.protection import PayloadForm, Words
from crypto.roster import Roster
from protoseal.bench.pairwise_sites import AGREEMENT_HASH, RUN
from protoseal_wire import codec
from protoseal_wire.codec import Limits
from protoseal_wire.messages import (
    ActiveList,
    MaskedValues,
    Phase,
    PhaseKey,
    PresenceStatement,
    ReceivedShares,
    ReleasedShares,
    RoundStart,
    SharesMade,
    SignedSurvivors,
    SurvivorSet,
    SurvivorSignature,
)
from protoseal_wire.presence import check_keys_given, sign_presence, verify_active_list, verify_presence

Float = NDArray[np.float64]

KEY = PhaseKey(RUN, 1, 1, Phase.PRESENCE)
BASE = hashlib.sha256(b"base").digest()
"""Stands for the hash of the result that all trained from."""


@dataclass(frozen=True)
class Terms:
    """Facts that all parties know: the roster, the graph of shares, the encoding of values, and their shape."""

    roster: Roster
    graph: Graph
    fixed_point: FixedPoint
    classes: int
    dim: int

    @cached_property
    def limits(self) -> Limits:
        """The codec's bounds."""
        return Limits(self.classes, self.dim, len(self.roster.members))

    @property
    def form(self) -> PayloadForm:
        """Return the form of masked values."""
        return PayloadForm(words=((self.fixed_point.ring_bits, self.fixed_point.length),))

    @property
    def group(self) -> tuple[str, ...]:
        """Everybody."""
        return tuple(self.roster.members)

    @cached_property
    def binding(self) -> Binding:
        """The one attempt that there is."""
        return Binding(RUN, KEY.round, KEY.attempt, self.roster.hash, AGREEMENT_HASH, self.group, BASE)


class Site:
    """A member of the group. Each method is one step: a request's content in, the answer's out."""

    def __init__(self, credentials: Credentials, terms: Terms, values: Float) -> None:
        self.name = credentials.identity.name
        self._credentials, self._terms, self._values = credentials, terms, values
        self._secrets = AttemptSecrets.generate()
        self._public: Mapping[str, MaskKeys] = {}
        self._held: dict[str, SharePair] = {}
        self._sharers: tuple[str, ...] = ()
        self._survivors: tuple[str, ...] = ()

    def answer(self, phase: Phase, request: bytes) -> bytes:
        """Return the answer to a step."""
        steps: dict[Phase, Callable[[bytes], bytes]] = {
            Phase.PRESENCE: self.presence,
            Phase.SHARES: self.shares,
            Phase.VALUES: self.values,
            Phase.SURVIVORS: self.survivors,
            Phase.UNMASK: self.unmask,
        }
        return steps[phase](request)

    def presence(self, request: bytes) -> bytes:
        """Fresh keys, stated and signed."""
        codec.decode_round_start(request, self._terms.limits, PayloadForm())
        self._secrets = AttemptSecrets.generate()
        holds = np.ones(self._terms.classes, dtype=np.bool_)
        keys, roster_hash = self._secrets.public, self._terms.roster.hash
        stated = sign_presence(self._credentials, KEY, roster_hash, holds, base=BASE, keys=keys)
        return codec.encode_presence(stated)

    def shares(self, request: bytes) -> bytes:
        """Both secrets split, and sealed to each other member whose statement holds."""
        active = codec.decode_active_list(request, self._terms.limits)
        verify_active_list(active, self._terms.roster, KEY)
        check_keys_given(active)
        self._public = keys_of(active.statements)
        terms = self._terms
        sealed, own = make_shares(self._credentials, self._secrets, terms.binding, self._public, terms.graph)
        self._held = {self.name: own}
        return codec.encode_shares_made(SharesMade(sealed))

    def values(self, request: bytes) -> bytes:
        """Shares of peers checked and opened; the values in fixed point under masks."""
        received = codec.decode_received_shares(request, self._terms.limits)
        binding, members = self._terms.binding, self._terms.roster.members
        for share in received.shares:
            verify_share(share, members[share.sender], binding, self.name)
            self._held[share.sender] = open_share(share, self._secrets, binding)
        self._sharers = received.sharers or tuple(sorted(self._held))
        words = self._terms.fixed_point.encode(self._values)
        graph, sharers = self._terms.graph, self._sharers
        payload = payload_of(mask(words, self._secrets, binding, self.name, sharers, self._public, graph))
        if not graph.sparse:
            return codec.encode_payload(payload)
        signature = sign_sharers(self._credentials, binding, sharers)
        return codec.encode_masked_values(MaskedValues(payload, signature))

    def survivors(self, request: bytes) -> bytes:
        """Return a signature on the sites in the sum."""
        self._survivors = codec.decode_survivor_set(request, self._terms.limits).sites
        signature = sign_survivors(self._credentials, self._terms.binding, self._survivors)
        return codec.encode_survivor_signature(SurvivorSignature(self.name, signature))

    def unmask(self, request: bytes) -> bytes:
        """Signatures of the others checked, and one share of each sharer given."""
        signed = codec.decode_signed_survivors(request, self._terms.limits)
        signatures, binding = {each.site: each.signature for each in signed.signatures}, self._terms.binding
        members = self._terms.roster.members
        verify_signed_survivors(signatures, members, binding, self._survivors)
        if self._terms.graph.sparse:
            owners = [name for name in self._survivors if name in self._held and name != self.name]
            of_owners = {each.site: each.signature for each in signed.sharers}
            verify_signed_sharers(of_owners, members, binding, self._sharers, owners)
        released = release(binding, self.name, self._sharers, self._survivors, self._held)
        return codec.encode_released_shares(ReleasedShares(released))


class Coordinator:
    """Relays and checks, and takes the masks off at the end."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._statements: dict[str, PresenceStatement] = {}
        self._shares: dict[str, list[SealedShare]] = {name: [] for name in terms.group}
        self._made_shares: set[str] = set()
        self._masked: dict[str, Words] = {}
        self._on_sharers: dict[str, SurvivorSignature] = {}
        self._signatures: dict[str, SurvivorSignature] = {}
        self._released: dict[str, tuple[ReleasedShare, ...]] = {}
        self._same: dict[Phase, bytes] = {}

    def request(self, phase: Phase, site: str) -> bytes:
        """Return a site's request; encoded once where it is the same for all."""
        if phase is Phase.VALUES:
            return codec.encode_received_shares(self._received(site))
        if phase is Phase.UNMASK and self._terms.graph.sparse:
            return codec.encode_signed_survivors(self._survivors_signed(site))
        if phase not in self._same:
            self._same[phase] = self._request(phase)
        return self._same[phase]

    def accept(self, phase: Phase, site: str, content: bytes) -> None:
        """Accept an answer, checked as far as it can be."""
        steps: dict[Phase, Callable[[str, bytes], None]] = {
            Phase.PRESENCE: self._presence,
            Phase.SHARES: self._made,
            Phase.VALUES: self._words,
            Phase.SURVIVORS: self._signed,
            Phase.UNMASK: self._shares_released,
        }
        steps[phase](site, content)

    def unmask(self) -> Float:
        """Return the survivors' sum, shape (L,). The call can be repeated: nothing is used up."""
        words = unmask(
            self._masked,
            self._released,
            self._terms.binding,
            self.sharers,
            self.survivors,
            keys_of(list(self._statements.values())),
            self._terms.graph,
        )
        return self._terms.fixed_point.decode_sum(words, len(self._masked))

    @cached_property
    def sharers(self) -> tuple[str, ...]:
        """Who made shares, sorted; to be asked for when all did."""
        return tuple(sorted(self._made_shares))

    @property
    def survivors(self) -> tuple[str, ...]:
        """Return the sites whose values came, sorted."""
        return tuple(sorted(self._masked))

    def _request(self, phase: Phase) -> bytes:
        match phase:
            case Phase.PRESENCE:
                return codec.encode_round_start(RoundStart((self._terms.group,), BASE))
            case Phase.SHARES:
                return codec.encode_active_list(ActiveList(tuple(self._statements.values())))
            case Phase.SURVIVORS:
                return codec.encode_survivor_set(SurvivorSet(self.survivors))
            case _:
                return codec.encode_signed_survivors(self._survivors_signed())

    def _received(self, site: str) -> ReceivedShares:
        """In a sparse graph whose shares there are at all is told besides."""
        return ReceivedShares(tuple(self._shares[site]), self.sharers if self._terms.graph.sparse else ())

    def _survivors_signed(self, site: str | None = None) -> SignedSurvivors:
        """In a sparse graph with what those signed, on whom they mask with, whose shares the site was sent."""
        senders = [] if site is None else [share.sender for share in self._shares[site]]
        of_owners = tuple(self._on_sharers[name] for name in senders if name in self._on_sharers)
        return SignedSurvivors(self.survivors, tuple(self._signatures.values()), of_owners)

    def _presence(self, site: str, content: bytes) -> None:
        stated = codec.decode_presence(content, self._terms.limits)
        verify_presence(self._terms.roster.members[site], stated, KEY, self._terms.roster.hash)
        self._statements[site] = stated

    def _made(self, site: str, content: bytes) -> None:
        self._made_shares.add(site)
        for share in codec.decode_shares_made(content, self._terms.limits).shares:
            verify_share(share, self._terms.roster.members[site], self._terms.binding, share.recipient)
            self._shares[share.recipient].append(share)

    def _words(self, site: str, content: bytes) -> None:
        terms = self._terms
        if terms.graph.sparse:
            masked = codec.decode_masked_values(content, terms.limits, terms.form)
            verify_sharers(terms.roster.members[site], terms.binding, self.sharers, masked.signature)
            self._on_sharers[site] = SurvivorSignature(site, masked.signature)
            payload = masked.payload
        else:
            payload = codec.decode_payload(content, terms.limits, terms.form)
        self._masked[site] = words_of(payload, terms.fixed_point.ring_bits, terms.fixed_point.length)

    def _signed(self, site: str, content: bytes) -> None:
        signed = codec.decode_survivor_signature(content, self._terms.limits)
        member = self._terms.roster.members[site]
        verify_survivor(member, self._terms.binding, self.survivors, signed.signature)
        self._signatures[site] = signed

    def _shares_released(self, site: str, content: bytes) -> None:
        released = codec.decode_released_shares(content, self._terms.limits).shares
        check_released(released, self._terms.binding, self.sharers, self.survivors)
        self._released[site] = released


def keys_of(statements: Sequence[PresenceStatement]) -> dict[str, MaskKeys]:
    """Return the keys that were stated, by site."""
    return {each.site: each.keys for each in statements if each.keys is not None}
