"""Sites whose data can no longer be read, from each phase of a round on.

Without noise the site leaves before its next training, and its peers compute what they compute in a run that the site
left then. With noise it stays, and contributors and ledgers are those of an undisturbed run. A double that sends zeros
in place of what it cannot read is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from agreement import (
    Agreement,
    DpSgdSection,
    Extractor,
    FeddbpSection,
    MaskingSection,
    Method,
    Noise,
    PrivacySection,
    Protection,
)
from algorithms.pfpl import Weighting
from algorithms.prototypes import Targets
from privacy.ledger.budget_account import read_account
from privacy.ledger.lines import Spending
from protoseal.simulation.local_federation import DirectTransport, LocalFederation, LocalSite
from protoseal_wire.messages import Phase, Task, Wait, Work
from secure_client.client_loop import take_part
from secure_client.data import SiteData
from secure_client.errors import DataError, DataLost
from secure_client.output.site_log import SiteRound
from secure_client.training import lost_data
from secure_client.training.lost_data import RetryingSource
from secure_server.rounds.state import RoundStage
from tests.conformance.drop_outs import SECONDS, Clock, set_deadlines
from tests.support.marks import full_but
from tests.support.site_data import preprocessed
from tests.support.small import short_training, small_agreement, small_data
from tests.support.summed import method_agreement

ROUNDS, CUT, VICTIM = 3, 2, "clinic-c"
"""Data are lost in the second of three rounds. The victim lacks a class that all its peers hold."""
PLAIN, MASKED, CKKS = Protection.PLAIN, Protection.MASKED, Protection.CKKS
FINE = MaskingSection(ring_bits=64)
TOLERANCE = {PLAIN: 0.0, MASKED: 1e-5, CKKS: 1e-2}
"""Largest difference of peers' results in two runs on the same values: roundings of masks, noise of ciphertexts.

The noise of a result passes through the next round's training: FedPLCC's results differed by up to 1.5e-3 in twelve
runs.
"""
STALE = "/mnt/scans/17.png"
_MIDDLE = 7
"""Number of reads of a phase that succeed before the data are lost."""
_TURNS = 500


class Storage(Dataset[tuple[Tensor, int]]):
    """Records that cannot be read once so many reads have been made after :meth:`cut`."""

    def __init__(self, records: TensorDataset) -> None:
        self._records, self._left = records, float("inf")

    def cut(self, reads: int) -> None:
        """Let ``reads`` more reads succeed."""
        self._left = min(self._left, reads)

    def restore(self) -> None:
        """Let all reads succeed again."""
        self._left = float("inf")

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self._left -= 1
        if self._left < 0:
            raise OSError(116, "Stale file handle", STALE)
        inputs, label = self._records[index]
        return inputs, int(label)


@dataclass(frozen=True)
class Case:
    """An agreement, and the phase of a round from which on the victim's data cannot be read."""

    method: Method
    protection: Protection
    phase: Phase
    middle: bool = False
    """Data are lost in the middle of the phase's reads."""
    privacy: PrivacySection | None = None
    round: int = CUT

    @property
    def agreement(self) -> Agreement:
        """Agreement that all parties hold."""
        changes: dict[str, Any] = {"rounds": ROUNDS, "masking": FINE, "privacy": self.privacy}
        if self.method is Method.PFPL:
            small = small_agreement(self.protection, Weighting.UNIFORM, rounds=ROUNDS)
            return Agreement.model_validate({**dict(small), **changes})
        if self.privacy is not None:  # without batch normalisation
            changes["training"] = short_training("tests.support.tiny_models:build_tanh")
            changes["feddbp"] = FeddbpSection(personal=False, decision=False)
        return method_agreement(self.method, self.protection, fedpc={"groups": 1}, **changes)

    @property
    def leaves_in(self) -> int:
        """Round before whose training the site leaves."""
        return self.round if self.phase is Phase.PRESENCE else self.round + 1

    def __str__(self) -> str:
        names = [self.method.value, self.protection.value, self.phase.name]
        if self.privacy is not None:
            names.append("dp-sgd" if self.privacy.dp_sgd else self.privacy.noise.value)
        names += [] if self.round == CUT else [f"round-{self.round}"]
        return " ".join([*names, "middle"] if self.middle else names)


