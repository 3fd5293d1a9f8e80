"""Check of a round's start at a site: groups stay as first stated, and the group trains from one earlier result."""

from __future__ import annotations

import hashlib
import json

from agreement.phases import fewest_listed, has_common_group
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.messages import PhaseKey, RoundStart
from secure_client.errors import Violation
from secure_client.methods.base import Parts

_GROUPS, _BASE = "groups", "base of the round"

Groups = tuple[tuple[str, ...], ...]


class Starts:
    """The groups that a site saw first and the base of each round, kept in its journal and held against later ones.

    The limit: that the coordinator tells every site the same groups, no site sees. Members of a group have to name
    the same one, or their masks do not cancel.
    """

    def __init__(self, parts: Parts) -> None:
        self._agreement, self._site = parts.agreement, parts.site
        self._journal, self._setup = parts.journal, parts.setup

    def checked(self, key: PhaseKey, start: RoundStart, base: bytes) -> Payload | None:
        """Return the result to catch up with, or None for a site that already has the round's base, ``base``.

        Raises :class:`Violation` for groups or a base that are not acceptable.
        """
        self._keep_groups(start.groups)
        self._keep_base(key, start.base)
        if start.catch_up is not None:
            self._check_hash(start.catch_up, start.base)
        if start.base == base:
            return None
        if start.catch_up is None:
            raise Violation(f"round {key.round} starts from a result that this site was not given")
        return start.catch_up

    def own_group(self) -> tuple[str, ...]:
        """Return the group of this site, sorted."""
        stored = self._journal.get(_GROUPS)
        if stored is None:
            raise Violation("the coordinator went on before it named the groups")
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
            raise Violation("a site is in two of the groups")
        strangers = sorted(set(names) - set(self._setup.roster().members))
        if strangers:
            raise Violation(f"a group names {strangers[0]}, which is not on the roster")
        if self._site not in names:
            raise Violation("this site is in none of the groups")

    def _check_sizes(self, groups: Groups) -> None:
        smallest = min(len(group) for group in groups)
        least = fewest_listed(self._agreement, len(self._setup.roster().members))
        if smallest < least:
            raise Violation(f"a group has {smallest} sites, at least {least} are agreed for every sum")

    def _check_everyone(self, groups: Groups) -> None:
        """Check that all sites are the one group, so that the coordinator's word on its members is not needed."""
        everyone = tuple(sorted(self._setup.roster().members))
        if has_common_group(self._agreement) and groups != (everyone,):
            raise Violation("the groups are not the one of all members, over whom every sum is agreed")

    def _check_unchanged(self, seen: bytes, now: bytes) -> None:
        """Check that groups are unchanged: sums over groups that differ by one site would differ by its values."""
        if seen != now:
            raise Violation("the groups are not those that the run began with")

    def _keep_base(self, key: PhaseKey, base: bytes) -> None:
        stored = self._journal.get(_BASE)
        if stored is not None and stored[0] == key.round:
            self._check_same_base(key, stored[1], base)
        self._journal.put(_BASE, key.round, base)

    def _check_same_base(self, key: PhaseKey, seen: bytes, now: bytes) -> None:
        """Check that all attempts of one round have one base, since a site trains once in a round."""
        if seen != now:
            raise Violation(f"round {key.round} is begun again from another result")

    def _check_hash(self, catch_up: Payload, base: bytes) -> None:
        if hashlib.sha256(codec.encode_payload(catch_up)).digest() != base:
            raise Violation("the result to catch up with is not the one that the round starts from")
