"""Units of privacy: the record, person or site whose participation a guarantee protects."""

from __future__ import annotations

from enum import StrEnum


class Unit(StrEnum):
    """Unit by which neighbouring data sets differ: its participation is protected.

    ``RECORD`` is one record. ``SUBJECT`` is all records that a site has of one person, in all classes. ``SITE`` is all
    records of a site.
    """

    RECORD = "record"
    SUBJECT = "subject"
    SITE = "site"
