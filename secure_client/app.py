"""Process of a site, from its configuration file to the end of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from agreement import Agreement, Protection
from agreement.schema.party_file import other_federation
from agreement.storage.anchor_record import AnchorRecord
from agreement.storage.run_files import belongs_to, describe_owner, keep_agreement
from crypto.errors import CryptoError, KeyStoreError
from crypto.keys import StorageKey
from crypto.pki import Credentials, Role, TrustAnchor
from crypto.pki.key_files import create_storage_key, errors_name_file, make_directory, read_storage_key
from privacy.errors import LedgerError
from privacy.ledger.lines import Fact
from protoseal_files.sqlite import closed_on_error
from protoseal_wire.messages import Finished, Phase, Stopped
from secure_client.checkpoints.learner_factory import build_checkpointed_learner, build_learner
from secure_client.client_loop import take_part
from secure_client.config import SiteConfig
from secure_client.data import SiteData, load_site_data
from secure_client.data.sources import hash_training_records
from secure_client.diagnosis.diagnoses import diagnose
from secure_client.error_containment import run_or_fallback
from secure_client.errors import FilesOfOtherRun, RunStopped, SiteError, StateError, Unreachable
from secure_client.output.site_files import MODEL, PROTOTYPES, write_agreement
from secure_client.output.site_log import SiteLog, SiteRound, write_site_log
from secure_client.privacy.budget import NO_GUARANTEE, BudgetSection, check_delta
from secure_client.privacy.kept_releases import FOLDER as RELEASES
from secure_client.privacy.kept_releases import KeptReleases
from secure_client.privacy.ledger_anchors import check_recorded, record_beside
from secure_client.privacy.record_overlap import Sketch, compare_records, open_records_key
from secure_client.privacy.releases import ExactReleases, Releases, count_units, open_exact, open_releases
from secure_client.protocol.answer_delays import AnswerDelays
from secure_client.protocol.journal import Journal
from secure_client.protocol.setup import Party, open_journal
from secure_client.session import Session
from secure_client.training.learner import Learner
from secure_client.training.loop import flush_denormals
from secure_client.transport import GrpcTransport

_log = logging.getLogger("protoseal.site")
_COMPLETE, _SAVED, _LOG = "complete", "saved", "log"
JOURNAL, STORAGE_KEY = "journal.sqlite", "storage.key"
"""The files of a site's ``state_dir``: its journal, and the key that encrypts the secrets in it."""
_RESULTS = (MODEL, PROTOTYPES)
"""The site's results in ``out``."""
NO_LEDGER = (
    "%s: run %r releases exact values, and no privacy ledger records the release, because this site's file has "
    "no [privacy] section; a ledger begun later will not contain it"
)
PLAIN = 'protection = "plain": the coordinator reads every value that this site sends'
SHOWN_DURATION = (
    "answers_show_duration = true: the coordinator sees how long this site takes to train and to decrypt, which can "
    "depend on records and on decrypted values"
)


def exposures(agreement: Agreement) -> list[str]:
    """Return the agreed settings that show the coordinator more than the defaults do, with their effect."""
    conditions = {
        PLAIN: agreement.protection is Protection.PLAIN,
        SHOWN_DURATION: agreement.timing.answers_show_duration,
    }
    return [text for text, holds in conditions.items() if holds]


def open_party(config: SiteConfig, passphrase: bytes) -> Party:
    """Open the site's identity and check it against the file and the CA; raise :class:`crypto.errors.CryptoError`."""
    credentials = Credentials.load(config.certificate, config.key, passphrase)
    trust = TrustAnchor.load(config.ca)
    with errors_name_file(config.certificate, f"; the CA's certificate is {config.ca}"):
        identity = trust.identify(credentials.certificate_der, Role.SITE, datetime.now(UTC))
    if identity.federation != config.agreement.federation:
        raise SiteError(other_federation(config, identity.federation))
    if identity.name != config.name:
        raise SiteError(
            f"{config.certificate} is the certificate of {identity.name}, and this site's file says name = "
            f'"{config.name}": correct name in the file, or name the certificate of {config.name} there'
        )
    # A closure, whose representation shows nothing; a partial's would show the passphrase.
    return Party(
        credentials, trust, config.required_sites, lambda: _storage_key(config, passphrase), config.pins
    )


