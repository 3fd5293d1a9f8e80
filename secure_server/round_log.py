"""Log of a run for the coordinator's operator: a line for each event, and a JSON record for each round."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from agreement import Agreement
from agreement.derived.cohorts import cohort_of, group_cohort
from secure_server.exchanges.exchange import Attempt, GroupFailure
from secure_server.rounds import machine
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import Groups, RoundStage, State
from secure_server.rounds.task_assignment import missing_sites

_log = logging.getLogger("protoseal.coordinator")
_REMINDER_SECONDS = 60.0


@dataclass(frozen=True)
class CoordinatorRound:
    """Record of a round. Seconds count from the start of this process at the earliest.

    ``sites`` took part in the last attempt (none, if the round ended before), by ``groups`` where there are any;
    ``withheld`` names the classes that had too few holders (in every group). ``abandoned`` rounds ended without a
    result; ``without`` names the sites whose group alone had none. A coordinator that was killed just after it
    reported a round reports the round once more.
    """

    round: int
    attempt: int
    sites: tuple[str, ...]
    withheld: tuple[str, ...]
    aggregate_seconds: float
    total_seconds: float
    groups: Groups = ()
    abandoned: bool = False
    without: tuple[str, ...] = ()


def withheld_classes(attempt: Attempt, agreement: Agreement) -> tuple[str, ...]:
    """Return the classes withheld in every group because too few participants state them.

    The result is None if the attempt has no participants.
    """
    if not attempt.sites:
        return ()
    if attempt.groups:
        cohorts = [group_cohort(attempt.active, group, agreement) for group in attempt.groups]
    else:
        cohorts = [cohort_of(attempt.active, agreement)]
    counts = np.sum([cohort.counts for cohort in cohorts], axis=0)
    return tuple(name for name, holders in zip(agreement.classes, counts, strict=True) if not holders)


class RoundReports:
    """Reports of ended rounds to ``on_round``, with the seconds of each round and of its aggregation."""

    def __init__(self, agreement: Agreement, on_round: Callable[[CoordinatorRound], None]) -> None:
        self._agreement = agreement
        self._on_round = on_round
        self._compute_began = time.perf_counter()
        self.begin_round()

    def begin_round(self) -> None:
        """Count the seconds of a round from now on."""
        self._round_began = time.perf_counter()
        self._compute_seconds = 0.0

    def begin_aggregation(self) -> None:
        """Count the seconds of a part of the aggregation from now on."""
        self._compute_began = time.perf_counter()

    def end_aggregation(self) -> None:
        """Add the seconds since :meth:`begin_aggregation` to the round's."""
        self._compute_seconds += time.perf_counter() - self._compute_began

    def report(self, ended: State, attempt_of: Callable[[State], Attempt], *, abandoned: bool) -> None:
        """Report the round that ``ended``; errors are logged and stop nothing."""
        try:
            self._on_round(self._figures(ended, attempt_of(ended), abandoned))
        except Exception:  # a log that cannot be written must not end the run
            _log.exception("round %d could not be reported", ended.round)

    def _figures(self, ended: State, attempt: Attempt, abandoned: bool) -> CoordinatorRound:
        return CoordinatorRound(
            round=ended.round,
            attempt=ended.attempt,
            sites=ended.participants,
            withheld=withheld_classes(attempt, self._agreement),
            aggregate_seconds=self._compute_seconds,
            total_seconds=time.perf_counter() - self._round_began,
            groups=attempt.groups,
            abandoned=abandoned,
            without=ended.excluded_from_result,
        )


