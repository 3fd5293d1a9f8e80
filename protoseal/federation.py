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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch.utils.data import Dataset

from algorithms.pfpl.objective import Control, control_targets
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
from secure_client.build import build_learner, build_trainee, prototype_bounds
from secure_client.data import SiteData
from secure_client.errors import RunStopped
from secure_client.learner import Evaluation
from secure_client.runner import step
from secure_client.session import Session, site_round
from secure_client.setup import Party, open_journal
from secure_client.trainee import Trainee
from secure_server.aggregate import Aggregator
from secure_server.agreed_rules import agreed_rules
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
    """What a federation leaves: each site's log, the coordinator's rounds, and what it received."""

    sites: dict[str, SiteLog]
    rounds: list[CoordinatorRound]
    received: list[Received]


@dataclass
class LocalSite:
    """One site of a federation in this process."""

    session: Session
    transport: DirectTransport
    trainee: Trainee
    figures: list[SiteRound]

    @property
    def name(self) -> str:
        """The site's name."""
        return self.session.site

    def join(self) -> None:
        """Ask to take part."""
        self.transport.join(self.session.join_request())

    def step(self) -> Task:
        """Do one task."""
        return step(self.session, self.transport)


class LocalFederation:
    """A coordinator and sites that take turns. Close it when done: it holds journals and a store open."""

    def __init__(
        self,
        agreement: Agreement,
        data: Mapping[str, SiteData],
        *,
        device: str = "cpu",
        executor: Executor | None = None,
        record: bool = False,
        overall: Dataset[Any] | None = None,
        on_round: Callable[[str, SiteRound], None] = lambda site, figures: None,
    ) -> None:
        """``data`` maps site names to their data. With ``record`` every message received is kept.

        ``overall`` is a test set over all sites, on which every site's model is tested once at the end.
        """
        self.agreement, self._data, self._device, self._on_round = agreement, data, device, on_round
        self._overall = overall
        self.rounds: list[CoordinatorRound] = []
        self._stack = ExitStack()
        try:
            self._state = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="protoseal-")))
            self.parties, trust = make_parties(self._state, agreement, sorted(data))
            self.store = self._stack.enter_context(
                Store.open(self._state / "coordinator.sqlite", agreement.run, agreement.hash(), record=record)
            )
            self.coordinator = Coordinator(
                agreement=agreement,
                rules=_patient_rules(agreement, sorted(data)),
                trust=trust,
                store=self.store,
                aggregator=Aggregator(agreement, self._state / "evaluation-keys.bin", executor),
                on_round=self.rounds.append,
            )
            self.sites = [self._open_site(party) for party in self.parties]
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self) -> None:
        """All rounds. Raises :class:`secure_client.errors.RunStopped` when the run does not complete."""
        for site in self.sites:
            site.join()
        while True:
            for site in self.sites:
                task = site.step()
                if isinstance(task, Stopped):
                    raise RunStopped(f"the run stopped: {task.reason}")
                if isinstance(task, Finished):
                    return

    def save(self, out: Path) -> Outcome:
        """Write every site's files to ``out/sites/NAME``."""
        logs = {site.name: self._save_site(site, site_folder(out, site.name)) for site in self.sites}
        return Outcome(logs, self.rounds, list(self.store.received()))

    def _open_site(self, party: Party) -> LocalSite:
        journal = self._stack.enter_context(
            open_journal(self._state / "sites" / party.name / "journal.sqlite", self.agreement, party)
        )
        model = self.agreement.training.model
        learner = build_learner(
            self.agreement, party.name, self._data[party.name], model=model, device=self._device
        )
        trainee = build_trainee(self.agreement, learner, journal)
        figures: list[SiteRound] = []

        def add(each: SiteRound) -> None:
            figures.append(each)
            self._on_round(party.name, each)

        session = Session(self.agreement, party, trainee, journal, on_round=add)
        transport = DirectTransport(self.coordinator, self.agreement.run, party.name)
        return LocalSite(session, transport, trainee, figures)

    def _save_site(self, site: LocalSite, folder: Path) -> SiteLog:
        site.trainee.save(folder)
        write_agreement(folder, self.agreement)
        if self._overall is not None:
            tested = site.trainee.evaluate_on(self._overall)
            site.figures[-1:] = [_with_overall(each, tested) for each in site.figures[-1:]]
        log = SiteLog(
            name=site.name,
            model=self.agreement.training.model,
            train_samples=self._data[site.name].train_samples,
            bytes_up=site.transport.bytes_up,
            bytes_down=site.transport.bytes_down,
            rounds=tuple(site.figures),
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
    overall: Dataset[Any] | None = None,
    on_round: Callable[[str, SiteRound], None] = lambda site, figures: None,
) -> Outcome:
    """Run the agreement over ``data`` (site name → its data); every site's files go to ``out/sites/NAME``.

    ``overall`` is a test set over all sites. Raises :class:`secure_client.errors.RunStopped` when the run does not
    complete.
    """
    with LocalFederation(
        agreement, data, device=device, executor=executor, overall=overall, on_round=on_round
    ) as federation:
        federation.run()
        return federation.save(out)


def make_parties(
    directory: Path, agreement: Agreement, names: Sequence[str]
) -> tuple[list[Party], TrustAnchor]:
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
    agreement: Agreement,
    control: Control,
    data: Mapping[str, SiteData],
    *,
    device: str,
    overall: Dataset[Any] | None = None,
) -> dict[str, list[SiteRound]]:
    """The same models, data and schedule without a federation: what each site reaches on its own, by round.

    ``self`` aligns as the agreement's method does, with prototypes held to the same bounds. ``overall`` is a test set
    over all sites.
    """
    return {
        name: _train_alone(agreement, control, name, data[name], device, overall) for name in sorted(data)
    }


def _train_alone(
    agreement: Agreement,
    control: Control,
    name: str,
    data: SiteData,
    device: str,
    overall: Dataset[Any] | None,
) -> list[SiteRound]:
    learner = build_learner(agreement, name, data, model=agreement.training.model, device=device)
    bounds = prototype_bounds(agreement)
    figures, targets = [], None
    for number in range(1, agreement.rounds + 1):
        start = time.perf_counter()
        learner.train(number, targets)
        rows, counts = learner.prototypes()
        seconds = {"train": time.perf_counter() - start, "protect": 0.0}
        targets = control_targets(control, bounds.bounded(rows).rows, counts)
        figures.append(site_round(number, 1, 1, (), learner.evaluate(targets), seconds))
    if overall is not None:
        figures[-1] = _with_overall(figures[-1], learner.evaluate_on(overall, None))
    return figures


def _with_overall(figures: SiteRound, tested: Evaluation) -> SiteRound:
    return figures.model_copy(update={"pm_v_global": tested.pm_v, "pm_l_global": tested.pm_l})


def _patient_rules(agreement: Agreement, names: Sequence[str]) -> Rules:
    return agreed_rules(
        agreement, names, max_attempts=1, join_seconds=_AGES, phase_seconds=dict.fromkeys(Phase, _AGES)
    )
