"""Check of the values that leave a site: only a half of the agreed protection makes what is sent.

Each step of an exchange returns its answer here, and the session sends what this module encodes. In every phase but
those of :data:`_WITHOUT_VALUES` the answer must be a :class:`crypto.protection.ProtectedPayload` that a half of the
agreed protection made. A step that forgets its protection, or that an unprotected exchange's step replaces, therefore
ends the session before a byte is sent. Under ``[privacy]``, :func:`check_released` requires a noisy release besides.

Limit: the checks compare the half's class, the payload's scheme and the release's round. They do not look into a
payload, and they do not stop code that means to send cleartext or exact values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from agreement import Agreement, Protection
from agreement.derived.payload_shapes import limits_of, values_shape
from agreement.registry.round_plan import PayloadKind
from crypto import plain, rotation
from crypto.ckks.group_mixing import MixingSite
from crypto.ckks.site import CkksSite
from crypto.ckks.sums import SummingSite
from crypto.pairwise.masks import MaskingSite
from crypto.protection import DeclaredHalf, Payload, ProtectedPayload
from protoseal_wire import codec
from protoseal_wire.messages import MaskedValues, Phase, PhaseKey
from secure_client.errors import Unprotected
from secure_client.privacy.kept_releases import KeptReleases

_WITHOUT_VALUES = frozenset({Phase.SHARES, Phase.SURVIVORS, Phase.UNMASK})
"""Steps of an exchange whose answers are keys, shares and signatures."""
_ROWS: Mapping[str, type] = {
    plain.SCHEME: plain.PlainSite,
    rotation.SCHEME: rotation.RotationSite,
}
"""Half by the scheme of rows of which the coordinator takes inner products."""
_VALUES: Mapping[PayloadKind, tuple[type, ...]] = {
    PayloadKind.VECTOR: (plain.PlainValues,),
    PayloadKind.LOCAL_CLUSTERS: (plain.PlainValues,),
    PayloadKind.WORDS: (MaskingSite,),
    PayloadKind.CIPHERTEXTS: (CkksSite, SummingSite),
    PayloadKind.EXTENSION: (DeclaredHalf,),
}
"""Halves by the agreed form of VALUES."""


@dataclass(frozen=True)
class SignedValues:
    """Values in a sparse graph, with this site's signature on the sharers that it masked them with."""

    values: ProtectedPayload
    signature: bytes


_FAULT = "nothing was sent; this is a fault of the program, so report it"

Answer: TypeAlias = bytes | ProtectedPayload | SignedValues
"""Answer of a site to a step between PRESENCE and RESULT."""


def encode_answer(agreement: Agreement, key: PhaseKey, answer: Answer) -> bytes:
    """Return the bytes to send; raise :class:`Unprotected` for values that the agreed protection has not made."""
    if key.phase in _WITHOUT_VALUES:
        if type(answer) is not bytes:
            raise Unprotected(
                f"{key.phase.name} carries no values, but the answer is a {type(answer).__name__}"
            )
        return answer
    if isinstance(answer, SignedValues):
        payload = _checked_payload(agreement, key, answer.values)
        return codec.encode_masked_values(MaskedValues(payload, answer.signature))
    return codec.encode_payload(_checked_payload(agreement, key, answer))


def keep_values(
    kept: KeptReleases,
    agreement: Agreement,
    key: PhaseKey,
    released: int | None,
    asked: NDArray[np.bool_] | None,
    answer: Answer,
    encoded: bytes,
) -> None:
    """Keep what the protection got, for an audit of the run; under ``plain`` what the ``encoded`` answer says.

    ``asked`` (K,) are the classes whose rows the attempt asks for, None where it asks for nothing by class.

    A term of a sum with shared noise is not kept, since a term alone is not private. The MEANS of a group come from the
    group's sum and not from the site's release.
    """
    # Called with the answer made and before it is stored, so that an audit finds whatever left.
    protected = answer.values if isinstance(answer, SignedValues) else answer
    if isinstance(protected, ProtectedPayload) and key.phase is not Phase.MEANS:
        arrays = [value for value in protected.values if isinstance(value, np.ndarray)]
        if agreement.protection is Protection.PLAIN:
            form = values_shape(agreement, key.round)
            arrays = list(codec.decode_payload(encoded, limits_of(agreement), form).arrays)
        kept.keep_sent(key, released, *arrays, asked=asked)


def check_released(agreement: Agreement, released: int | None) -> None:
    """Raise :class:`Unprotected` unless a round's values are those of a noisy release, where noise is agreed.

    ``released`` is the round of the release, of :class:`secure_client.checkpoints.exchanged_values.TrainedValues`.
    Call this before anything is signed: the classes of PRESENCE are the first values to leave.
    """
    if agreement.privacy is not None and released is None:
        raise Unprotected(f"exact values were to be sent, but the agreement has noise: {_FAULT}")


def check_cleartext_agreed(agreement: Agreement) -> None:
    """Raise :class:`Unprotected` unless the agreed protection is ``plain``; call this before a plain half is made."""
    if agreement.protection is not Protection.PLAIN:
        raise Unprotected(
            f"values were to be sent in the clear, but protection {agreement.protection.value!r} is agreed: {_FAULT}"
        )


def _checked_payload(agreement: Agreement, key: PhaseKey, values: object) -> Payload:
    # A subclass could hold a payload that no half has made.
    if type(values) is not ProtectedPayload:
        raise Unprotected(
            f"{key.phase.name} of round {key.round}: the values are a {type(values).__name__}, which no protection"
            f" has made: {_FAULT}"
        )
    plan = agreement.plan
    makers: tuple[type, ...] = ()  # a phase without values has none
    match key.phase:
        case Phase.DIRECTIONS:
            makers = (rotation.RotatedDirections,)
        case Phase.MEANS:
            makers = (MixingSite,)
        case Phase.VALUES if key.round == 0 or plan.values is PayloadKind.ROWS:
            makers = (_ROWS[plan.row_scheme],)
        case Phase.VALUES:
            makers = _VALUES[plan.values]
    if not issubclass(values.maker, makers):
        names = " or ".join(maker.__name__ for maker in makers) or "nothing"
        raise Unprotected(
            f"{key.phase.name} of round {key.round}: {values.maker.__name__} made the values, but under protection"
            f" {agreement.protection.value!r} it is {names}: {_FAULT}"
        )
    # A third party's half chooses its scheme, and a row of the tables above can be wrong.
    if values.payload.scheme == plain.SCHEME:
        check_cleartext_agreed(agreement)
    return values.payload
