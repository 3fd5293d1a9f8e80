"""Retries of calls to the coordinator: after lost connections, not after refusals."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

import grpc
from grpc import StatusCode

from protoseal_wire.codec import CodecError, OtherProtocol
from secure_client.errors import PhaseOver, Refused, SiteError, Unreachable, Violation

_log = logging.getLogger("protoseal.site")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 15.0
R = TypeVar("R")

FINAL: Mapping[StatusCode, type[SiteError]] = {
    StatusCode.ABORTED: PhaseOver,
    StatusCode.ALREADY_EXISTS: Refused,
    StatusCode.FAILED_PRECONDITION: Refused,
    StatusCode.INVALID_ARGUMENT: Refused,
    StatusCode.PERMISSION_DENIED: Refused,
    StatusCode.RESOURCE_EXHAUSTED: Refused,
    StatusCode.UNIMPLEMENTED: Refused,
}
"""gRPC statuses that are decisions of the coordinator. Any other status is a lost call or a failing coordinator."""


def call_once(call: Callable[[], R]) -> R:
    """Return the call's outcome; raise :class:`Unreachable`, or the error of the coordinator's status."""
    try:
        return call()
    except grpc.RpcError as error:
        raise _translate(error) from error
    except OtherProtocol as error:
        raise Refused(str(error)) from error
    except CodecError as error:
        raise Violation(f"the coordinator's answer does not decode: {error}") from error


def call_until(
    call: Callable[[], R],
    seconds: float,
    explain: Callable[[Unreachable], Unreachable] = lambda error: error,
) -> R:
    """Retry a call as :func:`call_once` does, for ``seconds``, before raising :class:`Unreachable`.

    ``call`` must be harmless to repeat. Pauses double up to 15 s, each drawn from its upper half, so that sites do not
    reconnect simultaneously. ``explain`` may take some seconds to find the cause; it is asked at the first failure,
    for the log, and at the last.
    """
    pauses, end, warned = _backoff(), time.monotonic() + seconds, False
    while True:
        try:
            return call_once(call)
        except Unreachable as error:
            pause = next(pauses)
            if time.monotonic() + pause > end:
                raise explain(error) from error
            # The cause is looked for and logged once, so that a long absence does not fill the log.
            if not warned:
                warned = True
                left = end - time.monotonic()
                _log.warning("%s; this site retries for %.0f seconds", explain(error), left)
            _log.debug("%s", error)
            time.sleep(pause)


def _backoff() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        # From the upper half, so that all sites that lost one coordinator do not come back in the same moment.
        yield secrets.SystemRandom().uniform(pause / 2, pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _translate(error: grpc.RpcError) -> SiteError:
    call = cast(grpc.Call, error)  # an RpcError that a call raised is also that call
    code, details = call.code(), call.details()
    if code in FINAL:
        return FINAL[code](f"the coordinator refused this site's call: {details}")
    return Unreachable(f"the coordinator cannot be reached ({code.name}): {details}")
