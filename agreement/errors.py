"""The base of what this package tells a user in one line."""

from __future__ import annotations


class UserError(Exception):
    """Something that a user can mend. The message is one line, or one for each problem, and says how."""
