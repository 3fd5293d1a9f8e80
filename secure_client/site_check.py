"""Checks of ``protoseal client check``: each requirement of a run is tried, and no data is sent.

The checks change nothing at the coordinator and no file of a run: the journal is opened as a copy in a temporary folder
beside the journal. Limit: the coordinator's answer is not signed. A false answer misleads the check and affects no run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.data import Dataset

from agreement import Agreement
from agreement.schema.differences import differing_fields, in_one_line
from algorithms.gram_matrix import Bool
from crypto.errors import CryptoError, KeyStoreError
from crypto.pki.identity import load_certificate
from crypto.pki.key_files import read_storage_key
from privacy.errors import BudgetError, PrivacyError
from protoseal_files.durable_files import make_state_folder, refuse_link
from protoseal_wire.messages import CheckReply, Listing, RunStage
from secure_client.app import (
    JOURNAL,
    NO_LEDGER,
    check_out,
    exposures,
    load_data,
    open_learner,
    open_party,
    open_run_journal,
    open_transport,
    rounds_received,
    sketch_records,
)
from secure_client.checkpoints.learner_factory import build_initial_model, check_averaged
from secure_client.config import SiteConfig
from secure_client.data import SiteData
from secure_client.data.class_names import warn_of_own_numbers
from secure_client.data.input_ranges import InputRanges
from secure_client.data.preprocess import describe_resizing
from secure_client.data.sources import TABLE_FORM, find_table
from secure_client.data.table import describe_table, parse_table
from secure_client.errors import DataError, ModelError, Refused, SiteError, StateError
from secure_client.models.prototype_model import hash_weights
from secure_client.privacy.budget import NO_GUARANTEE, check_delta
from secure_client.privacy.cost import planned_epsilon, planned_in_words
from secure_client.privacy.ledger_anchors import check_recorded
from secure_client.privacy.record_overlap import RECORDS_KEY, compare_records
from secure_client.privacy.releases import count_units, open_exact, open_releases
from secure_client.protocol.setup import Party
from secure_client.proxy import find_proxy, split_target
from secure_client.training.batches import open_source
from secure_client.training.learner import choose_device, read_labels
from secure_client.user_code import describe_failure

R = TypeVar("R")


@dataclass(frozen=True)
class CheckFinding:
    """One check and its outcome."""

    what: str
    ok: bool
    detail: str


def check_site(config: SiteConfig, passphrase: Callable[[], bytes]) -> Iterator[CheckFinding]:
    """Run every check, also after one has failed; nothing changes at the coordinator.

    Checks that need neither a key nor the network come first, because the author of a draft agreement may have neither
    yet. ``passphrase`` is called several times and may raise :class:`crypto.errors.CryptoError`. When one cause fails
    several checks, the first of them states the cause and the others name the first.
    """
    first_with: dict[str, str] = {}
    for finding in _findings(config, passphrase):
        first = finding.what if finding.ok else first_with.setdefault(finding.detail, finding.what)
        yield (
            finding
            if first == finding.what
            else CheckFinding(finding.what, False, f"for the same reason as {first}")
        )


def _findings(config: SiteConfig, passphrase: Callable[[], bytes]) -> Iterator[CheckFinding]:
    yield _try("agreement", lambda: _describe_agreement(config.agreement))
    model = _try("model", lambda: _check_model(config))
    yield model
    both = _try("data and model", lambda: _check_learner(config)) if model.ok else model
    if model.ok:
        yield both
    if not both.ok:  # the data by themselves
        yield _try("data", lambda: _check_data(config))
    if config.data.startswith(TABLE_FORM):
        yield _try("table", lambda: _describe_tables(config))
    yield _try("privacy", lambda: _check_privacy(config))
    yield _try("folders", lambda: check_folders(config))
    party = _remember(lambda: open_party(config, passphrase()))
    yield _try("certificate", lambda: _describe_certificate(party()))
    if config.privacy is not None:
        yield _try("records", lambda: _compare_records(config, passphrase()))
    yield _try("state", lambda: check_state(config, party()))
    reply = _remember(lambda: ask_coordinator(config, party()))
    yield _try("coordinator", lambda: _describe_connection(config, reply()))
    yield _try("listed", lambda: check_listed(config, reply()))
    yield _try("same agreement", lambda: check_agreement(config, reply()))
    yield _try("run", lambda: check_open(config, reply()))


def _remember(attempt: Callable[[], R]) -> Callable[[], R]:
    """Return a function that repeats the outcome of its first call, a value or an exception."""
    outcomes: list[R | Exception] = []

    def outcome() -> R:
        if not outcomes:
            try:
                outcomes.append(attempt())
            except (CryptoError, PrivacyError, SiteError, OSError) as error:
                outcomes.append(error)
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]
        return outcomes[0]

    return outcome


def _try(what: str, attempt: Callable[[], str]) -> CheckFinding:
    try:
        return CheckFinding(what, True, attempt())
    except (CryptoError, PrivacyError, SiteError) as error:
        return CheckFinding(what, False, str(error))
    except OSError as error:
        return CheckFinding(what, False, f"{error.filename or what}: {error.strerror or error}")
    except (
        BaseException
    ) as error:  # a fault of the program, or of a site's code where nothing else catches it
        return CheckFinding(what, False, str(describe_failure(SiteError, what, error)))


def _describe_agreement(agreement: Agreement) -> str:
    shown = "".join(f"; WARNING: {exposure}" for exposure in exposures(agreement))
    return f"run {agreement.run}: {agreement.summary}; hash {agreement.hash().hex()}{shown}"


def _check_privacy(config: SiteConfig) -> str:
    """Describe the part of the budget that the run takes, and the remainder; create a missing ledger."""
    agreement, budget = config.agreement, config.privacy
    if agreement.privacy is None and budget is None:
        return NO_LEDGER % (NO_GUARANTEE, agreement.run)
    if budget is not None:
        check_recorded(budget)
    exact = open_exact(agreement, budget)
    if exact is not None and budget is not None:
        return (
            f"{NO_GUARANTEE} for {budget.dataset!r} from this run on: the run would release exact values; epsilon "
            f"{exact.spent_budget().epsilon:.4g} of {budget.epsilon:g} is spent"
        )
    if budget is not None:  # before open_releases creates a ledger, whose unit is final
        check_delta(budget, count_units(load_data(config), agreement))
    begun = budget is not None and not budget.ledger.exists()
    releases = open_releases(agreement, budget)
    if agreement.privacy is None or budget is None or releases is None:
        raise BudgetError("nothing is released with noise")
    spent = releases.spent_budget()
    planned, worst = (
        planned_epsilon(agreement, agreement.privacy, budget.delta, budget.accountant, attempts=attempts)
        for attempts in (1, budget.most_paid_attempts)
    )
    label = "" if spent.guaranteed else f"{NO_GUARANTEE}: "
    begins = f"; the ledger {budget.ledger} has been created with that limit" if begun else ""
    return (
        f"{label}{planned_in_words(agreement, agreement.privacy)} take epsilon {planned:.4g} by themselves;"
        f" {spent.epsilon:.4g} of {budget.epsilon:g} at delta {budget.delta:g} for one {budget.unit} is spent on"
        f" {budget.dataset!r}; paid for {budget.most_paid_attempts} times in every round, the most that this site"
        f" allows, the run would take epsilon {worst:.4g}{begins}"
    )


def _compare_records(config: SiteConfig, passphrase: bytes) -> str:
    """Say whether the records are charged in another ledger already. A warning fails no check."""
    budget = config.privacy
    if budget is None:
        raise BudgetError("the site has no ledger")
    folder = budget.ledger.resolve().parent
    if not (folder / RECORDS_KEY).exists():
        return f"no ledger in {folder} has a sketch of its records yet; the next run stores one"
    try:
        key = read_storage_key(folder / RECORDS_KEY, passphrase)
    except KeyStoreError as error:
        return f"WARNING: the records are not compared with other ledgers: {error}"
    compared = compare_records(sketch_records(config), key, budget.ledger, budget.dataset)
    unknown = [f"the records of {path.name} are unknown until its next run" for path in compared.unknown]
    warned = [f"WARNING: {warning}" for warning in compared.warnings]
    return "; ".join([*warned, *unknown]) or f"no other ledger in {folder} charges these records"


def _check_model(config: SiteConfig) -> str:
    """Describe the part of the model that leaves the site, where the method averages any."""
    agreement, spec = config.agreement, config.model_spec
    initial = build_initial_model(agreement, spec, config.pretrained)
    again = build_initial_model(agreement, spec, config.pretrained) if ":" in spec else initial
    if hash_weights(initial.state_dict()) != hash_weights(again.state_dict()):
        raise ModelError(
            f"{spec}: two calls give different numbers, so that sites would begin from different models: draw them from"
            " torch's generator, which the agreed init_seed sets"
        )
    check_averaged(agreement, initial)
    if not agreement.method.averages:
        return spec
    averaging = agreement.averaging
    averaged = f"{averaging.parameters:,} parameters and {averaging.buffers:,} buffers of it are averaged"
    return f"{spec}; {averaged}, the rest stays here"


def _check_data(config: SiteConfig) -> str:
    data = load_data(config)
    parts = {"training": data.train, "test": data.test}
    read = [f"{name}: {_read_part(part, name, config)}" for name, part in parts.items() if part is not None]
    parts_read = [f"{data.train_samples} training samples, not yet run through the model", *read]
    return "; ".join(filter(None, [*parts_read, _describe_resizing(config, data)]))


def _describe_resizing(config: SiteConfig, data: SiteData) -> str:
    return describe_resizing(set().union(*data.sides), config.agreement.preprocessing)


def _read_part(part: Dataset[Any], name: str, config: SiteConfig) -> InputRanges:
    """Read a part of the data without a model; raise the errors that a run's start would raise."""
    ranges = InputRanges(config.agreement.inputs, f"{config.data}: {name} data")
    read_labels(open_source(part, torch.device("cpu")), len(config.agreement.classes), ranges)
    if not config.accept_dark_or_constant_inputs:
        ranges.check()
    return ranges


