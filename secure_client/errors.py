"""Exceptions of :mod:`secure_client`, one type per outcome that a caller can distinguish.

    SiteError
    ├── PluginError     a "module:function" that cannot be imported or called
    ├── DataError       data that is missing, unreadable or not what the federation agreed on
    ├── ModelError      a model that does not keep the contract, or a state that does not fit it
    ├── DeviceError     a compute device that this machine does not have
    ├── TrainingError   training that cannot start or went wrong
    ├── StateError      a state directory that is damaged or in use
    │   └── OtherRun    a state directory, or an out folder, of another run or agreement
    ├── RunStopped      the coordinator ended the run early
    ├── PhaseOver       the coordinator went on: the phase is no longer asked of this site
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
    """A ``module:function`` cannot be imported, or does not accept its arguments."""


class DataError(SiteError):
    """Data is missing, unreadable, or not what the federation agreed on."""


class ModelError(SiteError):
    """A model does not keep the contract, or a stored state does not fit it."""


class DeviceError(SiteError):
    """A compute device does not exist on this machine."""


class TrainingError(SiteError):
    """Training cannot start, or the loss is not finite."""


class StateError(SiteError):
    """The site's state is damaged, is held by another process, or cannot be written."""


class OtherRun(StateError):
    """The site's state, or the content of its out folder, belongs to another run, agreement or site."""


class RunStopped(SiteError):
    """The coordinator ended the run before its last round."""


class PhaseOver(SiteError):
    """The coordinator has moved on and no longer expects the phase from this site. Ask for the next task."""


class Unreachable(SiteError):
    """The coordinator could not be reached, or has failed, for as long as the site keeps trying."""


class Refused(SiteError):
    """The coordinator refuses this site or its message. A retry without a change will not help."""


class Violation(SiteError):
    """The coordinator's request or message violates the protocol. The site answers nothing and leaves."""


class ConflictingRequest(Violation):
    """The coordinator asked one phase of one attempt twice with different content."""
