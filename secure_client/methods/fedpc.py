"""FedPC at a site: prototypes of the initial model for the clustering, then sums within the group that it put us in.

The coordinator chooses the groups, and a site cannot check the choice. What it does check: the groups are the same
in every round and each is large enough, every member of its own trains from the same result, and no more than one sum
that it is in can open in a round, however many attempts it takes. That bounds one round: a coordinator that chooses
what sites train from can make them stand still, and then subtract the sums of two rounds.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from algorithms.linear import Bool, Float
from crypto.errors import CryptoError
from crypto.pairwise.binding import threshold
from crypto.pairwise.parts import MaskKeys
from crypto.pairwise.scheme import SCHEME as PAIRWISE
from crypto.plain import SCHEME as PLAIN
from crypto.protection import Payload
from protoseal.config import Agreement, Protection
from protoseal.terms import clustering_cohort, group_cohort, limits_of, longest_mean, result_form
from protoseal_wire import codec
from protoseal_wire.messages import ActiveList, Phase, PhaseKey, RoundStart
from protoseal_wire.presence import check_keys_given
from secure_client.bounds import check_extractor_bounds
from secure_client.errors import Violation
from secure_client.exchanges.one_step import site_half
from secure_client.exchanges.pairwise import Group, MaskedSum
from secure_client.exchanges.participants import Participants
from secure_client.journal import Journal
from secure_client.methods.method import Given
from secure_client.methods.pfpl import check_nothing_given
from secure_client.methods.start import Starts
from secure_client.setup import Setup
from secure_client.trainee import Trainee

_log = logging.getLogger("protoseal.site")


class Fedpc:
    """Round 0 is the clustering; every later round adds up the members of each group."""

    def __init__(
        self,
        agreement: Agreement,
        site: str,
        trainee: Trainee,
        journal: Journal,
        setup: Setup,
        participants: Participants,
        masks: MaskedSum,
    ) -> None:
        self._agreement, self._site, self._trainee, self._setup = agreement, site, trainee, setup
        self._journal, self._participants, self._masks = journal, participants, masks
        self._limits = limits_of(agreement)
        self._starts = Starts(agreement, site, journal, setup)
        self._masked = agreement.protection is Protection.MASKED

    def start(self, key: PhaseKey, start: RoundStart) -> None:
        """See :class:`secure_client.methods.method.Method`, here and below."""
        if key.round == 0:
            check_nothing_given(key, start)
            return
        caught_up = self._starts.checked(key, start, self._trainee.base)
        if caught_up is not None:
            # Of the round before: what was trained in this one from another base is not to be used.
            self._take(key.round - 1, start.base, caught_up)

    def stated(self, key: PhaseKey) -> tuple[bytes, MaskKeys | None]:
        """What the model was trained from, and fresh keys where the sum is masked.

        A site whose extractor is beyond the agreed bounds stops here, with a :class:`crypto.errors.BoundError`,
        before it takes part in the attempt.
        """
        if key.round == 0:
            return b"", None
        check_extractor_bounds(self._trainee.extractor(), self._agreement.fedpc, trained=True)
        return self._trainee.base, self._masks.fresh_keys(key) if self._masked else None

    def step(self, key: PhaseKey, request: bytes) -> bytes:
        """The clustering's one step, the plain sum's, or one of the masked sum's."""
        match key.phase:
            case Phase.VALUES if key.round == 0:
                return codec.encode_payload(self._clustering(key, request))
            case Phase.VALUES if not self._masked:
                group = self._group(self._participants.verified(key, request))
                return codec.encode_payload(Payload(PLAIN, arrays=(self._vector(key, group),)))
            case Phase.SHARES:
                group = self._group(self._participants.verified(key, request))
                self._check_earlier_sums_stay_shut(key, group)
                return self._masks.shares(key, group)
            case Phase.VALUES:
                group = self._agreed_group(key)
                return self._masks.values(key, group, request, self._vector(key, group))
            case Phase.SURVIVORS:
                return self._masks.survivors(key, self._agreed_group(key), request)
            case _:
                return self._masks.unmask(key, self._agreed_group(key), request)

    def result(self, key: PhaseKey, request: bytes) -> Given:
        """The group's prototypes and extractor, from which its members train next."""
        payload = codec.decode_payload(request, self._limits, result_form(self._agreement))
        has = self._take(key.round, hashlib.sha256(request).digest(), payload)
        self._masks.forget(key)
        return Given(self._known_sites(key), has)

    def end(self) -> None:
        """The secrets of an attempt that had no result, if there is one."""
        last = self._journal.latest(Phase.PRESENCE)
        if last is not None:
            self._masks.forget(last)

    # What is sent

    def _clustering(self, key: PhaseKey, request: bytes) -> Payload:
        """All prototypes as one row of norm at most 1, absent classes as zeros."""
        cohort = clustering_cohort(self._participants.verified(key, request), self._agreement)
        rows, _ = self._trainee.trained(0)
        longest = self._agreement.norm_bound * np.sqrt(len(rows))
        row = np.asarray(rows.reshape(1, -1) / longest)
        return site_half(self._agreement, self._setup, key).protect(row, self._site, cohort)

    def _vector(self, key: PhaseKey, group: Group) -> NDArray[np.float64]:
        """Prototypes, then the extractor, (L,); zeros for classes that are withheld in the group's attempt."""
        rows, _ = self._trainee.trained(key.round)
        holds = group.cohort.holds[group.cohort.index(self._site)]
        return np.concatenate([np.where(holds[:, None], rows, 0.0).ravel(), self._trainee.extractor()])

    # Who adds to it

    def _agreed_group(self, key: PhaseKey) -> Group:
        return self._group(self._participants.agreed(key, Phase.SHARES))

    def _group(self, active: ActiveList) -> Group:
        """The own group's members on a list that was verified: enough of them, all from the same start."""
        own = self._starts.own_group()
        statements = [each for each in active.statements if each.site in own]
        self._check_enough_members(len(statements))
        self._check_same_base([each.base for each in statements])
        if self._masked:
            self._check_keys(active)
        keys = {each.site: each.keys for each in statements if each.keys is not None}
        return Group(group_cohort(active, own, self._agreement), keys, self._trainee.base)

    def _check_earlier_sums_stay_shut(self, key: PhaseKey, group: Group) -> None:
        """Whatever masked vector this site sent in an earlier attempt of the round is in a sum that never opens.

        Else both attempts' sums could open, and be subtracted. An honest member that stated its presence in this
        attempt released nothing in the earlier one (it would have refused to state it) and never will (that
        attempt is not open any more). With t of the n listed then being listed now, at most n − t honest ones
        are left to release, and c colluders: too few if c < 2t − n.
        """
        for earlier in self._journal.attempts_before(key, Phase.VALUES):
            listed = self._agreed_group(earlier).cohort.sites
            back, least = len(set(listed) & set(group.cohort.sites)), threshold(len(listed))
            if back < least:
                _log.error(
                    "asked for another sum of round %d, without most sites of an earlier one", key.round
                )
                raise Violation(
                    f"{back} of the {len(listed)} sites that attempt {earlier.attempt} listed are in this one, at "
                    f"least {least} are needed: the others could open that attempt's sum, to be subtracted from this"
                )

    def _check_enough_members(self, members: int) -> None:
        # Masks are for two or more, whatever the agreement says.
        least = max(self._agreement.min_holders, 2 if self._masked else 1)
        if members < least:
            raise Violation(f"{members} sites of the group take part, at least {least} are needed")

    def _check_same_base(self, bases: Sequence[bytes]) -> None:
        """Else the coordinator could give one member a model of its own and look for it in the sum."""
        if set(bases) != {self._trainee.base}:
            raise Violation("not all members of the group train from the same result")

    def _check_keys(self, active: ActiveList) -> None:
        try:
            check_keys_given(active)
        except CryptoError as error:
            raise Violation(f"the active list is refused: {error}") from error

    # What is taken

    def _take(self, round_number: int, base: bytes, payload: Payload) -> Bool:
        """Make a result the base of the rounds to come; the classes (K,) that it has."""
        rows, has, extractor = self._read(payload)
        self._trainee.take_base(round_number, base, rows, has, extractor)
        return has

    def _read(self, payload: Payload) -> tuple[Float, Bool, Float]:
        """A result's parts, whose form is checked: (rows (K, d), has (K,), extractor (p + q,))."""
        scheme = PAIRWISE if self._masked else PLAIN
        if payload.scheme != scheme:
            raise Violation(f"a result of scheme {payload.scheme!r}, where {scheme!r} is agreed")
        vector, has = payload.arrays
        rows, extractor = np.split(vector, [len(has) * self._agreement.dim])
        rows = rows.reshape(len(has), -1)
        self._check_plausible(rows, has)
        return rows, has == 1.0, extractor

    def _check_plausible(self, rows: Float, has: Float) -> None:
        """As the coordinator checks before it gives a result, whoever spoilt it."""
        if not np.isin(has, (0.0, 1.0)).all():
            raise Violation("a result says of a class neither that it has it nor that it has not")
        if np.linalg.norm(rows, axis=1).max() > longest_mean(self._agreement):
            raise Violation("a result has a prototype that is longer than the norm bound")

    def _known_sites(self, key: PhaseKey) -> int:
        """How many took part, as far as this site knows: one that dropped out early knows of itself alone."""
        listed = Phase.SHARES if self._masked else Phase.VALUES
        if self._journal.request(PhaseKey(key.run, key.round, key.attempt, listed)) is None:
            return 1
        return len(self._participants.agreed(key, listed).statements)
