"""Largest sizes in bytes of each kind of content, from the public facts of a run."""

from __future__ import annotations

from dataclasses import dataclass

from protoseal_wire.messages import Phase

MOST_SITES = 1024
"""Largest number of sites in an agreement."""
HASH_BYTES = 32
CHANNEL_KEY_BYTES = 32
MOST_ENTRIES = 2**63 - 1
"""Largest number of a ledger entry that a database can store; no ledger comes near it."""
CERTIFICATE_BYTES = 4096
SIGNATURE_BYTES = 72
"""Largest size of an ECDSA P-256 signature in DER."""
SEALED_BYTES = 2**19
"""Largest size of a sealed secret; a CKKS secret key at N = 8192 takes 0.23 MB."""
EVALUATION_KEYS_BYTES = 2**24
"""Largest size of relinearisation and rotation keys; at N = 8192 with a rotation per power of two they take 9 MB."""
BLOB_BYTES = 2**19
"""Largest size of a ciphertext; a fresh one of two polynomials at N = 8192 takes at most 393 kB."""
SHARE_BYTES = 33
"""Size of a share, a value modulo 2^256 + 297."""
SEALED_SHARE_BYTES = 192
"""Largest size of two sealed shares (sealing adds 48 bytes), with room for a version marker."""
CONTENT_CEILING = 2**30
"""Largest size that a header may announce for any content; each phase has a tighter bound, see :class:`Limits`."""

