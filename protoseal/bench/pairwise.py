"""``protoseal bench pairwise``: a masked sum's bytes and seconds, beside those of Flower's SecAgg+."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from agreement import MaskingSection
from agreement.agreement import USUAL_SITES
from agreement.errors import UserError
from crypto.fixed_point import FixedPoint, Segment, narrowest_ring
from crypto.pairwise.attempt_binding import threshold
from crypto.pairwise.neighbour_graph import Graph, complete_graph, graph_of
from protoseal.bench.pairwise_flower import FlowerSettings, FlowerSide
from protoseal.bench.pairwise_parties import Float, Terms
from protoseal.bench.pairwise_play import STEPS, Noted, Play
from protoseal.bench.pairwise_run import play
from protoseal.bench.pairwise_sites import Federation
from protoseal.bench.record import Case, Spent, Task, Value, spent_on
from protoseal_wire.messages import Phase

NORM_BOUND = 10.0
"""Bound of every value: an agreement's default for prototypes."""
DROPPED_SHARE = 0.3
FEW_SHARES = (3, 2)
"""Shares and threshold in Flower's example of SecAgg+; the workflow itself has no default for them."""
FLOAT32_BYTES = 4
NO_BASELINE = "none; --flwr-python names a Python with flwr"


@dataclass(frozen=True)
class Plan:
    """Plan of a measurement: prototypes of ``classes`` × ``dim`` values each of ``sites`` sites.

    ``sessions``: numbers of sites of whole rounds, through the sites' own sessions and the coordinator. ``dropped``:
    number of sites that make shares and send no values, 30 % of the sites if None; in growth the same part of them.
    Groups of more than ``complete_up_to`` have a sparse graph, for a tenth of them colluding and 30 % dropping out.

    ``ring_bits``: the agreement's default if None: 32 where values up to :data:`NORM_BOUND` fit, else 64.
    ``flwr_python``: a Python that has flwr; without one there is no baseline.
    """

    sites: int = 50
    classes: int = 10
    dim: int = 5120
    dropped: int | None = None
    repeats: int = 3
    sessions: tuple[int, ...] = ()
    growth: tuple[int, ...] = (10, 20, 50, 100)
    complete_up_to: int = 100
    ring_bits: int | None = None
    flwr_python: Path | None = None

    @property
    def values(self) -> int:
        """L: of one site."""
        return self.classes * self.dim

    @property
    def patterns(self) -> tuple[int, ...]:
        """Numbers of drop-outs: none, and as many as are asked for."""
        return tuple(dict.fromkeys((0, self.dropped_of(self.sites))))

    def dropped_of(self, sites: int) -> int:
        """Drop-outs among another number of sites."""
        share = DROPPED_SHARE if self.dropped is None else self.dropped / self.sites
        return int(share * sites + 1e-9)

    def graph(self, sites: int) -> Graph:
        """Who holds shares of whom, and who has masks with whom."""
        if sites <= self.complete_up_to:
            return complete_graph(sites)
        return graph_of(sites, sites // 10, 3 * sites // 10)

    def fixed_point(self, sites: int) -> FixedPoint:
        """Return the fixed-point encoding, with room for as many sites as an agreement allows, unless it says more."""
        segments, terms = [Segment(self.values, NORM_BOUND)], max(sites, USUAL_SITES)
        ring_bits = self.ring_bits or narrowest_ring(segments, terms=terms)
        return FixedPoint(segments, terms=terms, ring_bits=ring_bits)


def measure(plan: Plan) -> Iterator[Case]:
    """Yield the cases as they are done; raise :class:`UserError` for more drop-outs than a group tolerates."""
    for sites in (plan.sites, *plan.growth, *plan.sessions):
        _check_tolerated(sites, plan.dropped_of(sites))
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(Path(folder), max(plan.sites, *plan.growth, 0))
    for dropped in plan.patterns:
        yield from _with_flower(plan, federation, dropped)
    for sites in plan.growth:
        yield _growth(replace(plan, sites=sites, dropped=plan.dropped_of(sites)), federation)
    for sites in plan.sessions:
        yield _through_sessions(replace(plan, sites=sites, dropped=plan.dropped_of(sites)))


def _with_flower(plan: Plan, federation: Federation, dropped: int) -> Iterator[Case]:
    play = _played(plan, federation, dropped)
    with ExitStack() as stack:
        all_shares, few = (
            (None, None)
            if plan.flwr_python is None
            else (
                stack.enter_context(FlowerSide(plan.flwr_python, each))
                for each in _flower_settings(plan, dropped)
            )
        )
        what = _what(plan, dropped)
        if not dropped:
            yield _traffic(what, play.noted, plan.values, all_shares)
            yield from _site_steps(what, play, all_shares, plan.repeats)
        yield _coordinator(what, play.noted)
        yield _against(
            {"case": "unmask", **what}, play.coordinator.unmask, all_shares, "unmask", plan.repeats
        )
        if few is not None:
            yield _against({"case": "unmask", **what}, play.coordinator.unmask, few, "unmask", plan.repeats)


def _flower_settings(plan: Plan, dropped: int) -> tuple[FlowerSettings, FlowerSettings]:
    """Return Flower's settings with as many shares as ours at our threshold, and those of its example."""
    graph = plan.graph(plan.sites)
    alike = FlowerSettings(plan.sites, plan.values, graph.holders + 1, graph.threshold, dropped)
    shares, needed = FEW_SHARES
    return alike, replace(alike, shares=shares, threshold=needed)


def _played(plan: Plan, federation: Federation, dropped: int) -> Play:
    """Play an exchange and check its sum: a wrong sum is no result to time."""
    credentials, roster = federation.group(plan.sites)
    fixed_point = plan.fixed_point(plan.sites)
    terms = Terms(roster, plan.graph(plan.sites), fixed_point, plan.classes, plan.dim)
    values = np.random.default_rng(0).uniform(-1.0, 1.0, (plan.sites, plan.values))
    names = list(credentials)
    play = Play(credentials, terms, values, [names[i * plan.sites // dropped] for i in range(dropped)])
    play.run()
    _check_sum(play, terms, dict(zip(names, values, strict=True)))
    return play


def _what(plan: Plan, dropped: int) -> dict[str, Value]:
    fixed_point, graph = plan.fixed_point(plan.sites), plan.graph(plan.sites)
    return {
        "sites": plan.sites,
        "holders": graph.holders,
        "threshold": graph.threshold,
        "dropped": dropped,
        "values": plan.values,
        "ring_bits": fixed_point.ring_bits,
        "fraction_bits": fixed_point.fraction_bits[0],
    }


def _traffic(what: dict[str, Value], noted: Noted, values: int, flower: FlowerSide | None) -> Case:
    """Measure all contents of the median staying site, over the values as float32; seconds are of all its steps."""
    sent, received = _bytes(noted)
    plain = FLOAT32_BYTES * values
    return Case(
        {
            "case": "bytes",
            **what,
            **_baseline(flower),
            "sent": sent,
            "received": received,
            "of_float32": (sent + received) / plain,
            "sent_of_float32": sent / plain,
            "baseline_of_float32": None if flower is None else (flower.sent + flower.received) / plain,
            "baseline_sent_of_float32": None if flower is None else flower.sent / plain,
        },
        _whole(noted),
    )


def _bytes(noted: Noted) -> tuple[int, int]:
    """Return the bytes that the median site sends and receives in all steps."""
    sent, received = (
        int(np.median([sum(steps) for steps in zip(*each.values(), strict=True)]))
        for each in (noted.sent, noted.received)
    )
    return sent, received


def _whole(noted: Noted) -> list[Spent]:
    """Return the time of all steps of each staying site."""
    return [_total(steps) for steps in zip(*noted.sites.values(), strict=True)]


def _site_steps(
    what: dict[str, Value], play: Play, flower: FlowerSide | None, repeats: int
) -> Iterator[Case]:
    compared = {Phase.SHARES: "shares", Phase.VALUES: "values"}
    for phase in STEPS:
        case: dict[str, Value] = {"case": f"site {phase.name.lower()}", **what}
        if phase in compared:
            yield _against(case, partial(play.again, phase), flower, compared[phase], repeats)
        else:
            yield Case(case, play.noted.sites[phase])


def _coordinator(what: dict[str, Value], noted: Noted) -> Case:
    """Measure all that the coordinator relays and checks in the five steps, before the sum."""
    return Case({"case": "coordinator", **what}, [_total(tuple(noted.coordinator.values()))])


def _growth(plan: Plan, federation: Federation) -> Case:
    dropped = plan.dropped_of(plan.sites)
    play = _played(plan, federation, dropped)
    sent, received = _bytes(play.noted)
    unmask = [spent_on(play.coordinator.unmask).wall for _ in range(plan.repeats)]
    return Case(
        {
            "case": "growth",
            **_what(plan, dropped),
            "of_float32": (sent + received) / (FLOAT32_BYTES * plan.values),
            "coordinator_seconds": _total(tuple(play.noted.coordinator.values())).wall,
            "unmask_seconds": float(np.median(unmask)),
        },
        _whole(play.noted),
    )


def _through_sessions(plan: Plan) -> Case:
    """One round. Seconds are of a core: of a median site that stayed, without its training, and the coordinator's."""
    dropped = plan.dropped_of(plan.sites)
    masking = MaskingSection(complete_up_to=max(2, plan.complete_up_to))
    played = play(plan.sites, plan.classes, plan.dim, dropped, masking)
    graph = masking.graph(plan.sites, plan.sites)
    return Case(
        {
            "case": "sessions",
            **_what(plan, dropped),
            "holders": graph.holders,
            "threshold": graph.threshold,
            "of_float32": played.bytes / (FLOAT32_BYTES * plan.values),
            "coordinator_seconds": played.coordinator_seconds,
            **{f"coordinator_{phase.name.lower()}": spent for phase, spent in played.coordinator.items()},
        },
        [Spent(played.site_seconds, played.site_seconds)],
    )


def _against(what: dict[str, Value], ours: Task, flower: FlowerSide | None, task: str, repeats: int) -> Case:
    """Both by turns, so that what else the machine does meets both; one turn before counts for nothing."""
    told: dict[str, Value] = {**what, **_baseline(flower)}
    if flower is None:
        return Case(told, [spent_on(ours) for _ in range(repeats + 1)][1:])
    pairs = [(flower.take(task), spent_on(ours)) for _ in range(repeats + 1)][1:]
    return Case(told, [own for _, own in pairs], [theirs for theirs, _ in pairs])


def _baseline(flower: FlowerSide | None) -> dict[str, Value]:
    if flower is None:
        return {"baseline": NO_BASELINE}
    settings = flower.settings
    return {
        "baseline": f"flwr {flower.version}",
        "baseline_shares": settings.shares,
        "baseline_threshold": settings.threshold,
    }


def _total(steps: Sequence[Spent]) -> Spent:
    return Spent(sum(each.wall for each in steps), sum(each.cpu for each in steps))


def _check_tolerated(sites: int, dropped: int) -> None:
    if sites < 2:
        raise UserError("a group has 2 or more sites")
    most = sites - threshold(sites)
    if dropped > most:
        raise UserError(f"a group of {sites} sites goes on without {most} of them at most, not {dropped}")


def _check_sum(play: Play, terms: Terms, values: dict[str, Float]) -> None:
    survivors, fixed_point = play.coordinator.survivors, terms.fixed_point
    words = fixed_point.encode(values[survivors[0]])
    for name in survivors[1:]:
        words = words + fixed_point.encode(values[name])
    if not np.array_equal(play.coordinator.unmask(), fixed_point.decode_sum(words, len(survivors))):
        raise RuntimeError("the sum that was unmasked is not the sum of the survivors' values")
