"""Order of phases at a site: the rules on which phase may follow which.

The checks read only the journal and the agreement, so a restart changes no outcome.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from agreement import Agreement
from agreement.derived.cohorts import first_round, has_result, steps_of
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.errors import Violation
from secure_client.protocol.journal import Journal

_log = logging.getLogger("protoseal.site")


class PhaseOrder:
    """Rules on the order of phases. A check that fails raises :class:`Violation`."""

    def __init__(self, agreement: Agreement, journal: Journal) -> None:
        self._agreement = agreement
        self._journal = journal

    def check_run(self, key: PhaseKey) -> None:
        """Check that the phase is of this site's run."""
        if key.run != self._agreement.run:
            raise Violation(
                f"the coordinator asked for run {key.run}, but this site takes part in {self._agreement.run}"
            )

    def check(self, key: PhaseKey) -> None:
        """Check every rule for a phase that has no answer yet."""
        if key.phase in (Phase.ROSTER, Phase.SECRET):
            self._check_set_up(key)
        elif key.phase is Phase.PRESENCE:
            self._check_presence(key)
        else:
            self._check_step(key)

    def _check_set_up(self, key: PhaseKey) -> None:
        if key.round != 0:
            raise Violation(f"{key.phase.name} belongs to round 0, not {key.round}")
        # A new roster means a new group secret, under which finished rounds could be repeated.
        if self._journal.latest(Phase.PRESENCE) is not None:
            raise Violation(f"{key.phase.name} (attempt {key.attempt}) came after the first round had begun")
        # A roster replaces only an earlier roster, and a secret belongs to the current roster.
        last = self._journal.latest(Phase.ROSTER)
        begun = last.attempt if last is not None else 0
        if key.attempt <= begun if key.phase is Phase.ROSTER else key.attempt != begun:
            raise Violation(f"{key.phase.name} of set-up attempt {key.attempt} came in attempt {begun}")

    def _check_presence(self, key: PhaseKey) -> None:
        if not first_round(self._agreement) <= key.round <= self._agreement.rounds:
            raise Violation(f"round {key.round} is not one of the agreed {self._agreement.rounds}")
        # Going back to an attempt would send the same values among other members: two sums that differ by one site.
        last = self._journal.latest(Phase.PRESENCE)
        if last is not None and (key.round, key.attempt) <= (last.round, last.attempt):
            raise Violation(
                f"round {key.round}, attempt {key.attempt} is not after {last.round}, {last.attempt}"
            )
        # Two sums over the same inputs reveal a site's values. Whether the coordinator asks other sites alone for a
        # second sum is for the exchange to check.
        unmasked = self._journal.latest(Phase.UNMASK)
        if unmasked is not None and key.round <= unmasked.round:
            _log.error("the coordinator asked for round %d again after its sum was unmasked", key.round)
            raise Violation(
                f"shares of round {unmasked.round} were released; a second sum of that round could be subtracted"
            )
        result = self._journal.latest(Phase.RESULT)
        if result is not None and key.round <= result.round:
            raise Violation(f"round {key.round} has had its result; a second result could be subtracted")

    def _check_step(self, key: PhaseKey) -> None:
        # Two attempts that went on side by side would open two sums over one training.
        begun = self._journal.latest(Phase.PRESENCE)
        if begun is None or (begun.round, begun.attempt) != (key.round, key.attempt):
            raise Violation(
                f"{key.phase.name} of round {key.round}, attempt {key.attempt} is not the current attempt"
            )
        steps = (Phase.PRESENCE, *steps_of(self._agreement, key.round))
        if key.phase is Phase.RESULT and has_result(key.round):
            # The result of a masked sum also goes to a site that dropped out after PRESENCE.
            before = Phase.VALUES if steps[1:] == (Phase.VALUES,) else Phase.PRESENCE
        else:
            # A result ends the attempt, also at a site that dropped out and answered none of its steps.
            if self._journal.has_answered(replace(key, phase=Phase.RESULT)):
                raise Violation(f"{key.phase.name} came after the result of round {key.round}")
            if key.phase not in steps:
                raise Violation(f"round {key.round} has no {key.phase.name} under this agreement")
            before = steps[steps.index(key.phase) - 1]
        if not self._journal.has_answered(replace(key, phase=before)):
            raise Violation(f"{key.phase.name} came before {before.name}")
