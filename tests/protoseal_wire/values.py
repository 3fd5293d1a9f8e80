"""Random values of every kind that the codec carries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from crypto.pairwise.attempt import MaskKeys
from crypto.pairwise.shares import ReleasedShare, SealedShare, ShareKind
from crypto.protection import Axis, Payload, PayloadShape, UpTo
from crypto.roster import Statement
from crypto.sealed_group_secret import SealedSecret
from protoseal_wire.codec import Limits
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    Acknowledgement,
    ActiveList,
    AgreementField,
    AssignedRows,
    Assignment,
    CheckReply,
    CheckRequest,
    DownloadRequest,
    Finished,
    GroupKeys,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    LedgerAnchor,
    Listing,
    MaskedValues,
    Phase,
    PhaseKey,
    PresenceStatement,
    ReceivedShares,
    ReleasedShares,
    Roster,
    RosterAnswer,
    RoundStart,
    RunStage,
    SharesMade,
    SignedSurvivors,
    Stopped,
    SumMembers,
    SurvivorSet,
    SurvivorSignature,
    TaskRequest,
    UploadHeader,
    Wait,
    Work,
)

LIMITS = Limits(classes=3, dim=2, sites=4, parameters=2)
LENGTH = LIMITS.classes * LIMITS.dim + LIMITS.parameters

FORMS = {
    "round_start": PayloadShape(arrays=((LENGTH,), (LIMITS.classes,))),
    "payload: rows": PayloadShape(arrays=((LIMITS.classes, LIMITS.dim),)),
    "payload: a vector and which classes it has": PayloadShape(arrays=((LENGTH,), (LIMITS.classes,))),
    "payload: ciphertexts": PayloadShape(blobs=4),
    "payload: words of 64 bits": PayloadShape(words=((64, LENGTH),)),
    "payload: words of 32 bits": PayloadShape(words=((32, LENGTH),)),
    "payload: rows of a free number": PayloadShape(arrays=((UpTo(3), LIMITS.dim), (UpTo(3),), (LENGTH,))),
    "payload: words of a free number": PayloadShape(words=((64, UpTo(LENGTH)),)),
    "masked_values": PayloadShape(words=((32, LENGTH),)),
}
"""The forms of what :data:`contents` draws, by the same names. What stands before a colon is the kind."""

names = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,62}", fullmatch=True)
hashes = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=8, max_size=72)
blobs = st.binary(min_size=1, max_size=100)
sizes = st.integers(1, 2**30)
schemes = st.from_regex(r"[a-z][a-z0-9-]{0,30}/[1-9][0-9]{0,2}", fullmatch=True)


def floats(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float64, shape, elements=st.floats(allow_nan=False, allow_infinity=False))


@st.composite
def payloads(draw: st.DrawFn, form: PayloadShape) -> Payload:
    """Draw payloads whose free lengths are all the same."""
    axes = [axis for shape in (*form.arrays, *form.words) for axis in shape if isinstance(axis, UpTo)]
    free = draw(st.integers(0, min((axis.most for axis in axes), default=0)))

    def length(axis: Axis) -> int:
        return free if isinstance(axis, UpTo) else axis

    return Payload(
        draw(schemes),
        tuple(draw(floats(tuple(map(length, shape)))) for shape in form.arrays),
        tuple(draw(st.lists(blobs, min_size=min(1, form.blobs), max_size=form.blobs))),
        tuple(draw(arrays(np.dtype(f"u{bits // 8}"), length(axis))) for bits, axis in form.words),
    )


@st.composite
def assigned_rows(draw: st.DrawFn, site: str) -> AssignedRows:
    """Draw up to the largest number of rows, in any of the possible classes and clusters."""
    number = draw(st.integers(0, LIMITS.rows))
    classes, clusters = (
        draw(arrays(np.int64, number, elements=st.integers(0, most - 1)))
        for most in (LIMITS.classes, LIMITS.rows)
    )
    return AssignedRows(site, classes, clusters)


@st.composite
def groups(draw: st.DrawFn) -> tuple[tuple[str, ...], ...]:
    """Draw groups of up to the largest number of sites, some of them cut apart."""
    sites = draw(st.lists(names, max_size=LIMITS.sites, unique=True))
    of = [draw(st.integers(0, 2)) for _ in sites]
    cut = {group: sorted(site for site, its in zip(sites, of, strict=True) if its == group) for group in of}
    return tuple(sorted(map(tuple, cut.values())))


def some(parts: st.SearchStrategy[object], by: str) -> st.SearchStrategy[tuple[object, ...]]:
    """Draw one to four values, no two of which have the same ``by``."""
    return st.lists(parts, min_size=1, max_size=4, unique_by=lambda part: getattr(part, by)).map(tuple)


def some_shares(same: str, other: str) -> st.SearchStrategy[tuple[SealedShare, ...]]:
    """Draw shares that all have one ``same``, and each another ``other``."""
    shares = st.builds(SealedShare, names, names, st.binary(min_size=1, max_size=192), signatures)
    return st.builds(
        lambda name, drawn: tuple(replace(share, **{same: name}) for share in drawn),
        names,
        some(shares, other),
    )


statements = st.builds(Statement, names, blobs, hashes, signatures)
sealed_secrets = st.builds(SealedSecret, names, names, hashes, hashes, blobs, signatures)
mask_keys = st.builds(MaskKeys, hashes, hashes)
anchors = st.none() | st.builds(LedgerAnchor, hashes, st.integers(0, 2**63 - 1), hashes)
presences = st.builds(
    PresenceStatement,
    names,
    arrays(np.bool_, (LIMITS.classes,)),
    signatures,
    st.just(b"") | hashes,
    st.none() | mask_keys,
    anchors,
)
group_keys = st.builds(
    GroupKeys, st.just(b"") | blobs, st.lists(sealed_secrets, min_size=1, max_size=4).map(tuple)
)
survivors = st.lists(names, min_size=1, max_size=4, unique=True).map(lambda sites: tuple(sorted(sites)))
survivor_signatures = st.builds(SurvivorSignature, names, signatures)
released_shares = st.builds(
    ReleasedShare, names, st.sampled_from(ShareKind), st.binary(min_size=33, max_size=33)
)

contents = {
    "statement": statements,
    "roster": st.builds(Roster, st.lists(statements, min_size=1, max_size=4).map(tuple)),
    "roster_answer": st.builds(RosterAnswer, hashes, st.none() | group_keys),
    "sealed_secret": sealed_secrets,
    "round_start": st.builds(RoundStart, groups())
    | st.builds(RoundStart, groups(), hashes, st.none() | payloads(FORMS["round_start"])),
    "presence": presences,
    "active_list": st.builds(ActiveList, st.lists(presences, min_size=1, max_size=4).map(tuple)),
    "assignment": survivors.flatmap(lambda sites: st.tuples(*map(assigned_rows, sites))).map(Assignment),
    "acknowledgement": st.just(Acknowledgement()),
    **{kind: payloads(form) for kind, form in FORMS.items() if kind.startswith("payload")},
    "shares_made": st.builds(SharesMade, some_shares("sender", "recipient")),
    "received_shares": st.builds(ReceivedShares, some_shares("recipient", "sender"), st.just(()) | survivors)
    | st.builds(ReceivedShares, st.just(()), survivors),
    "masked_values": st.builds(MaskedValues, payloads(FORMS["masked_values"]), signatures),
    "survivor_set": st.builds(SurvivorSet, survivors),
    "survivor_signature": survivor_signatures,
    "signed_survivors": st.builds(
        lambda sites, signed, masked: SignedSurvivors(sites, signed[: len(sites)], masked[: len(sites)]),
        survivors,
        some(survivor_signatures, "site"),
        st.just(()) | some(survivor_signatures, "site"),
    ),
    "sum_members": st.builds(
        SumMembers,
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        survivors,
        st.just(b"") | hashes,
        st.builds(
            lambda sites, signed: SignedSurvivors(sites, signed[: len(sites)]),
            survivors,
            some(survivor_signatures, "site"),
        ),
    ),
    "released_shares": st.builds(ReleasedShares, some(released_shares, "owner")),
}

attempts = st.integers(1, 2**32 - 1)
keys = st.builds(
    PhaseKey,
    names,
    st.just(0),
    attempts,
    st.sampled_from([Phase.ROSTER, Phase.SECRET, Phase.PRESENCE, Phase.VALUES]),
) | st.builds(
    PhaseKey,
    names,
    attempts,
    attempts,
    st.sampled_from([phase for phase in Phase if phase not in (Phase.ROSTER, Phase.SECRET)]),
)
reasons = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=500).filter(str.isprintable)

agreement_fields = st.builds(
    AgreementField,
    st.from_regex(r"[A-Za-z0-9_.-]{1,200}", fullmatch=True),
    hashes,
    st.from_regex(r"[ -~]{1,160}", fullmatch=True),
)
listings = st.builds(
    Listing,
    hashes,
    st.lists(agreement_fields, min_size=1, max_size=4, unique_by=lambda each: each.path).map(tuple),
    st.sampled_from(RunStage),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)

sessions = st.integers(1, 2**32 - 1)

calls = {
    "check": st.builds(CheckRequest, st.just(PROTOCOL_VERSION)),
    "check_reply": st.builds(CheckReply, st.just(PROTOCOL_VERSION), names, st.none() | listings),
    "join": st.builds(
        JoinRequest,
        st.just(PROTOCOL_VERSION),
        names,
        hashes,
        statements,
        anchors,
        st.none() | st.builds(PhaseKey, names, st.integers(0, 2**32 - 1), sessions, st.just(Phase.PRESENCE)),
    ),
    "join_reply": st.builds(JoinReply, st.just(PROTOCOL_VERSION), st.floats(0, 600), sessions, anchors),
    "task_request": st.builds(TaskRequest, st.just(PROTOCOL_VERSION), names),
    "task": st.just(Wait())
    | st.builds(Finished, st.integers(0, 2**32 - 1))
    | st.builds(Stopped, reasons)
    | st.builds(Work, keys, sizes, hashes, st.floats(0, allow_infinity=False)),
    "upload_header": st.builds(UploadHeader, keys, sizes, hashes),
    "upload_chunk": st.binary(),
    "download": st.builds(DownloadRequest, keys),
    "download_chunk": st.binary(),
    "leave": st.builds(LeaveRequest, sessions),
}


def plain(value: object) -> object:
    """Return the value in a form that compares bit by bit (arrays do not compare as a whole, and -0.0 equals 0.0)."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    if hasattr(value, "__dataclass_fields__"):
        return type(value), tuple(plain(getattr(value, name)) for name in value.__dataclass_fields__)
    return value
