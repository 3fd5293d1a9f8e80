"""A site's rules of order as a small value: what its journal makes it answer, and what it refuses.

It restates :mod:`secure_client.protocol.phase_order`, :mod:`secure_client.exchanges.groups` and
:mod:`secure_client.protocol.secure_aggregation` for one masked sum over all sites. :class:`Shadow` holds it to real
sites.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from agreement import Agreement
from agreement.derived.payload_shapes import limits_of, result_shape
from agreement.registry.round_plan import MASKED_SUM
from crypto.pairwise.attempt import threshold
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey

Asked = tuple[str, ...] | tuple[tuple[str, ...], tuple[str, ...]] | int | bytes | None
"""A request, as far as two requests under one key could differ."""
_STEPS = (Phase.PRESENCE, *MASKED_SUM)


class Refused(Exception):
    """The rules forbid to answer."""


class Journal(NamedTuple):
    """Memory of a site. Rounds and attempts count from 1."""

    begun: tuple[int, int] = (0, 0)
    asked: frozenset[tuple[Phase, Asked]] = frozenset()
    """The requests of the attempt begun last that it has answered."""
    listed: frozenset[tuple[int, tuple[str, ...]]] = frozenset()
    """The attempts of the round in which it sent values, and who was listed there."""
    unmasked: int = 0
    result: int = 0
    erased: bool = False
    """The secrets of the attempt begun last are erased."""

    @property
    def left_attempt(self) -> tuple[int, int] | None:
        """The attempt whose secrets it erased as it left, if it can be asked for more of it."""
        over = dict(self.asked).keys() & {Phase.UNMASK, Phase.RESULT}
        return self.begun if self.erased and not over else None

    def left(self) -> Journal:
        """The site's process ends by an error of its own, or hears that the run stopped."""
        return self._replace(erased=True)


def answered(site: str, journal: Journal, key: PhaseKey, asked: Asked, least: int) -> Journal:
    """Return the journal once a request is answered; :class:`Refused` where the site refuses it.

    ``least``: the fewest sites of a sum.
    """
    if key.phase in (Phase.ROSTER, Phase.SECRET):
        return journal
    at, before = (key.round, key.attempt), dict(journal.asked)
    if journal.begun == at and key.phase in before:
        if before[key.phase] != asked:
            raise Refused("another request under the same name")
        return journal
    if key.phase is Phase.PRESENCE:
        return _begun(journal, at, asked)
    if journal.begun != at:
        raise Refused("not the attempt begun")
    done = journal._replace(asked=journal.asked | {(key.phase, asked)})
    if key.phase is Phase.RESULT:
        return done._replace(result=key.round, erased=True)
    if Phase.RESULT in before:
        raise Refused("after the result")
    if _STEPS[_STEPS.index(key.phase) - 1] not in before:
        raise Refused("before the step that it follows")
    return _stepped(site, journal, done, key, asked, least)


def _begun(journal: Journal, at: tuple[int, int], asked: Asked) -> Journal:
    if at <= journal.begun:
        raise Refused("not after the attempt begun last")
    if at[0] <= max(journal.unmasked, journal.result):
        raise Refused("the round's sum was unmasked, or its result given")
    listed = journal.listed if journal.begun[0] == at[0] else frozenset()
    return journal._replace(begun=at, asked=frozenset({(Phase.PRESENCE, asked)}), listed=listed, erased=False)


def _stepped(site: str, journal: Journal, done: Journal, key: PhaseKey, asked: Asked, least: int) -> Journal:
    before, sites = dict(journal.asked), _sites(asked)
    if journal.erased:
        raise Refused("the secrets are erased")
    match key.phase:
        case Phase.SHARES:
            if any(len(set(each) & set(sites)) < threshold(len(each)) for _, each in journal.listed):
                raise Refused("too few of an earlier sum's are listed")
        case Phase.VALUES:
            listed = _sites(before[Phase.SHARES])
            if site not in sites or len(sites) < max(threshold(len(listed)), least):
                raise Refused("too few made shares")
            return done._replace(listed=journal.listed | {(key.attempt, listed)})
        case Phase.SURVIVORS:
            if len(sites) < max(threshold(len(_sites(before[Phase.SHARES]))), least):
                raise Refused("too few survive")
        case _:
            if sites != before[Phase.SURVIVORS]:
                raise Refused("another set than was signed")
            return done._replace(unmasked=key.round, erased=True)
    return done


def _sites(asked: Asked) -> tuple[str, ...]:
    """Return the sites that a request names; for UNMASK the survivors."""
    if not isinstance(asked, tuple):
        raise TypeError(f"a request that names no sites: {asked!r}")
    first = asked[0] if asked else ()
    return first if isinstance(first, tuple) else tuple(str(each) for each in asked)


class Shadow:
    """Follows a real site's answers by the rules: what the site answers they must allow, what it refuses they must not.

    The limit: it follows what reached the network, so that an answer that a killed process had only stored is unknown
    to it until it is asked for again.
    """

    def __init__(self, agreement: Agreement, site: str) -> None:
        self._agreement, self._site = agreement, site
        self._limits = limits_of(agreement)
        self.journal = Journal()

    def refuses(self, key: PhaseKey, request: bytes) -> bool:
        """Return True if the rules forbid an answer; otherwise the request counts as answered."""
        asked, least = self._read(key, request), self._agreement.min_holders
        try:
            self.journal = answered(self._site, self.journal, key, asked, least)
        except Refused:
            return True
        return False

    def _read(self, key: PhaseKey, request: bytes) -> Asked:
        limits = self._limits
        match key.phase:
            case Phase.PRESENCE:
                return codec.decode_round_start(request, limits, result_shape(self._agreement)).base
            case Phase.SHARES:
                return tuple(each.site for each in codec.decode_active_list(request, limits).statements)
            case Phase.VALUES:
                senders = {each.sender for each in codec.decode_received_shares(request, limits).shares}
                return tuple(sorted({self._site, *senders}))
            case Phase.SURVIVORS:
                return codec.decode_survivor_set(request, limits).sites
            case Phase.UNMASK:
                signed = codec.decode_signed_survivors(request, limits)
                return signed.sites, tuple(each.site for each in signed.signatures)
            case _:
                return hashlib.sha256(request).digest()
