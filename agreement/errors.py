"""Base of the errors that a user sees as one line."""

from __future__ import annotations


class UserError(Exception):
    """Error that a user can mend. The message is one line, or one for each problem, and says how."""
