"""Folder of a simulation: its finished runs, the state to resume others from, and the settings that it belongs to.

``simulation.json`` says which configuration and which data the folder belongs to. ``runs/METHOD.json`` has the logs of
a run that has ended, in the folder of its seed; ``.state`` has the files of unfinished runs and is deleted when all
runs have ended.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from agreement import Agreement, Method, method_named
from agreement.errors import UserError
from agreement.storage.run_files import (
    AGREEMENT,
    FileError,
    Record,
    first_line,
    read_json,
    read_text,
    write_json,
    write_text,
)
from crypto.errors import CryptoError
from privacy.errors import PrivacyError
from protoseal.reports.result_files import RESULT
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.local_federation import RunOutcome
from protoseal_files import durable_files
from secure_client.diagnosis.diagnoses import Diagnosis, diagnose
from secure_client.errors import SiteError
from secure_client.output.site_files import read_agreement, write_agreement
from secure_client.output.site_log import SITE_LOG, SiteLog
from secure_server.errors import CoordinatorError
from secure_server.round_log import CoordinatorRound

CLAIM, STATE, RUNS, COMPARED, PROBE = "simulation.json", ".state", "runs", "compared", "probe"
_LOCK, _DATA, _BEGUN = "lock", "data", "begun"
LOCK_SECONDS = 180.0
"""Longest wait for the lock of one run: a file server keeps a lost machine's locks for a lease, on NFS often 90 s."""

FREE = frozenset(
    {"out", "workers", "data_root", "pretrained", "tensorboard", "compare", "seeds", "keep_releases"}
)
"""Settings that may change in the same folder, since they change no run or only select runs.

So may the settings that only a compared method uses: :meth:`RunFolder.check_settings`. The content of ``pretrained`` is
claimed by its SHA-256 in ``[training]``.
"""

RUN_ERRORS = (UserError, CryptoError, PrivacyError, SiteError, CoordinatorError)
"""Errors that end one simulation of a sweep, or the runs of one seed, and not the others."""

_log = logging.getLogger(__name__)


class OtherSimulation(UserError):
    """The folder has runs of another configuration, or another process is using it."""


