"""A masked sum over a group: keys, shares, masked words, survivors, release (Bonawitz et al. 2017).

A site's refusals bound what it reveals. A site masks only among at least a threshold of sharers, signs a single
survivor set that hides it well enough, and releases for each sharer one kind of share, once, under enough signatures on
that set. Its secrets live for one attempt and are erased with it.

In a large group the graph of masks and shares is sparse (:mod:`crypto.pairwise.neighbour_graph`), and a site releases a
share of a seed only if the seed's owner has signed the same sharers as this site. After signing survivors in a sparse
graph, a site takes part in no later attempt of the round: the sites that a later attempt leaves out could suffice to
open this attempt's sum.

Limits: in a complete graph, t of the n members that an attempt lists can together open every vector of the group. A
passive coordinator needs t colluding members, an active one 2t − n, since each honest site answers for one survivor
set, and never for two sums over the same training in one round (:mod:`secure_client.exchanges.sums`). The
coordinator chooses n, from ``min_holders`` on; in a run of more than ``complete_up_to`` sites, from the smallest n for
which ``max_colluding`` members are too few. In a sparse graph the guarantee is against ``max_colluding`` members and no
more. Sums of rounds in which training hardly changes the models can be subtracted, and the coordinator can cause such
rounds.
A member's share that does not decrypt is logged and left out; a wrong share that decrypts corrupts the sum, which the
coordinator sees but cannot trace to a member.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreement import Agreement
from agreement.derived.payload_shapes import limits_of
from crypto.errors import CryptoError
from crypto.pairwise.attempt import (
    AttemptSecrets,
    Binding,
    MaskKeys,
    SharePair,
    check_sharers,
    check_survivors,
)
from crypto.pairwise.masks import MaskingSite
from crypto.pairwise.member_signatures import (
    sign_sharers,
    sign_survivors,
    verify_signed_sharers,
    verify_signed_survivors,
)
from crypto.pairwise.neighbour_graph import Graph
from crypto.pairwise.shares import make_shares, open_share, release, verify_share
from crypto.protection import Cohort, ProtectedPayload
from protoseal_wire import codec
from protoseal_wire.messages import (
    Phase,
    PhaseKey,
    ReleasedShares,
    SharesMade,
    SignedSurvivors,
    SurvivorSignature,
)
from secure_client.errors import Violation
from secure_client.protocol.assignment_checks import check_holders
from secure_client.protocol.journal import Journal
from secure_client.protocol.sent_values import Answer, SignedValues
from secure_client.protocol.setup import Party, Setup

_log = logging.getLogger("protoseal.site")
_MASK_SECRETS, _OWN_SHARES, _NOISE = "mask secrets", "own shares", "noise"
"""Secrets of an attempt in the journal."""


@dataclass(frozen=True)
class Group:
    """Members of a site's group in one attempt: their classes, their keys, and the message sent to all of them.

    ``clusters``: where prototypes are added up by clusters, the sites that each has rows of.
    """

    cohort: Cohort
    keys: Mapping[str, MaskKeys]
    base: bytes
    clusters: tuple[tuple[str, ...], ...] = ()


class SecureAggregation:
    """A site's half of the masked sums of a run. All state between steps is in the journal."""

    def __init__(self, agreement: Agreement, party: Party, setup: Setup, journal: Journal) -> None:
        self._agreement = agreement
        self._agreement_hash = agreement.hash()
        self._party = party
        self._site = party.name
        self._setup = setup
        self._journal = journal
        self._limits = limits_of(agreement)
        # Sums of clusters have a form for each number of clusters; all other vectors have one form in the whole run.
        self._fixed_point = (
            agreement.fixed_point() if agreement.plan.masked and not agreement.clusters else None
        )
        self._last: tuple[tuple[Binding, bytes], tuple[str, ...]] | None = None

    # Secrets of an attempt

    def fresh_keys(self, key: PhaseKey) -> MaskKeys:
        """Return public keys for a new attempt, erasing the secrets of the attempt before it."""
        # In a sparse graph fewer than a third of the members could open a sum whose survivors enough members have
        # signed, so a site that has signed takes part in no other attempt of the round.
        for earlier in self._journal.attempts_before(key, Phase.SURVIVORS):
            received = codec.decode_received_shares(self._request(earlier, Phase.VALUES), self._limits)
            if received.sharers:
                _log.error(
                    "the coordinator asked for round %d again after this site signed its survivors", key.round
                )
                raise Violation(
                    f"survivors of attempt {earlier.attempt} were signed; the sites that another attempt leaves "
                    "out could open that sum and subtract it"
                )
        self._forget_last()
        # Fresh for each attempt: the same masks over two vectors would cancel in their difference.
        secrets = AttemptSecrets.generate()
        self._journal.put_secret(_stored_name(_MASK_SECRETS, key), secrets.to_bytes())
        return secrets.public

    def forget(self, key: PhaseKey) -> bool:
        """Erase the attempt's secrets, which could open its uploads later. Return True if there were any."""
        self._journal.forget_secret(_stored_name(_OWN_SHARES, key))
        self._journal.forget_secret(_stored_name(_NOISE, key))
        return self._journal.forget_secret(_stored_name(_MASK_SECRETS, key))

    def leave(self) -> None:
        """Erase the secrets of an unfinished attempt and record this: the attempt can answer no further step."""
        left = self._forget_last()
        if left is not None:
            self._journal.leave(left)

    def _forget_last(self) -> PhaseKey | None:
        """Erase the secrets of the last attempt; if there were any, return its PRESENCE (it had no result)."""
        last = self._journal.latest(Phase.PRESENCE)
        return last if last is not None and self.forget(last) else None

    def keep_noise(self, key: PhaseKey, noise: NDArray[np.int64]) -> None:
        """Store the attempt's share of the noise, which is drawn with the keys: one share for one set of keys."""
        self._journal.put_secret(_stored_name(_NOISE, key), noise.astype("<i8").tobytes())

    def take_noise(self, key: PhaseKey) -> NDArray[np.int64]:
        """Return and erase the stored share, which serves one vector, whose bytes the journal stores."""
        noise = np.frombuffer(self._secret(_NOISE, key), dtype="<i8").astype(np.int64)
        # A second vector with the same share of noise would cancel that share in a difference of two sums.
        self._journal.forget_secret(_stored_name(_NOISE, key))
        return noise

    # Steps of the sum

    def step(
        self, key: PhaseKey, group: Group, request: bytes, vector: Callable[[Group], NDArray[np.float64]]
    ) -> Answer:
        """Answer the step that ``key`` names, in the group that this site accepted; VALUES takes ``vector`` of it."""
        match key.phase:
            case Phase.SHARES:
                return self.shares(key, group)
            case Phase.VALUES:
                return self.values(key, group, request, vector(group))
            case Phase.SURVIVORS:
                return self.survivors(key, group, request)
            case Phase.UNMASK:
                return self.unmask(key, group, request)
            case _:
                raise ValueError(f"a masked sum has no step {key.phase.name}")

    def shares(self, key: PhaseKey, group: Group) -> bytes:
        """Answer SHARES: shares of this site's secrets, one sealed to each other member or neighbour.

        ShareKeys in figure 4 of the paper, whose AdvertiseKeys is the statement of presence.
        """
        secrets = AttemptSecrets.from_bytes(self._secret(_MASK_SECRETS, key))
        binding = self._binding(key, group)
        with _refusing(key.round, "keys"):
            shares, own_shares = make_shares(
                self._party.credentials, secrets, binding, group.keys, self._graph(binding)
            )
        self._journal.put_secret(_stored_name(_OWN_SHARES, key), own_shares.to_bytes())
        return codec.encode_shares_made(SharesMade(shares))

    def values(
        self, key: PhaseKey, group: Group, request: bytes, vector: NDArray[np.float64]
    ) -> ProtectedPayload | SignedValues:
        """Answer VALUES (MaskedInputCollection): ``vector`` (L,) in fixed point, masked with each sharer or neighbour.

        In a sparse graph the answer has this site's signature on the sharers. Raises :class:`crypto.errors.BoundError`
        for a value beyond its agreed bound, before anything is sent.
        """
        secrets = AttemptSecrets.from_bytes(self._secret(_MASK_SECRETS, key))
        binding = self._binding(key, group)
        # Masks towards fewer than a threshold of sharers could be removed by those sharers alone.
        sharers = self._verify_sharers(request, binding)
        fixed = self._fixed_point or self._agreement.fixed_point(len(group.clusters))
        graph = self._graph(binding)
        half = MaskingSite(fixed, secrets, binding, self._site, sharers, group.keys, graph)
        values = ProtectedPayload(half, vector)
        if not graph.sparse:
            return values
        return SignedValues(values, sign_sharers(self._party.credentials, binding, sharers))

    def survivors(self, key: PhaseKey, group: Group, request: bytes) -> bytes:
        """Answer SURVIVORS (ConsistencyCheck): a signature on the one set for which this site will release shares.

        Raises :class:`Violation` if the secrets are erased: the coordinator would rely on the site's shares.
        """
        self._secret(_MASK_SECRETS, key)
        self._secret(_OWN_SHARES, key)
        survivors = codec.decode_survivor_set(request, self._limits).sites
        binding = self._binding(key, group)
        sharers = self._verify_sharers(self._request(key, Phase.VALUES), binding)
        with _refusing(key.round, "survivors"):
            check_survivors(binding, sharers, survivors)
            signature = sign_survivors(self._party.credentials, binding, survivors)
        self._check_enough(len(survivors), "survive")
        self._check_class_holders(survivors, group.cohort)
        # A cluster's sum opens too, so its holders are counted like a class's.
        staying = tuple(tuple(site for site in holders if site in survivors) for holders in group.clusters)
        check_holders(staying, self._agreement, "the survivors")
        return codec.encode_survivor_signature(SurvivorSignature(self._site, signature))

    def unmask(self, key: PhaseKey, group: Group, request: bytes) -> bytes:
        """Answer UNMASK (Unmasking): one share of each sharer, of the kind that the set requires; erase the secrets."""
        signed = codec.decode_signed_survivors(request, self._limits)
        survivors = codec.decode_survivor_set(self._request(key, Phase.SURVIVORS), self._limits).sites
        if signed.sites != survivors:
            raise Violation(
                "the coordinator asked for shares under another survivor set than this site signed"
            )
        binding, received = self._binding(key, group), self._request(key, Phase.VALUES)
        sharers, held = self._verify_sharers(received, binding), self._open_shares(key, received, binding)
        signatures = {statement.site: statement.signature for statement in signed.signatures}
        with _refusing(key.round, "signed survivors"):
            verify_signed_survivors(signatures, self._setup.roster().members, binding, signed.sites)
            self._verify_owners(signed, binding, sharers, received)
            # Of a survivor the share of its seed, of a drop-out the share of its key: enough of both kinds of one site
            # would open its vector.
            released = release(binding, self._site, sharers, signed.sites, held)
        # Now, and not with the result: whoever breaks into this site later must find no share to release again.
        self.forget(key)
        return codec.encode_released_shares(ReleasedShares(released))

    # Checks before a step

    def _verify_sharers(self, request: bytes, binding: Binding) -> tuple[str, ...]:
        """Return the verified sharers of this attempt, this site included, sorted.

        Raises :class:`Violation` for a share that the coordinator altered or replayed. Three steps use the same shares,
        whose signatures are checked once.
        """
        if self._last is not None and self._last[0] == (binding, request):
            return self._last[1]
        received = codec.decode_received_shares(request, self._limits)
        for share in received.shares:
            sender = self._setup.roster().members.get(share.sender)
            if sender is None:
                raise Violation(
                    f"a share with sender {share.sender} is refused: {share.sender} is not on the roster"
                )
            try:
                verify_share(share, sender, binding, self._site)
            except CryptoError as error:
                raise Violation(f"a share with sender {share.sender} is refused: {error}") from error
        senders = {self._site, *(share.sender for share in received.shares)}
        if self._graph(binding).sparse:
            # A site gets its neighbours' shares alone, so the coordinator lists the other sharers. Two sites that got
            # different lists are found out before either releases a share: see _verify_owners.
            missing = sorted(senders - set(received.sharers))
            if missing:
                raise Violation(f"{missing[0]} is missing from the list of sharers")
            sharers = received.sharers
        elif received.sharers:
            raise Violation(
                "the coordinator listed the sharers in a complete graph, where the shares name their senders"
            )
        else:
            sharers = tuple(sorted(senders))
        with _refusing(binding.round, "received shares"):
            check_sharers(binding, sharers)
        self._check_enough(len(sharers), "made shares")
        self._last = ((binding, request), sharers)
        return sharers

    def _verify_owners(
        self, signed: SignedSurvivors, binding: Binding, sharers: Sequence[str], received: bytes
    ) -> None:
        """Check, in a sparse graph, that each survivor with a received share signed the same sharers as this site."""
        owners = set[str]()
        if self._graph(binding).sparse:
            shares = codec.decode_received_shares(received, self._limits).shares
            owners = {share.sender for share in shares} & set(signed.sites)
        signatures = {statement.site: statement.signature for statement in signed.sharers}
        verify_signed_sharers(signatures, self._setup.roster().members, binding, sharers, owners)

    def _check_enough(self, sites: int, did: str) -> None:
        """Check the agreed minimum of sites; the scheme itself checks the threshold."""
        if sites < self._agreement.min_holders:
            raise Violation(
                f"{sites} sites of the group {did}, fewer than min_holders = {self._agreement.min_holders}"
            )

    def _check_class_holders(self, survivors: Sequence[str], cohort: Cohort) -> None:
        """Check the holders of each class: the sum would reveal a class whose other holders dropped out."""
        staying = np.array([site in survivors for site in cohort.sites])
        left = cohort.holds[staying].sum(axis=0)
        short = np.flatnonzero((cohort.counts > 0) & (left < self._agreement.min_holders))
        if short.size:
            raise Violation(
                f"class {self._agreement.classes[short[0]]!r} has {left[short[0]]} holders among the survivors, "
                f"fewer than min_holders = {self._agreement.min_holders}"
            )

    # State of earlier steps, from the journal

    def _open_shares(self, key: PhaseKey, received: bytes, binding: Binding) -> dict[str, SharePair]:
        """Return the share pairs that this site can release: its own, and those that decrypt."""
        secrets = AttemptSecrets.from_bytes(self._secret(_MASK_SECRETS, key))
        held = {self._site: SharePair.from_bytes(self._secret(_OWN_SHARES, key))}
        for share in codec.decode_received_shares(received, self._limits).shares:
            try:
                held[share.sender] = open_share(share, secrets, binding)
            except CryptoError as error:
                _log.error(
                    "the share that %s made for this site is unusable and left out: %s", share.sender, error
                )
        return held

    def _graph(self, binding: Binding) -> Graph:
        return self._agreement.masking.graph(len(self._setup.roster().members), len(binding.group))

    def _binding(self, key: PhaseKey, group: Group) -> Binding:
        return Binding(
            key.run,
            key.round,
            key.attempt,
            self._setup.roster().hash,
            self._agreement_hash,
            group.cohort.sites,
            group.base,
        )

    def _secret(self, what: str, key: PhaseKey) -> bytes:
        name = _stored_name(what, key)
        secret = self._journal.secret(name)
        if secret is None:
            raise Violation(f"the {name} are erased, since that attempt is over")
        return secret

    def _request(self, key: PhaseKey, phase: Phase) -> bytes:
        return self._journal.request(PhaseKey(key.run, key.round, key.attempt, phase)) or b""


@contextmanager
def _refusing(round_number: int, what: str) -> Iterator[None]:
    """Turn the scheme's errors into :class:`Violation`: relayed content was already checked by signature."""
    try:
        yield
    except CryptoError as error:
        raise Violation(f"the {what} of round {round_number} are refused: {error}") from error


def _stored_name(what: str, key: PhaseKey) -> str:
    return f"{what} of round {key.round}, attempt {key.attempt}"
