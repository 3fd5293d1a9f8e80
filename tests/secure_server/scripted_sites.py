"""Sites played by a script against a real coordinator, whose clock the test holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreement import Agreement, AveragingSection, FedpcSection, Method, Protection
from agreement.derived.cohorts import clustering_cohort, group_cohort
from agreement.derived.payload_shapes import limits_of, result_shape
from crypto.keys import ChannelKey
from crypto.pairwise.attempt import AttemptSecrets, Binding, SharePair, threshold
from crypto.pairwise.masks import mask, masked_payload
from crypto.pairwise.member_signatures import sign_survivors
from crypto.pairwise.shares import SealedShare, make_shares, open_share, release
from crypto.pki import TrustAnchor
from crypto.plain import PlainSite
from crypto.protection import Payload
from crypto.roster import Roster, sign_statement
from crypto.rotation import RotationSite
from crypto.sealed_group_secret import seal_group_secret
from protoseal.simulation.local_federation import make_parties
from protoseal_wire import codec
from protoseal_wire.class_presence import sign_presence
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    Acknowledgement,
    ActiveList,
    DownloadRequest,
    GroupKeys,
    JoinRequest,
    Phase,
    PhaseKey,
    PresenceStatement,
    ReleasedShares,
    RosterAnswer,
    RoundStart,
    SharesMade,
    SurvivorSignature,
    Task,
    TaskRequest,
    UploadHeader,
    Work,
)
from secure_client.protocol.setup import Party
from secure_server.coordinator import Coordinator
from tests.support.small import small_agreement


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


Vector = NDArray[np.float64]

CLASSES, DIM, PARAMETERS, BUFFERS = 3, 4, 5, 2
NEAR, FAR = tuple("abcd"), tuple("wxyz")
"""Two groups of four, as their prototypes have it: each has a quorum of three."""


def fedpc_agreement(protection: Protection, *, rounds: int = 2, **settings: object) -> Agreement:
    """Sums of 12 + 5 + 2 numbers in two groups; at least three holders and three sites."""
    changed = {
        "method": Method.FEDPC,
        "protection": protection,
        "dim": DIM,
        "fedpc": FedpcSection(groups=2),
        "averaging": AveragingSection(parameters=PARAMETERS, buffers=BUFFERS),
        **settings,
    }
    return Agreement.model_validate({**dict(small_agreement(rounds=rounds)), **changed})


def parties_for(folder: Path, agreement: Agreement) -> tuple[dict[str, Party], TrustAnchor]:
    """Identities of all sites of both groups."""
    parties, trust = make_parties(folder, agreement, [*NEAR, *FAR])
    return {party.name: party for party in parties}, trust


def prototypes_of(site: str, number: int) -> Vector:
    """(K, d) in a round: the groups' have no direction in common, and within one they are alike. Norms below 2."""
    seed = int.from_bytes(hashlib.sha256(f"{site} {number}".encode()).digest()[:4], "big")
    noise = np.random.default_rng(seed).random((CLASSES, DIM)) * 0.1
    rows = np.full((CLASSES, DIM), [1.0, 0.8, 0.0, 0.0] if site in NEAR else [0.0, 0.1, 0.9, 1.0])
    return np.asarray(rows + noise)


def extractor_of(site: str, number: int) -> Vector:
    """Return a site's extractor (p + q,), with buffers beyond what a parameter may be."""
    values = prototypes_of(site, number + 1000).ravel()[: PARAMETERS + BUFFERS] * 3.0 - 1.0
    values[PARAMETERS:] *= 100.0
    return np.asarray(values)


def holds_of(site: str) -> NDArray[np.bool_]:
    """Everyone has the first class, all but one of each group the second, two of each group the last."""
    return np.array([True, site not in "dz", site in "abwx"])


