"""Delays of answers: set with a site's first answers, and the same for all later ones, over restarts too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agreement import Protection, TimingSection
from privacy.errors import BudgetError
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.errors import Violation
from secure_client.protocol.answer_delays import SHORTEST_DELAY, AnswerDelays
from secure_client.protocol.journal import Journal
from tests.secure_client.journals import journal_at
from tests.support.small import small_agreement

DELAYED = (Phase.PRESENCE, Phase.DIRECTIONS, Phase.VALUES, Phase.MEANS, Phase.RESULT)
AT_ONCE = (Phase.ROSTER, Phase.SECRET, Phase.SHARES, Phase.SURVIVORS, Phase.UNMASK)


def key(phase: Phase, number: int = 1) -> PhaseKey:
    return PhaseKey("run", number, 1, phase)


@dataclass
class Site:
    """Answers of a site whose clock passes as told; ``test`` is the time of a test of its model."""

    journal: Journal
    protection: Protection = Protection.CKKS
    timing: TimingSection = field(default_factory=TimingSection)
    test: float = 0.0
    now: float = 100.0

    def __post_init__(self) -> None:
        agreement = small_agreement(self.protection).model_copy(update={"timing": self.timing})
        self.delays = AnswerDelays(
            self.journal, agreement, lambda: self._pass(self.test), clock=lambda: self.now, sleep=self._pass
        )

    def answer(self, phase: Phase, took: float, number: int = 1, error: Exception | None = None) -> float:
        """Return the time from the request to the answer, whose computation ``took`` so long, or to its ``error``."""
        began = self.now
        with self._raises(error), self.delays.hold_answer(key(phase, number)):
            self._pass(took)
            if error is not None:
                raise error
            self.delays.keep(key(phase, number))
        return self.now - began

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    @contextmanager
    def _raises(self, error: Exception | None) -> Iterator[None]:
        if error is None:
            yield
            return
        with pytest.raises(type(error)):
            yield


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Return a maker of sites, all on one journal: a site made later is the same site after a restart."""
    journal = journal_at(tmp_path / "journal.sqlite")
    yield lambda **settings: Site(journal, **settings)
    journal.close()


@pytest.mark.parametrize("phase", [Phase.PRESENCE, Phase.DIRECTIONS, Phase.VALUES])
@pytest.mark.parametrize("took", [0.01, 3.0, 10.0])
def test_delay_is_that_of_the_first_answer_with_a_margin(
    site: Callable[..., Site], phase: Phase, took: float
) -> None:
    made = site()
    first = made.answer(phase, took)
    assert max(SHORTEST_DELAY, 2 * took) <= first <= max(SHORTEST_DELAY, 2 * took * 2**0.5)
    for number, later in enumerate((0.0, took / 10, 1.9 * took), start=2):
        assert made.answer(phase, later, number) == pytest.approx(first)


def test_delay_outlasts_a_restart(site: Callable[..., Site]) -> None:
    first = site().answer(Phase.PRESENCE, 3.0)
    assert site(now=5.0).answer(Phase.PRESENCE, 0.1, 2) == pytest.approx(first)


def test_delays_are_on_a_grid_of_half_octaves(site: Callable[..., Site]) -> None:
    slow, slower = site().answer(Phase.PRESENCE, 3.0), site().answer(Phase.VALUES, 3.3)
    assert slow == pytest.approx(slower)


def test_phases_before_training_have_their_own_delays(site: Callable[..., Site]) -> None:
    made = site()
    before = made.answer(Phase.PRESENCE, 0.01, 0)
    assert made.answer(Phase.PRESENCE, 3.0, 1) > before
    assert made.answer(Phase.PRESENCE, 0.01, 0) == pytest.approx(before)


@pytest.mark.parametrize("phase", [Phase.MEANS, Phase.RESULT])
def test_delay_of_an_answer_from_a_decryption_does_not_depend_on_its_first_time(
    tmp_path: Path, phase: Phase
) -> None:
    first = []
    for took in (0.0, 1.2):
        with journal_at(tmp_path / f"{took}.sqlite") as journal:
            made = Site(journal, test=0.5)
            made.answer(Phase.PRESENCE, 5.0)
            made.answer(Phase.VALUES, 1.0)
            first.append(made.answer(phase, took))
            assert made.answer(phase, 0.3, 2) == pytest.approx(first[-1])
    assert first[0] == pytest.approx(first[1])
    assert first[0] >= 2 * 1.0 + (2 * 2 * 0.5 if phase is Phase.RESULT else 0.0)


def test_acknowledgement_without_values_has_a_delay(site: Callable[..., Site]) -> None:
    made = site(test=0.2)
    presence = made.answer(Phase.PRESENCE, 1.0)
    assert made.answer(Phase.RESULT, 0.1) >= presence


@pytest.mark.parametrize("phase", AT_ONCE)
def test_phases_without_data_have_no_delay(site: Callable[..., Site], phase: Phase) -> None:
    assert site().answer(phase, 0.125) == 0.125


@pytest.mark.parametrize("phase", DELAYED)
@pytest.mark.parametrize(
    "settings",
    [{"protection": Protection.PLAIN}, {"timing": TimingSection(answers_show_duration=True)}],
    ids=["plain", "switched off"],
)
def test_no_delay(site: Callable[..., Site], phase: Phase, settings: dict[str, object]) -> None:
    assert site(**settings).answer(phase, 0.125) == 0.125


def test_overrun_leaves_at_once_is_counted_and_keeps_the_delay(
    site: Callable[..., Site], caplog: pytest.LogCaptureFixture
) -> None:
    made = site()
    first = made.answer(Phase.PRESENCE, 3.0)
    with caplog.at_level(logging.WARNING):
        assert made.answer(Phase.PRESENCE, 20.0, 2) == 20.0
        assert site().answer(Phase.PRESENCE, 30.0, 3) == 30.0
    assert [f"overrun {count}" in each.getMessage() for count, each in enumerate(caplog.records, 1)] == [
        True,
        True,
    ]
    assert made.answer(Phase.PRESENCE, 1.0, 4) == pytest.approx(first)


def test_delay_is_at_most_the_agreed_deadline(
    site: Callable[..., Site], caplog: pytest.LogCaptureFixture
) -> None:
    made = site(timing=TimingSection(training_deadline=4.0, answer_deadline=2.0))
    assert made.answer(Phase.PRESENCE, 3.0) == pytest.approx(4.0)
    assert made.answer(Phase.VALUES, 1.5) == pytest.approx(2.0)
    assert "[timing]" in caplog.text


@pytest.mark.parametrize("began", [True, False])
def test_error_that_ends_the_session_is_held_as_an_answer_is(site: Callable[..., Site], began: bool) -> None:
    made = site()
    first = made.answer(Phase.PRESENCE, 3.0) if began else 6.0
    assert made.answer(Phase.PRESENCE, 3.0, 2, BudgetError("spent")) >= first


def test_failed_answer_sets_no_delay(site: Callable[..., Site]) -> None:
    made = site()
    made.answer(Phase.PRESENCE, 30.0, 1, BudgetError("spent"))
    assert made.answer(Phase.PRESENCE, 1.0) < 3.0


def test_violation_is_held_like_an_answer(site: Callable[..., Site]) -> None:
    made = site()
    delay = made.answer(Phase.PRESENCE, 3.0)
    assert made.answer(Phase.PRESENCE, 0.125, 2, Violation("refused")) == delay
