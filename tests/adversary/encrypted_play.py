"""A coordinator of encrypted sums in the tests' hands, and sums that it could not make: tests have the sites' key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Protection
from agreement.derived.encrypted_sums import EncryptedGroups, EncryptedSum
from agreement.derived.payload_shapes import sums_shape
from crypto.ckks.group_mixing import MixingServer
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.sums import SumLayout, SummingServer, SummingSite
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.protocol.setup import make_group_secret
from tests.adversary.masked_play import Attempt, Groups, MaskedPlay
from tests.support.grouped import EVERYONE

Vector = NDArray[np.float64]
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


def key_of(play: MaskedPlay) -> CkksSecret:
    """Return the sites' key, which no coordinator has."""
    return play.site(EVERYONE[0]).session._setup.ckks_key()


def forged(secret: CkksSecret, form: SumLayout, values: Vector) -> Payload:
    """Return a sum that decrypts to these values (L,), in the form of an honest one."""
    term = SummingSite(secret, form).protect(values / _TERMS)
    return SummingServer(form).add([term] * _TERMS)


def hash_of(result: Payload) -> bytes:
    """Return the hash that a site states once it was given this result."""
    return hashlib.sha256(codec.encode_payload(result)).digest()


class EncryptedAttempt(Attempt):
    """One attempt of a sum over all sites, or over one of ``groups``; PRESENCE of these sites is asked at once."""

    def __init__(
        self,
        play: MaskedPlay,
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


def mixed(play: MaskedPlay, *means: Payload) -> list[Payload]:
    """Return the mixes that an honest coordinator makes of groups' means, in their order."""
    return MixingServer(EncryptedGroups(play.agreement).form, play._keys_path, None).mix(means)