_SLOTS = 4096
_FRAMING = 512
"""Room for field tags, lengths, names and other small fields of one message."""
_EMPTY = 64
_NAME = 72
"""Room for a name, its tag and its length."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one run: K classes, feature dimension d, at most ``sites`` sites.

    ``parameters`` counts the averaged part's parameters and buffers, if they are sent; ``per_class`` is the largest
    number of a class's prototypes in one payload; ``ciphertexts`` counts those of an encrypted sum, if there is one;
    with ``members`` a result also has the signed members of its sum.
    Raises ``ValueError`` unless classes, dimension, sites and ``per_class`` are at least 1, there are at most 1024
    sites, and contents of numbers fit what a header may announce. Limit: a run that is too large only for ciphertexts
    is accepted, because it may use none; such ciphertexts are :class:`protoseal_wire.codec.errors.TooLarge` on arrival.
    """

    classes: int
    dim: int
    sites: int = MOST_SITES
    parameters: int = 0
    per_class: int = 1
    ciphertexts: int = 0
    members: bool = False

    def __post_init__(self) -> None:
        if min(self.classes, self.dim, self.per_class) < 1 or not 1 <= self.sites <= MOST_SITES:
            raise ValueError(f"classes, dim and per_class must be at least 1, and sites 1 to {MOST_SITES}")
        if self.parameters < 0 or self.ciphertexts < 0:
            raise ValueError("the numbers of parameters and of ciphertexts must be at least 0")
        if self._shown > self._room:
            raise ValueError(
                f"the numbers of one site take {self._shown} bytes, but at most {self._room} can be sent:"
                " choose a smaller model, a smaller prototype dimension, or fewer prototypes of a class"
            )

    def answer_bytes(self, phase: Phase) -> int:
        """Return the largest size in bytes of a site's answer to a phase."""
        return {
            Phase.ROSTER: self.roster_answer,
            Phase.SECRET: self.empty,
            Phase.PRESENCE: self.presence,
            Phase.VALUES: self.payload,
            Phase.RESULT: self.empty,
            Phase.SHARES: self.sealed_shares,
            Phase.SURVIVORS: self.survivor_signature,
            Phase.UNMASK: self.released_shares,
            Phase.DIRECTIONS: self.payload,
            Phase.MEANS: self.payload,
        }[phase]

    def request_bytes(self, phase: Phase) -> int:
        """Return the largest size in bytes of the coordinator's request of a phase."""
        return {
            Phase.ROSTER: self.roster,
            Phase.SECRET: self.sealed_secret,
            Phase.PRESENCE: self.round_start,
            Phase.VALUES: max(self.active_list, self.received_shares),
            Phase.RESULT: self.payload,
            Phase.SHARES: max(self.active_list, self.assignment),
            Phase.SURVIVORS: self.survivor_set,
            Phase.UNMASK: self.signed_survivors,
            Phase.DIRECTIONS: self.active_list,
            Phase.MEANS: self.payload,
        }[phase]

    @property
    def blobs(self) -> int:
        """Largest number of ciphertexts in one payload: of a sum, or of prototypes with their extra values."""
        width: int = 2 ** (self.classes - 1).bit_length()
        return max(2 * -(-self.dim * width // _SLOTS) + 2, self.ciphertexts)

    # Largest size in bytes of each kind of content.

    @property
    def statement(self) -> int:
        """Size of one site's signed channel key."""
        return CERTIFICATE_BYTES + _FRAMING

    @property
    def roster(self) -> int:
        """Size of the statements of all sites."""
        return self.sites * self.statement + _EMPTY

    @property
    def sealed_secret(self) -> int:
        """Size of the group's secret key, sealed to one site."""
        return SEALED_BYTES + _FRAMING

    @property
    def roster_answer(self) -> int:
        """Size of a hash, evaluation keys, and the group's secret key sealed to every site."""
        return EVALUATION_KEYS_BYTES + self.sites * self.sealed_secret + _FRAMING

    @property
    def round_start(self) -> int:
        """Size of groups of a single site each, a hash, and a result to catch up with."""
        return self.payload + self._around_payload

    @property
    def presence(self) -> int:
        """Size of a signed statement with a bool for each class, a hash, two keys and an anchor."""
        return self.classes + _FRAMING

    @property
    def active_list(self) -> int:
        """Size of the presence statements of all sites."""
        return self.sites * self.presence + _EMPTY

    @property
    def rows(self) -> int:
        """Largest number of prototypes in one payload."""
        return self.classes * self.per_class

    @property
    def assignment(self) -> int:
        """Size of a class and a cluster for each local prototype of every site."""
        return self.sites * (8 * self.rows + _NAME + _FRAMING) + _EMPTY

    @property
    def payload(self) -> int:
        """Size of numbers of 8 bytes (prototypes, a model, one or two for each prototype), or of ciphertexts."""
        return max(self._shown, min(self.blobs * (BLOB_BYTES + 8), self._room)) + _FRAMING

    @property
    def sealed_shares(self) -> int:
        """Size of a sealed share for or from every site."""
        return self.sites * (SEALED_SHARE_BYTES + _FRAMING) + _EMPTY

    @property
    def received_shares(self) -> int:
        """Size of a sealed share from every site, and its name."""
        return self.sealed_shares + self.survivor_set

    @property
    def survivor_set(self) -> int:
        """Size of the names of all sites."""
        return self.sites * _NAME + _EMPTY

    @property
    def survivor_signature(self) -> int:
        """Size of a name and a signature."""
        return _NAME + SIGNATURE_BYTES + _EMPTY

    @property
    def signed_survivors(self) -> int:
        """Size of the name of every site and two of its signatures."""
        return self.survivor_set + 2 * self.sites * self.survivor_signature

    @property
    def sum_members(self) -> int:
        """Size of the names that an attempt lists, a base, and the signed survivors."""
        return self.survivor_set + self.signed_survivors + _FRAMING

    @property
    def released_shares(self) -> int:
        """Size of a share of every site."""
        return self.sites * (_NAME + SHARE_BYTES + _EMPTY) + _EMPTY

    @property
    def empty(self) -> int:
        """Size of an acknowledgement, which has no fields."""
        return _EMPTY

    @property
    def _numbers(self) -> int:
        # Each prototype has a presence flag, or its class and its weight.
        beside = 1 if self.per_class == 1 else 2
        return 8 * (self.rows * (self.dim + beside) + self.parameters)

    @property
    def _shown(self) -> int:
        """Size of a payload without ciphertexts."""
        return self._numbers + self.sum_members * self.members

    @property
    def _around_payload(self) -> int:
        return self.sites * (_NAME + 8) + _FRAMING

    @property
    def _room(self) -> int:
        """Room for a payload's content, so that a round's start with a payload can still be announced."""
        return CONTENT_CEILING - _FRAMING - self._around_payload