def _storage_key(config: SiteConfig, passphrase: bytes) -> StorageKey:
    """Return the key of the data that the site stores in this run.

    The key is made with the journal and does not depend on the certificate. Raises
    :class:`crypto.errors.KeyStoreError` for a key that is missing although a journal exists, or that cannot be
    decrypted.
    """
    path, journal = config.state_dir / STORAGE_KEY, config.state_dir / JOURNAL
    if path.exists():
        return read_storage_key(path, passphrase)
    if journal.exists():
        raise KeyStoreError(
            f"{path} is missing, and {journal} cannot be decrypted without it: restore the file. If the file is "
            "lost, this site cannot resume the run: move the state_dir away and let the other sites run "
            "without this one"
        )
    make_directory(config.state_dir)
    return create_storage_key(path, passphrase, like=config.key)


def load_data(config: SiteConfig) -> SiteData:
    """Return the site's data in the agreed form. Raises a :class:`SiteError`."""
    return load_site_data(
        config.data,
        config.data_root,
        config.agreement,
        convert_channels=config.convert_channels,
        written=config.table,
        class_names=config.class_names,
    )


def open_learner(config: SiteConfig, data: SiteData) -> Learner:
    """Return the learner with the site's own model on its own device, over its data; raise a :class:`SiteError`."""
    return build_learner(
        config.agreement,
        config.name,
        data,
        model=config.model_spec,
        device=config.device,
        pretrained=config.pretrained,
        accept_dark_or_constant_inputs=config.accept_dark_or_constant_inputs,
    )


def open_state(config: SiteConfig, party: Party) -> Journal:
    """Open the run's journal in ``state_dir``; raise :class:`FilesOfOtherRun`, which names what differs."""
    journal = open_run_journal(config, config.state_dir / JOURNAL, party)
    with closed_on_error(journal):
        check_out(config, begun=not journal.unused)
        keep_agreement(config.state_dir, config.agreement)
    return journal


def open_run_journal(config: SiteConfig, path: Path, party: Party) -> Journal:
    """Open the journal of the site's run, or a copy of it. Errors as for :func:`open_state`."""
    try:
        return open_journal(path, config.agreement, party)
    except FilesOfOtherRun as error:
        raise FilesOfOtherRun(
            f"{config.state_dir} belongs to {describe_owner(config.state_dir, config.agreement)}: give this run its "
            "own state_dir and out, or use the agreement that the run was started with"
        ) from error


def check_out(config: SiteConfig, *, begun: bool) -> None:
    """Raise :class:`FilesOfOtherRun` if ``out`` has another run's model. ``begun``: this site has state of this run."""
    if not (config.out / MODEL).exists() or (begun and belongs_to(config.out, config.agreement)):
        return
    owner = "an earlier start of this run, which has no state in state_dir"
    if not belongs_to(config.out, config.agreement):
        owner = describe_owner(config.out, config.agreement)
    raise FilesOfOtherRun(
        f"{config.out} holds the model of {owner}: give this run its own out, or move that model away"
    )


def run_site(
    config: SiteConfig, passphrase: bytes, on_round: Callable[[SiteRound], None] = lambda figures: None
) -> SiteLog:
    """Take part in the run until it ends, writing ``site.json`` after every round and the model at the end.

    Raises :class:`RunStopped` when the coordinator ends the run early, and a :class:`SiteError` or
    :class:`crypto.errors.CryptoError` for any other failure. A site that is started again resumes. A site that has the
    last round's result needs no coordinator, and one whose model is saved needs no data either.
    """
    party = open_party(config, passphrase)
    with flush_denormals(), open_state(config, party) as journal:
        if journal.get(_SAVED) and all((config.out / name).exists() for name in _RESULTS):
            return _stored_log(config, journal)
        # A closure, as in open_party.
        return _run(
            config, party, journal, on_round, lambda ledger: open_records_key(ledger, passphrase, config.key)
        )


def sketch_records(config: SiteConfig) -> Sketch:
    """Return the sketch of the site's training records; raise a :class:`SiteError` for data that cannot be read."""
    return Sketch.of(
        hash_training_records(
            config.data, data_root=config.data_root, agreed=config.agreement.inputs, written=config.table
        )
    )