def _describe_tables(config: SiteConfig) -> str:
    """Describe each column of the site's tables."""
    agreement, parts = config.agreement, config.data.split("+")
    if agreement.table is None:
        raise DataError(f"{config.data}: the agreement has no section [table]")
    paths = [find_table(part.strip(), config.data_root) for part in parts]
    tests = [config.table.test] if config.table.test else []
    return " | ".join(
        f"{path}: {describe_table(parse_table(path, agreement.table, config.table, agreement.classes))}"
        for path in [*paths, *tests]
    )


def _describe_certificate(party: Party) -> str:
    ends = load_certificate(party.credentials.certificate_pem).not_valid_after_utc
    days = (ends - datetime.now(UTC)).days
    return f"{party.credentials.identity}, valid for {days} more days"


def _check_learner(config: SiteConfig) -> str:
    agreement = config.agreement
    data = load_data(config)
    learner = open_learner(config, data)
    _, counts = learner.prototypes()
    missing: Bool = counts == 0
    absent = [name for name, out in zip(agreement.classes, missing, strict=True) if out]
    per_class = ", ".join(f"{n}: {c}" for n, c in zip(agreement.classes, counts, strict=True) if c)
    without = f"; no samples of {', '.join(absent)}" if absent else ""
    samples = f"{data.train_samples} training samples ({per_class}){without}"
    labels = "; ".join((*data.label_notes, *warn_of_own_numbers(data.label_notes, counts)))
    ranges = "; ".join(
        f"{name}: {ranges}" for name, ranges in zip(("training", "test"), learner.ranges, strict=False)
    )
    zeroed = "; ".join(f"WARNING: {warning}" for warning in learner.zeroed)
    model = f"{config.model_spec} on {choose_device(config.device)}"
    return "; ".join(filter(None, [samples, labels, _describe_resizing(config, data), ranges, zeroed, model]))


