"""Loader of a coordinator's view of a run, from the messages that the coordinator recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreement import Agreement, Family, ModelPart
from agreement.derived.payload_forms import directions_form, limits_of, values_form
from crypto.pairwise import SCHEME as PAIRWISE
from crypto.plain import SCHEME as PLAIN
from crypto.protection import Payload
from crypto.rotation import SCHEME as ROTATION
from protoseal.audit.leakage_search import Likeness, Vectors, likeness
from protoseal.reports.result_files import ViewLine
from protoseal_wire import codec
from protoseal_wire.codec import Malformed
from secure_client.output.site_files import SitePrototypes
from secure_server.storage.store import Received

Rounds = Sequence[tuple[int, Payload]]
"""Uploads of values, each with the number of its round."""

PRESENCE = "which site has which class"
"""Name of the line that tells whether statements name a site's classes."""
SEARCHED = "prototypes anywhere in the bytes of its uploads"
"""Name of the line that tells whether a search of the bytes found a prototype."""
_SENT = ("values", "directions")
_ROUNDS = 2  # number of rounds searched: the last two, with their mean and difference


@dataclass(frozen=True)
class Uploads:
    """Contents of the recorded uploads: how many numbers in clear, rotated and masked, and how many ciphertexts."""

    plain: int
    rotated: int
    masked: int
    ciphertexts: int


def uploads_of(received: Sequence[Received], agreement: Agreement) -> Uploads:
    """Return the contents of all uploads of values."""
    return _contents(_payloads(_values(received), agreement))


def describe(
    received: Sequence[Received], agreement: Agreement, prototypes: Mapping[str, SitePrototypes]
) -> tuple[ViewLine, ...]:
    """Return the content of the recording, checked against the sites' own prototypes of the last round."""
    values = _values(received)
    payloads = _payloads(values, agreement)
    return (
        _messages(received),
        _presence(received, agreement),
        _numbers(payloads),
        _inner_products(payloads),
        *([_local_prototypes(payloads)] if agreement.clusters else []),
        *([_sums(payloads, agreement)] if agreement.sums else []),
        _prototypes(_last_rounds(values), agreement, prototypes),
    )


def held_prototypes(prototypes: Iterable[SitePrototypes]) -> Vectors:
    """Return all sites' rows that are class means, (V, d), without constant rows (of a dead network)."""
    rows = np.concatenate([each.local[each.counts > 0] for each in prototypes])
    return np.asarray(rows[np.ptp(rows, axis=1) > 0])


def compare(received: Sequence[Received], agreement: Agreement, vectors: Vectors) -> Likeness:
    """Return how close the messages, and combinations of them over rounds, come to ``vectors`` (V, d)."""
    series: dict[tuple[str, str, bool, int], list[bytes]] = {}
    for each in received:
        # Round 0 is a clustering or the set-up, whose messages have another form than later rounds'.
        later = each.key is not None and each.key.round > 0
        for index, part in enumerate(_parts(each, agreement)):
            series.setdefault((each.site, _kind(each), later, index), []).append(part)
    return likeness([each.content for each in received], series.values(), vectors)


def _parts(message: Received, agreement: Agreement) -> Sequence[bytes]:
    """Return the parts at the same place in the same kind of message of another round."""
    if _kind(message) not in _SENT:
        return [message.content]
    payload = _payload(message, agreement)
    return [*(each.tobytes() for each in (*payload.arrays, *payload.words)), *payload.blobs]


def _payload(values: Received, agreement: Agreement) -> Payload:
    round_number = 0 if values.key is None else values.key.round
    rotated = _kind(values) == "directions"
    form = directions_form(agreement) if rotated else values_form(agreement, round_number)
    try:
        return codec.decode_payload(values.content, limits_of(agreement), form)
    except Malformed:  # from a large group, with a signature beside it
        return codec.decode_masked_values(values.content, limits_of(agreement), form).payload


def _last_rounds(values: Sequence[Received]) -> list[Received]:
    rounds = sorted({each.key.round for each in values if each.key is not None})[-_ROUNDS:]
    return [each for each in values if each.key is not None and each.key.round in rounds]


def _messages(received: Sequence[Received]) -> ViewLine:
    kinds = Counter(_kind(each) for each in received)
    sizes = Counter(
        {kind: sum(len(each.content) for each in received if _kind(each) == kind) for kind in kinds}
    )
    listed = ", ".join(f"{kinds[kind]} {kind} ({sizes[kind]:,} bytes)" for kind in kinds)
    return ViewLine(what="messages, their sizes and times", seen=True, evidence=listed)


