"""One run as its parts see it: the parties, the monitor, the clock, and the faults that have not come yet."""

from __future__ import annotations

from dataclasses import dataclass

from secure_server.rounds.state import State
from tests.states.disks import Disk
from tests.states.faults import COORDINATOR, Pending
from tests.states.federations import Cast
from tests.states.invariants import Monitor
from tests.states.parties import CoordinatorProcess, SiteProcess


@dataclass
class Scene:
    """The parties of a run, and where it is.

    ``acting`` names the party whose code runs. ``injured``: a write of the coordinator's failed by the plan in the step
    that it is in, so that an error of its own is due.
    """

    cast: Cast
    monitor: Monitor
    pending: Pending
    coordinator: CoordinatorProcess
    sites: tuple[SiteProcess, ...]
    turn: int = 0
    now: float = 0.0
    acting: str = ""
    injured: bool = False

    @property
    def state(self) -> State:
        """The running coordinator's; ``RuntimeError`` while it is down."""
        return self.coordinator.handler.state

    @property
    def alive(self) -> list[SiteProcess]:
        """All sites that are not gone for good."""
        return [site for site in self.sites if not site.gone]

    def site(self, name: str) -> SiteProcess | None:
        """Return the site of that name; None for the coordinator's."""
        return next((site for site in self.sites if site.name == name), None)

    def disk(self, owner: str) -> Disk:
        """Return a party's disk; ``KeyError`` for another name."""
        if owner == COORDINATOR:
            return self.coordinator.disk
        return {site.name: site.disk for site in self.sites}[owner]
