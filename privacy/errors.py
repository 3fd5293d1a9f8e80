"""The exceptions of :mod:`privacy`: one type per outcome that a caller can tell apart.

    PrivacyError
    ├── LedgerError     a privacy ledger that cannot be written, is damaged, or is of another data set or limit
    │   └── RolledBackError   it lacks what it once held: an older copy was put in its place
    ├── BudgetError     a release that would spend more privacy than the site allows
    ├── NotFiniteError  features that are infinite or not a number
    └── Unattainable    a privacy plan that no noise, or no number of releases, fulfils

Each message is one line and names the remedy.
"""

from __future__ import annotations


class PrivacyError(Exception):
    """Base of the errors of a privacy budget and its ledger."""


class LedgerError(PrivacyError):
    """The privacy ledger cannot be written, is damaged, or is of another data set or limit. Nothing may be sent."""


class RolledBackError(LedgerError):
    """The privacy ledger lacks what it once held: it, or an older copy of it, was put back."""


class BudgetError(PrivacyError):
    """A release would spend more privacy than the site allows. It was not recorded, and may not be sent."""


class Unattainable(PrivacyError):
    """No noise, or no number of releases, is within the privacy budget that was asked for."""


class NotFiniteError(PrivacyError):
    """Features that are to be released are infinite or not a number."""
