"""View of a coordinator: what the messages that it recorded in a run give away of any site.

:func:`describe_view` makes the lines of a report: each says whether the coordinator saw one kind of fact, and on what
evidence. :func:`search_messages` looks for vectors in the bytes. Limit: the search finds values that the bytes contain,
not values that could be computed from them (:mod:`protoseal.audit.leakage_search`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agreement import Agreement, Family, ModelPart
from agreement.derived.payload_shapes import limits_of
from crypto.plain import SCHEME as PLAIN
from crypto.protection import Payload
from crypto.rotation import SCHEME as ROTATION
from protoseal.audit.leakage_search import Likeness, Vectors, likeness
from protoseal.reports.result_files import ViewLine
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.output.site_files import SitePrototypes
from secure_server.exchanges.exchange import read_upload
from secure_server.store import Received

PRESENCE = "which site has which class"
"""Name of the line that tells whether statements name a site's classes."""
SEARCHED = "prototypes anywhere in the bytes of its uploads"
"""Name of the line that tells whether a search of the bytes found a prototype."""
_UPLOADS = (Phase.VALUES, Phase.DIRECTIONS)
_SEARCHED_ROUNDS = 2  # the last two, with their mean and difference


@dataclass(frozen=True)
class Upload:
    """A recorded upload of values, decoded: the number of its round and its payload."""

    round: int
    payload: Payload


@dataclass(frozen=True)
class UploadedNumbers:
    """Contents of the recorded uploads: how many numbers in clear, rotated and masked, and how many ciphertexts."""

    plain: int
    rotated: int
    masked: int
    ciphertexts: int


def count_numbers(received: Sequence[Received], agreement: Agreement) -> UploadedNumbers:
    """Count the contents of all uploads of values."""
    return _count(_read_uploads(received, agreement))


def describe_view(
    received: Sequence[Received], agreement: Agreement, prototypes: Mapping[str, SitePrototypes]
) -> tuple[ViewLine, ...]:
    """Return the content of the recording, checked against the sites' own prototypes of the last round."""
    uploads = _read_uploads(received, agreement)
    lines = [
        _describe_messages(received),
        _describe_presence(received, agreement),
        _describe_numbers(uploads),
        _describe_inner_products(uploads, agreement),
    ]
    if agreement.clusters:
        lines.append(_describe_local_prototypes(uploads))
    if agreement.sums:
        lines.append(_describe_sums(uploads, agreement))
    lines.append(_describe_search(_last_rounds(received), agreement, prototypes))
    return tuple(lines)


def stack_prototypes(prototypes: Iterable[SitePrototypes]) -> Vectors:
    """Return all sites' rows that are class means, (V, d), without constant rows (of a dead network)."""
    rows = np.concatenate([site.local[site.counts > 0] for site in prototypes])
    return np.asarray(rows[np.ptp(rows, axis=1) > 0])


def search_messages(received: Sequence[Received], agreement: Agreement, vectors: Vectors) -> Likeness:
    """Return how close the messages, and combinations of them over rounds, come to ``vectors`` (V, d)."""
    series: dict[tuple[str, str, bool, int], list[bytes]] = {}
    for message in received:
        # Round 0 is a clustering or the set-up, whose messages have another form than later rounds'.
        later = message.key is not None and message.key.round > 0
        for index, part in enumerate(_parts(message, agreement)):
            series.setdefault((message.site, _kind(message), later, index), []).append(part)
    return likeness([message.content for message in received], series.values(), vectors)


def _parts(message: Received, agreement: Agreement) -> Sequence[bytes]:
    """Return the parts at the same place in the same kind of message of another round."""
    if message.key is None or message.key.phase not in _UPLOADS:
        return [message.content]
    payload = read_upload(agreement, message.key, message.content)
    return [*(values.tobytes() for values in (*payload.arrays, *payload.words)), *payload.blobs]


def _read_uploads(received: Sequence[Received], agreement: Agreement) -> list[Upload]:
    return [
        Upload(message.key.round, read_upload(agreement, message.key, message.content))
        for message in received
        if message.key is not None and message.key.phase in _UPLOADS
    ]


def _last_rounds(received: Sequence[Received]) -> list[Received]:
    uploads = [
        (message.key.round, message)
        for message in received
        if message.key is not None and message.key.phase in _UPLOADS
    ]
    last = sorted({number for number, _ in uploads})[-_SEARCHED_ROUNDS:]
    return [message for number, message in uploads if number in last]


def _kind(message: Received) -> str:
    return "join" if message.key is None else message.key.phase.name.lower()


