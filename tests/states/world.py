"""One run of the real coordinator and the real sites under a plan of faults, with a clock that the plan drives.

A run is a function of its federation and its plan, up to the randomness of keys, masks and noise. Training is replaced
by a step that never comes out twice the same, so that what is trained or drawn again shows.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import torch

import secure_client.trainee
from protoseal_wire.messages import Finished, PhaseKey
from secure_client import errors, runner
from secure_client.errors import PrivacyError, RolledBackError, SiteError, Unreachable
from secure_client.privacy.chain import Anchor
from secure_client.privacy.entries import Spending
from secure_client.privacy.ledger import Ledger
from secure_client.privacy.query import PrototypeQuery
from secure_client.retry import FINAL
from secure_client.training import Job, Losses
from secure_server.run_state import Stage, State
from secure_server.status import status_of
from secure_server.store import Store
from tests.states.disks import Disk, Extent, watched
from tests.states.faults import CALLS, COORDINATOR, OLDER_STATE, TIMED, Fault, Kind, Plan
from tests.states.federations import Cast
from tests.states.invariants import Monitor, Promise, Violation
from tests.states.parties import KEYS, LEDGER, SECONDS, CoordinatorProcess, SiteProcess
from tests.states.strands import Killed

R = TypeVar("R")
_TURNS = 1000
_AWAY = 3
"""Turns until a party that died by a fault of a write, or of its own, is started again."""
_PATIENCE = 3
"""Turns in which nobody has anything to do, after which the clock jumps to the next deadline."""
_RESUMES = 3
"""How often an operator starts a run again that has stopped."""
_SLOW = 0.3
"""How often a site does nothing in a turn, where the order is drawn."""
_NO_RESULT = "no round of the run had a result"
_LEFT_OUT = "it can join the next run"


class DiskFull(OSError):
    """A write that failed by a plan."""


@dataclass
class Ending:
    """How a run came out."""

    stage: Stage
    reason: str
    turns: int
    violations: list[Violation]
    unused: int
    """Faults of the plan that nothing came of: the run had ended, or what they were to hit never came."""
    states: set[int] = field(repr=False, default_factory=set)
    left_out: tuple[str, ...] = ()


class World:
    """The coordinator, the sites and what is between them."""

    def __init__(self, cast: Cast, plan: Plan, root: Path) -> None:
        self.cast, self.turn, self.now = cast, 0, 0.0
        self._plan, self._left = plan, list(plan.faults)
        self._rng = random.Random(plan.order)  # noqa: S311 (the order of a test's steps, to be repeated)
        self.numbers = np.random.default_rng(plan.order)
        self.monitor = Monitor(cast)
        self._root = root
        self._writes: dict[str, int] = {}
        self._later: list[tuple[int, Callable[[], object]]] = []
        self._resumes = _RESUMES
        self._states: set[int] = set()
        self._left_out: set[str] = set()
        self._before: tuple[State, bool] | None = None
        self._acting = ""
        self._injured = False
        self._keeps_older = any(fault.kind in OLDER_STATE for fault in plan.faults)
        background = plan.order % 2 == 1
        self._coordinator = CoordinatorProcess(self, Disk(root / COORDINATOR), background=background)
        self._sites = [
            SiteProcess(self, party, Disk(root / party.name), self._coordinator) for party in cast.parties
        ]
        self._by_name = {site.name: site for site in self._sites}

    # The turns

    def run(self) -> Ending:
        """Turn after turn until the run has ended for everyone, or too many have passed."""
        try:
            idle = 0
            for self.turn in range(_TURNS):
                self.now += 0.001
                self._timed_faults()
                worked = self._turn()
                idle = 0 if worked else idle + 1
                if self._is_over(idle):
                    return self._ending()
                if idle > _PATIENCE and self._coordinator.is_up:
                    self._expire()
            self.monitor.broken(Promise.ENDS, f"the run goes on after {_TURNS} turns")
            return self._ending()
        finally:
            for site in self._sites:
                site.kill(0)
            if self._coordinator.is_up:
                self._coordinator.kill(0)

    def _turn(self) -> bool:
        """Let everyone act; whether anyone had anything to do."""
        if not self._coordinator.is_up:
            if self.turn >= self._coordinator.back_at:
                self._start_coordinator()
            return True
        self._deliver_late()
        order = list(self._sites)
        if self._plan.order:
            self._rng.shuffle(order)
        worked = False
        for site in order:
            slow = bool(self._plan.order) and self._rng.random() < _SLOW
            worked |= (site.is_up and not site.idle) if slow else self._step(site)
        self._tick()
        self._states.add(self._fingerprint())
        return worked or not self._coordinator.is_up

    def _step(self, site: SiteProcess) -> bool:
        if site.gone or site.outcome is not None or site.paused_until > self.turn or site.is_given_up:
            return False
        if not site.is_up:
            if self.turn < site.back_at:
                return False
            site.start()
        self._acting = site.name
        error = site.step()
        if error is not None:
            self._after_death(site, error)
        return not site.idle

    def _after_death(self, site: SiteProcess, error: BaseException) -> None:
        self.monitor.died(site.name)
        if isinstance(error, Killed):
            site.died(self.turn + _AWAY)
            return
        site.ended(self.turn + (site.away if site.injured else _AWAY))
        if isinstance(error, Unreachable):
            return
        if isinstance(error, errors.Violation) and site.last is not None:
            self.monitor.refused(site.name, site.last)
        self.monitor.left(site.name, disk_failed=site.disk_failed)
        if site.injured:
            return
        if _LEFT_OUT in str(error):
            site.gone = True
            self._left_out.add(site.name)
            return
        if isinstance(error, RolledBackError) and site.name in self.monitor.older:
            return
        self.monitor.broken(Promise.NO_REFUSAL, f"{site.name}: {type(error).__name__}: {error}")

    def _tick(self) -> None:
        if not self._coordinator.is_up:
            return
        self._acting = COORDINATOR
        try:
            if self._coordinator.jobs is not None:
                self._coordinator.jobs.run_one()
            self._coordinator.handler.tick()
        except Killed:
            self._coordinator.kill(self.turn + _AWAY)
        except Exception as error:
            if not self._injured:
                self.monitor.broken(Promise.NO_REFUSAL, f"the coordinator's process ends: {error!r}")
            self._coordinator.kill(self.turn + _AWAY)
        self._injured = False

    def _start_coordinator(self) -> None:
        self._acting = COORDINATOR
        try:
            self._coordinator.start()
        except Killed:
            self._coordinator.kill(self.turn + _AWAY)
        except Exception as error:
            if not self._injured:
                self.monitor.broken(Promise.NO_REFUSAL, f"the coordinator does not start: {error!r}")
            self._coordinator.kill(self.turn + _AWAY)
        self._injured = False

    def _expire(self) -> None:
        """The clock jumps beyond the deadline."""
        self.now = max(self.now, self._state.deadline) + SECONDS
        self._tick()

    @property
    def _state(self) -> State:
        return self._coordinator.handler.state

    # The end

    def _is_over(self, idle: int) -> bool:
        if not self._coordinator.is_up or not self._state.over:
            return False
        waiting = [site for site in self._alive if site.outcome is None and not site.is_given_up]
        if waiting and idle <= 10 * _PATIENCE:
            return False
        return not (self._state.stage is Stage.STOPPED and self._start_all_again())

    def _start_all_again(self) -> bool:
        """What operators do with a run that stopped; whether they do."""
        can = len(self._alive) >= self.cast.agreement.min_sites and not self._state.reason.startswith(
            _NO_RESULT
        )
        if not can or not self._resumes:
            return False
        self._resumes -= 1
        self._coordinator.kill(self.turn + 1)
        for site in self._alive:
            if site.is_up:
                site.kill(self.turn + 2)
            else:
                self.monitor.left(site.name, disk_failed=site.disk_failed)
            site.outcome, site.starts, site.back_at = None, 0, self.turn + 2
        return True

    @property
    def _alive(self) -> list[SiteProcess]:
        return [site for site in self._sites if not site.gone]

    def _ending(self) -> Ending:
        state = self._state if self._coordinator.is_up else None
        if state is not None and state.over:
            self._check_ending(state)
        stage, reason = (Stage.STOPPED, "down") if state is None else (state.stage, state.reason)
        unused, left_out = len(self._left), tuple(sorted(self._left_out))
        return Ending(stage, reason, self.turn, self.monitor.violations, unused, self._states, left_out)

    def _check_ending(self, state: State) -> None:
        finished = {
            site.name: (site.result, b"" if site.trainee is None else site.trainee.base)
            for site in self._alive
            if isinstance(site.outcome, Finished)
        }
        if state.stage is Stage.FINISHED:
            self.monitor.finished(state, finished)
        for site in self._alive:
            if site.outcome is None:
                self.monitor.broken(Promise.ENDS, f"{site.name} did not end though the run is {state.stage}")
        if state.stage is Stage.STOPPED and not state.reason:
            self.monitor.broken(Promise.ENDS, "the run stopped and does not say why")
        enough = len(self._alive) >= self.cast.agreement.min_sites
        if state.stage is Stage.STOPPED and enough and _NO_RESULT not in state.reason:
            self.monitor.broken(Promise.ENDS, f"stopped with enough healthy sites: {state.reason}")

    def _fingerprint(self) -> int:
        """A number for where everything is; times and contents are left out."""
        sites = tuple(
            (site.is_up, site.gone, site.outcome is None, site.idle, site.last) for site in self._sites
        )
        if not self._coordinator.is_up:
            return hash((None, sites, len(self._later)))
        state = self._state
        where = (
            *(
                state.stage,
                state.round,
                state.attempt,
                state.failures,
                state.setup_attempt,
                state.participants,
            ),
            *(
                frozenset(state.absent),
                frozenset(state.benched),
                frozenset(state.joined),
                frozenset(state.answered),
            ),
            tuple((each.phase, each.sites) for each in state.survivors),
        )
        return hash((where, sites, len(self._later)))

    # Faults

    def _take(self, fault: Fault) -> None:
        self._left.remove(fault)

    def _due(self, kinds: tuple[Kind, ...], who: str, at: int) -> Fault | None:
        for fault in self._left:
            if fault.kind in kinds and fault.who == who and fault.at == at:
                self._take(fault)
                return fault
        return None

    def _timed_faults(self) -> None:
        for fault in [each for each in self._left if each.kind in TIMED and each.at == self.turn]:
            self._take(fault)
            if fault.kind is Kind.EXPIRED:
                if self._coordinator.is_up:
                    self._expire()
            elif fault.who == COORDINATOR:
                self._hit_coordinator(fault)
            else:
                self._hit_site(self._by_name[fault.who], fault)

    def _hit_coordinator(self, fault: Fault) -> None:
        if not self._coordinator.is_up:
            return
        if fault.kind is Kind.SPOILT:
            self._coordinator.disk.halve(KEYS)
        if fault.kind is Kind.PUT_BACK and self._coordinator.disk.put_back():
            self.monitor.older.add(COORDINATOR)
        self._coordinator.kill(self.turn + fault.length)

    def _hit_site(self, site: SiteProcess, fault: Fault) -> None:
        if fault.kind is Kind.PAUSED:
            site.paused_until = self.turn + fault.length
            return
        if fault.kind is Kind.GONE:
            site.gone = True
        if site.outcome is not None or not site.is_up:
            return
        if fault.kind is Kind.PUT_BACK and site.disk.put_back():
            self.monitor.older.add(site.name)
        if fault.kind is Kind.LINE_LOST and site.disk.cut(LEDGER, lines=1):
            self.monitor.older.add(site.name)
        site.kill(self.turn + fault.length)
        self.monitor.died(site.name)

    # The network, as parties see it

    def delivered(self, site: SiteProcess, call: Callable[[], R]) -> R | None:
        """See :class:`tests.states.parties.Surroundings`, here and below."""
        number = site.calls
        site.calls += 1
        fault = self._due(CALLS, site.name, number)
        kind = None if fault is None else fault.kind
        if kind is Kind.UNREACHABLE:
            raise Unreachable("the site gives up by its plan")
        if fault is not None and kind in (Kind.TWICE, Kind.LATE):
            self._later.append((self.turn + fault.length, call))
        if kind in (Kind.NOT_SENT, Kind.LATE):
            return None
        reply = self._called(call)
        return None if kind is Kind.NO_REPLY else reply

    def _called(self, call: Callable[[], R]) -> R | None:
        """The reply; None where the coordinator is down, dies of the call, or is in trouble of its own."""
        if not self._coordinator.is_up:
            return None
        acting, self._acting = self._acting, COORDINATOR
        try:
            return call()
        except Killed:
            self._coordinator.kill(self.turn + _AWAY)
            return None
        except Exception as error:
            self._refuse(error)
            return None
        finally:
            self._acting, self._injured = acting, False

    def _refuse(self, error: Exception) -> None:
        status = status_of(error)
        if status is None and not self._injured:
            self.monitor.broken(Promise.NO_REFUSAL, f"the coordinator fails inside a call: {error!r}")
        if status is not None and status in FINAL:
            raise FINAL[status](f"the coordinator refused: {error}") from error

    def _deliver_late(self) -> None:
        due = [each for each in self._later if each[0] <= self.turn]
        self._later = [each for each in self._later if each[0] > self.turn]
        for _, call in due:
            with suppress(PrivacyError, SiteError):  # nobody waits for the reply any more
                self._called(call)

    def answering(self, site: SiteProcess, key: PhaseKey, request: bytes) -> None:
        number = site.answers
        site.answers += 1
        site.last = key
        self.monitor.asked(site.name, key, request)
        error = self._due((Kind.ERROR,), site.name, number)
        if error is not None:
            site.injured, site.away = True, error.length
            raise DiskFull("an error of the site's own, by its plan")

    def leaving(self, site: SiteProcess, key: PhaseKey, content: bytes) -> None:
        self.monitor.leaves(site.name, key, content, site.disk.folder / LEDGER, site.deaths)

    def arriving(self, site: SiteProcess, key: PhaseKey) -> None:
        store = self._coordinator.store
        new = store is not None and store.upload_hash(key, site.name) is None
        self._before = self._state, new

    def taken(self, site: SiteProcess, key: PhaseKey) -> None:
        if self._before is not None and self._before[1]:
            self.monitor.taken(site.name, key, self._before[0])

    def acknowledged(self, site: SiteProcess, key: PhaseKey) -> None:
        self.monitor.acknowledged(site.name, key, b"" if site.trainee is None else site.trainee.base)

    def opened(self, site: SiteProcess, result: int, base: bytes) -> None:
        self.monitor.restarted(site.name, result, base)

    def restored(self, store: Store) -> None:
        self.monitor.restored(store)

    # The disks, as :class:`tests.states.disks.Watcher` says

    def writing(self, path: Path) -> None:
        owner = self._owner(path)
        number = self._writes[owner] = self._writes.get(owner, 0) + 1
        if self._keeps_older:
            self._disk(owner).remember()
        if self._due((Kind.BEFORE,), owner, number) is not None:
            self._die(owner)
        if self._due((Kind.FULL,), owner, number) is not None:
            self._injured = True
            if owner in self._by_name:
                self._by_name[owner].injured = True
                self._by_name[owner].disk_failed = True
                self._by_name[owner].away = _AWAY
            raise DiskFull("no space is left, by the plan")

    def tears(self, path: Path) -> bool:
        owner = self._owner(path)
        return self._due((Kind.TORN,), owner, self._writes[owner]) is not None

    def torn(self, path: Path, before: Extent) -> None:
        owner = self._owner(path)
        self._disk(owner).tear(path, before)
        self._die(owner)

    def written(self, path: Path) -> None:
        owner = self._owner(path)
        if self._due((Kind.AFTER,), owner, self._writes[owner]) is not None:
            self._die(owner)

    def _die(self, owner: str) -> None:
        self._disk(owner).snapshot()
        raise Killed

    def _owner(self, path: Path) -> str:
        return path.relative_to(self._root).parts[0]

    def _disk(self, owner: str) -> Disk:
        return self._coordinator.disk if owner == COORDINATOR else self._by_name[owner].disk

    # What is paid and drawn

    def paid(self, ledger: Path) -> None:
        """A payment is durable."""
        self.monitor.paid(self._owner(ledger))

    def drawn(self) -> None:
        """The site whose turn it is draws noise."""
        self.monitor.drawn(self._acting)


def play(cast: Cast, plan: Plan) -> Ending:
    """Run a plan in a folder of its own, in memory where the machine has such folders."""
    memory = Path("/dev/shm")  # noqa: S108 (a folder made by tempfile, readable by its owner alone)
    root = Path(tempfile.mkdtemp(prefix="protoseal-states-", dir=memory if memory.is_dir() else None))
    try:
        world = World(cast, plan, root)
        with watched(world), _instrumented(world):
            return world.run()
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _instrumented(world: World) -> Iterator[None]:
    spend, draw = Ledger.spend, PrototypeQuery.draw

    def spent(self: Ledger, spending: Spending) -> Anchor:
        anchor = spend(self, spending)
        world.paid(self.path)
        return anchor

    def drawn(self: PrototypeQuery, classes: int, dim: int) -> Any:
        world.drawn()
        return draw(self, classes, dim)

    def trained(job: Job) -> Losses:
        with torch.no_grad():
            for parameter in job.model.parameters():
                step = 0.01 * world.numbers.standard_normal(tuple(parameter.shape))
                parameter.add_(torch.from_numpy(step).to(parameter.dtype))
        return Losses(0.0, 0.0, 0.0)

    with ExitStack() as patches:
        patches.enter_context(patch.object(Ledger, "spend", spent))
        patches.enter_context(patch.object(PrototypeQuery, "draw", drawn))
        patches.enter_context(patch.object(secure_client.trainee, "run", trained))
        patches.enter_context(patch.object(runner, "_SHORTEST_TURN_SECONDS", 0.0))
        logging.disable(logging.CRITICAL)
        patches.callback(logging.disable, logging.NOTSET)
        yield
