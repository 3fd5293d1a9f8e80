"""PFPL with equal weights at a site under ``masked``: the peers' mean is a masked sum less the site's row.

All sites get the same result: for each class the sum over the holders whose values arrived, the number of these
holders, and the members of the sum with their signatures. A member subtracts its row as rounded to the ring, which
leaves exactly the sum of its peers' rows. The sites share no secret.

Security: an active coordinator that c sites help learns of one attempt the sum of the other holders of a class, and no
more, if max(3c − 1, c + 2) ≤ ``min_holders``; in a sparse graph if c is at most ``max_colluding`` and c + 2 ≤
``min_holders``.

In a round without prototypes (:meth:`agreement.Agreement.sends_rows`) the result repeats an earlier sum, from which a
site subtracts the row that it sent for that sum.

Limits: targets of the coordinator's making can silence the other sites' features, so that an honest sum is one site's
rows (docs: threat model, an active coordinator). Every site reads the sum of every class, also of a class that it does
not hold. Sums of several rounds can be subtracted, as :mod:`secure_client.protocol.secure_aggregation` describes. A
site that took no part in an attempt verifies the signatures on the sum's members, but not the numbers of holders. No
site can verify the sum: a coordinator that lies about it, or about the holders to such a site, misleads the site's
training.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from agreement.derived.cohorts import min_group_size
from agreement.derived.payload_shapes import longest_mean
from algorithms.averaging import Counts
from algorithms.gram_matrix import Bool, Float
from algorithms.pfpl import personalise
from crypto.errors import CryptoError
from crypto.pairwise.attempt import Binding
from crypto.pairwise.masks import SCHEME as PAIRWISE
from crypto.pairwise.member_signatures import verify_signed_survivors
from crypto.protection import Payload, whole_numbers
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey, SumMembers
from secure_client.errors import Violation
from secure_client.exchanges.exchange import ExchangeParts
from secure_client.exchanges.groups import GroupExchange
from secure_client.protocol.secure_aggregation import Group
from secure_client.protocol.sent_values import Answer

_TERM = "term of the last sum"


@dataclass(frozen=True)
class PeerSum:
    """Sum over the ``members``: ``rows`` (K, d), and the number of ``holders`` (K,) of each class."""

    members: SumMembers
    rows: NDArray[np.float64]
    holders: Counts


class PeerSumExchange(GroupExchange):
    """Sums of a run over all sites, from each of which a member subtracts its own term."""

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        self._journal = parts.journal
        self._setup = parts.setup

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """Answer one of the steps of secure aggregation."""
        return self._masks.step(
            key, self._members.group_of_step(key, request), request, partial(self._vector, key)
        )

    def take_catch_up(self, key: PhaseKey, base: bytes, payload: Payload) -> None:
        """Set the targets from the sum of an earlier round, which this site missed."""
        summed = self._read(key.run, payload)
        if summed.members.round >= key.round:
            raise Violation(f"round {key.round} starts from a sum of round {summed.members.round}")
        self._take(key.round - 1, base, summed)

    def take_result(self, key: PhaseKey, base: bytes, payload: Payload) -> Bool:
        """Set the targets of later rounds: α of the site's prototypes plus 1 − α of the peers' mean."""
        summed = self._read(key.run, payload)
        self._check_attempt(key, summed.members)
        return self._take(key.round, base, summed)

    # Values sent

    def _vector(self, key: PhaseKey, group: Group) -> NDArray[np.float64]:
        """Return the prototypes (K·d,), zeros for classes withheld in the attempt, and keep them as rounded."""
        rows, _ = self._learner.train_round(key.round)
        holds = group.cohort.held_by(self._site)
        vector = np.where(holds[:, None], rows, 0.0).ravel()
        if not self._agreement.sends_rows(key.round):
            return vector  # zeros: the result repeats an earlier sum, whose term stays
        ring = self._agreement.fixed_point()
        rounded = ring.decode_sum(ring.encode(vector), 1).reshape(rows.shape)
        stored = {"rows": rounded, "holds": holds, "attempt": np.array([key.attempt])}
        self._journal.put(_TERM, key.round, safetensors.numpy.save(stored))
        return vector

    def _term(self, members: SumMembers) -> tuple[NDArray[np.float64], Bool]:
        """Return this site's term (K, d) of the sum, and the classes (K,) of which it has a row; zeros without one.

        The journal decides, not the coordinator alone: a site that sent no values in the attempt, or has sent
        prototypes in a later one since, subtracts nothing.
        """
        stored = self._journal.get(_TERM)
        if stored is not None and self._site in members.signed.sites:
            term = safetensors.numpy.load(stored[1])
            if (stored[0], int(term["attempt"][0])) == (members.round, members.attempt):
                return term["rows"], term["holds"]
        shape = (len(self._agreement.classes), self._agreement.dim)
        return np.zeros(shape), np.zeros(shape[0], dtype=np.bool_)

    # Results received

    def _take(self, round_number: int, base: bytes, summed: PeerSum) -> Bool:
        """Make a result the base of later rounds; return the classes (K,) that have a target."""
        nothing = np.zeros(0)
        if not self._learner.values.has_trained:  # the site has no prototypes to mix in yet
            given = np.zeros(len(summed.rows), dtype=np.bool_)
            self._learner.received.take_base(round_number, base, np.zeros_like(summed.rows), given, nothing)
            return given
        rows, held = self._learner.values.latest()
        given = np.asarray(held & (summed.holders > 0))
        # A class that the site does not hold keeps its own row, so that the sum of others' leaves no trace here.
        peers = np.where(given[:, None], self._peers(rows, summed), rows)
        targets = personalise(rows, peers, self._agreement.own_share)
        self._learner.received.take_base(round_number, base, targets, given, nothing)
        return given

    def _peers(self, rows: Float, summed: PeerSum) -> NDArray[np.float64]:
        """Return the mean of the peers (K, d), and the site's own row where the sum has no peer of it.

        The mean depends on the site's secret row, so that an implausible mean is shortened and never refused.
        """
        term, mine = self._term(summed.members)
        peers = np.asarray(summed.holders - mine)[:, None]
        means = (summed.rows - term) / np.maximum(peers, 1)
        longest = longest_mean(self._agreement)
        norms = np.linalg.norm(means, axis=1, keepdims=True)
        return np.where(peers > 0, means * (longest / np.maximum(norms, longest)), rows)

    # Checks, which depend on nothing secret

    def _check_attempt(self, key: PhaseKey, members: SumMembers) -> None:
        """Check that a result is its own attempt's sum, or in a round without prototypes an earlier one."""
        repeats = not self._agreement.sends_rows(key.round) and members.round < key.round
        if (members.round, members.attempt) != (key.round, key.attempt) and not repeats:
            raise Violation(
                f"the result of round {key.round}, attempt {key.attempt} is another attempt's sum"
            )

    def _read(self, run: str, payload: Payload) -> PeerSum:
        """Return the parts of a result whose form is checked; raise :class:`Violation` for an unacceptable result."""
        if payload.scheme != PAIRWISE:
            raise Violation(f"the result has scheme {payload.scheme!r}, but {PAIRWISE!r} is agreed")
        members = codec.decode_sum_members(payload.blobs[0], self._limits)
        vector, counts = payload.arrays
        rows, _ = self._layout.split(vector)
        try:
            summed = PeerSum(members, rows, whole_numbers(counts, len(members.signed.sites) + 1))
        except CryptoError as error:
            raise Violation(f"the number of holders of a class is refused: {error}") from error
        self._check_plausible(summed)
        self._check_members(run, members)
        self._check_as_listed(run, summed)
        return summed

    def _check_plausible(self, summed: PeerSum) -> None:
        holders, least = summed.holders, self._agreement.min_holders
        if ((holders > 0) & (holders < least)).any():
            raise Violation(f"a class is summed over fewer holders than min_holders = {least}")
        if (np.linalg.norm(summed.rows, axis=1) > holders * longest_mean(self._agreement)).any():
            raise Violation("the sum of a class is longer than its holders' norm bounds together")

    def _check_members(self, run: str, members: SumMembers) -> None:
        """Check the signatures on the members, which a site can do that took no part in the attempt."""
        roster = self._setup.roster()
        least = max(self._agreement.min_sites, min_group_size(self._agreement, len(roster.members)))
        if len(members.listed) < least:
            raise Violation(
                f"the sum's attempt lists {len(members.listed)} sites, at least {least} are required"
            )
        signatures = {signature.site: signature.signature for signature in members.signed.signatures}
        try:
            binding = Binding(
                run,
                members.round,
                members.attempt,
                roster.hash,
                self._agreement.hash(),
                members.listed,
                members.base,
            )
            verify_signed_survivors(signatures, roster.members, binding, members.signed.sites)
        except CryptoError as error:
            raise Violation(f"the members of round {members.round}'s sum are refused: {error}") from error

    def _check_as_listed(self, run: str, summed: PeerSum) -> None:
        """Check the result against the attempt's list, which a site has that took part in the attempt.

        A sum from another base than the site's present one is an earlier sum, which was checked when it came. The
        coordinator cannot state another base, since the members signed it.
        """
        members = summed.members
        key = PhaseKey(run, members.round, members.attempt, Phase.SHARES)
        if members.base != self._learner.received.base_hash or not self._journal.request(key):
            return
        cohort = self._members.accepted_group(key).cohort
        staying = np.isin(cohort.sites, members.signed.sites)
        if members.listed != cohort.sites:
            raise Violation("the result is the sum of an attempt with other sites")
        if not np.array_equal(cohort.holds[staying].sum(axis=0), summed.holders):
            raise Violation("the result has other numbers of holders than the sum's members stated")
