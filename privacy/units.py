"""Units of privacy: whose participation a guarantee protects."""

from __future__ import annotations

from enum import StrEnum


class Unit(StrEnum):
    """What is added or removed: whose participation is protected.

    ``RECORD``: one record. ``SUBJECT``: all that a site has of one person, whatever the classes. ``SITE``: all that a
    site has.
    """

    RECORD = "record"
    SUBJECT = "subject"
    SITE = "site"
