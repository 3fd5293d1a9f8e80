"""Conformance checks of a third party's method or protection, for its own tests (docs/how-to/extending.md).

The checks are that numbers are right, that payloads have the declared form, that inputs out of bounds are refused
before anything is sent, and that no array, vector of words or blob that a site sends repeats in two attempts, unless
it is all zeros. **Secrecy is not checked**: no test can show that a protection hides values; that takes an argument.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreement.registry.methods import Method
from agreement.registry.protections import PeersHalves, Protection, SumHalves
from agreement.toml_loading import Section
from algorithms.gram_matrix import Bool, Float, convex
from algorithms.pfpl import Weighting, peer_weights
from crypto import plain
from crypto.errors import BoundError, CryptoError, MalformedError
from crypto.fixed_point import Segment
from crypto.plain import PlainServer, PlainSite
from crypto.protection import Cohort, Payload, PayloadShape
from crypto.sum_protection import SumFacts
from protoseal_wire import codec
from protoseal_wire.codec import Limits

__all__ = ["NotConforming", "check_protection", "check_weights"]

_CLASSES, _DIM, _SITES = 3, 7, ("a", "b", "c", "d")
_SEGMENTS = (Segment(20, 10.0), Segment(5, 1e4), Segment(4, 1.0))
_LIMITS = Limits(classes=_CLASSES, dim=_DIM, sites=len(_SITES), parameters=1 << 16, ciphertexts=64)
_EXACT = 1e-9
"""Largest difference from ``plain`` of combinations of rows of norm 1, unless a protection states another."""


class NotConforming(AssertionError):
    """Method or protection that does not do what it declares."""


def check_protection(
    protection: Protection, settings: Section | None = None, *, tolerance: float = _EXACT
) -> None:
    """Raise :class:`NotConforming` unless each half of the protection does what ``plain`` does.

    Combinations of peers are compared within ``tolerance``, sums within the error that their half states. Raises
    ``ValueError`` for a third party's protection that gives halves which an agreement would refuse to load.
    """
    if not protection.built_in:
        protection.check_complete()
    given = protection.settings() if settings is None else settings
    secret = secrets.token_bytes(protection.secret_bytes)
    try:
        if isinstance(protection.sums, SumHalves):
            # As many terms as may be added, where an overflow shows, and fewer, which is a run's usual case.
            for terms in (len(_SITES), 2 * len(_SITES)):
                _check_sums(protection.name, protection.sums, given, secret, terms)
        if isinstance(protection.peers, PeersHalves):
            _check_peers(protection.name, protection.peers, given, secret, tolerance)
    except CryptoError as error:
        raise NotConforming(f"{protection.name}: valid values are refused: {error}") from error


def check_weights(method: Method, settings: Section | None = None) -> None:
    """Raise :class:`NotConforming` unless a method of ``PEERS`` weighs convexly for all prototypes tried.

    These include equal ones, zeros, a class that nobody holds and one with a single holder.
    """
    if method.weights is None:
        raise ValueError(f"method {method.name!r} defines no weights to check")
    weights = convex(method.weights(method.settings() if settings is None else settings))
    stack, holds = _rows(), _cohort().holds
    for rows in (stack, np.zeros_like(stack), np.repeat(stack[:1], len(stack), axis=0)):
        by_class = (rows * holds[:, :, None]).transpose(1, 0, 2)
        try:
            weights(by_class @ by_class.transpose(0, 2, 1), holds)
        except ValueError as error:
            raise NotConforming(f"{method.name}: {error}") from error


def _check_sums(protection: str, halves: SumHalves, settings: Section, secret: bytes, terms: int) -> None:
    cohort = _cohort()
    facts = SumFacts(_SEGMENTS, terms=terms)
    site, server = halves.site(settings, secret, facts), halves.server(settings, facts)
    form, bounds = (
        halves.form(settings, facts),
        np.concatenate([np.full(s.length, s.bound) for s in _SEGMENTS]),
    )
    error = site.error()
    _check_vector(f"{protection}: the stated error", error, facts.length)
    # Zeros, both bounds and random values: an overflow shows at the bounds, where all terms have one sign.
    for share in (0.0, 1.0, -1.0, None):
        values = [_within(bounds, share) for _ in cohort.sites]
        sent = [
            _travelled(site.protect(vector, name, cohort, b"one"), form)
            for vector, name in zip(values, cohort.sites, strict=True)
        ]
        for payload in sent:
            server.validate(payload)
        answer = _travelled(server.add(iter(sent)), form)
        own = site.unprotect(answer)
        try:
            # By a fresh half, as a session that missed the round has.
            got = halves.site(settings, secret, facts).unprotect(answer)
        except CryptoError:
            raise
        except Exception as failure:
            raise NotConforming(
                f"{protection}: a half that protected nothing must read a sum too: {failure!r}"
            ) from failure
        for total in (own, got):
            _check_vector(f"{protection}: a sum", total, facts.length)
            off = np.abs(total - np.sum(values, axis=0))
            if not (off <= error + facts.rounding).all():
                raise NotConforming(
                    f"{protection}: a sum is off by {off.max():.3g}, more than the error that the site's half states"
                )
    for vector, name in zip(values, cohort.sites, strict=True):
        _check_unlike(protection, name, partial(site.protect, vector, name, cohort))
    ends = np.cumsum([0, *(segment.length for segment in _SEGMENTS)])
    # The first and last number of each segment, where a bound of the segment beside it could be taken for its own.
    for place in {*ends[:-1], *(ends[1:] - 1)}:
        for beyond in (2.0 * bounds[place], -2.0 * bounds[place], np.nan, np.inf, -np.inf):
            over = np.where(np.arange(facts.length) == place, beyond, 0.0)
            _check_refused(
                protection, partial(site.protect, over, cohort.sites[0], cohort, b"three"), BoundError
            )


def _check_peers(
    protection: str, halves: PeersHalves, settings: Section, secret: bytes, tolerance: float
) -> None:
    cohort, stack = _cohort(), _rows()
    weights = partial(peer_weights, weighting=Weighting.DISTANCE, tau=1e-4)
    site, server = halves.site(settings, secret, b"one"), halves.server(settings, weights)
    form, clear = halves.form(settings, _CLASSES, _DIM), PlainSite()
    sent, open_ = {}, {}
    for name, rows in zip(cohort.sites, stack, strict=True):
        sent[name] = _travelled(site.protect(rows, name, cohort), form)
        open_[name] = clear.protect(rows, name, cohort)
        server.validate(sent[name], name, cohort)
    got, wanted = server.combine(sent, cohort), PlainServer(weights).combine(open_, cohort)
    for name, rows in zip(cohort.sites, stack, strict=True):
        answer = site.unprotect(_travelled(got[name], form), rows, name, cohort)
        off = float(np.abs(answer - clear.unprotect(wanted[name], rows, name, cohort)).max())
        if not off <= tolerance:
            raise NotConforming(f"{protection}: an answer is off by {off:.3g}, more than {tolerance:g}")

    def protected(rows: Float, name: str, context: bytes) -> Payload:
        return halves.site(settings, secret, context).protect(rows, name, cohort)

    for name, rows in zip(cohort.sites, stack, strict=True):
        _check_unlike(protection, name, partial(protected, rows, name))
    for factor in (2.0, np.nan, np.inf):
        _check_refused(protection, partial(site.protect, factor * stack[0], "a", cohort), MalformedError)


def _check_vector(what: str, values: Float, length: int) -> None:
    if values.dtype != np.float64 or values.shape != (length,) or not np.isfinite(values).all():
        raise NotConforming(f"{what} is not finite float64 of shape ({length},)")


def _check_unlike(name: str, site: str, protect: Callable[[bytes], Payload]) -> None:
    """Compare each part with each, because a fresh part does not show that the others are fresh. Parts may be zero."""
    for one, two in product(_parts(protect(b"one")), _parts(protect(b"two"))):
        if one.any() and np.array_equal(one, two):
            raise NotConforming(
                f"{name}: site {site!r} protects two attempts alike, so that their payloads can be subtracted"
            )


def _parts(payload: Payload) -> list[NDArray[Any]]:
    blobs = [np.frombuffer(blob, dtype=np.uint8) for blob in payload.blobs]
    return [*payload.arrays, *payload.words, *blobs]


def _check_refused(name: str, act: Callable[[], Payload], expected: type[CryptoError]) -> None:
    try:
        act()
    except expected:
        return
    raise NotConforming(f"{name}: values beyond their bound must raise {expected.__name__}, but were sent")


def _travelled(payload: Payload, form: PayloadShape) -> Payload:
    """Encode and decode a payload; raise :class:`NotConforming` if it is cleartext or not of the declared form."""
    if payload.scheme == plain.SCHEME:
        raise NotConforming(f"the scheme {plain.SCHEME!r} marks values in the clear: choose another name")
    try:
        return codec.decode_payload(codec.encode_payload(payload), _LIMITS, form)
    except codec.CodecError as error:
        raise NotConforming(
            f"a payload of scheme {payload.scheme!r} does not have the declared form: {error}"
        ) from error


def _cohort() -> Cohort:
    """Return a cohort in which all sites have the first class, two the second, one the third."""
    holds: Bool = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 1], [1, 0, 0]], dtype=np.bool_)
    return Cohort(_SITES, holds, _DIM)


def _rows() -> Float:
    rows = np.random.default_rng(5).normal(size=(len(_SITES), _CLASSES, _DIM))
    return np.asarray(rows / np.linalg.norm(rows, axis=2, keepdims=True))


def _within(bounds: Sequence[float] | Float, share: float | None) -> Float:
    """Return values at the given share of the bounds, or anywhere within them."""
    if share is not None:
        return np.asarray(share * np.asarray(bounds))
    return np.asarray(np.random.default_rng().uniform(-1.0, 1.0, len(bounds)) * bounds)
