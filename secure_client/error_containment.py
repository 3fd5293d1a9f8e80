"""Containment of errors in data, models and training: the site logs an error, answers as usual, and reports nothing.

The coordinator chooses the base that a site trains from. If an error ended the session, the coordinator would learn
whether a hidden value (a value encrypted under ``ckks``, or a record's) is beyond a bound of the coordinator's choice.
Therefore every computation on data, a model or a decryption that can fail has a fallback result, with which the session
continues. Data that can no longer be read are no such result, and end the session: see
:mod:`secure_client.training.lost_data`.

When an answer leaves is the matter of :mod:`secure_client.protocol.answer_delays`. Limit: the coordinator sees the
disappearance of a process that the operating system kills, for lack of memory for example.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from crypto.errors import CryptoError, ImplausibleError
from privacy.errors import PrivacyError
from secure_client.errors import DataLost, SiteError, Violation

_log = logging.getLogger("protoseal.site")
T = TypeVar("T")
_LONGEST = 300
"""Most characters of an exception's text that an error or the log repeats."""


def run_or_fallback(
    work: Callable[[], T],
    otherwise: Callable[[], T],
    what: str,
    consequence: str = "the site continues without its result",
) -> T:
    """Return the result of ``work``; after any error of ``work``, log the error and return ``otherwise()``.

    ``what`` names the computation in the log, and ``consequence`` says what happens instead. ``work`` must not touch
    the journal or the privacy ledger: an error there is an error of the site's own disk and ends the session.
    """
    try:
        return work()
    except BaseException as error:
        reraise_fatal(error)
        _log.error("%s failed, and %s: %s: %s", what, consequence, type(error).__name__, one_line(error))
        _log.debug("the error's origin", exc_info=True)
    return otherwise()


def reraise_fatal(error: BaseException) -> None:
    """Raise ``error`` again if it ends the session: the operator's Ctrl-C, or the loss of the site's data.

    A plug-in's error need not derive from :class:`Exception`: ``sys.exit`` and panics of Rust libraries do not.
    """
    if isinstance(error, KeyboardInterrupt | DataLost):
        raise error


def one_line(error: BaseException) -> str:
    """Return an exception's text on one line, cut where it is long."""
    try:
        text = " ".join(str(error).split())
    except BaseException as unprintable:  # an exception of a site's code may have a __str__ that raises
        reraise_fatal(unprintable)
        return ""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


@contextmanager
def hide_decryption_errors(what: str) -> Iterator[None]:
    """Classify errors of reading a message by whether the coordinator may learn of them.

    A :class:`crypto.errors.CryptoError` about the message's form, which the coordinator knows, becomes a
    :class:`Violation`. Every other error may depend on the content and becomes an
    :class:`crypto.errors.ImplausibleError`, after which the caller answers as if no error had occurred.
    """
    try:
        yield
    except (ImplausibleError, PrivacyError, SiteError):
        raise
    except CryptoError as error:
        raise Violation(f"{what} is refused: {error}") from error
    except Exception as error:
        # A refusal here would answer the coordinator whether a decrypted value is beyond a bound that it chose.
        raise ImplausibleError(f"{what}: {type(error).__name__}: {one_line(error)}") from error
