"""One masked sum from presence to released shares, played in this process; what steps take and move is noted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, process_time

from crypto.pki import Credentials
from protoseal.bench.pairwise_parties import Coordinator, Float, Site, Terms
from protoseal.bench.record import Spent
from protoseal_wire.messages import Phase

STEPS = (Phase.PRESENCE, Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK)


@dataclass
class Noted:
    """Times and bytes of the steps: the seconds of each site, the coordinator's, and the bytes of each site."""

    sites: dict[Phase, list[Spent]] = field(default_factory=dict)
    coordinator: dict[Phase, Spent] = field(default_factory=dict)
    sent: dict[Phase, list[int]] = field(default_factory=dict)
    received: dict[Phase, list[int]] = field(default_factory=dict)

    def at_site(self, phase: Phase, spent: Spent, request: bytes, answer: bytes) -> None:
        """One step of a site that stays to the end."""
        self.sites.setdefault(phase, []).append(spent)
        self.sent.setdefault(phase, []).append(len(answer))
        self.received.setdefault(phase, []).append(len(request))

    def at_coordinator(self, phase: Phase, spent: Spent) -> None:
        """Time a part of a step at the coordinator."""
        before = self.coordinator.get(phase, Spent(0.0, 0.0))
        self.coordinator[phase] = Spent(before.wall + spent.wall, before.cpu + spent.cpu)


class Play:
    """One exchange. ``dropped`` make shares and send no values."""

    def __init__(
        self, credentials: Mapping[str, Credentials], terms: Terms, values: Float, dropped: Sequence[str]
    ) -> None:
        """``values``: float64 (n, L), a row for each site by name."""
        self.sites = {
            name: Site(each, terms, values[i]) for i, (name, each) in enumerate(credentials.items())
        }
        self.coordinator, self.noted = Coordinator(terms), Noted()
        self.requests: dict[tuple[Phase, str], bytes] = {}
        """The first staying site's, so that a step of it can be repeated."""
        self._dropped = frozenset(dropped)
        self.first = next(name for name in self.sites if name not in self._dropped)

    def run(self) -> None:
        """Run all steps up to the released shares."""
        for phase in STEPS:
            late = phase not in (Phase.PRESENCE, Phase.SHARES)
            self._step(phase, [name for name in self.sites if not (late and name in self._dropped)])

    def again(self, phase: Phase) -> bytes:
        """Repeat a step of the first staying site: SHARES or VALUES, which depend on no later step."""
        return self.sites[self.first].answer(phase, self.requests[phase, self.first])

    def _step(self, phase: Phase, asked: Sequence[str]) -> None:
        answers: dict[str, bytes] = {}
        for name in asked:
            with _timed() as relaying:
                request = self.coordinator.request(phase, name)
            with _timed() as answering:
                answers[name] = self.sites[name].answer(phase, request)
            self.noted.at_coordinator(phase, relaying[0])
            if name == self.first:
                self.requests[phase, name] = request
            if name not in self._dropped:
                self.noted.at_site(phase, answering[0], request, answers[name])
        with _timed() as taking:
            for name, answer in answers.items():
                self.coordinator.accept(phase, name, answer)
        self.noted.at_coordinator(phase, taking[0])


@contextmanager
def _timed() -> Iterator[list[Spent]]:
    spent: list[Spent] = []
    begin = perf_counter(), process_time()
    yield spent
    spent.append(Spent(perf_counter() - begin[0], process_time() - begin[1]))