@dataclass
class Run:
    """Targets and averages of each site after each round, the sites of each round's result, and ledgers."""

    results: dict[tuple[int, str], NDArray[np.float64]] = field(default_factory=dict)
    rounds: list[tuple[int, int, tuple[str, ...]]] = field(default_factory=list)
    ledgers: dict[str, list[Spending]] = field(default_factory=dict)
    logs: dict[int, SiteRound] = field(default_factory=dict)
    """Log of the victim."""
    error: Exception | None = None

    def apart(self, other: Run) -> float:
        """Return the largest difference of the peers' results in two runs; infinite if other sites made these."""
        mine, others = self._of_peers(), other._of_peers()
        if self.rounds != other.rounds or mine.keys() != others.keys():
            return float("inf")
        return max(float(np.abs(mine[key] - others[key]).max(initial=0.0)) for key in mine)

    def _of_peers(self) -> dict[tuple[int, str], NDArray[np.float64]]:
        return {key: each for key, each in self.results.items() if key[1] != VICTIM}


class Together(DirectTransport):
    """The victim's way to the coordinator, on which its peers have their turns while the victim waits.

    ``on_work`` is called before each of the victim's tasks.
    """

    def __init__(
        self,
        federation: LocalFederation,
        peers: Sequence[LocalSite],
        clock: Clock,
        on_work: Callable[[Work], None],
    ) -> None:
        super().__init__(federation.coordinator, federation.agreement.run, VICTIM)
        self._federation, self._peers, self._clock, self._on_work = federation, peers, clock, on_work

    def next_task(self) -> Task:
        """See :class:`DirectTransport`."""
        for _ in range(_TURNS):
            task = super().next_task()
            if isinstance(task, Work):
                self._on_work(task)
            if not isinstance(task, Wait):
                return task
            self.take_turns()
        raise AssertionError("the victim waits for ever")

    def take_turns(self) -> None:
        """Give every peer its turn; when none has work, the phase's time passes."""
        tasks = [peer.step() for peer in self._peers]
        if not any(isinstance(task, Work) for task in tasks):
            self._clock.now += SECONDS + 1.0
            self._federation.coordinator.tick()


def play(
    case: Case,
    folder: Path,
    on_work: Callable[[Work, Storage], None],
    *,
    stored: bool = True,
    tested: bool = False,
    root: Path | None = None,
) -> Run:
    """Play a run to its end, in which the victim takes part by its own loop until that ends.

    ``stored`` records of the victim are read as needed, from below ``root``; those that it is ``tested`` on, too.
    """
    agreement, run, clock = case.agreement, Run(), Clock()
    data = small_data(agreement)
    storage = Storage(cast("TensorDataset", data[VICTIM].train))
    if stored:
        read = preprocessed(storage, None, len(agreement.classes), where="scans:build: train")
        tests = preprocessed(storage, None, len(agreement.classes), where="scans:build: test")
        data[VICTIM] = SiteData(data[VICTIM].train, tests) if tested else SiteData(read, None, root=root)

    def note(name: str, figures: SiteRound) -> None:
        learner = federation.pool._sites[name]
        rows = (
            learner.received.guide.rows.numpy()
            if isinstance(learner.received.guide, Targets)
            else np.zeros(0)
        )
        averaged = np.zeros(0) if learner.received.base is None else learner.received.base.averaged
        run.results[figures.round, name] = np.concatenate([rows.ravel(), averaged])
        if name == VICTIM:
            run.logs[figures.round] = figures

    federation = LocalFederation(agreement, data, state=folder, on_round=note)
    with federation:
        set_deadlines(federation, folder / "keys.bin", clock)
        (victim,) = (site for site in federation.sites if site.name == VICTIM)
        peers = [site for site in federation.sites if site.name != VICTIM]
        for peer in peers:
            peer.join()
        transport = Together(federation, peers, clock, lambda work: on_work(work, storage))
        try:
            take_part(victim.session, transport)
        except DataError as error:
            run.error = error
        for _ in range(_TURNS):
            if federation.coordinator.state.stage is RoundStage.FINISHED:
                break
            transport.take_turns()
        run.rounds = [(each.round, each.attempt, each.sites) for each in federation.rounds]
        for site in federation.sites:
            if site.learner.releases is not None:
                entries = read_account(site.learner.releases.ledger.path).entries
                run.ledgers[site.name] = [entry.spending for entry in entries]
    return run


def vanishing(case: Case) -> Callable[[Work, Storage], None]:
    """Return a callback that cuts the victim off its data when it is asked for the case's phase."""

    def on_work(work: Work, storage: Storage) -> None:
        if (work.key.round, work.key.phase) == (case.round, case.phase):
            storage.cut(_MIDDLE if case.middle else 0)

    return on_work


