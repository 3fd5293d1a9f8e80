"""Assignment of tasks, the step that each site is asked in each stage, and the refusals of every other call."""

from __future__ import annotations

from collections.abc import Set

from protoseal_wire.messages import PROTOCOL_VERSION, PhaseKey
from secure_server.errors import JoinClosed, NotJoined, NotOnRoster, WrongPhase, WrongProtocol
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import Groups, RoundStage, State


def task_for(rules: Rules, state: State, site: str) -> PhaseKey | None:
    """Return the step that ``site`` is to answer now; None if it has to wait, or the run is ``over``.

    A member that was late in the set-up is still given its ROSTER and SECRET in any later stage. A site that left the
    current attempt and is back waits for the attempt's RESULT, or for the next attempt. After the run has finished,
    the last round's RESULT can still be fetched.
    """
    # The last result can be fetched after the end: a site that was down then would lose its last round.
    if state.stage is RoundStage.FINISHED:
        return state.result_key if site in late_sites(state) & state.joined else None
    if state.over or site not in state.joined or site not in state.members:
        return None
    # The set-up comes first even in a later stage: a member that has not verified the roster answers nothing else.
    if site not in state.verified:
        return state.roster_key
    if site not in ready_sites(rules, state):
        return state.secret_key if state.maker in state.verified else None
    asked = (
        presence_sites(rules, state) if state.stage is RoundStage.PRESENCE else reachable_step_sites(state)
    )
    return state.asked_key if site in asked - state.answered else None


def late_sites(state: State) -> frozenset[str]:
    """Return the sites that there is a last result for and that have not acknowledged it, in a finished run."""
    if state.stage is not RoundStage.FINISHED or state.last_result != state.round:
        return frozenset()
    return frozenset(state.participants) - set(state.excluded_from_result) - state.answered


def presence_sites(rules: Rules, state: State) -> frozenset[str]:
    """Return the members that the attempt asks for PRESENCE: all that are set up, except benched ones and leavers."""
    return ready_sites(rules, state) - state.benched - state.left


def reachable_step_sites(state: State) -> frozenset[str]:
    """Return the sites that the current step can be asked of: those that left the attempt get its result alone."""
    asked = frozenset(state.step_sites)
    # Sites that left have erased the attempt's secrets; a result needs none of them.
    return asked if state.stage is RoundStage.RESULT else asked - state.left


def missing_sites(rules: Rules, state: State) -> frozenset[str]:
    """Return the sites that the current stage waits for; none where it waits for no site."""
    match state.stage:
        case RoundStage.JOINING:
            return frozenset(rules.roster) - state.joined
        case RoundStage.SETUP:
            return frozenset(state.members) - ready_sites(rules, state)
        case RoundStage.PRESENCE:
            # A site that answered and is gone since will not answer the steps that follow.
            return presence_sites(rules, state) - (state.answered - state.absent)
        case RoundStage.PLANNING | RoundStage.COMPUTING | RoundStage.FINISHED | RoundStage.STOPPED:
            return frozenset()
        case _:
            return reachable_step_sites(state) - state.answered


def sites_of_able_groups(rules: Rules, state: State, sites: Set[str]) -> frozenset[str]:
    """Return those of ``sites`` that could complete a round: all, or with groups the members of groups that can."""
    if not state.groups:
        return frozenset(sites)
    return frozenset().union(
        *(sites & set(group) for group in state.groups if _is_able_group(rules, state, group, sites))
    )


def _is_able_group(rules: Rules, state: State, group: tuple[str, ...], sites: Set[str]) -> bool:
    """Return True if the group's present members suffice, for its size and for what its members sent in the round.

    The sites that can be in a sum of this attempt and not in an earlier attempt's, or the reverse, must be too few to
    open either sum: two sums over the same values could be subtracted.
    """
    if len(sites & set(group)) < rules.min_group_size(len(state.members)):
        return False
    return all(quorum.met_by(sites) for quorum in state.unmask_commitments if quorum.sites <= set(group))


def ready_sites(rules: Rules, state: State) -> frozenset[str]:
    """Return the members that verified the roster and, where there is a group secret, hold the secret."""
    if not rules.needs_secret:
        return state.verified
    return state.verified & (state.key_holders | set(state.members[:1]))


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
    # A newcomer means another roster, which every member verifies in another attempt of the set-up.
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
    if state.stage is not RoundStage.PLANNING:
        raise WrongPhase(f"no plan is due in stage {state.stage}")


def check_computing(state: State, *others: RoundStage) -> None:
    """Raise :class:`WrongPhase` unless a result, the round's only one, is due or is one of the ``others``."""
    if state.stage not in (RoundStage.COMPUTING, *others):
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
