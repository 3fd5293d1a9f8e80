"""A group that masks a sum, step by step: what honest members and an honest coordinator do in one attempt."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from crypto.pairwise.attempt import AttemptSecrets, Binding, MaskKeys, SharePair
from crypto.pairwise.masks import mask, pair_keys
from crypto.pairwise.member_signatures import (
    sign_sharers,
    sign_survivors,
    verify_signed_sharers,
    verify_signed_survivors,
)
from crypto.pairwise.neighbour_graph import Graph
from crypto.pairwise.shares import ReleasedShare, SealedShare, make_shares, open_share, release, verify_share
from crypto.pairwise.unmask import unmask
from crypto.pki import Credentials, Identity
from crypto.protection import Words
from crypto.roster import Member

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def names(count: int) -> tuple[str, ...]:
    """clinic-a, clinic-b, …; or of more than there are letters clinic-000, clinic-001, …"""
    if count > 26:
        return tuple(f"clinic-{i:03d}" for i in range(count))
    return tuple(f"clinic-{chr(ord('a') + i)}" for i in range(count))


MEMBERS = names(5)


def sha256(text: str) -> bytes:
    """Return a hash that stands for something."""
    return hashlib.sha256(text.encode()).digest()


def binding_of(group: Sequence[str], **changes: Any) -> Binding:
    """Return a group's attempt, but for what ``changes`` says."""
    fields: dict[str, Any] = {
        "run": "run-1",
        "round": 3,
        "attempt": 1,
        "roster_hash": sha256("roster"),
        "agreement_hash": sha256("agreement"),
        "group": tuple(group),
        "broadcast": sha256("broadcast"),
    }
    return Binding(**(fields | changes))


BINDING = binding_of(MEMBERS)
"""Binding of five members; the threshold is 4."""


