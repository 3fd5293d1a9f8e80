"""A federation on disk, as operators set one up, and its processes: started, watched, stopped and killed.

Nothing waits for a fixed time: everything is polled for, with a deadline that only a fault reaches.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from agreement import Agreement
from crypto.pki import (
    Credentials,
    Identity,
    Stretching,
    TrustAnchor,
    approve,
    create_authority,
    create_request,
)
from crypto.pki.key_files import read_storage_key
from protoseal.splits import SiteArrays
from secure_client.app import STORAGE_KEY
from secure_client.data.npz import write_npz
from secure_client.data.samples import TrainTest
from secure_client.output.site_files import SitePrototypes, read_prototypes
from secure_client.protocol.setup import Party
from secure_server.app import ADDRESS
from tests.support import gated_model, killed_party
from tests.support.forked_processes import PROTOSEAL, Child, Nursery
from tests.support.killed_party import Point

PATIENCE = 120.0
"""Seconds until a wait counts as failed, far above what it takes on a busy machine."""

_REPOSITORY = Path(__file__).parents[2]
_PASSPHRASE = secrets.token_hex(16).encode()
_RESERVED: list[socket.socket] = []
"""A socket for each port that this process was given: open for as long as it lives."""


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Poll until ``condition`` holds; ``AssertionError`` naming ``what`` when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.02)


class Running:
    """One process, and what it wrote since it started."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        own: Mapping[str, str] = {},
        nursery: Nursery | None = None,
        module: str = PROTOSEAL,
        log: str = "log.txt",
    ) -> None:
        """Start ``protoseal`` with these arguments, by the command, or ``module`` forked off the nursery.

        With anything in ``own``, added to its environment, it is ``tests.support.killed_party`` that runs. Output
        goes to the file ``log`` of the folder.
        """
        self.log_path = folder / log
        self.log_path.touch()
        self._log_start = self.log_path.stat().st_size
        self._process: subprocess.Popen[bytes] | Child
        if nursery:
            self._process = nursery.start(folder, arguments, self.log_path, own, module)
            return
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", PROTOSEAL if own else "protoseal", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment(), **own},
            )

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def workers(self) -> list[Path]:
        """Return the processes that it started, as folders under /proc that are there for as long as they are."""
        return [each for each in Path("/proc").glob("[0-9]*") if _parent(each) == self._process.pid]

    def log(self) -> str:
        """Standard output and error of this process, without those of its forerunners in the same folder."""
        return self.log_path.read_bytes()[self._log_start :].decode("utf-8", errors="replace")

    def wait_for_log(self, text: str, seconds: float = PATIENCE, *, may_die: bool = False) -> None:
        """Wait until the log has ``text``; fail at once when the process ends without having written it.

        With ``may_die``, not when it was killed.
        """

        def found() -> bool:
            over = self.is_over()
            if text in self.log():
                return True
            if may_die and self._process.returncode == -signal.SIGKILL:
                return True
            assert not over, f"ended with {self._process.returncode} before {text!r}:\n{self.log()}"
            return False

        try:
            wait_until(found, f"{text!r} in {self.log_path}", seconds)
        except AssertionError as failure:
            failure.add_note(self.log())
            raise

    def is_over(self) -> bool:
        """Return True if the process has ended."""
        return self._process.poll() is not None

    def exit_code(self, seconds: float = PATIENCE) -> int:
        """Wait until the process ends by itself, and return its exit code.

        On a timeout the failure shows every party's log; this process's log then shows where each thread was.
        """
        try:
            wait_until(self.is_over, f"end of the process of {self.log_path}", seconds)
        except AssertionError as failure:
            self.send(signal.SIGABRT)  # faulthandler's cue
            self._process.wait()
            for log in sorted(_federation_of(self.log_path).rglob("log.txt")):
                failure.add_note(f"--- {log}\n{log.read_text(encoding='utf-8', errors='replace')}")
            raise
        return self._process.wait()

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        self._process.kill()
        self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """SIGTERM, SIGSTOP or SIGCONT, say."""
        self._process.send_signal(number)


def environment() -> dict[str, str]:
    """Ours, with one thread a process (several share the cores) and the repository importable."""
    path = os.pathsep.join(str(folder) for folder in (_REPOSITORY, _REPOSITORY / "proto"))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONPATH": path}


@cache
def own_nursery() -> Nursery:
    """Return this process's nursery, started when first asked for and closed at exit."""
    made = Nursery(environment())
    atexit.register(made.close)
    return made


