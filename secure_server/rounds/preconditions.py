"""Refusals of the coordinator, one check each."""

from __future__ import annotations

from collections.abc import Set

from protoseal_wire.messages import PROTOCOL_VERSION, PhaseKey
from secure_server.errors import JoinClosed, NotJoined, NotOnRoster, WrongPhase, WrongProtocol
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import Groups, Stage, State
from secure_server.rounds.task_assignment import task_for


def check_protocol(site: str, protocol: int) -> None:
    """Raise :class:`WrongProtocol` for a site that speaks another version than this build."""
    if protocol != PROTOCOL_VERSION:
        raise WrongProtocol(
            f"{site} speaks protocol {protocol}, this coordinator {PROTOCOL_VERSION}: install the "
            "same release"
        )


def check_on_roster(rules: Rules, site: str) -> None:
    """Raise :class:`NotOnRoster` unless the coordinator's file names the site."""
    if site not in rules.roster:
        raise NotOnRoster(
            f"{site} is not on the list of sites of this run: ask the coordinator's operator to "
            "add it before the next run"
        )


def may_join(rules: Rules, state: State, site: str) -> bool:
    """Return whether a site of the roster may join, for the first time or again.

    A site that is not a member is admitted until the set-up is over, while one more attempt of the set-up may fail:
    the last attempt is for the present members.
    """
    if not state.members or site in state.members:
        return True
    return not state.setup_complete and not state.over and state.failures + 1 < rules.max_attempts


def check_may_join(rules: Rules, state: State, site: str) -> None:
    """Raise :class:`JoinClosed` if the run continues without the site."""
    if not may_join(rules, state, site):
        how = "ended" if state.over else "continues"
        raise JoinClosed(f"run {state.run} {how} without {site}: it can join the next run")


def check_joined(rules: Rules, state: State, site: str) -> None:
    """Raise :class:`NotJoined` unless the site has joined and not left since.

    Raises :class:`NotOnRoster`, and :class:`JoinClosed` for a site that the set-up left out and no longer admits.
    """
    check_on_roster(rules, site)
    if site not in state.joined:
        raise NotJoined(f"{site} has not joined run {state.run}, or has left: join first")
    check_may_join(rules, state, site)


def check_expected(rules: Rules, state: State, site: str, key: PhaseKey) -> None:
    """Raise :class:`WrongPhase` unless ``key`` is the site's current task."""
    task = task_for(rules, state, site)
    if key != task:
        current = _name(task) if task else f"none ({state.stage})"
        raise WrongPhase(f"{_name(key)} is not the current task of {site}, which is {current}")


def check_planning(state: State) -> None:
    """Raise :class:`WrongPhase` unless a plan is due: quorums are settled once, before a step is asked."""
    if state.stage is not Stage.PLANNING:
        raise WrongPhase(f"no plan is due in stage {state.stage}")


def check_computing(state: State, *others: Stage) -> None:
    """Raise :class:`WrongPhase` unless a result, the round's only one, is due or is one of the ``others``."""
    if state.stage not in (Stage.COMPUTING, *others):
        raise WrongPhase(f"no result is due in stage {state.stage}")


def check_groups_due(state: State, groups: Groups) -> None:
    """Raise ``ValueError`` unless groups come from a clustering and from nothing else; groups are then fixed."""
    if bool(groups) != (state.round == 0):
        raise ValueError(f"round {state.round} {'sets' if groups else 'must set'} the groups")


def check_excluded(state: State, excluded: Set[str]) -> None:
    """Raise ``ValueError`` unless those without a result are some of the participants, and not all of them."""
    if excluded and not excluded < set(state.participants):
        raise ValueError("sites without a result must be participants, but not all of them")


def _name(key: PhaseKey) -> str:
    return f"{key.phase.name} of round {key.round}, attempt {key.attempt}, run {key.run}"