class RunFolder:
    """A simulation's folder. Runs are named by their seed and method."""

    def __init__(self, config: SimulationConfig, *, data_checked: bool = False) -> None:
        """Take the configuration; with ``data_checked`` the process that holds the claim has compared the data."""
        self._out = config.out
        self._several = len(config.seeds) > 1
        self._claim = _make_claim(config, self._several)
        self._aligned = config.self_aligns_as
        self._extension = config.extension
        self._data_checked = data_checked

    @contextmanager
    def claim(self, *, fresh: bool = False) -> Iterator[None]:
        """Lock the folder for this process and configuration; with ``fresh`` delete earlier results first.

        Raises :class:`OtherSimulation`.
        """
        if fresh:
            self._check_is_a_simulation()
        else:
            self._check_same()
        (self._out / STATE).mkdir(parents=True, exist_ok=True)
        with lock_folder(self._out, f"{STATE}/{_LOCK}"):
            if fresh:
                self._clear()
            was_claimed = (self._out / CLAIM).exists()
            try:
                yield
            except RUN_ERRORS:
                progress = (f"{RUNS}/*.json", f"seed-*/{RUNS}/*.json", f"{STATE}/seed-*/*/{_BEGUN}")
                if not was_claimed and not any(any(self._out.glob(pattern)) for pattern in progress):
                    (self._out / CLAIM).unlink(missing_ok=True)  # a refused start claims nothing
                raise
            finally:
                if not (self._out / CLAIM).exists():  # no run was started
                    shutil.rmtree(self._out / STATE, ignore_errors=True)

    @contextmanager
    def claim_run(self, seed: int, method: Method) -> Iterator[None]:
        """Lock one run for this process, while another process holds the folder's claim for it.

        Waits for an earlier attempt at the run, on a machine that a cluster has lost: its process ends within seconds,
        and its file server frees the lock at the end of the machine's lease. Raises :class:`OtherSimulation` if the run
        is still locked after :data:`LOCK_SECONDS`.
        """
        path = self._out / STATE / f"seed-{seed}" / f"{self._name(method)}.{_LOCK}"
        path.parent.mkdir(parents=True, exist_ok=True)
        deadline, waits = time.monotonic() + LOCK_SECONDS, False
        while True:
            try:
                file = durable_files.lock_file(path)
                break
            except BlockingIOError as error:
                if not waits:
                    _log.warning("another process has %s; waiting %.0f s at most", path, LOCK_SECONDS)
                waits = True
                if time.monotonic() > deadline:
                    raise OtherSimulation(
                        f"another process has this run in {path.parent}: end it; if its machine is lost, wait until "
                        "the file server's lease of the lock is over"
                    ) from error
                time.sleep(0.2)
        with file:
            yield

    def check_data(self, digest_of: Callable[[int], str]) -> None:
        """Raise :class:`OtherSimulation` if the folder has runs on other data: files in ``data_root`` may change.

        ``digest_of`` gives the SHA-256 of the divided data of a seed. The function is called once in a process, and
        only if earlier runs exist: files that change during a simulation are not detected.
        """
        if not self._data_checked and (self._out / CLAIM).exists():
            claimed = self._claimed_data()
            if claimed is None or digest_of(claimed["seed"]) != claimed["sha256"]:
                raise OtherSimulation(
                    f"{self._out} has runs on other data than the present data: restore the earlier data, give "
                    "another --out, or use --fresh to delete those runs"
                )
        # Reading data takes longer than anything else here, so one check serves all seeds and methods.
        self._data_checked = True

    def keep_claim(self, seed: int, data_sha256: str) -> None:
        """Record that the folder belongs to this configuration, and to the data with this digest in this seed."""
        claim = {**self._claim, _DATA: self._claimed_data() or {"seed": seed, "sha256": data_sha256}}
        write_text(self._out / CLAIM, json.dumps(claim, indent=2, sort_keys=True) + "\n")

    def _claimed_data(self) -> dict[str, Any] | None:
        path = self._out / CLAIM
        claimed: Any = json.loads(path.read_text(encoding="utf-8")).get(_DATA) if path.exists() else None
        match claimed:
            case {"seed": int(), "sha256": str()}:
                return {"seed": claimed["seed"], "sha256": claimed["sha256"]}
        return None

    def of_seed(self, seed: int) -> Path:
        """Return the path of a seed's results."""
        return self._out / f"seed-{seed}" if self._several else self._out

    def record(self, seed: int, method: Method) -> Path:
        """Return the file of a run that has ended."""
        return self.of_seed(seed) / RUNS / f"{self._name(method)}.json"

    def state(self, seed: int, method: Method) -> Path:
        """Return the folder, made if need be, from which an unfinished run resumes."""
        folder = self._out / STATE / f"seed-{seed}" / self._name(method)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def keep_agreement(self, seed: int, method: Method, agreement: Agreement) -> None:
        """Let an unfinished run resume under the agreement that it began under, and under no other.

        Raises :class:`OtherSimulation` for other settings, :class:`agreement.storage.run_files.FileError` for
        another distribution than before.
        """
        state = self.state(seed, method)
        if (state / AGREEMENT).exists():
            self.check_settings(state, read_agreement(state))
        write_agreement(state, agreement)

    def check_settings(self, place: Path, agreement: Agreement) -> None:
        """Raise :class:`OtherSimulation` if the run in ``place`` had other settings of third parties.

        The claim has only the settings of the method and the protection, since compared methods may change.
        """
        others = [name for name, used in agreement.extension.items() if self._extension.get(name) != used]
        if others:
            raise OtherSimulation(
                f"{place} has other settings (extension.{', extension.'.join(others)}): restore the earlier "
                "settings, delete it to run that method again, or use --fresh to start over"
            )

    def note_round(self, seed: int, method: Method) -> None:
        """Record that an unfinished run has completed a round: an error then deletes nothing."""
        (self.state(seed, method) / _BEGUN).touch()

    def drop_state(self, seed: int, method: Method) -> None:
        """Delete the state of a run that has ended."""
        shutil.rmtree(self.state(seed, method))

    def drop_all_state(self) -> None:
        """Delete the state of all runs."""
        shutil.rmtree(self._out / STATE)

    def _name(self, method: Method) -> str:
        """Return the name of a run. ``self`` is another run beside another method."""
        return f"{method.value}-{self._aligned.value}" if method is Method.SELF else method.value

    def _check_same(self) -> None:
        path = self._out / CLAIM
        if not path.exists():
            return
        try:
            claim = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise OtherSimulation(
                f"{path} is damaged; use --fresh to start over, or another --out"
            ) from error
        if isinstance(claim, dict):
            claim.pop(_DATA, None)  # compared after the data are read
        differing = _list_differing(claim, self._claim) if isinstance(claim, dict) else ["everything"]
        if differing:
            raise OtherSimulation(
                f"{self._out} has runs of another configuration ({', '.join(differing)}): restore that "
                "configuration, give another --out, or use --fresh to delete those runs"
            )

    def _check_is_a_simulation(self) -> None:
        # A folder with other files is refused, since ``fresh`` deletes by name.
        begun = (self._out / CLAIM).exists() or (self._out / STATE / _LOCK).exists()
        if self._out.exists() and any(self._out.iterdir()) and not begun:
            raise OtherSimulation(
                f"{self._out} is not empty and was not written by a simulation; give another --out"
            )

    def _clear(self) -> None:
        """Delete the files of simulations, by their names, except locks.

        Raises :class:`OtherSimulation` if a task of an earlier start on Ray still has a run: it would write its files
        among the new ones.
        """
        # Before the locks: a task of that start that begins later is refused.
        (self._out / STATE / PROBE).unlink(missing_ok=True)
        with ExitStack() as stack:
            for path in (self._out / STATE).glob(f"seed-*/*.{_LOCK}"):
                stack.enter_context(lock_folder(self._out, str(path.relative_to(self._out))))
            (self._out / CLAIM).unlink(missing_ok=True)
            seeds = [path for path in self._out.glob("seed-*") if path.name.removeprefix("seed-").isdigit()]
            for folder in (self._out, *seeds):
                _clear_results(folder)
            for path in [*(self._out / STATE).glob("seed-*/*"), self._out / "tensorboard"]:
                if path.is_dir():
                    shutil.rmtree(path)