def _run(
    config: SiteConfig,
    party: Party,
    journal: Journal,
    on_round: Callable[[SiteRound], None],
    records_key: Callable[[Path], StorageKey],
) -> SiteLog:
    agreement = config.agreement
    # Whatever can refuse the run comes before the site joins, so that the coordinator never waits for this site.
    # A record that cannot be read must not end the run: without a sketch its records are not compared.
    sketch = (
        None
        if config.privacy is None
        else run_or_fallback(lambda: sketch_records(config), lambda: None, "sketching the training records")
    )
    data = load_data(config)
    for exposure in exposures(agreement):
        _log.warning("run %r: %s", agreement.run, exposure)
    releases, exact = _open_ledger(config, data)
    recorder = releases or exact
    if config.privacy is not None and sketch is not None and recorder is not None:
        recorder.note(_compare_records(config.privacy, sketch, records_key))
    bare_learner = open_learner(config, data)
    for ranges in bare_learner.ranges:
        for warning in ranges.warnings:
            _log.warning("%s: %s", ranges.where, warning)
    learner = build_checkpointed_learner(agreement, bare_learner, journal, releases)
    with ExitStack() as stack:
        transport = stack.enter_context(open_transport(config, party))
        peers = stack.enter_context(open_peers(config.privacy)) if config.privacy else None
        writer = _LogWriter(config, data, transport, journal, on_round)
        delays = AnswerDelays(journal, agreement, learner.predictor.evaluate)
        session = Session(
            agreement,
            party,
            learner,
            journal,
            on_round=writer.add,
            on_answer=delays.keep,
            peers=peers,
            exact=exact,
        )
        outcome = _take_part_or_finish(
            config, journal, session, lambda: take_part(session, transport, delays.hold_answer)
        )
    # The journal records completion before any write that may fail: a site that is restarted after a failed write must
    # not join again, since the coordinator would see it.
    trained = learner.values.has_trained
    if is_complete(outcome, agreement.rounds, trained=trained):
        journal.put(_COMPLETE, agreement.rounds, b"")
    if trained:
        learner.predictor.save(config.out)
    log = writer.write()
    check_complete(outcome, agreement.rounds, trained=trained)
    # Only after the last write: a site that is restarted before this writes its results again.
    journal.put(_SAVED, agreement.rounds, b"")
    for text in run_or_fallback(
        lambda: [diagnosis.text for diagnosis in diagnose(agreement, agreement.method, [log.rounds])],
        list[str],
        "checking the settings",
    ):
        _log.warning("%s: %s", log.name, text)
    return log


def _open_ledger(config: SiteConfig, data: SiteData) -> tuple[Releases | None, ExactReleases | None]:
    """Open what pays for the run's noisy releases, or records its exact ones; neither for a site without a ledger."""
    agreement, budget = config.agreement, config.privacy
    if budget is None:
        _log.warning(NO_LEDGER, NO_GUARANTEE, agreement.run)
        return open_releases(agreement, None), None
    check_delta(budget, count_units(data, agreement))
    # Before the ledger is opened, which would begin another in the place of one that is lost.
    check_recorded(budget)
    kept_releases = KeptReleases(config.state_dir / RELEASES) if budget.keep_releases else None
    return open_releases(agreement, budget, kept_releases), open_exact(agreement, budget)


def _compare_records(
    budget: BudgetSection, sketch: Sketch, records_key: Callable[[Path], StorageKey]
) -> Mapping[str, Fact]:
    """Log where else the run's records are charged; return the facts for the ledger. No fault here ends the run."""
    try:
        comparison = compare_records(sketch, records_key(budget.ledger), budget.ledger, budget.dataset)
    except (CryptoError, LedgerError, OSError) as error:
        _log.warning("the records of %r are not compared with other ledgers: %s", budget.dataset, error)
        return {}
    for warning in comparison.warnings:
        _log.warning("data set %r: %s", budget.dataset, warning)
    return comparison.facts


