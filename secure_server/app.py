"""Process of the coordinator, from its configuration file to the end of a run."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter

from agreement.schema.party_file import other_federation
from agreement.storage.anchor_record import AnchorRecord
from agreement.storage.run_files import describe_owner, keep_agreement
from crypto.pki import Credentials, Role, TrustAnchor
from crypto.pki.key_files import errors_name_file
from protoseal_files import durable_files
from protoseal_wire.messages import Phase
from secure_server.aggregator import Aggregator
from secure_server.config import CoordinatorConfig, DeadlinesSection
from secure_server.coordinator import Coordinator
from secure_server.errors import StoreOfOtherRun, WrongIdentity
from secure_server.process_pool import Workers
from secure_server.round_log import CoordinatorRound
from secure_server.rounds.rules import Rules, build_rules
from secure_server.rounds.state import STEPS, State
from secure_server.service.server import serve
from secure_server.store import Store

_log = logging.getLogger("protoseal.coordinator")
ROUNDS_LOG, ADDRESS = "rounds.jsonl", "address"
"""File names in the state directory: a JSON line for each completed round; host:port while the coordinator serves."""


def load_rules(config: CoordinatorConfig) -> Rules:
    """Return the rules of the run that the coordinator's file describes."""
    return build_rules(
        config.agreement,
        config.sites,
        max_attempts=config.max_attempts,
        join_seconds=config.deadlines.join,
        phase_seconds=_phase_seconds(config.deadlines, config.agreement.needs_group_secret),
        empty_seconds=config.deadlines.empty,
    )


def _phase_seconds(deadlines: DeadlinesSection, needs_secret: bool) -> dict[Phase, float]:
    setup = (
        deadlines.setup / 2 if needs_secret else deadlines.setup
    )  # the deadline covers both steps of the set-up
    return {
        Phase.ROSTER: setup,
        Phase.SECRET: setup,
        Phase.PRESENCE: deadlines.train,
        **dict.fromkeys(STEPS, deadlines.values),
        Phase.RESULT: deadlines.result,
    }


def open_identity(config: CoordinatorConfig, passphrase: bytes) -> tuple[Credentials, TrustAnchor]:
    """Open the coordinator's certificate and key, and check them against its own CA and federation."""
    credentials = Credentials.load(config.certificate, config.key, passphrase)
    trust = TrustAnchor.load(config.ca)
    with errors_name_file(config.certificate, f"; the CA's certificate is {config.ca}"):
        identity = trust.identify(credentials.certificate_der, Role.COORDINATOR, datetime.now(UTC))
    if identity.federation != config.agreement.federation:
        raise WrongIdentity(other_federation(config, identity.federation))
    return credentials, trust


def open_store(config: CoordinatorConfig) -> Store:
    """Open the run's store in ``state_dir``; raise :class:`StoreOfOtherRun`, which names what differs."""
    agreement, folder = config.agreement, config.state_dir
    try:
        store = Store.open(
            folder / "coordinator.sqlite", agreement.run, agreement.hash(), record=config.record_view
        )
    except StoreOfOtherRun as error:
        raise StoreOfOtherRun(
            f"{folder} belongs to {describe_owner(folder, agreement)}: set another state_dir for this "
            "run, or restore the agreement that the run was started with"
        ) from error
    keep_agreement(folder, agreement)
    return store


def run_coordinator(
    config: CoordinatorConfig, passphrase: bytes, on_ready: Callable[[int], None] = lambda port: None
) -> State:
    """Serve one run until it ends and return the final state; resume the run that ``state_dir`` holds.

    ``on_ready`` gets the TCP port once sites can connect.
    """
    credentials, trust = open_identity(config, passphrase)
    agreement, workers = config.agreement, config.workers or os.cpu_count() or 1
    with (
        open_store(config) as store,
        Workers(workers) as processes,
        ThreadPoolExecutor(1, thread_name_prefix="aggregation") as background,
        ExitStack() as stack,
    ):
        anchors = stack.enter_context(AnchorRecord.open(config.anchors_file))
        rounds_log, address_file = config.state_dir / ROUNDS_LOG, config.state_dir / ADDRESS
        coordinator = Coordinator(
            agreement=agreement,
            rules=load_rules(config),
            trust=trust,
            store=store,
            aggregator=Aggregator(agreement, config.state_dir / "evaluation-keys.bin", processes),
            anchors=anchors,
            background=background,
            on_round=lambda completed: append_round(rounds_log, completed),
        )

        def ready(port: int) -> None:
            address = f"{config.listen.rpartition(':')[0]}:{port}"
            durable_files.write(address_file, address.encode())
            _log.info("run %s: serving on port %d", agreement.run, port)
            on_ready(port)

        address_file.unlink(missing_ok=True)  # a killed process leaves its address behind
        try:
            asyncio.run(
                serve(coordinator, credentials=credentials, trust=trust, listen=config.listen, ready=ready)
            )
        finally:
            address_file.unlink(missing_ok=True)
        return coordinator.state


def append_round(path: Path, completed: CoordinatorRound) -> None:
    """Append a line to the log of rounds; the line is on the disk when this returns."""
    durable_files.append_line(path, json.dumps(asdict(completed)).encode())


def read_rounds(path: Path) -> list[CoordinatorRound]:
    """Return the completed rounds, oldest first; a round that a restarted coordinator logged again counts once.

    A last line without its end is left out: a power cut tore it, and the coordinator will log its round again.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    rounds = [TypeAdapter(CoordinatorRound).validate_json(line) for line in lines]
    return list({record.round: record for record in rounds}.values())
