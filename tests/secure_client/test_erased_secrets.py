"""Secrets that are erased when a site leaves or the run ends or stops, and secrets that are kept to resume."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from pathlib import Path

import pytest

from protoseal_wire.messages import Finished, JoinReply, JoinRequest, Phase, PhaseKey, Stopped, Task, Work
from secure_client.client_loop import step, take_part
from secure_client.errors import Unreachable, Violation
from secure_client.protocol.journal import Journal
from secure_client.session import Session
from tests.secure_client.conftest import OpenSites
from tests.secure_client.exchanges.test_session_masked_sum import secrets_kept
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.scripted_sums import ScriptedSums
from tests.support.small import small_agreement

A = EVERYONE[0]
UNKNOWN = b"no active list"


class OneTask:
    """A way to a coordinator that has one thing to say."""

    def __init__(self, task: Task | Unreachable) -> None:
        self._task = task
        self.left = False

    def join(self, request: JoinRequest) -> JoinReply:
        return JoinReply(request.protocol, 1.0, 1)

    def next_task(self) -> Task:
        if isinstance(self._task, Unreachable):
            raise self._task
        return self._task

    def download(self, work: Work) -> bytes:
        return UNKNOWN[: work.size]

    def upload(self, key: PhaseKey, content: bytes) -> None:
        raise AssertionError(f"{key} was answered with {content!r}")

    def leave(self) -> None:
        self.left = True


@pytest.fixture
def play(open_sites: OpenSites) -> ScriptedSums:
    """Play until everyone has made shares, so that there is something to erase."""
    opened = open_sites(grouped_agreement())
    opened.set_up(*EVERYONE)
    opened.attempt(*EVERYONE).share(*EVERYONE)
    assert len(secrets_kept(opened, A)) == 2
    return opened


def test_later_set_up_attempt_erases_earlier_secrets(open_sites: OpenSites) -> None:
    play = open_sites(grouped_agreement())
    play.set_up(*EVERYONE)
    earlier = sealed_of(play)
    play.set_up(*EVERYONE, attempt=2)
    assert len(sealed_of(play)) == len(earlier)
    assert len([content for content in earlier if content not in sealed_of(play)]) == 1
    first = PhaseKey(play.agreement.run, 0, 1, Phase.ROSTER)
    assert play.site(A).journal.stored_answer(first) == b""


def sealed_of(play: ScriptedSums) -> list[bytes]:
    """Return every secret in the site's journal as stored, except the statement, which is public."""
    rows = play.site(A).journal._db.execute("SELECT sealed FROM secrets WHERE name != 'statement'").fetchall()
    return [bytes(row[0]) for row in rows]


def found_in_files(play: ScriptedSums, contents: list[bytes]) -> int:
    """Return how many of the secrets are in the journal's file or its log."""
    path = play.site(A).journal._db.execute("PRAGMA database_list").fetchone()[2]
    files = [each.read_bytes() for each in Path(path).parent.iterdir()]
    return sum(any(content in file for file in files) for content in contents)


def test_finish_erases_all_secrets_from_the_disk(play: ScriptedSums) -> None:
    kept = sealed_of(play)
    assert found_in_files(play, kept) == len(kept) >= 5  # channel, signing, group, two of the attempt
    step(play.site(A).session, OneTask(Finished(2)))
    assert sealed_of(play) == []
    assert found_in_files(play, kept) == 0


def test_finish_again_joins_as_before_and_answers_nothing_new(play: ScriptedSums) -> None:
    """A process that is started again hears once more that the run is over; one that is asked for more refuses."""
    stated = play.statement(A)
    step(play.site(A).session, OneTask(Finished(2)))
    for _ in range(2):
        assert play.statement(A) == stated
        assert isinstance(take_part(play.site(A).session, OneTask(Finished(2))), Finished)
        with pytest.raises(Violation):
            play.presence(A, attempt=2)
        play.restart(A)


def test_stop_erases_the_last_attempts_secrets_alone(play: ScriptedSums) -> None:
    before = len(sealed_of(play))
    step(play.site(A).session, OneTask(Stopped("too few sites")))
    assert secrets_kept(play, A) == set()
    assert len(sealed_of(play)) == before - 2


@pytest.mark.parametrize("task", [Finished(2), Stopped("too few sites")])
def test_end_after_presence_forgets_the_values_of_earlier_rounds(open_sites: OpenSites, task: Task) -> None:
    play = open_sites(small_agreement(rounds=2))
    play.set_up(*EVERYONE)
    play.play_round(*EVERYONE)
    play.presence(A, round_number=2)
    sent = PhaseKey(play.agreement.run, 1, 1, Phase.VALUES)
    values = play.site(A).journal.stored_answer(sent)
    assert values is not None
    assert found_in_files(play, [values[-64:]]) == 1
    step(play.site(A).session, OneTask(task))
    assert play.site(A).journal.stored_answer(sent) == b""
    assert found_in_files(play, [values[-64:]]) == 0


@pytest.mark.parametrize("task", [Finished(2), Stopped("too few sites")])
def test_end_on_a_disk_that_refuses_to_drop_values_erases_the_secrets(
    play: ScriptedSums, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(journal: Journal, before_round: int) -> None:
        raise sqlite3.OperationalError(f"{journal}: no space to drop what precedes round {before_round}")

    monkeypatch.setattr(Journal, "forget_contents", refuse)
    with pytest.raises(sqlite3.OperationalError, match="no space"):
        take_part(play.site(A).session, OneTask(task))
    assert secrets_kept(play, A) == set()


def test_stopped_run_resumes_with_another_attempt(play: ScriptedSums) -> None:
    step(play.site(A).session, OneTask(Stopped("too few sites")))
    play.restart(A)
    play.attempt(*EVERYONE, attempt=2).check_opens(EVERYONE)


def refused() -> Work:
    """Return work that no site answers: shares that are no shares."""
    return Work(PhaseKey("run-1", 1, 1, Phase.VALUES), len(UNKNOWN), hashlib.sha256(UNKNOWN).digest(), 1.0)


def test_leaving_erases_the_attempts_secrets(play: ScriptedSums) -> None:
    transport = OneTask(refused())
    with pytest.raises(Violation, match="VALUES of round 1"):
        take_part(play.site(A).session, transport)
    assert transport.left
    assert secrets_kept(play, A) == set()
    play.restart(A)
    assert play.site(A).session.join_request().left == PhaseKey("run-1", 1, 1, Phase.PRESENCE)


def test_leaving_without_secrets_records_no_attempt(play: ScriptedSums) -> None:
    """The site released its shares, and all of its answers can be sent again."""
    play.attempt(*EVERYONE, attempt=2).carried_out(EVERYONE)
    before = sealed_of(play)
    play.site(A).session.end()
    assert sealed_of(play) == before
    assert play.site(A).session.join_request().left is None


def test_leaving_with_a_failed_erasure_raises_the_first_error(
    play: ScriptedSums, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Session) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Session, "end", fail)
    transport = OneTask(refused())
    with (
        caplog.at_level(logging.ERROR, logger="protoseal.site"),
        pytest.raises(Violation, match=r"decode"),
    ):
        take_part(play.site(A).session, transport)
    assert transport.left
    assert "secrets, or values of earlier rounds, could not be erased: disk full" in caplog.text


def test_unreachable_coordinator_keeps_the_secrets(play: ScriptedSums) -> None:
    before = secrets_kept(play, A)
    with pytest.raises(Unreachable):
        take_part(play.site(A).session, OneTask(Unreachable("no route")))
    assert secrets_kept(play, A) == before
    assert play.site(A).session.join_request().left is None
