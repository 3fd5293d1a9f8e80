"""Exchange of sites in groups: the checks of a round's start and of an attempt's members, and what all such share.

The coordinator chooses the groups, and a site cannot check the choice. A site does check that groups stay as they were
first stated, that each is large enough, that every member of its group trains from the same earlier result, and that no
second sum with its values can open in a round.

Limit: a site cannot see whether the coordinator sends the same groups to every site. If members of a group get
different groups, their masks do not cancel.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Sequence

from agreement.derived.cohorts import group_cohort, has_common_group, min_group_size
from agreement.derived.payload_shapes import limits_of, result_shape
from algorithms.gram_matrix import Bool
from crypto.errors import CryptoError
from crypto.pairwise.attempt import threshold
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.class_presence import check_keys_given
from protoseal_wire.messages import ActiveList, Phase, PhaseKey, RoundStart
from secure_client.errors import Violation
from secure_client.exchanges.exchange import ExchangeParts, PresenceBase, ResultSummary, SiteExchange
from secure_client.protocol.secure_aggregation import Group

_log = logging.getLogger("protoseal.site")

_GROUPS, _BASE = "groups", "base of the round"

Groups = tuple[tuple[str, ...], ...]


class RoundStartCheck:
    """Check of a round's groups and base against those that the site's journal recorded first."""

    def __init__(self, parts: ExchangeParts) -> None:
        self._agreement = parts.agreement
        self._site = parts.site
        self._journal = parts.journal
        self._setup = parts.setup

    def check(self, key: PhaseKey, start: RoundStart, base: bytes) -> Payload | None:
        """Return the result to catch up with, or None if the site already has the round's base, ``base``.

        Raises :class:`Violation` for unacceptable groups or an unacceptable base.
        """
        # The journal decides what groups and base are, from the first time that the coordinator stated them.
        self._keep_groups(start.groups)
        self._keep_base(key, start.base)
        # The hash is what all members state and bind their masks to, so a result to catch up with must have it.
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
        (group,) = (group for group in json.loads(stored[1]) if self._site in group)
        return tuple(group)

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
        least = min_group_size(self._agreement, len(self._setup.roster().members))
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
        if codec.content_hash(codec.encode_payload(catch_up)) != base:
            raise Violation("the result to catch up with has another hash than the round's base")


class GroupMembers:
    """Reader of a site's group from the coordinator's active lists, which come with the first step of a round."""

    def __init__(self, parts: ExchangeParts, starts: RoundStartCheck) -> None:
        self._agreement = parts.agreement
        self._site = parts.site
        self._learner = parts.learner
        self._journal = parts.journal
        self._setup = parts.setup
        self._participants = parts.participants
        self._starts = starts
        self._masked = parts.agreement.plan.masked
        self._first_step = parts.agreement.plan.phases[0]

    def group_of_step(self, key: PhaseKey, request: bytes) -> Group:
        """Return the group for a step: the list of the first step decides, and later steps stand on it."""
        return self.verify_listed(key, request) if key.phase is self._first_step else self.accepted_group(key)

    def verify_listed(self, key: PhaseKey, request: bytes) -> Group:
        """Return the group that the first step of a round names; raise :class:`Violation` for an unacceptable group.

        Under masks, a group whose sum could be subtracted from an earlier sum of the round is unacceptable too.
        """
        group = self._group(self._participants.verify_list(key, request))
        if self._masked:
            self._check_earlier_sums_cannot_open(key, group)
        return group

    def accepted_group(self, key: PhaseKey) -> Group:
        """Return the group that this site accepted in the attempt."""
        return self._group(self._participants.accepted_list(key, self._first_step))

    def participant_count(self, key: PhaseKey) -> int:
        """Return the number of participants known to this site; a site that dropped out early counts only itself."""
        if not self._journal.has_answered(PhaseKey(key.run, key.round, key.attempt, self._first_step)):
            return 1
        return len(self._participants.accepted_list(key, self._first_step).statements)

    def _group(self, active: ActiveList) -> Group:
        """Return this site's group on a verified list, after checking its number of members and their common base."""
        members = self._starts.own_group()
        statements = [statement for statement in active.statements if statement.site in members]
        self._check_enough_members(len(statements))
        self._check_members_share_base([statement.base for statement in statements])
        if self._masked:
            self._check_keys(active)
        keys = {statement.site: statement.keys for statement in statements if statement.keys is not None}
        cohort = group_cohort(active, members, self._agreement)
        self._participants.requested_rows = cohort.held_by(self._site)
        return Group(cohort, keys, self._learner.received.base_hash)

    def _check_earlier_sums_cannot_open(self, key: PhaseKey, group: Group) -> None:
        """Check that no sum with this site's masked vector from an earlier attempt of the round can open.

        Otherwise both attempts' sums could open and be subtracted. An honest member that stated its presence in this
        attempt released no share in the earlier attempt (it would have refused to state its presence) and never will
        (the earlier attempt is closed). If t of the n members listed then are listed now, at most n − t honest members
        can still release shares, besides c colluders: too few if c < 2t − n.
        """
        for earlier in self._journal.attempts_before(key, Phase.VALUES):
            listed = self.accepted_group(earlier).cohort.sites
            back, least = len(set(listed) & set(group.cohort.sites)), threshold(len(listed))
            if back < least:
                _log.error(
                    "the coordinator asked for another sum of round %d without most sites of an earlier sum",
                    key.round,
                )
                raise Violation(
                    f"{back} of the {len(listed)} sites that attempt {earlier.attempt} listed are in this "
                    f"attempt, at least {least} are required: the other sites could open the earlier sum and "
                    "subtract the sums"
                )

    def _check_enough_members(self, members: int) -> None:
        """Check the number of members, since the coordinator could list so few that ``max_colluding`` suffice."""
        roster = len(self._setup.roster().members)
        least = min_group_size(self._agreement, roster)
        if members < least:
            raise Violation(
                f"{members} sites of the group take part, at least {least} are required in a run of {roster} "
                "sites"
            )
        self._check_noise_tolerates_colluders(members, roster)

    def _check_noise_tolerates_colluders(self, members: int, roster: int) -> None:
        """Check that sparse masks tolerate the colluding sites that shared noise is to tolerate."""
        privacy, masking = self._agreement.privacy, self._agreement.masking
        if privacy is None or not privacy.distributed or not masking.graph(roster, members).sparse:
            return
        if masking.colluding(roster) < privacy.colluding:
            raise Violation(
                f"masks in a run of {roster} sites tolerate {masking.colluding(roster)} colluding sites, but "
                f"its noise must tolerate {privacy.colluding}"
            )

    def _check_members_share_base(self, bases: Sequence[bytes]) -> None:
        """Check that all members state one base: the coordinator could track a base given to one member alone."""
        if set(bases) != {self._learner.received.base_hash}:
            raise Violation("the members of the group do not all train from the same result")

    def _check_keys(self, active: ActiveList) -> None:
        try:
            check_keys_given(active)
        except CryptoError as error:
            raise Violation(f"the active list is refused: {error}") from error


