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
from protoseal_wire.messages import Phase
from secure_server.store import Received

_ROUNDS = 2  # of recorded values: the last, and the one before for means and differences
_TWINS = 3


def describe(
    received: Sequence[Received], agreement: Agreement, prototypes: Mapping[str, SitePrototypes]
) -> tuple[ViewLine, ...]:
    """What the recording shows, checked against the sites' own prototypes of the last round."""
    values = [each for each in received if each.key is not None and each.key.phase is Phase.VALUES]
    return (
        _messages(received),
        _presence(received),
        _arrays(values, agreement),
        _prototypes(values, prototypes),
    )


def held_prototypes(prototypes: Iterable[SitePrototypes]) -> Vectors:
    """The rows of all sites that are class means, (V, d); constant rows (of a dead network) are left out."""
    rows = np.concatenate([each.local[each.counts > 0] for each in prototypes])
    return np.asarray(rows[np.ptp(rows, axis=1) > 0])


def compare(
    values: Sequence[Received], vectors: Vectors, *, rounds: int, twins: int, seed: int = 0
) -> Likeness:
    """How close the last ``rounds`` recorded messages of each site come to ``vectors`` (V, d)."""
    by_site: dict[str, list[bytes]] = {}
    for each in values:
        by_site.setdefault(each.site, []).append(each.content)
    return likeness([contents[-rounds:] for contents in by_site.values()], vectors, twins=twins, seed=seed)


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


def _prototypes(values: Sequence[Received], prototypes: Mapping[str, SitePrototypes]) -> ViewLine:
    found = compare(values, held_prototypes(prototypes.values()), rounds=_ROUNDS, twins=_TWINS)
    return ViewLine(
        what="prototypes anywhere in the bytes of its uploads",
        seen=found.leaks,
        evidence=(
            f"best cosine with a prototype {found.prototypes:.3f}, with shuffled copies of it {found.twins:.3f} "
            f"(standard score {found.z:+.1f}; the last {_ROUNDS} rounds, read as four number types at every offset)"
        ),
    )
