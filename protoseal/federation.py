"""A federation in one process: the same sessions, coordinator and protections as in deployment, without sockets.

Identities are made for the run and thrown away with it. The limit: one process holds every site's data and keys,
so nothing is kept from anybody here; simulation answers questions about accuracy and cost, not about privacy.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from algorithms.pfpl.objective import Control, control_targets
from algorithms.prototypes import project_to_norm
from crypto.pki import Credentials, Identity, TrustAnchor, approve, create_authority, create_request
from protoseal.config import Agreement
from protoseal.files import SiteLog, SiteRound, site_folder, write_agreement, write_site_log
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    DownloadRequest,
    Finished,
    JoinReply,
    JoinRequest,
    Phase,
    PhaseKey,
    Stopped,
    Task,
    TaskRequest,
    UploadHeader,
    Work,
)
from secure_client.app import open_journal
from secure_client.build import build_learner
from secure_client.data import SiteData
from secure_client.errors import RunStopped
from secure_client.runner import step
from secure_client.session import Session, site_round
from secure_client.setup import Party
from secure_client.trainee import Trainee
from secure_server.aggregate import Aggregator
from secure_server.coordinator import Coordinator, CoordinatorRound
from secure_server.rounds import Rules
from secure_server.store import Received, Store

_AGES = 1e9  # seconds: sites take turns here, so no deadline may pass


class DirectTransport:
    """A site's calls, made straight to a coordinator in the same process. Counts payload bytes."""

    def __init__(self, coordinator: Coordinator, run: str, site: str) -> None:
        self._coordinator, self._run, self._site = coordinator, run, site
        self.bytes_up = self.bytes_down = 0

    def join(self, request: JoinRequest) -> JoinReply:
        """See :class:`secure_client.runner.Transport`, here and below."""
        return self._coordinator.join(self._site, request)

    def next_task(self) -> Task:
        """Never blocks."""
        return self._coordinator.next_task(self._site, TaskRequest(PROTOCOL_VERSION, self._run, self._site))

    def download(self, work: Work) -> bytes:
        """The request itself."""
        content = self._coordinator.download(self._site, DownloadRequest(work.key, self._site))
        self.bytes_down += len(content)
        return content

    def upload(self, key: PhaseKey, content: bytes) -> None:
        """With the header that the wire would have."""
        header = UploadHeader(key, self._site, len(content), hashlib.sha256(content).digest())
        self._coordinator.check_upload(self._site, header)
        self._coordinator.upload(self._site, header, content)
        self.bytes_up += len(content)

    def leave(self) -> None:
        """Take no further part."""
        self._coordinator.leave(self._site)


@dataclass
class Outcome:
    """What a simulated federation leaves: each site's log, the coordinator's rounds, and what it received."""

    sites: dict[str, SiteLog] = field(default_factory=dict)
    rounds: list[CoordinatorRound] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)


@dataclass
class _Site:
    session: Session
    transport: DirectTransport
    trainee: Trainee
    figures: list[SiteRound]

    @property
    def name(self) -> str:
        return self.session.site

    def save(self, agreement: Agreement, out: Path, train_samples: int) -> SiteLog:
        folder = site_folder(out, self.name)
        self.trainee.save(folder)
        write_agreement(folder, agreement)
        log = SiteLog(
            name=self.name,
            model=agreement.training.model,
            train_samples=train_samples,
            bytes_up=self.transport.bytes_up,
            bytes_down=self.transport.bytes_down,
            rounds=tuple(self.figures),
        )
        write_site_log(folder, log)
        return log


