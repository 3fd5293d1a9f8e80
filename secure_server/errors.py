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
├── TooLarge         the content is larger than its phase allows
├── CannotListen     the address cannot be bound; never sent to a peer
└── StoreError       the coordinator's own state cannot be used; never sent to a peer
    ├── WrongStore   the file is of another version, or is damaged
    │   └── OtherRun the file is of another run or agreement
    └── StoreInUse   another process has it open
"""

from __future__ import annotations


class CoordinatorError(Exception):
    """Base of the coordinator's errors. The message says what to do."""


class NotOnRoster(CoordinatorError):
    """The coordinator's file does not name this site."""


class WrongIdentity(CoordinatorError):
    """A message names a site that its sender's certificate does not."""


class WrongProtocol(CoordinatorError):
    """The peer speaks another version of the protocol."""


class WrongAgreement(CoordinatorError):
    """The peer holds another agreement."""


class NotJoined(CoordinatorError):
    """The site has not joined this run, or has left it."""


class JoinClosed(CoordinatorError):
    """The run has begun, and the site is not one of its members."""


class WrongPhase(CoordinatorError):
    """The phase is over, or is of another round or run, or was not asked of this site."""


class Conflict(CoordinatorError):
    """Other content for a phase that the site answered before."""


class BadPayload(CoordinatorError):
    """The content is malformed."""


class TooLarge(CoordinatorError):
    """The content is larger than its phase allows."""


class CannotListen(CoordinatorError):
    """The configured address cannot be bound. Never sent to a peer."""


class StoreError(CoordinatorError):
    """The coordinator's own state cannot be used. Never sent to a peer."""


class WrongStore(StoreError):
    """The file is of another version, or is damaged."""


class OtherRun(WrongStore):
    """The file is of another run or agreement."""


class StoreInUse(StoreError):
    """Another process has the file open."""
