"""Check of a round's start at a site: groups stay as first stated, and the group trains from one earlier result."""

from __future__ import annotations

import hashlib
import json

from agreement.phases import fewest_listed, has_common_group
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey, RoundStart
from secure_client.errors import Violation
from secure_client.methods.base import ExchangeParts

_GROUPS, _BASE = "groups", "base of the round"

Groups = tuple[tuple[str, ...], ...]


class Starts:
    """Checker of a round's groups and base against those that the site's journal recorded first.

    Limit: a site cannot see whether the coordinator sends the same groups to every site. If members of a group get
    different groups, their masks do not cancel.
    """

    def __init__(self, parts: ExchangeParts) -> None:
        self._agreement, self._site = parts.agreement, parts.site
        self._journal, self._setup = parts.journal, parts.setup

    def checked(self, key: PhaseKey, start: RoundStart, base: bytes) -> Payload | None:
        """Return the result to catch up with, or None if the site already has the round's base, ``base``.

        Raises :class:`Violation` for unacceptable groups or an unacceptable base.
        """
        self._keep_groups(start.groups)
        self._keep_base(key, start.base)
        if start.catch_up is not None:
            self._check_hash(start.catch_up, start.base)
        if start.base == base:
            return None
        if start.catch_up is None:
            raise Violation(f"round {key.round} starts from a result that this site has not received")
        self._check_result_missed(key)
        return start.catch_up

    def own_group(self) -> tuple[str, ...]:
        """Return the group of this site, sorted."""
        stored = self._journal.get(_GROUPS)
        if stored is None:
            raise Violation("the coordinator sent a later phase before the groups")
        (own,) = (group for group in json.loads(stored[1]) if self._site in group)
        return tuple(own)

    def _keep_groups(self, groups: Groups) -> None:
        content = json.dumps(groups).encode()
        stored = self._journal.get(_GROUPS)
        if stored is None:
            self._check_partition(groups)
            self._check_sizes(groups)
            self._check_everyone(groups)
            self._journal.put(_GROUPS, 1, content)
        else:
            self._check_unchanged(stored[1], content)

    def _check_partition(self, groups: Groups) -> None:
        names = [name for group in groups for name in group]
        if len(set(names)) != len(names):
            raise Violation("one site is in two groups")
        strangers = sorted(set(names) - set(self._setup.roster().members))
        if strangers:
            raise Violation(f"a group has member {strangers[0]}, which is not on the roster")
        if self._site not in names:
            raise Violation("no group contains this site")

    def _check_sizes(self, groups: Groups) -> None:
        smallest = min(len(group) for group in groups)
        least = fewest_listed(self._agreement, len(self._setup.roster().members))
        if smallest < least:
            raise Violation(f"a group has {smallest} sites, but every sum needs at least the agreed {least}")

    def _check_everyone(self, groups: Groups) -> None:
        """Check that one group has all sites, so that the site need not trust the coordinator's list of members."""
        everyone = tuple(sorted(self._setup.roster().members))
        if has_common_group(self._agreement) and groups != (everyone,):
            raise Violation(
                "the agreement has every sum over all members, but the groups are not that single group"
            )

    def _check_unchanged(self, seen: bytes, now: bytes) -> None:
        """Check that groups are unchanged: sums over groups that differ by one site would differ by its values."""
        if seen != now:
            raise Violation("the groups differ from those at the run's start")

    def _keep_base(self, key: PhaseKey, base: bytes) -> None:
        stored = self._journal.get(_BASE)
        if stored is not None and stored[0] == key.round:
            self._check_same_base(key, stored[1], base)
        self._journal.put(_BASE, key.round, base)

    def _check_same_base(self, key: PhaseKey, seen: bytes, now: bytes) -> None:
        """Check that all attempts of one round have one base, since a site trains once in a round."""
        if seen != now:
            raise Violation(f"round {key.round} starts again from another result")

    def _check_result_missed(self, key: PhaseKey) -> None:
        """Check that this site lacks the result of the round before, so that no round gives it two results.

        Two results of one round could be subtracted, and each is a question that later rounds answer. Round 1 has no
        result before it: the grouping in round 0 gives groups alone.
        """
        last = self._journal.latest(Phase.RESULT)
        if key.round - 1 <= (0 if last is None else last.round):
            raise Violation(
                f"round {key.round} starts from a result to catch up with, but this site missed no result before it"
            )

    def _check_hash(self, catch_up: Payload, base: bytes) -> None:
        if hashlib.sha256(codec.encode_payload(catch_up)).digest() != base:
            raise Violation("the result to catch up with has another hash than the round's base")