def _kind(message: Received) -> str:
    return "join" if message.key is None else message.key.phase.name.lower()


def _presence(received: Sequence[Received], agreement: Agreement) -> ViewLine:
    """Return the content of statements."""
    limits = limits_of(agreement)
    contents = [each.content for each in received if _kind(each) == "presence"]
    telling = sum(bool(codec.decode_presence(content, limits).holds.any()) for content in contents)
    evidence = f"{len(contents)} signed presence statements, {telling} of which name classes"
    return ViewLine(what=PRESENCE, seen=telling > 0, evidence=evidence)


def _values(received: Sequence[Received]) -> list[Received]:
    return [each for each in received if _kind(each) in _SENT]


def _payloads(values: Sequence[Received], agreement: Agreement) -> list[tuple[int, Payload]]:
    return [(each.key.round, _payload(each, agreement)) for each in values if each.key is not None]


def _contents(payloads: Rounds) -> Uploads:
    return Uploads(
        plain=_size(_arrays(payloads, PLAIN)),
        rotated=_size(_arrays(payloads, ROTATION)),
        masked=_size(each for _, payload in payloads for each in payload.words),
        ciphertexts=sum(len(payload.blobs) for _, payload in payloads),
    )


def _numbers(payloads: Rounds) -> ViewLine:
    found = _contents(payloads)
    schemes = ", ".join(sorted({payload.scheme for _, payload in payloads}))
    return ViewLine(
        what="prototypes as plain numbers",
        seen=found.plain > 0,
        evidence=(
            f"{found.plain:,} plain numbers, {found.rotated:,} rotated ones, {found.masked:,} masked words and "
            f"{found.ciphertexts} ciphertexts in {len(payloads)} uploads of scheme {schemes}"
        ),
    )


def _inner_products(payloads: Rounds) -> ViewLine:
    """Describe the inner products in uploads: rotations keep them; a masked sum only has those of the sum."""
    of_each = [number for number, payload in payloads if payload.arrays]
    clustering = ", of the initial model alone" if set(of_each) == {0} else ""
    if any(payload.scheme == PAIRWISE for _, payload in payloads) and any(of_each):
        clustering = ", of their directions alone"
    return ViewLine(
        what="inner products of sites' prototypes",
        seen=bool(of_each),
        evidence=f"{len(of_each)} uploads show them{clustering}",
    )


def _local_prototypes(payloads: Rounds) -> ViewLine:
    """Describe uploads of several prototypes a class, which name the class of each prototype."""
    rows = sum(len(payload.arrays[0]) for _, payload in payloads if payload.arrays)
    return ViewLine(
        what="how many prototypes of each class a site has",
        seen=rows > 0,
        evidence=f"{rows:,} prototypes came with their classes",
    )


def _sums(payloads: Rounds, agreement: Agreement) -> ViewLine:
    rounds = {number for number, payload in payloads if number and (payload.arrays or payload.words)}
    of = "each group's mean of" if agreement.method.is_grouped else "the mean over sites of"
    return ViewLine(
        what=f"{of} {' and '.join(_averaged(agreement))}",
        seen=bool(rounds),
        evidence=f"by method, in each of {len(rounds)} rounds",
    )


def _averaged(agreement: Agreement) -> Iterator[str]:
    layout, part = agreement.layout, agreement.method.traits.averaged
    if layout.classes or agreement.method.traits.family is Family.CLUSTERS:
        yield "prototypes"
    if layout.model:
        yield "extractors" if part is ModelPart.EXTRACTOR else "models"


def _arrays(payloads: Rounds, scheme: str) -> Iterator[NDArray[np.float64]]:
    return (array for _, payload in payloads if payload.scheme == scheme for array in payload.arrays)


def _size(arrays: Iterable[NDArray[Any]]) -> int:
    return sum(array.size for array in arrays)


def _prototypes(
    values: Sequence[Received], agreement: Agreement, prototypes: Mapping[str, SitePrototypes]
) -> ViewLine:
    found = compare(values, agreement, held_prototypes(prototypes.values()))
    return ViewLine(
        what=SEARCHED,
        seen=found.leaks,
        evidence=(
            f"closest match with a prototype: cosine {found.prototypes:.3f}; chance alone reaches {found.twins:.3f}, "
            f"with shuffled prototypes; a leak would be above {found.threshold:.3f} (the last {_ROUNDS} rounds, bytes"
            " read as four number types at every offset)"
        ),
    )
