"""Errors of the coordinator: its refusals, and faults of its own.

CoordinatorError
├── NotOnRoster      the certificate is good, but this run's coordinator file does not name the site
├── WrongIdentity    a call without a site's certificate, or with another site's statement
├── WrongProtocol    the peer speaks another protocol version
├── WrongAgreement   the peer holds another agreement (classes, d, preprocessing, method, ...)
├── NotJoined        the site has to join (again) first
├── JoinClosed       the run has begun without the site
├── WrongPhase       the phase is over, or is of another round or run, or was not asked of this site
├── Conflict         the same key was answered before, with other content
├── BadPayload       the content is malformed
├── UploadTooLarge   the content is larger than its phase allows
├── CannotListen     the address cannot be bound; never sent to a peer
└── StoreError       the coordinator's own state cannot be used; never sent to a peer
    ├── WrongStore   the file is of another version, or is damaged
    │   └── StoreOfOtherRun   the file is of another run or agreement
    └── StoreInUse   another process has it open
"""

from __future__ import annotations


class CoordinatorError(Exception):
    """Base of the coordinator's errors. The message says what to do."""


class NotOnRoster(CoordinatorError):
    """Site that the coordinator's file does not name."""


class WrongIdentity(CoordinatorError):
    """Message that names a site other than its sender's certificate does."""


class WrongProtocol(CoordinatorError):
    """Peer that speaks another version of the protocol."""


class WrongAgreement(CoordinatorError):
    """Peer that holds another agreement."""


class NotJoined(CoordinatorError):
    """Site that has not joined this run, or has left it."""


class JoinClosed(CoordinatorError):
    """Site that is no member of the run, which has begun."""


class WrongPhase(CoordinatorError):
    """Phase that is over, or of another round or run, or not asked of this site."""


class Conflict(CoordinatorError):
    """Other content for a phase that the site answered before."""


class BadPayload(CoordinatorError):
    """Malformed content."""


class UploadTooLarge(CoordinatorError):
    """Content larger than its phase allows."""


class CannotListen(CoordinatorError):
    """Configured address that cannot be bound. The error is never sent to a peer."""


class StoreError(CoordinatorError):
    """State of the coordinator that cannot be used. The error is never sent to a peer."""


class WrongStore(StoreError):
    """File of another version, or a damaged file."""


class StoreOfOtherRun(WrongStore):
    """File of another run or agreement."""


class StoreInUse(StoreError):
    """File that another process has open."""
