"""Federation in one process: the sessions, coordinator and protections of a deployment, without sockets.

Identities and the stored state of sites and coordinator are created for the run and deleted with it. The state lets a
killed run resume; on a CPU with sites that train one by one, the resumed run equals an uninterrupted run bit for bit.
Writes do not wait for the disk: a killed process loses nothing, a power cut may lose all state. Limit: one process has
every site's data and keys, so a simulation answers questions about accuracy and cost, not about privacy.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Self

from agreement import Agreement, ConfigError, Method
from crypto.keys import StorageKey, derive
from crypto.pki import (
    Credentials,
    Identity,
    Stretching,
    TrustAnchor,
    approve,
    create_authority,
    create_request,
)
from crypto.protection import Pool
from protoseal.reports.result_files import site_folder
from protoseal.simulation.batched.training import Batching, KeptPrograms
from protoseal.simulation.config import ScheduleSection
from protoseal.simulation.freed_memory import keep_freed_memory
from protoseal.simulation.run_log import RunLog
from protoseal.simulation.site_pool import (
    EVERY_ROUND,
    ONE_BY_ONE,
    SitePool,
    SiteTesting,
    SiteTraining,
    train_sites,
)
from protoseal_wire.codec import content_hash
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    DownloadRequest,
    Finished,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Phase,
    PhaseKey,
    Stopped,
    Task,
    TaskRequest,
    UploadHeader,
    Work,
)
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.learner_factory import build_checkpointed_learner
from secure_client.client_loop import step
from secure_client.data import SiteData
from secure_client.errors import RunStopped
from secure_client.output.site_files import write_agreement
from secure_client.output.site_log import SiteLog, SiteRound, write_site_log
from secure_client.privacy.cost import simulated_budget
from secure_client.privacy.kept_releases import FOLDER as RELEASES
from secure_client.privacy.kept_releases import KeptReleases
from secure_client.privacy.releases import Releases, open_releases
from secure_client.protocol.journal import Journal
from secure_client.protocol.setup import Party, open_journal
from secure_client.session import Session
from secure_server.aggregator import Aggregator
from secure_server.coordinator import Coordinator
from secure_server.round_log import CoordinatorRound
from secure_server.rounds.rules import build_rules
from secure_server.rounds.state import RoundStage
from secure_server.store import Received, Store

_KEYS_WORD = "passphrase"
_AGES = 1e9  # seconds: sites take turns, so no deadline may expire


class DirectTransport:
    """Transport of a site that calls a coordinator in the same process.

    ``on_payload`` is called with each request's and answer's size before transfer, with True for an answer.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        run: str,
        site: str,
        on_payload: Callable[[PhaseKey, int, bool], None] = lambda key, size, up: None,
    ) -> None:
        self._coordinator = coordinator
        self._run = run
        self._site = site
        self._on_payload = on_payload
        self._session = 0

    def join(self, request: JoinRequest) -> JoinReply:
        """See :class:`secure_client.client_loop.Transport`, here and below."""
        reply = self._coordinator.join(self._site, request)
        self._session = reply.session
        return reply

    def next_task(self) -> Task:
        """Return the current task without blocking."""
        return self._coordinator.next_task(self._site, TaskRequest(PROTOCOL_VERSION, self._run))

    def download(self, work: Work) -> bytes:
        """Return the request itself."""
        content = self._coordinator.download(self._site, DownloadRequest(work.key))
        self._on_payload(work.key, len(content), False)
        return content

    def upload(self, key: PhaseKey, content: bytes) -> None:
        """Upload an answer with the header of a network transport."""
        header = UploadHeader(key, len(content), content_hash(content))
        self._coordinator.check_upload(self._site, header)
        # Counted after the coordinator has accepted the header, as bytes of a network would be.
        self._on_payload(key, len(content), True)
        self._coordinator.upload(self._site, header, content)

    def leave(self) -> None:
        """Leave the run."""
        self._coordinator.leave(self._site, LeaveRequest(self._session))


@dataclass
class RunOutcome:
    """Result of a federation: each site's log, the coordinator's rounds, and the messages, if they were recorded.

    ``best_round`` is the reported round with early stopping, else None.
    """

    sites: dict[str, SiteLog]
    rounds: list[CoordinatorRound]
    received: list[Received]
    best_round: int | None = None

    @property
    def site_rounds(self) -> dict[str, Sequence[SiteRound]]:
        """Rounds of each site."""
        return {name: log.rounds for name, log in self.sites.items()}


@dataclass
class LocalSite:
    """One site of a federation in this process."""

    session: Session
    transport: DirectTransport
    learner: CheckpointedLearner
    journal: Journal

    @property
    def name(self) -> str:
        """The site's name."""
        return self.session.site

    def join(self) -> None:
        """Ask to take part."""
        self.session.take_welcome(self.transport.join(self.session.join_request()))

    def step(self) -> Task:
        """Do one task."""
        return step(self.session, self.transport)