class Federation:
    """A CA, a coordinator and sites, each in a folder of its own under ``root``, and their processes."""

    def __init__(
        self,
        root: Path,
        agreement: Agreement,
        sites: Sequence[SiteArrays],
        *,
        deadlines: Mapping[str, float] | None = None,
        retry_seconds: float = PATIENCE,
        max_attempts: int = 3,
        gated: bool = True,
        stopped_clock: bool = False,
        nursery: Nursery | None = None,
        by_command: bool = False,
    ) -> None:
        """``gated`` gives every site the plug-in of ``tests/support/gated_model.py`` in place of small-cnn.

        With ``stopped_clock`` the coordinator's time passes in :meth:`let_pass` alone. Parties are forked off
        ``nursery``, or this process's own, or started ``by_command``.
        """
        self.root, self.agreement, self.names = root, agreement, [site.name for site in sites]
        self.port = free_port()
        self._running: dict[str, Running] = {}
        self._clock = root / "clock" if stopped_clock else None
        self._nursery = None if by_command else nursery or own_nursery()
        create_authority(
            root / "ca",
            agreement.federation,
            _PASSPHRASE,
            now=_days_ago(3),
            stretching=Stretching.NONE_FOR_RANDOM_SECRET,
        )
        self.trust = TrustAnchor.load(root / "ca" / "ca.pem")
        (root / "agreement.toml").write_text(_agreement_toml(agreement), encoding="utf-8")
        self._write_coordinator(deadlines or {}, max_attempts)
        for site in sites:
            self._write_site(site, retry_seconds, gated=gated)
        if stopped_clock:
            (root / "clock").write_text("0.0", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for running in self._running.values():
            running.kill()

    @property
    def passphrase(self) -> bytes:
        """The passphrase of every key here."""
        return _PASSPHRASE

    @property
    def address(self) -> str:
        """Address on which the coordinator listens; a restart keeps it."""
        return f"127.0.0.1:{self.port}"

    @property
    def address_file(self) -> Path:
        """File in which the coordinator publishes its address for as long as it serves."""
        return self.root / "coordinator" / "state" / ADDRESS

    def folder(self, site: str) -> Path:
        """Return a site's configuration, data, state and results."""
        return self.root / "sites" / site

    def prototypes(self, site: str) -> SitePrototypes:
        """Read the prototypes that the site saved at the end."""
        return read_prototypes(self.folder(site))

    def credentials(self, site: str) -> Credentials:
        """Return a site's certificate and key, for a test that plays a dishonest site."""
        folder = self.folder(site)
        return Credentials.load(folder / "certificate.pem", folder / "key.pem", _PASSPHRASE)

    def party(self, site: str) -> Party:
        """Return a site whose process has ended, with the key of what it stored."""
        path = self.folder(site) / "state" / STORAGE_KEY
        return Party(
            self.credentials(site),
            self.trust,
            self.agreement.min_sites,
            lambda: read_storage_key(path, _PASSPHRASE),
        )

    # Processes

    def start_coordinator(self, point: Point | None = None, own: Mapping[str, str] = {}) -> Running:
        """``protoseal server run``, returned once sites can connect; it dies at ``point``, maybe before that.

        ``own`` is added to its environment.
        """
        folder, clock = self.root / "coordinator", self._clock
        own = {**own, **({killed_party.CLOCK: str(clock)} if clock else {})}
        running = self._start("coordinator", folder, "server", "coordinator.toml", point, own)
        running.wait_for_log("serving on port", may_die=point is not None)
        return running

    def start_site(self, name: str, point: Point | None = None, own: Mapping[str, str] = {}) -> Running:
        """``protoseal client run``; it dies at ``point``. ``own`` is added to its environment."""
        return self._start(name, self.folder(name), "client", "site.toml", point, own)

    def start_sites(self) -> dict[str, Running]:
        """Start all sites, and return them by name."""
        return {name: self.start_site(name) for name in self.names}

    def _start(
        self,
        name: str,
        folder: Path,
        side: str,
        config: str,
        point: Point | None,
        own: Mapping[str, str] = {},
    ) -> Running:
        own = {**own, **({killed_party.POINT: point.to_text()} if point else {})}
        self._running[name] = Running(folder, side, "run", "--config", config, own=own, nursery=self._nursery)
        return self._running[name]

    def let_pass(self, seconds: float) -> None:
        """Time, for a coordinator with a stopped clock; it has noticed within a fraction of a second."""
        if self._clock is None:
            raise ValueError("this coordinator goes by the machine's clock")
        scratch = self._clock.with_suffix(".new")
        scratch.write_text(str(killed_party.seconds_in(self._clock) + seconds), encoding="utf-8")
        scratch.replace(self._clock)

    # The gate of a site's training

    def hold(self, site: str, round_number: int) -> None:
        """Have the site stop in the training of that round."""
        written = self.folder(site) / "hold.new"
        written.write_text(str(round_number), encoding="utf-8")
        written.replace(self.folder(site) / gated_model.HOLD)  # never there but empty

    def wait_for_held(self, site: str) -> None:
        """Wait until the site is in that training."""
        wait_until((self.folder(site) / gated_model.HELD).exists, f"{site} held in training")

    def release(self, site: str) -> None:
        """Let it go on."""
        (self.folder(site) / gated_model.HOLD).unlink(missing_ok=True)

    # Files

    def enrol(self, name: str, *, expired: bool = False) -> Credentials:
        """Enrol a further site of this federation, which the coordinator's file does not name."""
        now = _days_ago(2) if expired else None
        self._enrol(self.folder(name), Identity.site(self.agreement.federation, name), now=now)
        return self.credentials(name)

    def renew(self, site: str) -> None:
        """Give the site a new key and certificate in place of those that it has."""
        identity = Identity.site(self.agreement.federation, site)
        self._enrol(self.folder(site), identity, overwrite=True)

    def _enrol(
        self,
        folder: Path,
        identity: Identity,
        hosts: Sequence[str] = (),
        now: datetime | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        """Key, certificate and the CA's certificate, as `pki request` and `pki approve` leave them."""
        create_request(
            folder,
            identity,
            _PASSPHRASE,
            hosts,
            overwrite=overwrite,
            stretching=Stretching.NONE_FOR_RANDOM_SECRET,
        )
        request = (folder / "request.pem").read_bytes()
        certificate = approve(self.root / "ca", _PASSPHRASE, request, days=1, now=now)
        (folder / "certificate.pem").write_bytes(certificate)
        shutil.copy(self.root / "ca" / "ca.pem", folder)
        (folder / "passphrase").touch(mode=0o600)
        (folder / "passphrase").write_bytes(_PASSPHRASE)

    def _write_coordinator(self, deadlines: Mapping[str, float], max_attempts: int) -> None:
        folder = self.root / "coordinator"
        self._enrol(folder, Identity.coordinator(self.agreement.federation), ["127.0.0.1"])
        text = _party_toml(
            agreement="../agreement.toml",
            listen=self.address,
            sites=self.names,
            max_attempts=max_attempts,
            workers=1,
            record_view=True,
        )
        tables = "".join(f"{name} = {value}\n" for name, value in deadlines.items())
        (folder / "coordinator.toml").write_text(f"{text}[deadlines]\n{tables}", encoding="utf-8")

    def _write_site(self, site: SiteArrays, retry_seconds: float, *, gated: bool) -> None:
        folder = self.folder(site.name)
        self._enrol(folder, Identity.site(self.agreement.federation, site.name))
        write_npz(folder / "data.npz", TrainTest(site.train, site.test, self.agreement.classes, site.domains))
        shutil.copy(str(gated_model.__file__), folder)
        text = _party_toml(
            agreement="../../agreement.toml",
            name=site.name,
            coordinator=self.address,
            data="npz:data.npz",
            device="cpu",
            out=".",
            retry_seconds=retry_seconds,
            log_level="debug",
            **({"model": "gated_model:build"} if gated else {}),
        )
        (folder / "site.toml").write_text(text, encoding="utf-8")


@contextmanager
def frozen(running: Running) -> Iterator[None]:
    """Freeze a process inside the block, as on a machine that hangs."""
    running.send(signal.SIGSTOP)
    try:
        yield
    finally:
        running.send(signal.SIGCONT)


def _federation_of(log_path: Path) -> Path:
    """Return the folder of all parties' folders: two up from a site's, one from the coordinator's."""
    folder = log_path.parent
    return folder.parents[1] if folder.parent.name == "sites" else folder.parent


def _parent(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return None


def _days_ago(days: int) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def free_port() -> int:
    """Return a port of 127.0.0.1 that the system gives to nobody else while this process runs.

    A socket stays bound to it and never listens, so that servers can, which reuse addresses (Linux).
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _RESERVED.append(reserved)
    port: int = reserved.getsockname()[1]
    return port


def _party_toml(**values: object) -> str:
    files = {"ca": "ca.pem", "certificate": "certificate.pem", "key": "key.pem"}
    state = {"passphrase_file": "passphrase", "state_dir": "state"}
    # JSON's strings, numbers, booleans and arrays are TOML's too.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in {**files, **state, **values}.items())


def _agreement_toml(agreement: Agreement) -> str:
    content = agreement.model_dump(mode="json", by_alias=True)
    plain = {
        key: value for key, value in content.items() if value is not None and not isinstance(value, dict)
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for key, table in content.items():
        if isinstance(table, dict):
            given = {name: value for name, value in table.items() if value is not None}
            lines += [f"[{key}]", *(f"{name} = {_toml(value)}" for name, value in given.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """Return a table as inline TOML, also one in a list; all else as JSON has it."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if not isinstance(value, dict):
        return json.dumps(value)
    given = {name: inner for name, inner in value.items() if inner is not None}
    return "{" + ", ".join(f"{name} = {_toml(inner)}" for name, inner in given.items()) + "}"
