"""Containment of errors in data, models and training: the site logs them, answers as usual, and tells nobody.

The coordinator chooses what a site trains from. An error that ended the session would tell it whether a value that it
may not see, sealed under ``ckks`` or a record's, is beyond a bound of its choice. So every computation on data, on a
model or on a decryption that can fail has a result for that case, and the session goes on with it.

Limits: how long a site takes still shows. A process that the operating system kills, for memory say, is seen to be
gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from crypto.errors import CryptoError, ImplausibleError
from privacy.errors import PrivacyError
from secure_client.errors import SiteError, Violation

_log = logging.getLogger("protoseal.site")
T = TypeVar("T")


def contained(work: Callable[[], T], otherwise: Callable[[], T], what: str) -> T:
    """Return the result of ``work``, or that of ``otherwise`` after any error of ``work``, which is logged.

    ``what`` names the computation in the log. ``work`` must not touch the journal or the privacy ledger: their errors
    are of the site's own disk, and end the session.
    """
    try:
        return work()
    except BaseException as error:
        check_no_signal(error)
        _log.error("%s failed, and the site goes on without: %s: %s", what, type(error).__name__, error)
        _log.debug("the error's origin", exc_info=True)
    return otherwise()


def check_no_signal(error: BaseException) -> None:
    """Raise ``error`` again if it is the operator's Ctrl-C, and no error of a plug-in.

    A plug-in's errors need not be of :class:`Exception`: ``sys.exit``, and the panics of libraries written in Rust, are
    not.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error


@contextmanager
def opening(what: str) -> Iterator[None]:
    """Sort the errors inside, where a message is read, by what they may tell the coordinator.

    A :class:`crypto.errors.CryptoError` about the message's form, which the coordinator knows, becomes a
    :class:`Violation`. Every other error may follow from the content, and becomes an
    :class:`crypto.errors.ImplausibleError`, which the caller answers as if nothing had been wrong.
    """
    try:
        yield
    except (ImplausibleError, PrivacyError, SiteError):
        raise
    except CryptoError as error:
        raise Violation(f"{what} is refused: {error}") from error
    except Exception as error:
        raise ImplausibleError(f"{what}: {type(error).__name__}: {error}") from error