def _describe_connection(config: SiteConfig, reply: CheckReply) -> str:
    proxy = find_proxy(split_target(config.coordinator)[0])
    through = "" if proxy is None else f" through the proxy {proxy}"
    return (
        f"{config.coordinator} answers over mutual TLS{through} by protocol {reply.protocol}, and serves run "
        f"{reply.run!r}"
    )


def ask_coordinator(config: SiteConfig, party: Party) -> CheckReply:
    """Return the coordinator's description of its run; raise a :class:`secure_client.errors.SiteError`."""
    with open_transport(config, party) as transport:
        return transport.check()


def check_listed(config: SiteConfig, reply: CheckReply) -> str:
    """Raise :class:`Refused` unless the coordinator's file names the site."""
    _require_listing(config, reply)
    return f"{config.name} is on the coordinator's list"


def check_agreement(config: SiteConfig, reply: CheckReply) -> str:
    """Raise :class:`Refused`, naming the fields in which the coordinator's agreement differs."""
    listing, agreement = _require_listing(config, reply), config.agreement
    if listing.agreement_hash == agreement.hash():
        return f"the coordinator has the same agreement, hash {agreement.hash().hex()[:16]}"
    lines = differing_fields(agreement, listing.fields)
    differing = in_one_line(lines) or "no field, so the two installed versions of protoseal differ"
    raise Refused(f"the coordinator's agreement differs in {differing}; use the same agreement file")