def _clear_results(folder: Path) -> None:
    """Remove one seed's results, including all of ``runs/*.json``; folders with other files stay."""
    for pattern in (RESULT, "report.html", "split.csv", "split.json", "split.svg"):
        (folder / pattern).unlink(missing_ok=True)
    for record in folder.glob(f"{RUNS}/*.json"):
        record.unlink()
    for path in (*filter(Path.is_dir, folder.glob(f"{COMPARED}/*")), folder):
        _clear_sites(path)
    for name in (RUNS, COMPARED):
        _remove_if_empty(folder / name)
    if folder.name.startswith("seed-"):
        _remove_if_empty(folder)


def _clear_sites(folder: Path) -> None:
    """Remove the sites' folders of one run, and the run's folder if it is then empty."""
    for log in folder.glob(f"sites/*/{SITE_LOG}"):
        shutil.rmtree(log.parent)
    _remove_if_empty(folder / "sites")
    if folder.parent.name == COMPARED:
        (folder / RESULT).unlink(missing_ok=True)
        _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def read_claim(folder: Path) -> dict[str, Any]:
    """Return what ``simulation.json`` says of a simulation's folder; raise :class:`FileError`."""
    path = folder / CLAIM
    text = read_text(
        path, "give the folder of a finished simulation (its --out), or a site's state_dir with --config"
    )
    try:
        claim = json.loads(text)
        return {"seed": claim["seed"], "config": dict(claim["config"])}
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} is damaged: {first_line(error)}") from error


