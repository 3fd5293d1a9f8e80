"""What a coordinator saw in a run, from the messages it recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from protoseal.config import Agreement
from protoseal.evaluation.view import Likeness, Vectors, likeness
from protoseal.files import SitePrototypes, ViewLine
from protoseal.terms import limits_of
from protoseal_wire import codec
from secure_server.store import Received

_ROUNDS = 2  # of the values that are searched: the last and the one before, with their mean and difference


def describe(
    received: Sequence[Received], agreement: Agreement, prototypes: Mapping[str, SitePrototypes]
) -> tuple[ViewLine, ...]:
    """What the recording shows, checked against the sites' own prototypes of the last round."""
    values = [each for each in received if _kind(each) == "values"]
    return (
        _messages(received),
        _presence(received),
        _arrays(values, agreement),
        _prototypes(_last_rounds(values), agreement, prototypes),
    )


def held_prototypes(prototypes: Iterable[SitePrototypes]) -> Vectors:
    """The rows of all sites that are class means, (V, d); constant rows (of a dead network) are left out."""
    rows = np.concatenate([each.local[each.counts > 0] for each in prototypes])
    return np.asarray(rows[np.ptp(rows, axis=1) > 0])


def compare(received: Sequence[Received], agreement: Agreement, vectors: Vectors) -> Likeness:
    """How close the messages, and what follows from them over rounds, come to ``vectors`` (V, d)."""
    series: dict[tuple[str, str, int], list[bytes]] = {}
    for each in received:
        for index, part in enumerate(_parts(each, agreement)):
            series.setdefault((each.site, _kind(each), index), []).append(part)
    return likeness([each.content for each in received], series.values(), vectors)


def _parts(message: Received, agreement: Agreement) -> Sequence[bytes]:
    """What stands at the same place in the same kind of message of another round."""
    if _kind(message) != "values":
        return [message.content]
    payload = codec.decode_payload(message.content, limits_of(agreement))
    return [*(array.tobytes() for array in payload.arrays), *payload.blobs]


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


def _presence(received: Sequence[Received]) -> ViewLine:
    signed = sum(1 for each in received if _kind(each) == "presence")
    return ViewLine(
        what="which site has which class",
        seen=signed > 0,
        evidence=f"{signed} signed presence statements",
    )


def _arrays(values: Sequence[Received], agreement: Agreement) -> ViewLine:
    payloads = [codec.decode_payload(each.content, limits_of(agreement)) for each in values]
    numbers = sum(array.size for payload in payloads for array in payload.arrays)
    blobs = sum(len(payload.blobs) for payload in payloads)
    schemes = ", ".join(sorted({payload.scheme for payload in payloads}))
    return ViewLine(
        what="prototypes as plain numbers",
        seen=numbers > 0,
        evidence=f"{numbers:,} plain numbers and {blobs} ciphertexts in {len(payloads)} uploads of scheme {schemes}",
    )


def _prototypes(
    values: Sequence[Received], agreement: Agreement, prototypes: Mapping[str, SitePrototypes]
) -> ViewLine:
    found = compare(values, agreement, held_prototypes(prototypes.values()))
    return ViewLine(
        what="prototypes anywhere in the bytes of its uploads",
        seen=found.leaks,
        evidence=(
            f"best cosine with a prototype {found.prototypes:.3f}, with shuffled copies of it {found.twins:.3f}, "
            f"a leak above {found.threshold:.3f} (the last {_ROUNDS} rounds, read as four number types at every offset)"
        ),
    )
