"""Intruders that are not let in, each with the best certificate and message that it can have."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import grpc
import pytest

from crypto.pki import Credentials
from crypto.roster import Statement, sign_statement
from protoseal_wire import codec
from protoseal_wire.messages import PROTOCOL_VERSION, JoinRequest
from tests.secure_server.service.harness import dialling
from tests.secure_server.service.parties import Federation as OtherFederation
from tests.support.processes import Federation

Intruder = Callable[[Federation, Path], grpc.Call]
"""Tries to join, with a folder to keep things in; what became of the call."""


def without_certificate(federation: Federation, _: Path) -> grpc.Call:
    """Join without a certificate, in the name of a site that takes part."""
    return _join(federation, None, _statement(federation.credentials("site-2"), federation))


def of_another_ca(federation: Federation, folder: Path) -> grpc.Call:
    """Join under a CA that calls itself by the same name, as a site that does too."""
    credentials = OtherFederation(folder).site("site-2")
    return _join(federation, credentials, _statement(credentials, federation))


def expired(federation: Federation, _: Path) -> grpc.Call:
    """Yesterday's certificate."""
    credentials = federation.enrol("site-8", expired=True)
    return _join(federation, credentials, _statement(credentials, federation))


def in_anothers_name(federation: Federation, _: Path) -> grpc.Call:
    """Join as one site that takes part, with the statement of another."""
    return _join(
        federation,
        federation.credentials("site-2"),
        _statement(federation.credentials("site-3"), federation),
    )


def not_on_the_roster(federation: Federation, _: Path) -> grpc.Call:
    """Join with a good certificate that the coordinator's file does not name."""
    credentials = federation.enrol("site-9")
    return _join(federation, credentials, _statement(credentials, federation))


INTRUDERS: Mapping[str, tuple[Intruder, grpc.StatusCode, str]] = {
    "without a certificate": (
        without_certificate,
        grpc.StatusCode.UNAVAILABLE,
        "PEER_DID_NOT_RETURN_A_CERTIFICATE",
    ),
    "of another CA": (of_another_ca, grpc.StatusCode.UNAVAILABLE, "CERTIFICATE_VERIFY_FAILED"),
    "expired": (expired, grpc.StatusCode.UNAVAILABLE, "CERTIFICATE_VERIFY_FAILED"),
    "in another's name": (
        in_anothers_name,
        grpc.StatusCode.PERMISSION_DENIED,
        '"event": "WrongIdentity", "rpc": "Join", "site": "site-2"',
    ),
    "not on the roster": (
        not_on_the_roster,
        grpc.StatusCode.PERMISSION_DENIED,
        '"event": "NotOnRoster", "rpc": "Join", "site": "site-9"',
    ),
}
"""Intruders, with the status that each receives and the coordinator's log line about it."""


def _statement(credentials: Credentials, federation: Federation) -> Statement:
    agreement = federation.agreement
    return sign_statement(credentials, agreement.run, agreement.hash(), secrets.token_bytes(32))


def _join(federation: Federation, credentials: Credentials | None, statement: Statement) -> grpc.Call:
    agreement = federation.agreement
    request = JoinRequest(PROTOCOL_VERSION, agreement.run, agreement.hash(), statement)
    with (
        dialling(federation.port, federation.trust, credentials) as stub,
        pytest.raises(grpc.RpcError) as refusal,
    ):
        stub.Join(codec.encode_join(request), timeout=20)
    return cast(grpc.Call, refusal.value)  # an RpcError that a call raised is also that call
