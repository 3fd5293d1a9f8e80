"""Random values of every kind that the codec carries."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from crypto.protection import Payload
from crypto.roster import Statement
from crypto.sealed import SealedSecret
from protoseal_wire.codec import Limits
from protoseal_wire.messages import (
    Acknowledgement,
    ActiveList,
    DownloadRequest,
    Finished,
    GroupKeys,
    JoinReply,
    JoinRequest,
    Phase,
    PhaseKey,
    PresenceStatement,
    Roster,
    RosterAnswer,
    RoundStart,
    Stopped,
    TaskRequest,
    UploadHeader,
    Wait,
    Work,
)

LIMITS = Limits(classes=3, dim=2, sites=4)

names = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,62}", fullmatch=True)
hashes = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=8, max_size=72)
blobs = st.binary(min_size=1, max_size=100)
sizes = st.integers(1, 2**30)
rows = arrays(
    np.float64, (LIMITS.classes, LIMITS.dim), elements=st.floats(allow_nan=False, allow_infinity=False)
)

statements = st.builds(Statement, names, blobs, hashes, signatures)
sealed_secrets = st.builds(SealedSecret, names, names, hashes, hashes, blobs, signatures)
presences = st.builds(PresenceStatement, names, arrays(np.bool_, (LIMITS.classes,)), signatures)
group_keys = st.builds(GroupKeys, blobs, st.lists(sealed_secrets, min_size=1, max_size=4).map(tuple))
schemes = st.from_regex(r"[a-z][a-z0-9-]{0,30}/[1-9][0-9]{0,2}", fullmatch=True)

contents = {
    "statement": statements,
    "roster": st.builds(Roster, st.lists(statements, min_size=1, max_size=4).map(tuple)),
    "roster_answer": st.builds(RosterAnswer, hashes, st.none() | group_keys),
    "sealed_secret": sealed_secrets,
    "round_start": st.just(RoundStart()),
    "presence": presences,
    "active_list": st.builds(ActiveList, st.lists(presences, min_size=1, max_size=4).map(tuple)),
    "payload": st.builds(Payload, schemes, st.tuples(rows))
    | st.builds(Payload, schemes, st.just(()), st.lists(blobs, min_size=1, max_size=4).map(tuple)),
    "acknowledgement": st.just(Acknowledgement()),
}

attempts = st.integers(1, 2**32 - 1)
keys = st.builds(
    PhaseKey, names, st.just(0), attempts, st.sampled_from([Phase.ROSTER, Phase.SECRET])
) | st.builds(
    PhaseKey, names, attempts, attempts, st.sampled_from([Phase.PRESENCE, Phase.VALUES, Phase.RESULT])
)
reasons = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=500).filter(str.isprintable)

calls = {
    "join": st.builds(JoinRequest, st.just(1), names, names, hashes, statements),
    "join_reply": st.builds(JoinReply, st.just(1), st.floats(0, 600)),
    "task_request": st.builds(TaskRequest, st.just(1), names, names),
    "task": st.just(Wait())
    | st.builds(Finished, st.integers(0, 2**32 - 1))
    | st.builds(Stopped, reasons)
    | st.builds(Work, keys, sizes, hashes, st.floats(0, allow_infinity=False)),
    "upload_header": st.builds(UploadHeader, keys, names, sizes, hashes),
    "upload_chunk": st.binary(),
    "download": st.builds(DownloadRequest, keys, names),
    "download_chunk": st.binary(),
    "leave": names,
}


def plain(value: object) -> object:
    """The value in a form that compares bit by bit (arrays do not compare as a whole, and -0.0 equals 0.0)."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    if hasattr(value, "__dataclass_fields__"):
        return type(value), tuple(plain(getattr(value, name)) for name in value.__dataclass_fields__)
    return value