def _count(uploads: Sequence[Upload]) -> UploadedNumbers:
    payloads = [upload.payload for upload in uploads]
    return UploadedNumbers(
        plain=sum(array.size for payload in payloads if payload.scheme == PLAIN for array in payload.arrays),
        rotated=sum(
            array.size for payload in payloads if payload.scheme == ROTATION for array in payload.arrays
        ),
        masked=sum(words.size for payload in payloads for words in payload.words),
        ciphertexts=sum(len(payload.blobs) for payload in payloads),
    )


# Lines of the report


def _describe_messages(received: Sequence[Received]) -> ViewLine:
    kinds = Counter(_kind(message) for message in received)
    sizes: Counter[str] = Counter()
    for message in received:
        sizes[_kind(message)] += len(message.content)
    listed = ", ".join(f"{kinds[kind]} {kind} ({sizes[kind]:,} bytes)" for kind in kinds)
    return ViewLine(what="messages, their sizes and times", seen=True, evidence=listed)


def _describe_presence(received: Sequence[Received], agreement: Agreement) -> ViewLine:
    limits = limits_of(agreement)
    contents = [
        message.content
        for message in received
        if message.key is not None and message.key.phase is Phase.PRESENCE
    ]
    # Decoded as the coordinator decodes them: what it cannot read is no view.
    naming = sum(bool(codec.decode_presence(content, limits).holds.any()) for content in contents)
    evidence = f"{len(contents)} signed presence statements, {naming} of which name classes"
    return ViewLine(what=PRESENCE, seen=naming > 0, evidence=evidence)


def _describe_numbers(uploads: Sequence[Upload]) -> ViewLine:
    numbers = _count(uploads)
    schemes = ", ".join(sorted({upload.payload.scheme for upload in uploads}))
    return ViewLine(
        what="prototypes as plain numbers",
        seen=numbers.plain > 0,
        evidence=(
            f"{numbers.plain:,} plain numbers, {numbers.rotated:,} rotated ones, {numbers.masked:,} masked words and "
            f"{numbers.ciphertexts} ciphertexts in {len(uploads)} uploads of scheme {schemes}"
        ),
    )


def _describe_inner_products(uploads: Sequence[Upload], agreement: Agreement) -> ViewLine:
    """Describe the inner products in uploads: plain and rotated arrays show them, masked words and ciphertexts none."""
    rounds = [upload.round for upload in uploads if upload.payload.arrays]
    qualifier = ", of the initial model alone" if set(rounds) == {0} else ""
    # Beside masked words or ciphertexts, arrays after round 0 are FedPLCC's rotated directions.
    hidden = any(upload.payload.words or upload.payload.blobs for upload in uploads)
    if agreement.clusters and any(rounds) and hidden:
        qualifier = ", of their directions alone"
    return ViewLine(
        what="inner products of sites' prototypes",
        seen=bool(rounds),
        evidence=f"{len(rounds)} uploads show them{qualifier}",
    )


def _describe_local_prototypes(uploads: Sequence[Upload]) -> ViewLine:
    """Describe uploads of several prototypes a class, which name the class of each prototype."""
    rows = sum(len(upload.payload.arrays[0]) for upload in uploads if upload.payload.arrays)
    return ViewLine(
        what="how many prototypes of each class a site has",
        seen=rows > 0,
        evidence=f"{rows:,} prototypes came with their classes",
    )


def _describe_sums(uploads: Sequence[Upload], agreement: Agreement) -> ViewLine:
    rounds = {
        upload.round for upload in uploads if upload.round and (upload.payload.arrays or upload.payload.words)
    }
    over = "each group's mean of" if agreement.method.is_grouped else "the mean over sites of"
    return ViewLine(
        what=f"{over} {' and '.join(_averaged_parts(agreement))}",
        seen=bool(rounds),
        evidence=f"by method, in each of {len(rounds)} rounds",
    )


def _averaged_parts(agreement: Agreement) -> Iterator[str]:
    layout, part = agreement.layout, agreement.method.traits.averaged
    if layout.classes or agreement.method.traits.family is Family.CLUSTERS:
        yield "prototypes"
    if layout.model:
        yield "extractors" if part is ModelPart.EXTRACTOR else "models"


def _describe_search(
    messages: Sequence[Received], agreement: Agreement, prototypes: Mapping[str, SitePrototypes]
) -> ViewLine:
    best = search_messages(messages, agreement, stack_prototypes(prototypes.values()))
    return ViewLine(
        what=SEARCHED,
        seen=best.leaks,
        evidence=(
            f"closest match with a prototype: cosine {best.prototypes:.3f}; chance alone reaches {best.twins:.3f}, "
            f"with shuffled prototypes; a leak would be above {best.threshold:.3f} (the last {_SEARCHED_ROUNDS} rounds,"
            " bytes read as four number types at every offset)"
        ),
    )
