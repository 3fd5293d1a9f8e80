"""Table of the gRPC status and message that each refusal becomes for the peer."""

from __future__ import annotations

from collections.abc import Mapping

from grpc import StatusCode

from crypto.errors import MalformedError, VerificationError
from protoseal_wire import codec
from secure_server import errors

STATUS: Mapping[type[Exception], StatusCode] = {
    errors.NotOnRoster: StatusCode.PERMISSION_DENIED,
    errors.WrongIdentity: StatusCode.PERMISSION_DENIED,
    errors.WrongProtocol: StatusCode.UNIMPLEMENTED,
    codec.OtherProtocol: StatusCode.UNIMPLEMENTED,
    errors.WrongAgreement: StatusCode.FAILED_PRECONDITION,
    errors.NotJoined: StatusCode.FAILED_PRECONDITION,
    errors.JoinClosed: StatusCode.FAILED_PRECONDITION,
    errors.WrongPhase: StatusCode.ABORTED,
    errors.Conflict: StatusCode.ALREADY_EXISTS,
    errors.BadPayload: StatusCode.INVALID_ARGUMENT,
    codec.CodecError: StatusCode.INVALID_ARGUMENT,
    MalformedError: StatusCode.INVALID_ARGUMENT,
    VerificationError: StatusCode.INVALID_ARGUMENT,
    errors.TooLarge: StatusCode.RESOURCE_EXHAUSTED,
    codec.TooLarge: StatusCode.RESOURCE_EXHAUSTED,
    codec.Corrupted: StatusCode.DATA_LOSS,
}
"""Errors with a meaning for the peer. Every other error is the coordinator's own: ``INTERNAL``, without details."""


def status_of(error: Exception) -> StatusCode | None:
    """Return the status of a refusal, by the nearest class in the table; None for an error that is no refusal."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), None)
