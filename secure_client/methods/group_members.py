"""Members of a site's group in an attempt, checked: all have the same base, and no second sum can open."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from agreement.cohorts import group_cohort
from agreement.phases import fewest_listed
from crypto.errors import CryptoError
from crypto.pairwise.attempt_binding import threshold
from protoseal_wire.class_presence import check_keys_given
from protoseal_wire.messages import ActiveList, Phase, PhaseKey
from secure_client.errors import Violation
from secure_client.methods.base import ExchangeParts
from secure_client.methods.round_start import Starts
from secure_client.protocol.masked_sum import Group

_log = logging.getLogger("protoseal.site")


class GroupMembers:
    """Reader of a site's group from the coordinator's active lists, which come with the first step of a round."""

    def __init__(self, parts: ExchangeParts, starts: Starts) -> None:
        self._agreement, self._trainee, self._journal = parts.agreement, parts.trainee, parts.journal
        self._participants, self._starts, self._setup = parts.participants, starts, parts.setup
        self._masked, self._site = parts.agreement.plan.masked, parts.site
        self._listed = parts.agreement.plan.phases[0]

    def asked(self, key: PhaseKey, request: bytes) -> Group:
        """Return the group that the first step of a round names; raise :class:`Violation` for an unacceptable group.

        Under masks, a group whose sum could be subtracted from an earlier sum of the round is unacceptable too.
        """
        group = self._group(self._participants.verified(key, request))
        if self._masked:
            self._check_earlier_sums_cannot_open(key, group)
        return group

    def agreed(self, key: PhaseKey) -> Group:
        """Return the group that this site accepted in the attempt."""
        return self._group(self._participants.agreed(key, self._listed))

    def known(self, key: PhaseKey) -> int:
        """Return the number of participants known to this site; a site that dropped out early counts only itself."""
        if self._journal.request(PhaseKey(key.run, key.round, key.attempt, self._listed)) is None:
            return 1
        return len(self._participants.agreed(key, self._listed).statements)

    def _group(self, active: ActiveList) -> Group:
        """Return the own group's members on a verified list, after checking their number and common base."""
        own = self._starts.own_group()
        statements = [each for each in active.statements if each.site in own]
        self._check_enough_members(len(statements))
        self._check_same_base([each.base for each in statements])
        if self._masked:
            self._check_keys(active)
        keys = {each.site: each.keys for each in statements if each.keys is not None}
        cohort = group_cohort(active, own, self._agreement)
        self._participants.asked = cohort.holds[cohort.index(self._site)]
        return Group(cohort, keys, self._trainee.base_hash)

    def _check_earlier_sums_cannot_open(self, key: PhaseKey, group: Group) -> None:
        """Check that no sum with this site's masked vector from an earlier attempt of the round can open.

        Otherwise both attempts' sums could open and be subtracted. An honest member that stated its presence in this
        attempt released no share in the earlier attempt (it would have refused to state its presence) and never will
        (the earlier attempt is closed). If t of the n members listed then are listed now, at most n − t honest members
        can still release shares, besides c colluders: too few if c < 2t − n.
        """
        for earlier in self._journal.attempts_before(key, Phase.VALUES):
            listed = self.agreed(earlier).cohort.sites
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
        least = fewest_listed(self._agreement, roster)
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

    def _check_same_base(self, bases: Sequence[bytes]) -> None:
        """Check that all members state one base: the coordinator could track a base given to one member alone."""
        if set(bases) != {self._trainee.base_hash}:
            raise Violation("the members of the group do not all train from the same result")

    def _check_keys(self, active: ActiveList) -> None:
        try:
            check_keys_given(active)
        except CryptoError as error:
            raise Violation(f"the active list is refused: {error}") from error