class LocalFederation:
    """A coordinator and sites that take turns. Close the federation when done: it holds journals and a store open."""

    def __init__(
        self,
        agreement: Agreement,
        data: Mapping[str, SiteData],
        *,
        method: Method | None = None,
        training: SiteTraining = ONE_BY_ONE,
        testing: SiteTesting = EVERY_ROUND,
        executor: Pool | None = None,
        record: bool = False,
        keep_releases: bool = False,
        state: Path | None = None,
        on_round: Callable[[str, SiteRound], None] = lambda site, figures: None,
        on_completed: Callable[[LocalFederation, int], None] = lambda run, number: None,
    ) -> None:
        """Take ``data``, which maps site names to their data. With ``record`` every message received is kept.

        ``method`` is its name if it differs from the agreement's. ``on_round`` is called with each site's rounds,
        ``on_completed`` when all sites have reported a round. A federation resumes from the files that a killed process
        left in ``state``; without ``state`` the files are in a folder that is removed at the end. With
        ``keep_releases`` each site keeps its noisy releases for an audit, which :meth:`save` copies with the ledger.
        Raises :class:`ConfigError` for a schedule, which the sessions of a deployment do not have.
        """
        if training.schedule != ScheduleSection():
            raise ConfigError("schedule", ["sessions have no [schedule]: leave it out"])
        keep_freed_memory()
        self.agreement = agreement
        self._data = data
        self._training = training
        self._record = record
        self._on_round = on_round
        self._on_completed = on_completed
        self._keep_releases = keep_releases
        self._shares: dict[int, float] = {}
        self._programs = KeptPrograms()
        self._stack = ExitStack()
        try:
            self._state = state or Path(
                self._stack.enter_context(tempfile.TemporaryDirectory(prefix="protoseal-"))
            )
            self.parties, trust = load_or_make_parties(self._state / "identities", agreement, sorted(data))
            self.log = self._stack.enter_context(RunLog(self._state / "log.sqlite"))
            self.store = self._stack.enter_context(
                Store.open(
                    self._state / "coordinator.sqlite",
                    agreement.run,
                    agreement.hash(),
                    record=record,
                    durable=False,
                )
            )
            self.coordinator = Coordinator(
                agreement=agreement,
                rules=build_rules(
                    agreement,
                    sorted(data),
                    max_attempts=1,
                    join_seconds=_AGES,
                    phase_seconds=dict.fromkeys(Phase, _AGES),
                ),
                trust=trust,
                store=self.store,
                aggregator=Aggregator(agreement, self._state / "evaluation-keys.bin", executor),
                on_round=self.log.put_round,
            )
            opened = {party.name: self._open_learner(party, at) for at, party in enumerate(self.parties)}
            self.pool = SitePool(
                {name: learner for name, (learner, _) in opened.items()},
                data,
                self.log,
                method=method or agreement.method,
                agreement=agreement,
                training=training,
                testing=testing,
                until={name: _last_result(journal) for name, (_, journal) in opened.items()},
            )
            self.sites = [self._open_site(party, *opened[party.name]) for party in self.parties]
        except BaseException:
            # Journals and store are open already, and nobody could close them later.
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self) -> None:
        """Run the remaining rounds, or until training stops early.

        Raises :class:`secure_client.errors.RunStopped` when the run does not complete.
        """
        for _ in self.turns():
            pass

    def turns(self) -> Iterator[Task]:
        """Yield after each task, one site after the other."""
        self.pool.end_round(self.pool.completed)  # a killed process may not have done this
        for site in self.sites:
            site.join()
        for site in cycle(self.sites):
            # Also after a restart: the coordinator has to know of the last round before sites may stop.
            if self.pool.stopped_early and self.coordinator.state.round > self.pool.completed:
                return
            task = self._turn(site)
            yield task
            if isinstance(task, Finished):
                return

    @property
    def rounds(self) -> list[CoordinatorRound]:
        """Rounds of the coordinator so far."""
        return self.log.rounds()

    @property
    def outcome(self) -> RunOutcome:
        """Return the results so far."""
        received = list(self.store.received()) if self._record else []
        return RunOutcome(self.pool.logs(), self.rounds, received, self.pool.best_round)

    def save(self, out: Path) -> RunOutcome:
        """Run the final tests, and write every site's files to ``out/sites/NAME``."""

        def save_site(name: str, learner: CheckpointedLearner) -> None:
            folder = site_folder(out, name)
            learner.predictor.save(folder)
            write_agreement(folder, self.agreement)
            releases = learner.releases
            if releases is not None and releases.kept is not None and releases.kept.folder.exists():
                shutil.copytree(releases.kept.folder, folder / RELEASES, dirs_exist_ok=True)
                shutil.copy2(releases.ledger.path, folder)

        self.pool.run_final_tests(save_site)
        outcome = self.outcome
        for name, log in outcome.sites.items():
            write_site_log(site_folder(out, name), log)
        return outcome

    def _turn(self, site: LocalSite) -> Task:
        state = self.coordinator.state
        if state.stage is RoundStage.PRESENCE:
            # All sites have the last result, so they train together.
            self._train(state.round)
        before = self.pool.completed
        task = site.step()
        if isinstance(task, Stopped):
            raise RunStopped(f"the run stopped: {task.reason}")
        if self.pool.completed > before:
            self.pool.end_round(self.pool.completed)
            self._on_completed(self, self.pool.completed)
        return task

    def _train(self, round_number: int) -> None:
        """Train all sites that have not trained in this round as one program; do nothing if they train one by one."""
        learners = [site.learner for site in self.sites]
        waiting = [learner for learner in learners if not learner.is_trained_for(round_number)]
        if self._training.batching is Batching.NEVER or round_number == 0 or not waiting:
            return
        start = time.perf_counter()
        for learner in waiting:
            learner.begin(round_number)
        losses = train_sites(waiting, round_number, self._training, self._programs)
        for learner, last in zip(waiting, losses, strict=True):
            learner.finish(round_number, last)
        # Each site's time is an equal share of the common training's time.
        self._shares[round_number] = (time.perf_counter() - start) / len(waiting)

    def _open_learner(self, party: Party, position: int) -> tuple[CheckpointedLearner, Journal]:
        path = self._state / "sites" / party.name / "journal.sqlite"
        journal = self._stack.enter_context(open_journal(path, self.agreement, party, durable=False))
        learner = self._training.learner(self.agreement, party.name, self._data[party.name], position)
        return build_checkpointed_learner(
            self.agreement, learner, journal, self._releases(party, path.parent)
        ), journal

    def _releases(self, party: Party, folder: Path) -> Releases | None:
        """Return the releases of a simulated site, with its own ledger that has room for just the run."""
        if self.agreement.privacy is None:
            return None
        kept = KeptReleases(folder / RELEASES) if self._keep_releases else None
        return open_releases(self.agreement, simulated_budget(self.agreement, party.name, folder), kept)

    def _open_site(self, party: Party, learner: CheckpointedLearner, journal: Journal) -> LocalSite:
        def tell(figures: SiteRound) -> None:
            share = self._shares.get(figures.round, 0.0)
            seconds = {**figures.seconds, "train": figures.seconds["train"] + share}
            timed = figures.model_copy(update={"seconds": seconds})
            self._on_round(party.name, self.pool.record_round(party.name, timed))

        def count(key: PhaseKey, size: int, up: bool) -> None:
            self.log.put_payload(party.name, key, size, up=up)

        session = Session(self.agreement, party, learner, journal, on_round=tell, tests_in=self.pool.tests_in)
        transport = DirectTransport(self.coordinator, self.agreement.run, party.name, count)
        return LocalSite(session, transport, learner, journal)


