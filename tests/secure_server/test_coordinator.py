"""The coordinator's handler: reports, computations, sizes, Leave, restarts, and the end of a run."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agreement import Agreement, Protection
from agreement.derived.payload_shapes import limits_of
from crypto.sealed_group_secret import SealedSecret
from protoseal.simulation.local_federation import DirectTransport, LocalFederation, make_parties
from protoseal_wire import codec
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    Finished,
    GroupKeys,
    LeaveRequest,
    Phase,
    PhaseKey,
    RosterAnswer,
    Stopped,
    TaskRequest,
    UploadHeader,
    Work,
)
from secure_server.aggregator import Aggregator
from secure_server.app import append_round, read_rounds
from secure_server.coordinator import Coordinator
from secure_server.errors import UploadTooLarge, WrongPhase
from secure_server.membership import MembershipChecks
from secure_server.phase_requests import PhaseRequests
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import RoundStage
from secure_server.store import Store
from tests.secure_server.conftest import Identities
from tests.secure_server.exchanges.fedpc_play import SECONDS, Play, playing
from tests.secure_server.rounds.round_player import in_round
from tests.secure_server.scripted_sites import Clock, fedpc_agreement
from tests.support.small import HOLDINGS, small_agreement, small_data

PHASE_SECONDS = 60.0
"""Seconds for joining, and for each phase."""


def rules_of(agreement: Agreement, *, max_attempts: int) -> Rules:
    """Return rules with no secret to be made."""
    return Rules(
        run=agreement.run,
        roster=tuple(HOLDINGS),
        min_sites=agreement.min_sites,
        rounds=agreement.rounds,
        max_attempts=max_attempts,
        needs_secret=False,
        join_seconds=PHASE_SECONDS,
        phase_seconds=dict.fromkeys(Phase, PHASE_SECONDS),
    )


class ByHand(Executor):
    """Jobs that run when the test says so, if ever."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], object]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def finish(self, number: int) -> None:
        future, job = self.jobs[number]
        future.set_result(job())


@dataclass
class Scene:
    """A federation whose coordinator has deadlines, by a clock that the test moves."""

    federation: LocalFederation
    keys: Path
    clock: Clock
    needs_secret: bool = False

    def coordinator(self, **options: Any) -> Coordinator:
        """Put this one in the place of the one before."""
        agreement = self.federation.agreement
        coordinator = Coordinator(
            agreement=agreement,
            rules=self.rules_of(),
            trust=self.federation.parties[0].trust,
            store=self.federation.store,
            aggregator=Aggregator(agreement, self.keys),
            clock=self.clock,
            **options,
        )
        self.federation.coordinator = coordinator
        for site in self.federation.sites:
            site.transport = DirectTransport(coordinator, agreement.run, site.name)
        return coordinator

    def rules_of(self) -> Rules:
        rules = rules_of(self.federation.agreement, max_attempts=2)
        return replace(rules, needs_secret=self.needs_secret)

    def join(self) -> None:
        for site in self.federation.sites:
            site.join()

    def go_to(self, stage: RoundStage) -> None:
        """Let the sites take turns until then."""
        for _ in range(20):
            for site in self.federation.sites:
                if self.federation.coordinator.state.stage is stage:
                    return
                site.step()
        pytest.fail(f"at {self.federation.coordinator.state.stage}")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    agreement = small_agreement(rounds=2)
    with LocalFederation(agreement, small_data(agreement)) as federation:
        yield Scene(federation, tmp_path / "keys", Clock())