def check_open(config: SiteConfig, reply: CheckReply) -> str:
    """Raise :class:`Refused` unless the site can take part in the coordinator's run in its present state."""
    listing, run = _require_listing(config, reply), config.agreement.run
    if reply.run != run:
        raise Refused(
            f"the coordinator serves run {reply.run!r}, and this site's agreement is for run {run!r}"
        )
    if not listing.may_join:
        raise Refused(f"run {run!r} has started without {config.name}; join the next run")
    match listing.stage:
        case RunStage.JOINING:
            return f"run {run!r} is open for joining"
        case RunStage.UNDER_WAY:
            return (
                f"round {listing.round} of {config.agreement.rounds} of run {run!r}; {config.name} takes part"
            )
        case RunStage.FINISHED:
            return (
                f"run {run!r} is over; start `client run` to fetch the results that {config.name} has missed"
            )
        case RunStage.STOPPED:
            raise Refused(
                f"run {run!r} has stopped; ask the coordinator's operator to restart the run or to begin a new "
                "one"
            )


def _require_listing(config: SiteConfig, reply: CheckReply) -> Listing:
    if reply.listing is None:
        raise Refused(
            f"{config.name} is not on the list of the coordinator, which serves run {reply.run!r}: have its operator"
            f" add {config.name} to sites in coordinator.toml before the run"
        )
    return reply.listing


_LOCKED_FROM, _LOCKED_BYTES = 0x40000002, 510
"""The bytes that SQLite locks while a process uses a database (SQLite's file format: the shared range)."""


def check_folders(config: SiteConfig) -> str:
    """Return the folders that a run writes to; raise :class:`StateError` for a folder that cannot be written.

    Raises ``OSError`` if others may write to ``state_dir``.
    """
    for folder in (config.state_dir, config.out):
        _check_writable(folder)
    if config.state_dir.exists():
        make_state_folder(config.state_dir)  # refuses a folder that others may write to
    return f"{config.state_dir} and {config.out} can be written"


def check_state(config: SiteConfig, party: Party) -> str:
    """Return the number of rounds that this site has completed, as text.

    Raises :class:`StateError` for the state or results of another run, and while another process uses the state;
    :class:`crypto.errors.CryptoError` where this site's key does not decrypt the stored secrets, ``OSError`` for a
    symbolic link.
    """
    journal = config.state_dir / JOURNAL
    if not journal.exists():
        check_out(config, begun=False)
        return f"no round yet; the run will store its state in {config.state_dir}"
    _check_free(journal)
    with tempfile.TemporaryDirectory(dir=config.state_dir, prefix=".check-") as copies:
        for path in config.state_dir.glob(f"{JOURNAL}*"):  # and the log that a killed process leaves
            refuse_link(path)
            shutil.copy2(path, copies)
        with open_run_journal(config, Path(copies) / JOURNAL, party) as copy:
            check_out(config, begun=not copy.unused)
            secrets, last = copy.check_secrets(), rounds_received(copy)
            return f"{last} of {config.agreement.rounds} rounds; {secrets} stored secrets can be decrypted"


def _check_writable(folder: Path) -> None:
    """Check that a missing folder can be made: the nearest existing folder above it must be writable."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise StateError(
            f"{folder} cannot be written ({error.strerror}): name another folder, or correct its permissions"
        ) from error


def _check_free(path: Path) -> None:
    # Asked of the file: opening the journal would recover its log, which changes a file of a run that may be going on.
    with path.open("rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, _LOCKED_BYTES, _LOCKED_FROM, os.SEEK_SET)
        except OSError as error:
            raise StateError(
                f"{path} is in use: is `client run` of this site running? Stop it first"
            ) from error
