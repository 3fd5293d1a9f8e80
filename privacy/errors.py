"""Exceptions of :mod:`privacy`: one type per outcome that a caller can tell apart.

    PrivacyError
    ├── LedgerError     a privacy ledger that cannot be written, is damaged, or is of another data set or limit
    │   └── RolledBackError   a privacy ledger without entries that it once held: an older copy replaced it
    ├── BudgetError     a release that would spend more privacy than the site allows
    ├── NotFiniteError  features that are infinite or not a number
    └── Unattainable    a privacy plan that no noise, or no number of releases, fulfils

Each message is one line and names the remedy.
"""

from __future__ import annotations


class PrivacyError(Exception):
    """Base of the errors of a privacy budget and its ledger."""


class LedgerError(PrivacyError):
    """Ledger that cannot be written, is damaged, or belongs to another data set or limit. Nothing may be sent."""


class RolledBackError(LedgerError):
    """Ledger without entries that it once held: an older copy replaced it, or it was begun anew."""


class BudgetError(PrivacyError):
    """Release that would spend more privacy than the site allows. The release was not recorded, and may not be sent."""


class Unattainable(PrivacyError):
    """Privacy budget that no noise, or no number of releases, can keep."""


class NotFiniteError(PrivacyError):
    """Features to be released that are infinite or not a number."""