@cache
def _key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@cache
def credentials(name: str) -> Credentials:
    """Return a site's credentials with a self-signed certificate: masks do not depend on whom the CA knows."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    uri = Identity.site("clinics.example", name).uri
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(_key(name).public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), False)
        .sign(_key(name), hashes.SHA256())
    )
    return Credentials(certificate, _key(name))


def member(name: str) -> Member:
    """Return a site as the roster shows it."""
    return Member(name, b"", _key(name).public_key(), credentials(name).fingerprint)


def pair_key(private: bytes, peer_keys: MaskKeys, binding: Binding, site: str, peer: str) -> bytes:
    """Return the key of the mask of two sites in a complete graph, as ``site`` derives it."""
    return pair_keys(private, {peer: peer_keys}, binding, site, (peer,))[peer]


def fresh_secrets(_name: str) -> AttemptSecrets:
    """Generate the secrets that a member makes anew for each attempt."""
    return AttemptSecrets.generate()


@dataclass
class Site:
    """An honest member: what it knows, and what it does when asked. It remembers nothing that it has answered."""

    name: str
    binding: Binding
    secrets: AttemptSecrets
    held: dict[str, SharePair] = field(default_factory=dict)
    graph: Graph | None = None

    def share(self, public: Mapping[str, MaskKeys]) -> tuple[SealedShare, ...]:
        """SHARES."""
        sealed, self.held[self.name] = make_shares(
            credentials(self.name), self.secrets, self.binding, public, self.graph
        )
        return sealed

    def receive(self, shares: Sequence[SealedShare]) -> None:
        """Take the shares addressed to this site: the first half of VALUES."""
        for share in shares:
            verify_share(share, member(share.sender), self.binding, self.name)
            self.held[share.sender] = open_share(share, self.secrets, self.binding)

    def mask(self, words: Words, sharers: Sequence[str], public: Mapping[str, MaskKeys]) -> Words:
        """Mask the vector: the second half of VALUES."""
        return mask(words, self.secrets, self.binding, self.name, sharers, public, self.graph)

    def sign_sharers(self, sharers: Sequence[str]) -> bytes:
        """Sign the list of sharers that goes with the masked vector in a sparse graph."""
        return sign_sharers(credentials(self.name), self.binding, sharers)

    def sign(self, survivors: Sequence[str]) -> bytes:
        """SURVIVORS."""
        return sign_survivors(credentials(self.name), self.binding, survivors)

    def release(
        self,
        sharers: Sequence[str],
        survivors: Sequence[str],
        signatures: Mapping[str, bytes],
        signed_sharers: Mapping[str, bytes] | None = None,
    ) -> tuple[ReleasedShare, ...]:
        """UNMASK. ``signed_sharers``: on whom they mask with, of all there are; in a sparse graph."""
        verify_signed_survivors(signatures, roster(self.binding.group), self.binding, survivors)
        if self.graph is not None:
            owners = set(self.held) & set(survivors) - {self.name}
            given = {name: signed for name, signed in (signed_sharers or {}).items() if name in owners}
            verify_signed_sharers(given, roster(self.binding.group), self.binding, sharers, owners)
        return release(self.binding, self.name, sharers, survivors, self.held)


def roster(group: Sequence[str]) -> dict[str, Member]:
    """Return the members by name."""
    return {name: member(name) for name in group}


@dataclass
class Group:
    """The members of one attempt after PRESENCE, and the coordinator's part in it."""

    sites: dict[str, Site]
    public: dict[str, MaskKeys]

    @classmethod
    def of(cls, binding: Binding, graph: Graph | None = None, /, **others: Binding) -> Group:
        """Honest members with fresh keys; ``others`` by name know another binding."""
        sites = {
            name: Site(name, others.get(name, binding), fresh_secrets(name), graph=graph)
            for name in binding.group
        }
        return cls(sites, {name: site.secrets.public for name, site in sites.items()})

    @property
    def binding(self) -> Binding:
        """The first member's."""
        return next(iter(self.sites.values())).binding

    @property
    def graph(self) -> Graph | None:
        """Every member's."""
        return next(iter(self.sites.values())).graph

    def share(self, sharers: Sequence[str] | None = None) -> tuple[str, ...]:
        """Every sharer makes shares, every sharer receives them."""
        chosen = tuple(sharers or self.binding.group)
        made = [share for name in chosen for share in self.sites[name].share(self.public)]
        for name in chosen:
            self.sites[name].receive([share for share in made if (share.recipient == name)])
        return chosen

    def mask(
        self, vectors: Mapping[str, Words], sharers: Sequence[str], survivors: Sequence[str]
    ) -> dict[str, Words]:
        """Return the survivors' masked vectors."""
        return {name: self.sites[name].mask(vectors[name], sharers, self.public) for name in survivors}

    def release(
        self, sharers: Sequence[str], survivors: Sequence[str], answering: Sequence[str]
    ) -> dict[str, tuple[ReleasedShare, ...]]:
        """Every survivor signs; those ``answering`` release."""
        signatures = {name: self.sites[name].sign(survivors) for name in survivors}
        masked = {name: self.sites[name].sign_sharers(sharers) for name in survivors}
        return {name: self.sites[name].release(sharers, survivors, signatures, masked) for name in answering}

    def finish(
        self,
        vectors: Mapping[str, Words],
        sharers: Sequence[str],
        survivors: Sequence[str],
        answering: Sequence[str] | None = None,
    ) -> Words:
        """Play the steps from the masked vectors to the sum."""
        masked = self.mask(vectors, sharers, survivors)
        released = self.release(sharers, survivors, survivors if answering is None else answering)
        return unmask(masked, released, self.binding, sharers, survivors, self.public, self.graph)


def random_vectors(group: Sequence[str], bits: int, length: int, seed: int) -> dict[str, Words]:
    """Return a vector of words for each member."""
    generator = np.random.default_rng(seed)
    kind = {32: np.uint32, 64: np.uint64}[bits]
    return {name: generator.integers(0, 2**bits, size=length, dtype=kind, endpoint=False) for name in group}


def total(vectors: Mapping[str, Words], of: Sequence[str]) -> Words:
    """Return the sum in the ring, by Python's integers."""
    kind: np.dtype[Any] = vectors[of[0]].dtype
    modulus = 2 ** (8 * kind.itemsize)
    columns = zip(*(vectors[name].tolist() for name in of), strict=True)
    summed: Words = np.array([sum(column) % modulus for column in columns], dtype=kind)
    return summed