def leaving(number: int) -> Callable[[Work, Storage], None]:
    """Return a callback that lets the victim leave when it is asked to train for a round."""

    def on_work(work: Work, _: Storage) -> None:
        if work.key.round == number and work.key.phase is Phase.PRESENCE:
            raise DataError("the victim leaves")

    return on_work


def undisturbed(_: Work, __: Storage) -> None:
    """Let the victim take part to the end."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secure_client.training.lost_data.RETRY_SECONDS", 0.0)


Played = Callable[[Case], Run]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Runs that the victim left before the training of a round; each is played once."""

    @cache
    def played(method: Method, protection: Protection, number: int) -> Run:
        case, folder = Case(method, protection, Phase.PRESENCE), tmp_path_factory.mktemp("left")
        return play(case, folder, leaving(number), stored=False)

    return lambda case: played(case.method, case.protection, case.leaves_in)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Runs in which all sites take part to the end; each is played once."""

    @cache
    def played(method: Method, protection: Protection, privacy: PrivacySection | None) -> Run:
        case = Case(method, protection, Phase.PRESENCE, privacy=privacy)
        return play(case, tmp_path_factory.mktemp("whole"), undisturbed, stored=False)

    return lambda case: played(case.method, case.protection, case.privacy)


_SUMMED = (Phase.PRESENCE, Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK, Phase.RESULT)
_SIMPLE = (Phase.PRESENCE, Phase.VALUES, Phase.RESULT)
EXACT = [
    *(Case(Method.PFPL, protection, phase) for protection in (PLAIN, CKKS) for phase in _SIMPLE),
    *(Case(method, MASKED, phase) for method in (Method.PFPL, Method.FEDPC) for phase in _SUMMED),
    *(Case(Method.FEDPLCC, PLAIN, phase) for phase in _SIMPLE),
    *(Case(Method.FEDPLCC, protection, Phase.DIRECTIONS) for protection in (MASKED, CKKS)),
    *(Case(Method.FEDPC, CKKS, phase) for phase in (Phase.VALUES, Phase.RESULT)),
    *(Case(Method.FEDDBP, protection, Phase.PRESENCE) for protection in (PLAIN, MASKED, CKKS)),
    *(Case(method, MASKED, Phase.PRESENCE, middle=True) for method in (Method.PFPL, Method.FEDAVG)),
    *(Case(Method.FEDPC, MASKED, phase, round=0) for phase in (Phase.ROSTER, Phase.PRESENCE, Phase.VALUES)),
    *(Case(Method.PFPL, CKKS, phase, round=0) for phase in (Phase.ROSTER, Phase.SECRET)),
]
_KEPT = (Case(Method.PFPL, PLAIN, Phase.RESULT), Case(Method.FEDPC, MASKED, Phase.VALUES))


@pytest.mark.parametrize("case", full_but(EXACT, *_KEPT), ids=str)
def test_lost_data_peers_compute_as_if_the_site_had_left(case: Case, left: Played, tmp_path: Path) -> None:
    run = play(case, tmp_path, vanishing(case))
    assert isinstance(run.error, DataLost)
    assert STALE in str(run.error)
    assert [number for number, _, sites in run.rounds if VICTIM in sites] == list(range(1, case.leaves_in))
    assert [number for number, _, _ in run.rounds] == list(range(1, ROUNDS + 1))
    assert run.apart(left(case)) <= TOLERANCE[case.protection]


def test_lost_data_within_the_retries_changes_nothing(
    whole: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, storages = Case(Method.PFPL, PLAIN, Phase.PRESENCE, middle=True), []

    def on_work(work: Work, storage: Storage) -> None:
        storages.append(storage)
        vanishing(case)(work, storage)

    monkeypatch.setattr(lost_data, "RETRY_SECONDS", 60.0)
    monkeypatch.setattr("secure_client.training.lost_data.time.sleep", lambda _: storages[-1].restore())
    run = play(case, tmp_path, on_work)
    assert run.error is None
    assert run.apart(whole(case)) == 0.0


def test_lost_test_records_cost_accuracy_alone(whole: Played, tmp_path: Path) -> None:
    case = Case(Method.PFPL, PLAIN, Phase.VALUES)
    run = play(case, tmp_path, vanishing(case), tested=True)
    assert run.error is None
    assert run.apart(whole(case)) == 0.0
    assert [run.logs[number].accuracy is None for number in range(1, ROUNDS + 1)] == [False, True, True]


@pytest.mark.parametrize("protection", full_but((PLAIN, MASKED, CKKS), MASKED))
def test_lost_data_double_that_sends_zeros_is_noticed(
    protection: Protection, left: Played, whole: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RetryingSource, "batches", lambda self, groups: self._source.batches(groups))
    case = Case(Method.PFPL, protection, Phase.PRESENCE)
    run = play(case, tmp_path, vanishing(case))
    assert run.error is None
    assert run.apart(left(case)) == float("inf")  # it is among the contributors
    assert 0.1 < run.apart(whole(case)) < float("inf")


FROZEN = PrivacySection(
    clip=1.0, noise_multiplier=0.2, min_count=0.5, extractor=Extractor.FROZEN, release_every=1
)
PRIVATE = FROZEN.model_copy(
    update={
        "extractor": Extractor.PRIVATE,
        "dp_sgd": DpSgdSection(noise_multiplier=0.5, clip=1.0, sampling_rate=0.5),
    }
)
SHARED = PrivacySection(clip=3.0, noise_multiplier=0.3, noise=Noise.DISTRIBUTED, colluding=1)
NOISY = [
    *(
        Case(Method.PFPL, (PLAIN, MASKED, CKKS)[(row + column) % 3], phase, middle, privacy)
        for row, (phase, middle) in enumerate(
            ((Phase.PRESENCE, True), *((phase, False) for phase in _SIMPLE))
        )
        for column, privacy in enumerate((FROZEN, PRIVATE), 1)
    ),
    # DP-SGD pays before the data are read, so that its loss in the middle is played under every protection.
    *(Case(Method.PFPL, protection, Phase.PRESENCE, True, PRIVATE) for protection in (PLAIN, MASKED)),
    *(
        Case(Method.FEDDBP, MASKED, phase, middle, SHARED)
        for phase in _SUMMED
        for middle in ((False, True) if phase in (Phase.PRESENCE, Phase.VALUES) else (False,))
    ),
]


@pytest.mark.parametrize(
    "case", full_but(NOISY, Case(Method.PFPL, MASKED, Phase.PRESENCE, True, FROZEN)), ids=str
)
def test_lost_data_with_noise_changes_no_contributor_or_ledger(
    case: Case, whole: Played, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, other = play(case, tmp_path, vanishing(case)), whole(case)
    assert run.error is None
    assert run.rounds == other.rounds
    assert run.ledgers == other.ledgers
    assert len(run.ledgers[VICTIM]) > 0
    assert [run.logs[number].unreadable for number in (CUT - 1, ROUNDS)] == [False, True]
    lines = [record.getMessage() for record in caplog.records if STALE in record.getMessage()]
    assert 0 < len(lines) <= 4 * ROUNDS  # not one for each record


@pytest.mark.parametrize("privacy", full_but((FROZEN, PRIVATE), FROZEN), ids=["frozen", "dp-sgd"])
def test_lost_folder_with_noise_makes_the_site_leave(privacy: PrivacySection, tmp_path: Path) -> None:
    case, root = Case(Method.PFPL, MASKED, Phase.VALUES, privacy=privacy), tmp_path / "mount"
    root.mkdir()

    def on_work(work: Work, storage: Storage) -> None:
        if (work.key.round, work.key.phase) == (case.round, case.phase):
            root.rmdir()

    run = play(case, tmp_path, on_work, root=root)
    assert isinstance(run.error, DataLost)
    assert str(root) in str(run.error)
    assert [number for number, _, sites in run.rounds if VICTIM in sites] == [1, CUT]
    assert {spending.release.round for spending in run.ledgers[VICTIM]} == {
        1,
        CUT,
    }  # nothing is paid for afterwards


@pytest.mark.parametrize("privacy", full_but((FROZEN, PRIVATE), FROZEN), ids=["frozen", "dp-sgd"])
def test_lost_data_double_that_leaves_with_noise_is_noticed(
    privacy: PrivacySection, whole: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = "secure_client.error_containment.DataLost"
    monkeypatch.setattr(double, DataError)  # ends the session for any record
    case = Case(Method.PFPL, MASKED, Phase.PRESENCE, privacy=privacy)
    run = play(case, tmp_path, vanishing(case))
    assert run.error is not None
    assert run.rounds != whole(case).rounds
    assert run.ledgers != whole(case).ledgers
