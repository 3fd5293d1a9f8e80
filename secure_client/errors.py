"""Exceptions of :mod:`secure_client`, one type per outcome that a caller can distinguish.

    SiteError
    ├── PluginError     a "module:function" that cannot be imported or called
    ├── DataError       data that is missing, unreadable or not what the federation agreed on
    │   └── DataLost    data that the site read before and can no longer read: the site leaves
    ├── ModelError      a model that does not keep the contract, or a state that does not fit it
    ├── DeviceError     a compute device that this machine does not have
    ├── TrainingError   training that cannot start or went wrong
    ├── Unprotected     values that no half of the agreed protection or no release made: nothing was sent
    ├── StateError      a state directory that is damaged or in use
    │   └── FilesOfOtherRun  a state directory, or an out folder, of another run or agreement
    ├── RunStopped      the coordinator ended the run early
    ├── PhaseOver       the coordinator moved on: the phase is no longer asked of this site
    ├── Unreachable     no coordinator, or none that this site trusts, could be reached
    ├── Refused         the coordinator refuses this site or what it sent
    └── Violation       the coordinator asked for, or sent, what the protocol does not allow
        └── ConflictingRequest   it asked one phase twice with different content

Each message is one line and names the remedy.
"""

from __future__ import annotations


class SiteError(Exception):
    """Base of every error of this package."""


class PluginError(SiteError):
    """``module:function`` that cannot be imported, or does not accept its arguments."""


class DataError(SiteError):
    """Data that is missing, unreadable, or not what the federation agreed on."""


class DataLost(DataError):
    """Data that this site read before and could not read again for as long as it retries. The site leaves."""


class ModelError(SiteError):
    """Model that does not keep the contract, or stored state that does not fit it."""


class DeviceError(SiteError):
    """Compute device that does not exist on this machine."""


class TrainingError(SiteError):
    """Training that cannot start, or whose loss is not finite."""


class Unprotected(SiteError):
    """Values that were about to leave the site although no half of the agreed protection made them. None are sent.

    The same holds for exact values where noise is agreed.
    """


class StateError(SiteError):
    """State of the site that is damaged, held by another process, or not writable."""


class FilesOfOtherRun(StateError):
    """State directory or out folder of a site with content of another run, agreement or site."""


class RunStopped(SiteError):
    """End of the run by the coordinator, before its last round."""


class PhaseOver(SiteError):
    """Phase that the coordinator no longer expects from this site. Ask for the next task."""


class Unreachable(SiteError):
    """Coordinator that was unreachable, or failed, for as long as the site keeps trying."""


class Refused(SiteError):
    """Refusal of this site or its message by the coordinator. A retry without a change will not help."""


class Violation(SiteError):
    """Request or message of the coordinator that violates the protocol. The site answers nothing and leaves."""


class ConflictingRequest(Violation):
    """Second request of the coordinator for one phase of one attempt, with different content."""