class GroupExchange(SiteExchange):
    """Exchange whose sites form groups, and train in each round from their group's last result.

    A subclass says what leaves in a step, and what a result is.
    """

    def __init__(self, parts: ExchangeParts) -> None:
        self._agreement = parts.agreement
        self._site = parts.site
        self._learner = parts.learner
        self._masks = parts.masks
        self._limits = limits_of(parts.agreement)
        self._layout = parts.agreement.layout
        self._starts = RoundStartCheck(parts)
        self._members = GroupMembers(parts, self._starts)

    def start(self, key: PhaseKey, start: RoundStart) -> None:
        """See :class:`secure_client.exchanges.exchange.SiteExchange`, here and below."""
        catch_up = self._starts.check(key, start, self._learner.received.base_hash)
        if catch_up is not None:
            # The base belongs to the round before: a model already trained in this round from another base is
            # discarded.
            self.take_catch_up(key, start.base, catch_up)

    def presence(self, key: PhaseKey) -> PresenceBase:
        """Return the hash of the base that the model was trained from, and fresh keys where the sum is masked."""
        # Fresh in each attempt: shares that an earlier attempt released would open this attempt's vector.
        keys = self._masks.fresh_keys(key) if self._agreement.plan.masked else None
        return PresenceBase(self._learner.received.base_hash, keys)

    def result(self, key: PhaseKey, request: bytes) -> ResultSummary:
        """Take the base that the group's members train from next."""
        payload = codec.decode_payload(request, self._limits, result_shape(self._agreement))
        classes = self.take_result(key, codec.content_hash(request), payload)
        # The attempt is over: its secrets could open its uploads later.
        self._masks.forget(key)
        return ResultSummary(self._members.participant_count(key), classes)

    def end(self) -> None:
        """Erase the secrets of an attempt that had no result, if there is one."""
        self._masks.leave()

    @abstractmethod
    def take_catch_up(self, key: PhaseKey, base: bytes, payload: Payload) -> None:
        """Take the result of the round before, with the hash ``base``, which this site missed."""

    @abstractmethod
    def take_result(self, key: PhaseKey, base: bytes, payload: Payload) -> Bool:
        """Take the result of a round, with the hash ``base``; return the classes (K,) that the site got."""