class WaitLog:
    """Writer of the line on which sites the run waits for, and until when: on a change, then once a minute."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._said: object = None
        self._said_at = -math.inf

    def note(self, state: State, now: float) -> None:
        """Write the line if it is due. Call this after each step and a few times a second."""
        waits_for = state.joined if state.stage is RoundStage.JOINING else state.empty_until
        here = (state.stage, state.round, state.attempt, state.setup_attempt, waits_for)
        if state.over or (here == self._said and now - self._said_at < _REMINDER_SECONDS):
            return
        self._said = here
        self._said_at = now
        _log.info("%s", _describe_wait(self._rules, state, now))


def _describe_wait(rules: Rules, state: State, now: float) -> str:
    if state.empty_until is not None:
        gone = _list(state.members)
        return (
            f"every site has left or is silent: waiting for one of {gone} (the run stops in "
            f"{_format_time_left(state.empty_until, now)})"
        )
    missing = _list(missing_sites(rules, state)) or "nobody"
    deadline = f"(deadline in {_format_time_left(state.deadline, now)})"
    match state.stage:
        case RoundStage.JOINING:
            return f"waiting for sites to join: missing {missing} {deadline}"
        case RoundStage.SETUP:
            return f"waiting for the set-up: missing {missing} {deadline}"
        case RoundStage.PLANNING | RoundStage.COMPUTING:
            return f"the coordinator is working on {state.stage.name} of round {state.round} {deadline}"
        case _:
            return f"waiting for {state.stage.name} of round {state.round}: missing {missing} {deadline}"


def _format_time_left(until: float, now: float) -> str:
    return f"{max(0.0, until - now):.0f} s"


def log_progress(agreement: Agreement, before: State, after: State) -> None:
    """Log the stage of the run, and the sites that it waits for or leaves out."""
    if after.reason and after.reason != before.reason:
        _log.warning("%s", after.reason)
    left_out = _sites_left_out(after) - _sites_left_out(before)
    if left_out:
        _log.warning("round %d: continuing without %s", after.round, _list(left_out))
    if len(after.survivors) > len(before.survivors):
        _log_dropped(before, after)
    if agreement.repeats_rows(before.round) and machine.abandons(before, after):
        _log_spent_rows(agreement, before.round)
    if after.stage is not before.stage or after.attempt != before.attempt:
        _log.info("%s: round %d, attempt %d", after.stage.name, after.round, after.attempt)
    if after.stage is RoundStage.PLANNING and before.stage is RoundStage.PRESENCE:
        _log_sitting_out(before, after)
    if after.groups != before.groups:
        _log_groups(before, after)
        _log_fewer_groups(after, agreement)


def _sites_left_out(state: State) -> frozenset[str]:
    return state.absent | state.benched | state.left


def log_failures(state: State, failures: Iterable[GroupFailure]) -> None:
    """Log the groups that get no result of a round, with the reasons; sites are not notified."""
    for failure in failures:
        group = _list(failure.group)
        _log.error("round %d: no result for the group of %s: %s", state.round, group, failure.why)
        for suspicion in failure.suspicions:
            _log.error("round %d: suspicion: %s", state.round, suspicion)


def _log_dropped(before: State, after: State) -> None:
    over = after.survivors[-1]
    dropped = set(before.step_sites) - set(over.sites)
    if dropped:
        _log.warning("round %d: %s dropped out in %s", after.round, _list(dropped), over.phase.name)


def _log_spent_rows(agreement: Agreement, round_number: int) -> None:
    """Log that prototypes that cannot change were asked for in a round without a result, and are not sent again."""
    following = round_number + agreement.row_period
    _log.warning(
        "round %d was abandoned: prototypes come again in %s, and results have earlier ones or none until then",
        round_number,
        f"round {following}" if following <= agreement.rounds else "no later round of this run",
    )


def _log_sitting_out(before: State, after: State) -> None:
    sitting_out = before.answered - after.absent - after.left - set(after.participants)
    if sitting_out:
        _log.warning(
            "round %d: %s sit out, because too few members of their group are present",
            after.round,
            _list(sitting_out),
        )


def _log_groups(before: State, after: State) -> None:
    for number, group in enumerate(after.groups, start=1):
        _log.info("group %d: %s", number, ", ".join(group))
    unknown = set(after.members) - set(before.participants)
    if (
        unknown and before.participants
    ):  # after a clustering; a common group exists before any site takes part
        _log.warning("sites absent from the clustering join the largest group: %s", _list(unknown))


def _log_fewer_groups(after: State, agreement: Agreement) -> None:
    """Log that there are fewer groups than agreed: small groups are merged, and few sites are never divided."""
    agreed, made = agreement.fedpc.groups, len(after.groups)
    if agreed is not None and made < agreed:
        _log.warning(
            "groups = %d is agreed, but %d formed from %d sites, because each group needs "
            "min_holders = %d sites or more%s",
            agreed,
            made,
            sum(map(len, after.groups)),
            agreement.min_holders,
            "; a single group is mixed with no other group" if made == 1 else "",
        )


def is_reported(before: State, after: State) -> bool:
    """Return True if the round of ``before`` has just ended, with or without a result."""
    ended = before.stage is RoundStage.RESULT and after.stage is not RoundStage.RESULT
    return ended or machine.abandons(before, after)


def _list(sites: Iterable[str]) -> str:
    return ", ".join(sorted(sites))
