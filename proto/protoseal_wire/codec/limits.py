"""How many bytes each kind of content may have, from the public facts of a run."""

from __future__ import annotations

from dataclasses import dataclass

from protoseal_wire.messages import Phase

MOST_SITES = 1024
"""What an agreement may allow for at most."""
HASH_BYTES = 32
CHANNEL_KEY_BYTES = 32
MOST_ENTRIES = 2**63 - 1
"""What a database has a number for; no ledger comes near."""
CERTIFICATE_BYTES = 4096
SIGNATURE_BYTES = 72
"""Of ECDSA P-256 in DER, at most."""
SEALED_BYTES = 2**19
"""A CKKS secret key at N = 8192 takes 0.23 MB."""
EVALUATION_KEYS_BYTES = 2**24
"""Relinearisation and rotation keys at N = 8192 take 9 MB, with one rotation for each power of two."""
BLOB_BYTES = 2**19
"""A fresh ciphertext of two polynomials at N = 8192 takes at most 393 kB."""
SHARE_BYTES = 33
"""A value modulo 2^256 + 297."""
SEALED_SHARE_BYTES = 192
"""Two shares, sealed, which adds 48 bytes; and room for a version marker."""
CONTENT_CEILING = 2**30
"""What a header may announce at all. The bound of its phase is tighter; see :class:`Limits`."""

_SLOTS = 4096
_FRAMING = 512
"""Field tags, lengths, names and whatever else is small in one message."""
_EMPTY = 64
_NAME = 72
"""A name, its tag and its length."""


@dataclass(frozen=True)
class Limits:
    """The bounds of one run: K classes, feature dimension d, at most ``sites`` sites.

    ``parameters``: the averaged part's parameters and buffers, where they travel. ``per_class``: the most prototypes
    of a class in one payload. ``ciphertexts``: of an encrypted sum, where there is one. ``ValueError`` unless classes,
    dimension, sites and ``per_class`` are at least 1, there are at most 1024 sites, and no content of numbers exceeds
    what a header may announce. The limit: a run that is too large for ciphertexts alone is not refused here, because it
    may use none; such ciphertexts are :class:`TooLarge` when they come.
    """

    classes: int
    dim: int
    sites: int = MOST_SITES
    parameters: int = 0
    per_class: int = 1
    ciphertexts: int = 0

    def __post_init__(self) -> None:
        if min(self.classes, self.dim, self.per_class) < 1 or not 1 <= self.sites <= MOST_SITES:
            raise ValueError(f"a run has prototypes, classes, dimensions and 1 to {MOST_SITES} sites")
        if self.parameters < 0 or self.ciphertexts < 0:
            raise ValueError(
                "an extractor has no fewer than 0 parameters, and a sum no fewer than 0 ciphertexts"
            )
        if self._numbers > self._room:
            raise ValueError(
                f"the numbers of one site take {self._numbers} bytes, and at most {self._room} can be sent:"
                " choose a smaller model, a smaller prototype dimension, or fewer prototypes of a class"
            )

    def answer_bytes(self, phase: Phase) -> int:
        """The most bytes that a site's answer to a phase may have."""
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
        """The most bytes that the coordinator's request of a phase may have."""
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
        """The most ciphertexts in one payload: of a sum, or of prototypes and what goes with them."""
        width: int = 2 ** (self.classes - 1).bit_length()
        return max(2 * -(-self.dim * width // _SLOTS) + 2, self.ciphertexts)

    # Bytes of a content of each kind, at most.

    @property
    def statement(self) -> int:
        """One site's signed channel key."""
        return CERTIFICATE_BYTES + _FRAMING

    @property
    def roster(self) -> int:
        """The statement of every site."""
        return self.sites * self.statement + _EMPTY

    @property
    def sealed_secret(self) -> int:
        """The group's secret key, sealed to one site."""
        return SEALED_BYTES + _FRAMING

    @property
    def roster_answer(self) -> int:
        """A hash, evaluation keys, and the group's secret key sealed to every site."""
        return EVALUATION_KEYS_BYTES + self.sites * self.sealed_secret + _FRAMING

    @property
    def round_start(self) -> int:
        """Each site in a group of its own, a hash, and a result to catch up with."""
        return self.payload + self._around_payload

    @property
    def presence(self) -> int:
        """A truth value for each class, a hash, two keys and an anchor, signed."""
        return self.classes + _FRAMING

    @property
    def active_list(self) -> int:
        """The presence statement of every site."""
        return self.sites * self.presence + _EMPTY

    @property
    def rows(self) -> int:
        """The most prototypes in one payload."""
        return self.classes * self.per_class

    @property
    def assignment(self) -> int:
        """A class and a cluster for each local prototype of every site."""
        return self.sites * (8 * self.rows + _NAME + _FRAMING) + _EMPTY

    @property
    def payload(self) -> int:
        """Numbers of 8 bytes (prototypes, a model, and one or two for each prototype), or ciphertexts."""
        return max(self._numbers, min(self.blobs * (BLOB_BYTES + 8), self._room)) + _FRAMING

    @property
    def sealed_shares(self) -> int:
        """A sealed share for or from every site."""
        return self.sites * (SEALED_SHARE_BYTES + _FRAMING) + _EMPTY

    @property
    def received_shares(self) -> int:
        """A sealed share from every site, and its name."""
        return self.sealed_shares + self.survivor_set

    @property
    def survivor_set(self) -> int:
        """The name of every site."""
        return self.sites * _NAME + _EMPTY

    @property
    def survivor_signature(self) -> int:
        """A name and a signature."""
        return _NAME + SIGNATURE_BYTES + _EMPTY

    @property
    def signed_survivors(self) -> int:
        """The name of every site and two of its signatures."""
        return self.survivor_set + 2 * self.sites * self.survivor_signature

    @property
    def released_shares(self) -> int:
        """A share of every site."""
        return self.sites * (_NAME + SHARE_BYTES + _EMPTY) + _EMPTY

    @property
    def empty(self) -> int:
        """What says nothing: an acknowledgement."""
        return _EMPTY

    @property
    def _numbers(self) -> int:
        # Whether there is one, or which class it is of and its weight.
        beside = 1 if self.per_class == 1 else 2
        return 8 * (self.rows * (self.dim + beside) + self.parameters)

    @property
    def _around_payload(self) -> int:
        return self.sites * (_NAME + 8) + _FRAMING

    @property
    def _room(self) -> int:
        """For what a payload carries, so that a round's start that holds one can still be announced."""
        return CONTENT_CEILING - _FRAMING - self._around_payload
