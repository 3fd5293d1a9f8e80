"""How many bytes each kind of content may have, from the public facts of a run."""

from __future__ import annotations

from dataclasses import dataclass

from protoseal_wire.messages import Phase

MOST_SITES = 256
HASH_BYTES = 32
CHANNEL_KEY_BYTES = 32
CERTIFICATE_BYTES = 4096
SIGNATURE_BYTES = 72
"""Of ECDSA P-256 in DER, at most."""
SEALED_BYTES = 2**19
"""A CKKS secret key at N = 8192 takes 0.23 MB."""
EVALUATION_KEYS_BYTES = 2**24
"""Relinearisation and rotation keys at N = 8192 take 9 MB, with one rotation for each power of two."""
BLOB_BYTES = 2**19
"""A fresh ciphertext of two polynomials at N = 8192 takes at most 393 kB."""
CONTENT_CEILING = 2**30
"""What a header may announce at all. The bound of its phase is tighter; see :class:`Limits`."""

_SLOTS = 4096
_FRAMING = 512
"""Field tags, lengths, names and whatever else is small in one message."""
_EMPTY = 64


@dataclass(frozen=True)
class Limits:
    """The bounds of one run: K classes, feature dimension d, at most ``sites`` sites.

    ``ValueError`` unless each is at least 1 and there are at most 256 sites.
    """

    classes: int
    dim: int
    sites: int = MOST_SITES

    def __post_init__(self) -> None:
        if self.classes < 1 or self.dim < 1 or not 1 <= self.sites <= MOST_SITES:
            raise ValueError(f"a run has classes, dimensions and 1 to {MOST_SITES} sites")

    def answer_bytes(self, phase: Phase) -> int:
        """The most bytes that a site's answer to a phase may have."""
        return {
            Phase.ROSTER: self.roster_answer,
            Phase.SECRET: self.empty,
            Phase.PRESENCE: self.presence,
            Phase.VALUES: self.payload,
            Phase.RESULT: self.empty,
        }[phase]

    def request_bytes(self, phase: Phase) -> int:
        """The most bytes that the coordinator's request of a phase may have."""
        return {
            Phase.ROSTER: self.roster,
            Phase.SECRET: self.sealed_secret,
            Phase.PRESENCE: self.empty,
            Phase.VALUES: self.active_list,
            Phase.RESULT: self.payload,
        }[phase]

    @property
    def blobs(self) -> int:
        """The most ciphertexts in one payload: real and imaginary parts, and two more for norms."""
        width: int = 2 ** (self.classes - 1).bit_length()
        return 2 * -(-self.dim * width // _SLOTS) + 2

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
    def presence(self) -> int:
        """A truth value for each class, signed."""
        return self.classes + _FRAMING

    @property
    def active_list(self) -> int:
        """The presence statement of every site."""
        return self.sites * self.presence + _EMPTY

    @property
    def payload(self) -> int:
        """A float64 array of shape (K, d), or ciphertexts."""
        return max(8 * self.classes * self.dim, self.blobs * (BLOB_BYTES + 8)) + _FRAMING

    @property
    def empty(self) -> int:
        """What says nothing: a round's start, an acknowledgement."""
        return _EMPTY