def run_federation(
    agreement: Agreement,
    data: Mapping[str, SiteData],
    out: Path,
    *,
    device: str,
    executor: Executor | None = None,
    on_round: Callable[[str, SiteRound], None] = lambda site, figures: None,
    record: bool = False,
) -> Outcome:
    """Run the agreement over ``data`` (site name → its data); every site's files go to ``out/sites/NAME``.

    With ``record`` the outcome holds every message that the coordinator received. Raises
    :class:`secure_client.errors.RunStopped` when the run does not complete.
    """
    outcome = Outcome()
    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="protoseal-")))
        parties, trust = make_parties(state, agreement, sorted(data))
        store = stack.enter_context(
            Store.open(state / "coordinator.sqlite", agreement.run, agreement.hash(), record=record)
        )
        coordinator = Coordinator(
            agreement=agreement,
            rules=_patient_rules(agreement, sorted(data)),
            trust=trust,
            store=store,
            aggregator=Aggregator(agreement, state / "evaluation-keys.bin", executor),
            on_round=outcome.rounds.append,
        )
        sites = [
            _open_site(stack, agreement, party, data[party.name], coordinator, state, device, on_round)
            for party in parties
        ]
        _take_turns(sites)
        for site in sites:
            outcome.sites[site.name] = site.save(agreement, out, len(data[site.name].train))
        outcome.received = list(store.received())
    return outcome


def make_parties(directory: Path, agreement: Agreement, names: Sequence[str]) -> tuple[list[Party], TrustAnchor]:
    """A federation's CA and sites, with keys that live in ``directory`` under a passphrase nobody learns."""
    passphrase = secrets.token_bytes(32)
    authority = directory / "ca"
    create_authority(authority, agreement.federation, passphrase)
    trust = TrustAnchor.load(authority / "ca.pem")
    parties = []
    for name in names:
        folder = directory / "sites" / name
        create_request(folder, Identity.site(agreement.federation, name), passphrase)
        certificate = approve(authority, passphrase, (folder / "request.pem").read_bytes())
        (folder / "certificate.pem").write_bytes(certificate)
        credentials = Credentials.load(folder / "certificate.pem", folder / "key.pem", passphrase)
        parties.append(Party(credentials, trust, agreement.min_sites))
    return parties, trust


def run_control(
    agreement: Agreement, control: Control, data: Mapping[str, SiteData], *, device: str
) -> dict[str, list[SiteRound]]:
    """The same models, data and schedule without a federation: what each site reaches on its own, by round."""
    return {name: _train_alone(agreement, control, name, data[name], device) for name in sorted(data)}


def _train_alone(agreement: Agreement, control: Control, name: str, data: SiteData, device: str) -> list[SiteRound]:
    learner = build_learner(agreement, name, data, model=agreement.training.model, device=device)
    figures, targets = [], None
    for number in range(1, agreement.rounds + 1):
        start = time.perf_counter()
        learner.train(number, targets)
        rows, counts = learner.prototypes()
        seconds = {"train": time.perf_counter() - start, "protect": 0.0}
        rows, _ = project_to_norm(rows, agreement.norm_bound)
        targets = control_targets(control, rows, counts)
        figures.append(site_round(number, 1, 1, (), learner.evaluate(targets), seconds))
    return figures


def _patient_rules(agreement: Agreement, names: Sequence[str]) -> Rules:
    return Rules(
        run=agreement.run,
        roster=tuple(names),
        min_sites=agreement.min_sites,
        rounds=agreement.rounds,
        max_attempts=1,
        needs_secret=agreement.needs_group_secret,
        join_seconds=_AGES,
        phase_seconds=dict.fromkeys(Phase, _AGES),
    )


def _open_site(
    stack: ExitStack,
    agreement: Agreement,
    party: Party,
    data: SiteData,
    coordinator: Coordinator,
    state: Path,
    device: str,
    on_round: Callable[[str, SiteRound], None],
) -> _Site:
    journal = stack.enter_context(open_journal(state / "sites" / party.name / "journal.sqlite", agreement, party))
    learner = build_learner(agreement, party.name, data, model=agreement.training.model, device=device)
    trainee = Trainee(learner, journal, agreement.norm_bound)
    figures: list[SiteRound] = []

    def add(each: SiteRound) -> None:
        figures.append(each)
        on_round(party.name, each)

    session = Session(agreement, party, trainee, journal, on_round=add)
    return _Site(session, DirectTransport(coordinator, agreement.run, party.name), trainee, figures)


def _take_turns(sites: Sequence[_Site]) -> None:
    for site in sites:
        site.transport.join(site.session.join_request())
    while True:
        for site in sites:
            task = step(site.session, site.transport)
            if isinstance(task, Stopped):
                raise RunStopped(f"the run stopped: {task.reason}")
            if isinstance(task, Finished):
                return
