"""Memory for computing a masked round: a few vectors at a time, however many sites sent one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import AveragingSection, FedpcSection, Protection
from secure_server.aggregator import EncodedOutcome
from secure_server.exchanges.exchange import Attempt
from secure_server.exchanges.secure_aggregation import LazyVectors
from secure_server.rounds.state import RoundStage
from tests.secure_server import scripted_sites
from tests.secure_server.conftest import Identities
from tests.secure_server.exchanges.fedpc_play import Play, playing
from tests.secure_server.scripted_sites import FAR, NEAR, Vector, fedpc_agreement

ALL = (*NEAR, *FAR)
LENGTH = 100_000
VECTOR = 8 * LENGTH
"""Bytes of one site's contribution, nearly. The eight sites are one group here."""


class Later(Executor):
    """Takes a job and leaves it to the test to run it."""

    job: Callable[[], Any]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        self.job = lambda: fn(*args)
        return Future()


def long_extractor(site: str, number: int) -> Vector:
    return np.linspace(-1.0, 1.0, LENGTH) * (1.0 + number) / 4.0


@pytest.fixture
def play(identities: Identities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    monkeypatch.setattr(scripted_sites, "extractor_of", long_extractor)
    agreement = fedpc_agreement(
        Protection.MASKED, fedpc=FedpcSection(groups=1), averaging=AveragingSection(parameters=LENGTH)
    )
    with playing(agreement, *identities, tmp_path) as begun:
        begun.join()
        begun.go_to(RoundStage.UNMASK, 1)
        yield begun


@pytest.fixture
def later(play: Play, monkeypatch: pytest.MonkeyPatch) -> Later:
    executor = Later()
    monkeypatch.setattr(play.coordinator, "_background", executor)
    return executor


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def peak(work: Callable[[], object]) -> float:
    """Return the peak memory of ``work`` in vectors."""
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    work()
    return (tracemalloc.get_traced_memory()[1] - before) / VECTOR


def reads_all_first(attempt: Attempt) -> Attempt:
    """Read every answer before anything is computed, as the weakened double does."""
    contents = {
        (phase, site): attempt.answer(phase, site)
        for phase, sites in attempt.survivors.items()
        for site in sites
    }
    return attempt.read_by(lambda key, site: contents[key.phase, site])


@pytest.mark.usefixtures("traced")
def test_the_handlers_thread_reads_no_vector(play: Play, later: Later) -> None:
    play.step(*ALL[:-1])
    assert peak(lambda: play.step(ALL[-1])) < 0.5
    assert play.state.stage is RoundStage.COMPUTING


@pytest.mark.usefixtures("traced")
def test_the_other_thread_holds_a_few(play: Play, later: Later) -> None:
    play.step(*ALL)
    assert peak(later.job) < 6.0


@pytest.mark.usefixtures("traced")
def test_reading_all_answers_first_would_show(
    play: Play, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    combine = play.coordinator._aggregator.combine
    monkeypatch.setattr(
        play.coordinator._aggregator, "combine", lambda attempt: combine(reads_all_first(attempt))
    )
    play.step(*ALL)
    assert peak(later.job) > 8.0


def test_computing_in_a_thread_gives_the_inline_result(play: Play, later: Later) -> None:
    play.step(*ALL)
    apart: EncodedOutcome = later.job()
    attempt = play.coordinator._requests.attempt(play.state)
    inline = play.coordinator._run_inline(play.coordinator._compute, attempt).result()
    assert isinstance(inline, EncodedOutcome)
    assert set(apart.results) == set(ALL)
    assert apart == inline


def test_vectors_are_read_when_they_are_looked_at_and_not_kept() -> None:
    reads: list[str] = []

    def read(site: str) -> Any:
        reads.append(site)
        return np.zeros(1, dtype=np.uint64)

    vectors = LazyVectors(("a", "b"), read)
    assert (set(vectors), len(vectors), reads) == ({"a", "b"}, 2, [])
    assert vectors["a"] is not vectors["a"]
    assert reads == ["a", "a"]
    with pytest.raises(KeyError):
        vectors["c"]