@dataclass
class ScriptedSite:
    """One site. ``twist`` alters its answer to a phase before it is sent; ``secrets`` are of its last attempt."""

    party: Party
    agreement: Agreement
    coordinator: Coordinator
    channel: ChannelKey = field(default_factory=ChannelKey.generate)
    twist: dict[Phase, Callable[[bytes], bytes]] = field(default_factory=dict)
    base: bytes = b""
    results: dict[int, bytes] = field(default_factory=dict)
    caught_up: list[bytes] = field(default_factory=list)
    starts: list[RoundStart] = field(default_factory=list)
    asked: dict[PhaseKey, bytes] = field(default_factory=dict)
    secrets: AttemptSecrets = field(default_factory=AttemptSecrets.generate)
    own_pair: SharePair | None = None
    active: ActiveList = field(default_factory=lambda: ActiveList(()))
    received: Mapping[str, SealedShare] = field(default_factory=dict)
    sent: dict[PhaseKey, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        run = self.agreement.run
        public = self.channel.public_bytes
        self.statement = sign_statement(self.party.credentials, run, self.agreement.hash(), public)
        self.limits = limits_of(self.agreement)

    @property
    def name(self) -> str:
        return self.party.name

    # Calls

    def join(self) -> None:
        agreement = self.agreement
        self.coordinator.join(
            self.name,
            JoinRequest(PROTOCOL_VERSION, agreement.run, agreement.hash(), self.statement),
        )

    def task(self) -> Task:
        return self.coordinator.next_task(self.name, TaskRequest(PROTOCOL_VERSION, self.agreement.run))

    def step(self) -> Task:
        """Ask for the task and do it."""
        task = self.task()
        if isinstance(task, Work):
            self.upload(task.key, self.answer(task.key, self.download(task.key)))
        return task

    def download(self, key: PhaseKey) -> bytes:
        """Return the request, which must be the one of before if it was asked before."""
        request = self.coordinator.download(self.name, DownloadRequest(key))
        if self.asked.setdefault(key, request) != request:
            raise AssertionError(f"{self.name} is asked something else under {key}")
        return request

    def upload(self, key: PhaseKey, content: bytes) -> None:
        header = UploadHeader(key, len(content), hashlib.sha256(content).digest())
        self.coordinator.check_upload(self.name, header)
        self.coordinator.upload(self.name, header, content)

    # Answers

    def answer(self, key: PhaseKey, request: bytes) -> bytes:
        """Return the honest answer, twisted if the test says so."""
        answers: Mapping[Phase, Callable[[PhaseKey, bytes], bytes]] = {
            Phase.ROSTER: lambda key, _: self._roster(key),
            Phase.SECRET: lambda *_: codec.encode_acknowledgement(Acknowledgement()),
            Phase.PRESENCE: self._presence,
            Phase.SHARES: self._shares,
            Phase.VALUES: self._clustering if key.round == 0 else self._values,
            Phase.SURVIVORS: self._survivors,
            Phase.UNMASK: self._unmask,
            Phase.RESULT: self._result,
        }
        content = answers[key.phase](key, request)
        twist = self.twist.get(key.phase)
        return content if twist is None else twist(content)

    def _roster(self, key: PhaseKey) -> bytes:
        roster = self.coordinator.roster()
        makes = self.agreement.needs_group_secret and roster.maker == self.name
        keys = self.group_keys(roster, key.attempt) if makes else None
        return codec.encode_roster_answer(RosterAnswer(roster.hash, keys))

    def group_keys(self, roster: Roster, attempt: int, public: bytes = b"") -> GroupKeys:
        """Return the rotation's seed, which is the same for everyone here, to each other member."""
        sealed = tuple(
            seal_group_secret(
                self.party.credentials,
                roster,
                self.agreement.run,
                attempt,
                recipient=name,
                secret=b"s" * 32,
                public_hash=hashlib.sha256(public).digest(),
            )
            for name in roster.members
            if name != self.name
        )
        return GroupKeys(public, sealed)

    def _presence(self, key: PhaseKey, request: bytes) -> bytes:
        start = codec.decode_round_start(request, self.limits, result_shape(self.agreement))
        self.starts.append(start)
        if start.catch_up is not None:
            self.caught_up.append(codec.encode_payload(start.catch_up))
            self.base = hashlib.sha256(self.caught_up[-1]).digest()
        self.secrets = AttemptSecrets.generate()
        return codec.encode_presence(self.presence(key))

    def presence(self, key: PhaseKey, **changes: Any) -> PresenceStatement:
        """Return this site's statement, but for ``changes``."""
        masked = key.round > 0 and self.agreement.protection is Protection.MASKED
        stated: dict[str, Any] = {"base": self.base, "keys": self.secrets.public if masked else None}
        roster = self.coordinator.roster()
        return sign_presence(
            self.party.credentials,
            key,
            roster.hash,
            holds_of(self.name),
            **(stated | changes),
        )

    def _clustering(self, key: PhaseKey, request: bytes) -> bytes:
        cohort = clustering_cohort(codec.decode_active_list(request, self.limits), self.agreement)
        row = prototypes_of(self.name, 0).reshape(1, -1) / (2.0 * np.sqrt(CLASSES))
        masked = self.agreement.protection is Protection.MASKED
        half = RotationSite(b"s" * 32, repr(key).encode()) if masked else PlainSite()
        return codec.encode_payload(half.protect(row, self.name, cohort))

    def vector(self, number: int) -> Vector:
        """Return this site's vector in the sum: zeros for classes without enough holders in its attempt's group."""
        cohort = group_cohort(self.active, self.group, self.agreement)
        rows = np.where(cohort.held_by(self.name)[:, None], prototypes_of(self.name, number), 0.0)
        return np.concatenate([rows.ravel(), extractor_of(self.name, number)])

    @property
    def group(self) -> tuple[str, ...]:
        """Group of the whole run."""
        return next(group for group in self.starts[-1].groups if self.name in group)

    def _shares(self, key: PhaseKey, request: bytes) -> bytes:
        self.active = codec.decode_active_list(request, self.limits)
        self._check_enough_of_before(key)
        public = {each.site: each.keys for each in self.active.statements if each.keys is not None}
        shares, self.own_pair = make_shares(
            self.party.credentials,
            self.secrets,
            self.binding(key),
            {name: public[name] for name in self.there},
        )
        return codec.encode_shares_made(SharesMade(shares))

    def _check_enough_of_before(self, key: PhaseKey) -> None:
        """Check that enough members of each list to which it sent values in this round are there to open that sum."""
        for earlier, listed in self.sent.items():
            if earlier.round == key.round and len(set(listed) & set(self.there)) < threshold(len(listed)):
                raise AssertionError(f"{self.name} sent values to {listed}: it would refuse {self.there}")

    @property
    def there(self) -> tuple[str, ...]:
        """The members of its group in the attempt."""
        return tuple(each.site for each in self.active.statements if each.site in self.group)

    def binding(self, key: PhaseKey) -> Binding:
        return Binding(
            key.run,
            key.round,
            key.attempt,
            self.coordinator.roster().hash,
            self.agreement.hash(),
            self.there,
            self.base,
        )

    def _values(self, key: PhaseKey, request: bytes) -> bytes:
        if self.agreement.protection is Protection.PLAIN:
            self.active = codec.decode_active_list(request, self.limits)
            return codec.encode_payload(Payload("plain/1", arrays=(self.vector(key.round),)))
        self.sent[key] = self.there
        shares = codec.decode_received_shares(request, self.limits).shares
        self.received = {share.sender: share for share in shares}
        words = self.agreement.fixed_point().encode(self.vector(key.round))
        public = {each.site: each.keys for each in self.active.statements if each.keys is not None}
        masked = mask(words, self.secrets, self.binding(key), self.name, self.sharers, public)
        return codec.encode_payload(masked_payload(masked))

    @property
    def sharers(self) -> tuple[str, ...]:
        return tuple(sorted({*self.received, self.name}))

    def _survivors(self, key: PhaseKey, request: bytes) -> bytes:
        survivors = codec.decode_survivor_set(request, self.limits).sites
        signature = sign_survivors(self.party.credentials, self.binding(key), survivors)
        return codec.encode_survivor_signature(SurvivorSignature(self.name, signature))

    def _unmask(self, key: PhaseKey, request: bytes) -> bytes:
        signed = codec.decode_signed_survivors(request, self.limits)
        held = {
            sender: open_share(share, self.secrets, self.binding(key))
            for sender, share in self.received.items()
        }
        if self.own_pair is not None:
            held[self.name] = self.own_pair
        released = release(self.binding(key), self.name, self.sharers, signed.sites, held)
        return codec.encode_released_shares(ReleasedShares(released))

    def _result(self, key: PhaseKey, request: bytes) -> bytes:
        self.results[key.round], self.base = request, hashlib.sha256(request).digest()
        return codec.encode_acknowledgement(Acknowledgement())
