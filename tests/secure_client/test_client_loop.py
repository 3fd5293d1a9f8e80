"""A site's loop and its journal: what ends a run, what is asked for, what a crash leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from agreement import Protection
from crypto.keys import StorageKey
from protoseal.simulation.local_federation import DirectTransport, LocalFederation, LocalSite
from protoseal_wire.messages import Finished, Phase, PhaseKey, Stopped, Task, Work
from secure_client.app import check_complete
from secure_client.client_loop import step, take_part
from secure_client.errors import RunStopped, StateError, Violation
from secure_client.protocol.journal import Journal
from secure_client.session import Session
from tests.support.small import small_agreement, small_data

KEY = PhaseKey("run", 1, 1, Phase.RESULT)


def open_journal(path: Path, *, run: str = "run", site: str = "clinic-a") -> Journal:
    return Journal(path, run=run, agreement_hash=bytes(32), site=site, storage=StorageKey(bytes(32)))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(tmp_path / "state" / "journal.sqlite") as opened:
        yield opened


@pytest.mark.parametrize(
    ("outcome", "trained"),
    [(Stopped("too few sites"), True), (Finished(0), False), (Finished(2), True), (Finished(3), False)],
)
def test_check_complete_missing_rounds_raises(outcome: Finished | Stopped, trained: bool) -> None:
    with pytest.raises(RunStopped):
        check_complete(outcome, 3, trained=trained)


def test_check_complete_all_rounds_passes() -> None:
    check_complete(Finished(3), 3, trained=True)


def test_answer_error_stores_nothing(journal: Journal) -> None:
    def fail_halfway() -> None:
        with journal.transaction():
            journal.put("targets", 1, b"of the result")
            raise OSError("disk full")

    with pytest.raises(OSError, match="full"):
        fail_halfway()
    assert journal.get("targets") is None
    with journal.transaction():
        journal.put("targets", 1, b"of the result")
        journal.record(KEY, b"request", b"answer")
    assert journal.get("targets") == (1, b"of the result")
    assert journal.answer(KEY, b"request") == b"answer"


def test_journal_belongs_to_one_run_site_and_process(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with open_journal(path), pytest.raises(StateError, match=r"process"):
        open_journal(path)
    with open_journal(path) as journal:
        journal.record(KEY, b"request", b"answer")
    for other in ({"run": "run-2"}, {"site": "clinic-b"}):
        with pytest.raises(StateError):
            open_journal(path, **other)
    assert path.stat().st_mode & 0o077 == 0


def test_journal_without_answers_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with open_journal(path) as journal:
        journal.put_secret("channel key", b"of the mistaken agreement")
    with open_journal(path, run="run-2") as journal:
        assert journal.secret("channel key") is None
        journal.record(KEY, b"request", b"answer")
    with pytest.raises(StateError):
        open_journal(path)


def test_journal_file_shows_no_secret(tmp_path: Path) -> None:
    secret = b"the group's secret key, all of it"
    with open_journal(tmp_path / "journal.sqlite") as journal:
        journal.put_secret("group", secret)
        assert journal.secret("group") == secret
    assert not any(secret in path.read_bytes() for path in tmp_path.iterdir())


def test_step_oversized_request_is_not_downloaded() -> None:
    agreement = small_agreement(Protection.PLAIN)
    with LocalFederation(agreement, small_data(agreement)) as federation:
        session = federation.sites[0].session
        session.check_size(Work(KEY, 100, bytes(32), 1.0))
        with pytest.raises(Violation, match="RESULT"):
            session.check_size(Work(KEY, 1_000_000_000, bytes(32), 1.0))


def test_take_part_failing_disk_leaves_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the others would wait for it until training's deadline, which may be hours away."""
    agreement = small_agreement(Protection.PLAIN)
    with LocalFederation(agreement, small_data(agreement)) as federation:
        failing, *others = federation.sites
        for site in others:
            site.join()
        monkeypatch.setattr(failing.learner, "_save_model", _fail)
        with pytest.raises(OSError, match="no space left"):
            take_part(failing.session, _FromOthers(failing.transport, others))
        state = federation.coordinator.state
    assert failing.name in state.absent


def test_step_uploads_once_the_answer_is_released() -> None:
    agreement, order = small_agreement(Protection.PLAIN, rounds=1), list[str]()

    @contextmanager
    def held(key: PhaseKey) -> Iterator[None]:
        order.append(f"asked {key.phase.name}")
        yield
        order.append(f"held {key.phase.name}")

    with LocalFederation(agreement, small_data(agreement)) as federation:
        watched, *others = federation.sites
        for site in others:
            site.join()
        transport = _FromOthers(watched.transport, others)
        transport.on_upload = lambda key: order.append(f"sent {key.phase.name}")
        take_part(watched.session, transport, held)
    phases = ("ROSTER", "PRESENCE", "VALUES", "RESULT")
    assert order == [f"{what} {phase}" for phase in phases for what in ("asked", "held", "sent")]


def test_answer_is_stored_with_the_callers_documents() -> None:
    agreement = small_agreement(Protection.PLAIN)
    with LocalFederation(agreement, small_data(agreement)) as federation:
        for site in federation.sites:
            site.join()
        first = federation.sites[0]
        failing = Session(
            agreement, federation.parties[0], first.learner, first.journal, on_answer=lambda _: _fail()
        )
        with pytest.raises(OSError, match="no space left"):
            step(failing, first.transport)
        key = PhaseKey(agreement.run, 0, 1, Phase.ROSTER)
        assert first.journal.stored_answer(key) is None
        first.step()
        assert first.journal.stored_answer(key) is not None


def _fail() -> None:
    raise OSError("no space left on device")


class _FromOthers(DirectTransport):
    """The first site's calls, with the other sites doing their tasks in between."""

    def __init__(self, first: DirectTransport, others: list[LocalSite]) -> None:
        self.__dict__ = first.__dict__
        self._others = others
        self.on_upload: Callable[[PhaseKey], None] = lambda key: None

    def next_task(self) -> Task:
        for site in self._others:
            site.step()
        return super().next_task()

    def upload(self, key: PhaseKey, content: bytes) -> None:
        self.on_upload(key)
        super().upload(key, content)


def test_unmatched_pin_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    agreement = small_agreement(Protection.PLAIN, rounds=1)
    with LocalFederation(agreement, small_data(agreement)) as federation:
        first = federation.parties[0]
        cast(dict[str, str], first.pins)["nroth"] = "0" * 64
        with caplog.at_level(logging.WARNING, logger="protoseal.site"):
            federation.run()
    assert "pins names nroth" in caplog.text