def make_parties(
    directory: Path, agreement: Agreement, names: Sequence[str], passphrase: bytes | None = None
) -> tuple[list[Party], TrustAnchor]:
    """Make a federation's CA and sites, with keys in ``directory`` under ``passphrase`` or a random secret."""
    passphrase = passphrase or secrets.token_bytes(32)
    authority = directory / "ca"
    stretching = Stretching.NONE_FOR_RANDOM_SECRET
    create_authority(authority, agreement.federation, passphrase, stretching=stretching)
    for name in names:
        folder = directory / "sites" / name
        identity = Identity.site(agreement.federation, name)
        create_request(folder, identity, passphrase, stretching=stretching)
        certificate = approve(authority, passphrase, (folder / "request.pem").read_bytes())
        (folder / "certificate.pem").write_bytes(certificate)
    return _load_parties(directory, agreement, names, passphrase)


def load_or_make_parties(
    directory: Path, agreement: Agreement, names: Sequence[str]
) -> tuple[list[Party], TrustAnchor]:
    """Load the parties in ``directory``, creating them if missing; the passphrase is stored beside the keys.

    Use this for simulations only, whose process has all parties' keys anyway.
    """
    if not directory.exists():
        begun = Path(tempfile.mkdtemp(dir=directory.parent, prefix="begun-"))
        passphrase = secrets.token_bytes(32)
        (begun / _KEYS_WORD).write_bytes(passphrase)
        make_parties(begun, agreement, names, passphrase)
        begun.rename(directory)
    return _load_parties(directory, agreement, names, (directory / _KEYS_WORD).read_bytes())


def _load_parties(
    directory: Path, agreement: Agreement, names: Sequence[str], passphrase: bytes
) -> tuple[list[Party], TrustAnchor]:
    trust = TrustAnchor.load(directory / "ca" / "ca.pem")
    folders = [directory / "sites" / name for name in names]
    credentials = [
        Credentials.load(folder / "certificate.pem", folder / "key.pem", passphrase) for folder in folders
    ]
    storage = [derive(passphrase, "simulated-storage-key", name.encode()) for name in names]
    return [
        Party(credential, trust, agreement.min_sites, _stored_under(key))
        for credential, key in zip(credentials, storage, strict=True)
    ], trust


def _stored_under(key: bytes) -> Callable[[], StorageKey]:
    return lambda: StorageKey(key)  # a partial would show the key in its repr


def _last_result(journal: Journal) -> int:
    """Return the last round whose result a site has kept; its reports of later rounds do not count."""
    key = journal.latest(Phase.RESULT)
    return 0 if key is None else key.round
