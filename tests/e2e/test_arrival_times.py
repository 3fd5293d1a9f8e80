"""Arrival times at the coordinator of answers from processes whose training goes well, diverges or raises.

Each site is in each of the three states by turns. The times from a request to its answer are compared between the
states, phase by phase, by a rank test. The same test notices answers that come 5 % later, and a run whose agreement
lets answers show how long they took.
"""

from __future__ import annotations

import logging
import signal
from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu  # type: ignore[import-untyped]  # it ships no types

from agreement import Agreement, Method, Protection, TimingSection
from protoseal.splits import SiteArrays
from protoseal_wire.messages import Phase
from secure_client.data.samples import make_samples
from secure_client.protocol.answer_delays import SHORTEST_DELAY
from secure_server.app import ROUNDS_LOG, read_rounds
from tests.adversary.watched_runs import leaving_agreement
from tests.support import killed_party
from tests.support.forked_processes import Nursery
from tests.support.killed_party import Arrival, Point, When, read_arrivals
from tests.support.processes import Federation
from tests.support.small import short_training
from tests.support.tiny_models import PIXELS, Mood, mood_of

Times = Mapping[Phase, Mapping[Mood, NDArray[np.float64]]]
"""Seconds from request to answer, divided by the site's median in that phase, by the state of the site's training."""
_DELAYED = {Phase.PRESENCE, Phase.DIRECTIONS, Phase.VALUES, Phase.MEANS, Phase.RESULT}
_CLASSES, _EACH, _SITES = 3, 20, 4
_ROUNDS, _ROUNDS_WITHOUT_DELAYS = 100, 25
_log = logging.getLogger(__name__)
_LEVEL = 1e-4
"""Level of a test; some ten pairs of states and phases are tested."""
_SHIFT = 1.05


def agreement(rounds: int, *, protection: Protection = Protection.CKKS, shows: bool = False) -> Agreement:
    return leaving_agreement(
        Method.FEDPC,
        protection,
        "deep",
        rounds=rounds,
        preprocessing=None,
        dim=8,
        training=short_training("tests.support.tiny_models:build_moody", local_epochs=5, lr=0.01),
        timing=TimingSection(answers_show_duration=shows),
    )


def site(number: int) -> SiteArrays:
    drawn = np.random.default_rng(number)
    labels = np.repeat(np.arange(_CLASSES), _EACH)
    inputs = (drawn.normal(size=(len(labels), PIXELS)) + labels[:, None]).astype(np.float32)
    samples = make_samples(inputs, labels, where="test")
    return SiteArrays(f"site-{number}", samples, samples, ("a",))


def arrivals(
    folder: Path, agreed: Agreement, nursery: Nursery, points: Mapping[str, Point] = {}
) -> list[Arrival]:
    """Return the arrivals of a whole run, in which sites die at their ``points`` and are started again."""
    sites = [site(number) for number in range(1, _SITES + 1)]
    times = folder / "arrivals.jsonl"
    with Federation(folder, agreed, sites, gated=False, nursery=nursery) as federation:
        coordinator = federation.start_coordinator(own={killed_party.ARRIVALS: str(times)})
        running = {name: federation.start_site(name, points.get(name)) for name in federation.names}
        for name in points:
            assert running[name].exit_code() == -signal.SIGKILL
            running[name] = federation.start_site(name)
        ends = [each.exit_code(600) for each in (*running.values(), coordinator)]
        assert ends == [0] * (_SITES + 1)
    return read_arrivals(times)


def seconds_per_round(folder: Path) -> float:
    """Return the median time of a round that trains, from its beginning to its end."""
    rounds = read_rounds(folder / "coordinator" / "state" / ROUNDS_LOG)
    return float(np.median([each.total_seconds for each in rounds if each.round]))


def by_mood(found: list[Arrival]) -> Times:
    """Return the times after the first round, which sets the delays."""
    of_site: defaultdict[tuple[str, Phase], list[Arrival]] = defaultdict(list)
    for each in found:
        if each.round > 1:
            of_site[each.site, each.phase].append(each)
    times: defaultdict[Phase, defaultdict[Mood, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (name, phase), given in of_site.items():
        median = np.median([each.seconds for each in given])
        for each in given:
            times[phase][mood_of(name, each.round)].append(each.seconds / median)
    return {phase: {mood: np.array(of) for mood, of in moods.items()} for phase, moods in times.items()}


def told_apart(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    return bool(mannwhitneyu(one, other).pvalue < _LEVEL)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_arrival_times_do_not_show_how_training_went(tmp_path: Path, nursery: Nursery) -> None:
    times = by_mood(arrivals(tmp_path / "run", agreement(_ROUNDS), nursery))
    _log.info("seconds per round with delays: %.2f", seconds_per_round(tmp_path / "run"))
    assert set(times) == {Phase.PRESENCE, Phase.VALUES, Phase.MEANS, Phase.RESULT}
    for phase, moods in times.items():
        for one, other in combinations(Mood, 2):
            assert not told_apart(moods[one], moods[other]), (phase, one, other)
            assert told_apart(moods[one], _SHIFT * moods[other]), (phase, one, other)


@pytest.mark.full
def test_arrival_times_without_delays_show_how_training_went(tmp_path: Path, nursery: Nursery) -> None:
    times = by_mood(arrivals(tmp_path / "run", agreement(_ROUNDS_WITHOUT_DELAYS, shows=True), nursery))
    _log.info("seconds per round without delays: %.2f", seconds_per_round(tmp_path / "run"))
    assert told_apart(times[Phase.PRESENCE][Mood.WELL], times[Phase.PRESENCE][Mood.RAISES])


def test_answers_leave_no_earlier_than_their_delay_after_a_restart(tmp_path: Path, nursery: Nursery) -> None:
    stored = Point(When.KEPT, Phase.PRESENCE, 1)
    found = arrivals(
        tmp_path / "run", agreement(1, protection=Protection.MASKED), nursery, {"site-2": stored}
    )
    seconds: dict[Phase, list[float]] = {each.phase: [] for each in found}
    for each in found:
        seconds[each.phase].append(each.seconds)
    assert min(min(seconds[phase]) for phase in _DELAYED & set(seconds)) >= SHORTEST_DELAY
    assert min(seconds[Phase.UNMASK]) < SHORTEST_DELAY
    assert [(each.phase, each.round) for each in found if each.site == "site-2"].count(
        (Phase.PRESENCE, 1)
    ) == 1