def configuration_hash(config: SimulationConfig) -> str:
    """Return the SHA-256, in hexadecimal, of the settings that must be equal for runs in one folder."""
    claim = _make_claim(config, several=len(config.seeds) > 1)
    return hashlib.sha256(json.dumps(claim, sort_keys=True).encode()).hexdigest()


def _make_claim(config: SimulationConfig, several: bool) -> dict[str, Any]:
    """Return the settings that must be equal for runs of one simulation."""
    # Every setting but those that change no run: a new one is claimed unless somebody frees it.
    content = config.model_dump(mode="json", by_alias=True, exclude=set(FREE))
    used = {config.method.value, config.protection.value}
    content["extension"] = {name: settings for name, settings in content["extension"].items() if name in used}
    # One seed's results have the same place as the summary of several seeds.
    return {"schema": 1, "seed": None if several else config.seeds[0], "config": content}


def _list_differing(claim: dict[str, Any], expected: dict[str, Any], prefix: str = "") -> list[str]:
    names: list[str] = []
    for key in sorted(claim.keys() | expected.keys()):
        one, other = claim.get(key), expected.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            names += _list_differing(one, other, "" if key == "config" else f"{prefix}{key}.")
        elif one != other:
            names.append(prefix + key)
    return names


@contextmanager
def lock_folder(out: Path, name: str) -> Iterator[None]:
    """Lock the file of that name in a folder of results; raise :class:`OtherSimulation` if a process has it."""
    try:
        file = durable_files.lock_file(out / name)
    except BlockingIOError as error:
        raise OtherSimulation(
            f"another process is simulating in {out}; wait for it, or give another --out"
        ) from error
    with file:
        yield


class RunRecord(Record):
    """Content of ``runs/METHOD.json``. ``agreement`` and ``rounds`` are as JSON has them."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    method: str
    agreement: dict[str, Any]
    sites: tuple[SiteLog, ...]
    rounds: tuple[dict[str, Any], ...]
    best_round: Annotated[int, Field(ge=1)] | None
    data_sha256: str


@dataclass(frozen=True)
class SavedRun:
    """Run of one method on one seed's data, finished or so far; ``data_sha256`` is the data's hash."""

    method: Method
    agreement: Agreement
    outcome: RunOutcome
    data_sha256: str

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Signs of wrong settings in all rounds, those after the best round included."""
        return diagnose(self.agreement, self.method, self.outcome.site_rounds.values())

    def write(self, path: Path) -> None:
        """Write the record of the finished run."""
        record = RunRecord(
            method=self.method.value,
            agreement=self.agreement.model_dump(mode="json", by_alias=True),
            sites=tuple(self.outcome.sites.values()),
            rounds=tuple(asdict(completed) for completed in self.outcome.rounds),
            best_round=self.outcome.best_round,
            data_sha256=self.data_sha256,
        )
        write_json(path, record)

    @classmethod
    def read(cls, path: Path) -> SavedRun:
        """Return the run that ended with this record; raise ``FileError`` for another file."""
        record = read_json(
            path, RunRecord, "delete it to run that method again, or use --fresh to start over"
        )
        agreement = Agreement.from_json(json.dumps(record.agreement), source=str(path))
        rounds = TypeAdapter(list[CoordinatorRound]).validate_python(record.rounds)
        outcome = RunOutcome({log.name: log for log in record.sites}, rounds, [], record.best_round)
        return cls(method_named(record.method), agreement, outcome, record.data_sha256)