class TestReports:
    def test_report_failure_is_logged_and_run_continues(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        def full_disk(_: object) -> None:
            raise OSError("no space left on device")

        coordinator = scene.coordinator(on_round=full_disk)
        scene.federation.run()
        assert coordinator.state.stage is RoundStage.FINISHED
        lines = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        assert lines == ["round 1 could not be reported", "round 2 could not be reported"]
        scene.clock.now += 31.0
        assert coordinator.finished, "and the server does not wait for ever"

    def test_report_killed_coordinator_reports_round_again(
        self, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = tmp_path / "rounds.jsonl"
        scene.coordinator(on_round=lambda completed: append_round(log, completed))
        scene.join()
        scene.go_to(RoundStage.RESULT)

        def killed(state: object, **_: object) -> None:
            if scene.federation.coordinator.state.answered == set(HOLDINGS) - {last.name}:
                raise KeyboardInterrupt
            save(state, **_)

        save: Callable[..., None] = scene.federation.store.save
        *others, last = scene.federation.sites
        monkeypatch.setattr(scene.federation.store, "save", killed)
        for site in others:
            site.step()
        with pytest.raises(KeyboardInterrupt):
            last.step()
        monkeypatch.undo()
        scene.coordinator(on_round=lambda completed: append_round(log, completed))
        scene.go_to(RoundStage.FINISHED)
        assert len(log.read_text().splitlines()) == 3
        assert [each.round for each in read_rounds(log)] == [1, 2]

    def test_report_restart_counts_seconds_of_this_process(self, scene: Scene) -> None:
        scene.coordinator()
        scene.join()
        scene.go_to(RoundStage.RESULT)
        scene.coordinator(on_round=scene.federation.log.put_round)
        scene.go_to(RoundStage.PRESENCE)
        (completed,) = scene.federation.rounds
        assert 0.0 < completed.total_seconds < 60.0


class TestComputing:
    def test_compute_hanging_job_fails_attempt_and_late_result_is_ignored(self, scene: Scene) -> None:
        by_hand = ByHand()
        coordinator = scene.coordinator(background=by_hand, on_round=scene.federation.rounds.append)
        scene.join()
        scene.go_to(RoundStage.COMPUTING)
        scene.clock.now += 10 * PHASE_SECONDS
        coordinator.tick()
        assert (coordinator.state.stage, coordinator.state.attempt) == (RoundStage.PRESENCE, 2)
        (hung, _), *_ = by_hand.jobs
        assert hung.cancelled()
        scene.go_to(RoundStage.COMPUTING)
        coordinator.tick()
        assert coordinator.state.stage is RoundStage.COMPUTING, "the first job's end is not the second's"
        by_hand.finish(1)
        coordinator.tick()
        assert (coordinator.state.stage, coordinator.state.attempt) == (RoundStage.RESULT, 2)

    def test_compute_failure_reason_stays_in_the_log(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(*_: object) -> None:
            raise OSError("/srv/coordinator/evaluation-keys.bin: permission denied")

        monkeypatch.setattr(Aggregator, "combine", broken)
        coordinator = scene.coordinator()
        scene.join()
        scene.go_to(RoundStage.STOPPED)
        task = coordinator.next_task("clinic-a", TaskRequest(PROTOCOL_VERSION, coordinator.state.run))
        reason = "round 1, attempt 2: the aggregation failed; see the coordinator's log"
        assert task == Stopped(reason)
        assert "permission denied" in caplog.text


class TestSizes:
    def test_check_upload_wrong_phase_precedes_size(self, scene: Scene) -> None:
        """A coordinator put back into JOINING: the maker's keys are not too large, which would end its session."""
        coordinator = scene.coordinator()
        *others, _ = scene.federation.sites
        for site in others:
            site.join()
        header = UploadHeader(coordinator.state.roster_key, 10**6, bytes(32))
        with pytest.raises(WrongPhase):
            coordinator.check_upload(others[0].name, header)

    def test_check_upload_only_key_maker_answers_roster_at_length(self, scene: Scene) -> None:
        coordinator = scene.coordinator()
        coordinator._rules = replace(coordinator._rules, needs_secret=True)
        scene.join()
        for site, most in (("clinic-a", coordinator._limits.roster_answer), ("clinic-b", 512)):
            key = coordinator.state.roster_key
            coordinator.check_upload(site, UploadHeader(key, most, b"h" * 32))
            with pytest.raises(UploadTooLarge, match=f"{most}"):
                coordinator.check_upload(site, UploadHeader(key, most + 1, b"h" * 32))

    def test_upload_limits_follow_the_listed_sites(self, scene: Scene) -> None:
        assert scene.coordinator()._limits.sites == len(HOLDINGS)


def test_leave_of_earlier_join_is_ignored(scene: Scene) -> None:
    """A process's Leave may be delivered late, or twice, and after a restart of the coordinator."""
    scene.coordinator()
    scene.join()
    site, others = scene.federation.sites[0], scene.federation.sites[1:]
    before = site.transport
    site.transport = DirectTransport(scene.federation.coordinator, scene.federation.agreement.run, site.name)
    site.join()
    before.leave()
    assert scene.federation.coordinator.state.joined == {each.name for each in (site, *others)}
    site.transport.leave()
    site.transport.leave()
    assert scene.federation.coordinator.state.joined == {each.name for each in others}
    coordinator = scene.coordinator()
    site.join()
    coordinator.leave(site.name, LeaveRequest(2))
    assert site.name in coordinator.state.joined


def test_group_keys_decoded_once_per_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement, state = small_agreement(), in_round().state
    _, trust = make_parties(tmp_path, agreement, [])
    sealed = SealedSecret("ada", "bea", b"r" * 32, b"p" * 32, b"c" * 100, b"s" * 70)
    decoded: list[bytes] = []
    decode = codec.decode_roster_answer

    def counted(content: bytes, limits: codec.Limits) -> RosterAnswer:
        decoded.append(content)
        return decode(content, limits)

    monkeypatch.setattr(codec, "decode_roster_answer", counted)
    with Store.open(tmp_path / "store.sqlite", "r1", b"a" * 32) as store:
        members = MembershipChecks(agreement, trust, store, limits_of(agreement), 60.0)
        requests = PhaseRequests(agreement, store, members, Aggregator(agreement, tmp_path / "keys"))
        assert requests.group_keys(state) is None
        contents = []
        for attempt, keys in enumerate((b"first", b"second"), start=1):
            answer = RosterAnswer(hashlib.sha256(keys).digest(), GroupKeys(keys, (sealed,)))
            contents.append(codec.encode_roster_answer(answer))
            current = replace(state, setup_attempt=attempt)
            key = PhaseKey("r1", 0, attempt, Phase.ROSTER)
            store.save(current, upload=(key, current.maker, contents[-1]))
            for _ in range(3):
                assert requests.group_keys(current) == answer.keys
        assert decoded == contents


def test_restart_after_the_end_notifies_sites_and_ends(tmp_path: Path) -> None:
    agreement, clock = small_agreement(rounds=1), Clock()
    _, trust = make_parties(tmp_path, agreement, [])
    with LocalFederation(agreement, small_data(agreement)) as federation:
        federation.run()

        def again() -> Coordinator:
            return Coordinator(
                agreement=agreement,
                rules=rules_of(agreement, max_attempts=1),
                trust=trust,
                store=federation.store,
                aggregator=Aggregator(agreement, tmp_path / "keys"),
                clock=clock,
            )

        ended = [again().finished]
        asked = again()
        for site in HOLDINGS:
            ended.append(asked.finished)
            assert isinstance(asked.next_task(site, TaskRequest(PROTOCOL_VERSION, agreement.run)), Finished)
        assert [*ended, asked.finished] == [False] * 5 + [True]

        patient = again()
        clock.now += 31.0  # and nobody came
        assert patient.finished


LATE, PEER, ROUNDS = "d", "c", 2


@pytest.fixture(params=[Protection.PLAIN, Protection.MASKED], ids=str)
def ended(request: pytest.FixtureRequest, identities: Identities, tmp_path: Path) -> Iterator[Play]:
    """A run that a site left between its last values and their result."""
    with playing(fedpc_agreement(request.param), *identities, tmp_path) as play:
        play.join()
        play.go_to(RoundStage.RESULT, ROUNDS)
        play.go_to(RoundStage.FINISHED, without=[LATE])
        yield play


def is_over(play: Play) -> bool:
    return play.coordinator.finished


def test_finished_run_late_site_gets_its_group_result(ended: Play) -> None:
    assert ended.result(LATE, ROUNDS) is None
    assert isinstance(ended.sites[LATE].step(), Work)
    assert isinstance(ended.sites[LATE].step(), Finished)
    assert ended.result(LATE, ROUNDS) == ended.result(PEER, ROUNDS)


def test_finished_run_other_sites_are_told_the_end(identities: Identities, tmp_path: Path) -> None:
    with playing(fedpc_agreement(Protection.PLAIN), *identities, tmp_path) as play:
        play.join()
        play.go_to(RoundStage.PRESENCE, ROUNDS)
        play.go_to(RoundStage.FINISHED, without=[LATE])
        for site in (LATE, PEER):
            assert isinstance(play.sites[site].step(), Finished)
        key = play.state.result_key
        header = UploadHeader(key, 1, bytes(32))
        with pytest.raises(WrongPhase):
            play.coordinator.check_upload(LATE, header)


def test_restart_after_the_end_waits_for_late_sites(ended: Play) -> None:
    ended.restart()
    ended.clock.now += SECONDS - 1.0
    assert not is_over(ended)
    ended.sites[LATE].step()
    assert not is_over(ended)  # it has not been told the end
    ended.sites[LATE].step()
    assert is_over(ended)
    assert ended.state.key(Phase.RESULT).round == ROUNDS

    ended.restart()
    ended.clock.now += 31.0  # nobody lacks anything any more, and nobody came
    assert is_over(ended)


def test_restart_after_the_end_wait_is_bounded(ended: Play) -> None:
    ended.restart()
    ended.clock.now += SECONDS + 1.0
    assert is_over(ended)