def _take_part_or_finish(
    config: SiteConfig, journal: Journal, session: Session, take_part_now: Callable[[], Finished | Stopped]
) -> Finished | Stopped:
    """Take part until the run ends. A site that has the last round's result contacts no coordinator."""
    rounds, last = config.agreement.rounds, rounds_received(journal)
    if last == rounds or journal.get(_COMPLETE):
        session.finish()
        return Finished(rounds)
    try:
        return take_part_now()
    except Unreachable as error:
        last = rounds_received(journal)
        if last == 0:
            raise
        raise Unreachable(
            f"{error}; this site has the results of {last} of {rounds} rounds. Start the site again once the "
            "coordinator serves: a coordinator that is restarted after the run's end gives late sites the last "
            "result"
        ) from error


def rounds_received(journal: Journal) -> int:
    """Return the last round whose result the site has; 0 before the first."""
    last = journal.latest(Phase.RESULT)
    return 0 if last is None else last.round


def open_transport(config: SiteConfig, party: Party) -> GrpcTransport:
    """Return the site's transport to its coordinator, which connects at the first call."""
    return GrpcTransport(
        config.coordinator,
        party.credentials,
        party.trust,
        config.agreement.run,
        retry_seconds=config.retry_seconds,
    )


def open_peers(budget: BudgetSection) -> AnchorRecord:
    """Open the record of the peers' ledgers and the site's own; raise ``AnchorRecordError``."""
    return AnchorRecord.open(record_beside(budget.ledger))


def is_complete(outcome: Finished | Stopped, rounds: int, *, trained: bool) -> bool:
    """Return True if the run had its agreed rounds and this site trained in it."""
    return isinstance(outcome, Finished) and outcome.rounds == rounds and trained


def check_complete(outcome: Finished | Stopped, rounds: int, *, trained: bool) -> None:
    """Raise :class:`RunStopped` unless the run had its agreed rounds and this site trained in it."""
    if isinstance(outcome, Stopped):
        raise RunStopped(f"the coordinator stopped the run: {outcome.reason}; start again once it runs again")
    if not is_complete(outcome, rounds, trained=trained):
        part = "" if trained else ", and this site trained in none of them"
        raise RunStopped(f"the coordinator ended the run after {outcome.rounds} of {rounds} rounds{part}")


def _stored_log(config: SiteConfig, journal: Journal) -> SiteLog:
    """Return the log of a run that is complete at this site, and write ``site.json`` again."""
    stored = journal.get(_LOG)
    if stored is None:
        raise StateError(f"{config.state_dir} lacks the log of run {config.agreement.run!r}")
    log = SiteLog.model_validate_json(stored[1])
    write_site_log(config.out, log)
    return log


class _LogWriter:
    """Writer of ``site.json``. The journal holds a copy, from which a restarted site resumes."""

    def __init__(
        self,
        config: SiteConfig,
        data: SiteData,
        transport: GrpcTransport,
        journal: Journal,
        on_round: Callable[[SiteRound], None],
    ) -> None:
        self._config = config
        self._transport = transport
        self._journal = journal
        self._on_round = on_round
        stored = journal.get(_LOG)
        self._before = (
            SiteLog.model_validate_json(stored[1])
            if stored
            else SiteLog(
                name=config.name,
                model=config.model_spec,
                class_names=config.class_names,
                train_samples=data.train_samples,
                table=config.table if data.scale else None,
                scale=data.scale,
                bytes_up=0,
                bytes_down=0,
                rounds=(),
            )
        )
        self._rounds = self._before.rounds
        write_agreement(config.out, config.agreement)

    def add(self, figures: SiteRound) -> None:
        """Add a round, replacing an earlier entry of the same round (repeated after a crash).

        A log file that cannot be written does not end the run: the journal stores the round, and the next write
        includes it.
        """
        self._rounds = (*(earlier for earlier in self._rounds if earlier.round != figures.round), figures)
        self._journal.put(_LOG, figures.round, self._log().model_dump_json(by_alias=True).encode())
        run_or_fallback(self.write, self._log, "writing site.json")
        run_or_fallback(lambda: self._on_round(figures), lambda: None, "showing the round")

    def write(self) -> SiteLog:
        """Write and return the log so far."""
        log = self._log()
        write_site_log(self._config.out, log)
        return log

    def _log(self) -> SiteLog:
        return self._before.model_copy(
            update={
                "bytes_up": self._before.bytes_up + self._transport.bytes_up,
                "bytes_down": self._before.bytes_down + self._transport.bytes_down,
                "rounds": self._rounds,
            }
        )
