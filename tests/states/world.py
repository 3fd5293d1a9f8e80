"""One run of the real coordinator and the real sites under a plan of faults, with a clock that the plan drives.

A run is a function of its federation and its plan, up to the randomness of keys, masks and noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from privacy.errors import RolledBackError
from privacy.ledger.hash_chain import Anchor
from protoseal_wire.messages import PhaseKey
from secure_client import errors
from secure_client.errors import Unreachable
from secure_server.rounds.state import RoundStage, State
from secure_server.store import Store
from tests.states.disks import Disk
from tests.states.ending import Ending, Operators, check_end, fingerprint
from tests.states.faults import AWAY, COORDINATOR, OLDER_STATE, Fault, FaultPlan, Kind, Pending
from tests.states.federations import Cast
from tests.states.interleaving import Killed
from tests.states.invariants import Monitor, Promise
from tests.states.parties import KEYS, SECONDS, CoordinatorProcess, SiteProcess
from tests.states.scene import DiskFull, Network, Scene, Writes

R = TypeVar("R")
_TURNS = 1000
_PATIENCE = 3
"""Turns in which nobody has anything to do, after which the clock jumps to the next deadline."""
_SLOW = 0.3
"""Probability that a site does nothing in a turn, where the order is drawn."""
_LEFT_OUT = "it can join the next run"


class World:
    """The coordinator, the sites and what is between them: their :class:`tests.states.parties.Surroundings`."""

    def __init__(self, cast: Cast, plan: FaultPlan, root: Path, ledgers: Path | None = None) -> None:
        """Make all parties' folders below ``root``; ``ledgers`` is where runs share them."""
        self.cast = cast
        self._order = plan.order
        self._rng = random.Random(plan.order)  # noqa: S311 (the order of a test's steps, to be repeated)
        self.numbers = np.random.default_rng(plan.order)
        self._left_out: set[str] = set()
        self._before: tuple[State, bool] | None = None
        coordinator = CoordinatorProcess(self, Disk(root / COORDINATOR), background=plan.order % 2 == 1)
        sites = tuple(
            SiteProcess(
                self,
                party,
                Disk(root / party.name, None if ledgers is None else ledgers / party.name),
                coordinator,
            )
            for party in cast.parties
        )
        self.scene = Scene(cast, Monitor(cast), Pending(plan), coordinator, sites)
        self.writes = Writes(
            self.scene, root, keeps_older=any(fault.kind in OLDER_STATE for fault in plan.faults)
        )
        self._network, self._operators = Network(self.scene), Operators(self.scene)

    @property
    def now(self) -> float:
        """The run's clock, in seconds."""
        return self.scene.now

    @property
    def fingerprint(self) -> int:
        """A number for where everything is."""
        return fingerprint(self.scene, len(self._network))

    # The turns

    def turns(self) -> Iterator[None]:
        """Play turn after turn until the run has ended for everyone, or too many have passed."""
        scene, idle = self.scene, 0
        for scene.turn in range(_TURNS):
            scene.now += 0.001
            for fault in scene.pending.timed(scene.turn):
                self._strike(fault)
            idle = 0 if self._turn() else idle + 1
            if self._operators.is_over(idle):
                return
            if idle > _PATIENCE and scene.coordinator.is_up:
                self._expire()
            yield
        scene.monitor.broken(Promise.ENDS, f"the run goes on after {_TURNS} turns")

    def ending(self) -> Ending:
        """Return how the run came out, and kill whatever process is left."""
        scene = self.scene
        check_end(scene)
        state = scene.state if scene.coordinator.is_up else None
        stage, reason = (RoundStage.STOPPED, "down") if state is None else (state.stage, state.reason)
        self.kill()
        return Ending(
            stage,
            reason,
            scene.turn,
            scene.monitor.violations,
            len(scene.pending),
            tuple(sorted(self._left_out)),
            scene.monitor.results,
        )

    def check_ledgers(self) -> None:
        """Have the monitor look at every ledger, once no process has it open."""
        for site in self.scene.sites:
            self.scene.monitor.check_ledger(site.name, site.disk.ledger)

    def kill(self) -> None:
        """End every process of the run."""
        for site in self.scene.sites:
            site.kill(0)
        if self.scene.coordinator.is_up:
            self.scene.coordinator.kill(0)

    def _turn(self) -> bool:
        """Let everyone act; whether anyone had anything to do."""
        coordinator = self.scene.coordinator
        if not coordinator.is_up:
            if self.scene.turn >= coordinator.back_at:
                self._as_coordinator(coordinator.start, "does not start")
            return True
        self._network.deliver_late()
        worked = False
        for site in self._ordered():
            slow = bool(self._order) and self._rng.random() < _SLOW
            worked |= (site.is_up and not site.idle) if slow else self._step(site)
        self._tick()
        return worked or not coordinator.is_up

    def _ordered(self) -> list[SiteProcess]:
        order = list(self.scene.sites)
        if self._order:
            self._rng.shuffle(order)
        return order

    def _step(self, site: SiteProcess) -> bool:
        turn = self.scene.turn
        if site.gone or site.outcome is not None or site.paused_until > turn or site.is_given_up:
            return False
        if not site.is_up:
            if turn < site.back_at:
                return False
            site.start()
        self.scene.acting = site.name
        error = site.step()
        if error is not None:
            self._after_death(site, error)
        return not site.idle

    def _after_death(self, site: SiteProcess, error: BaseException) -> None:
        turn, monitor = self.scene.turn, self.scene.monitor
        monitor.died(site.name)
        if isinstance(error, Killed):
            site.died(turn + AWAY)
            return
        site.ended(turn + (site.away if site.injured else AWAY))
        if isinstance(error, Unreachable):
            return
        if isinstance(error, errors.Violation) and site.last is not None:
            monitor.refused(site.name, site.last)
        monitor.left(site.name, disk_failed=site.disk_failed)
        if site.injured:
            return
        if _LEFT_OUT in str(error):
            site.gone = True
            self._left_out.add(site.name)
            return
        if isinstance(error, RolledBackError) and site.name in monitor.older:
            return
        monitor.broken(Promise.NO_REFUSAL, f"{site.name}: {type(error).__name__}: {error}")

    def _tick(self) -> None:
        if self.scene.coordinator.is_up:
            self._as_coordinator(self._own_work, "ends")

    def _own_work(self) -> None:
        coordinator = self.scene.coordinator
        if coordinator.jobs is not None:
            coordinator.jobs.run_one()
        coordinator.handler.tick()

    def _as_coordinator(self, work: Callable[[], None], what: str) -> None:
        scene = self.scene
        scene.acting = COORDINATOR
        try:
            work()
        except Killed:
            scene.coordinator.kill(scene.turn + AWAY)
        except Exception as error:
            if not scene.injured:
                scene.monitor.broken(Promise.NO_REFUSAL, f"the coordinator's process {what}: {error!r}")
            scene.coordinator.kill(scene.turn + AWAY)
        scene.injured = False

    # Faults of a turn

    def _strike(self, fault: Fault) -> None:
        site = self.scene.site(fault.who)
        if fault.kind is Kind.EXPIRED:
            if self.scene.coordinator.is_up:
                self._expire()
        elif site is None:
            self._hit_coordinator(fault)
        else:
            self._hit_site(site, fault)

    def _expire(self) -> None:
        """The clock jumps beyond the deadline."""
        self.scene.now = max(self.scene.now, self.scene.state.deadline) + SECONDS
        self._tick()

    def _hit_coordinator(self, fault: Fault) -> None:
        scene, coordinator = self.scene, self.scene.coordinator
        if not coordinator.is_up and fault.kind is not Kind.SPOILT:
            return
        if fault.kind is Kind.SPOILT:
            coordinator.disk.halve(KEYS)
        if fault.kind is Kind.PUT_BACK and coordinator.disk.put_back():
            scene.monitor.older.add(COORDINATOR)
        coordinator.kill(scene.turn + fault.length)

    def _hit_site(self, site: SiteProcess, fault: Fault) -> None:
        scene = self.scene
        if fault.kind is Kind.PAUSED:
            site.paused_until = scene.turn + fault.length
            return
        if fault.kind is Kind.GONE:
            site.gone = True
        if site.outcome is not None or not (site.is_up or fault.kind is Kind.LINE_LOST):
            return
        if fault.kind is Kind.PUT_BACK and site.disk.put_back():
            scene.monitor.older.add(site.name)
        if fault.kind is Kind.LINE_LOST and site.disk.cut_ledger():
            scene.monitor.older.add(site.name)
        site.kill(scene.turn + fault.length)
        scene.monitor.died(site.name)

    # What parties do, as they say it: see tests.states.parties.Surroundings

    def delivered(self, site: SiteProcess, call: Callable[[], R]) -> R | None:
        return self._network.delivered(site, call)

    def answering(self, site: SiteProcess, key: PhaseKey, request: bytes) -> None:
        number = site.answers
        site.answers += 1
        site.last = key
        self.scene.monitor.asked(site.name, key, request)
        error = self.scene.pending.due((Kind.ERROR,), site.name, number)
        if error is not None:
            site.injured, site.away = True, error.length
            raise DiskFull("an error of the site's own, by its plan")

    def leaving(self, site: SiteProcess, key: PhaseKey, content: bytes) -> None:
        self.scene.monitor.leaves(site.name, key, content, site.disk.ledger, site.deaths)

    def arriving(self, site: SiteProcess, key: PhaseKey) -> None:
        store = self.scene.coordinator.store
        new = store is not None and store.upload_hash(key, site.name) is None
        self._before = self.scene.state, new

    def taken(self, site: SiteProcess, key: PhaseKey) -> None:
        if self._before is not None and self._before[1]:
            self.scene.monitor.taken(site.name, key, self._before[0])

    def acknowledged(self, site: SiteProcess, key: PhaseKey) -> None:
        self.scene.monitor.acknowledged(site.name, key, site.start_of_training)

    def opened(self, site: SiteProcess, result: int, base: bytes) -> None:
        self.scene.monitor.restarted(site.name, result, base)

    def restored(self, store: Store) -> None:
        self.scene.monitor.restored(store)

    # Payments

    def paid(self, what: str, anchor: Anchor) -> None:
        """A payment of the acting site is durable."""
        self.scene.monitor.paid(self.scene.acting, what, anchor)

    def drawn(self, what: str) -> None:
        """The acting site draws noise."""
        self.scene.monitor.drawn(self.scene.acting, what)
