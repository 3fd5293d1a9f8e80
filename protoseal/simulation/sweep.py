"""Sweep of ``protoseal simulate``: a simulation for each combination of values of some settings.

Each combination has a folder of its own below ``out``, named by its values and by a hash of its configuration. A sweep
that is started again therefore finds the runs that have ended, and resumes the others.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from agreement.errors import UserError
from agreement.storage.run_files import read_json
from agreement.toml_loading import ConfigError
from crypto.errors import CryptoError
from privacy.errors import PrivacyError
from protoseal.reports.result_files import RunResult
from protoseal.reports.sweep_table import JSON, SweepResult, SweepRow, sweep_rows, write_sweep
from protoseal.simulation.config import SimulationConfig, load_simulation
from protoseal.simulation.run_folder import FREE, configuration_hash, lock_folder
from secure_client.errors import SiteError
from secure_server.errors import CoordinatorError

RUN_ERRORS = (UserError, CryptoError, PrivacyError, SiteError, CoordinatorError)
"""Errors that end one simulation of a sweep, and not the sweep."""
LABEL_LETTERS = 120
"""Most letters of a folder's name before the hash."""


@dataclass(frozen=True)
class SweepPoint:
    """Combination of a sweep: the values of its settings as text, and its configuration.

    Without a sweep there is one combination, which has no values, and whose folder is ``out`` itself.
    """

    values: Mapping[str, str]
    config: SimulationConfig


def load_sweep(
    path: Path | None, flags: Mapping[str, object], settings: Sequence[str], sweeps: Sequence[str]
) -> list[SweepPoint]:
    """Load the configuration of every combination of ``sweeps``, the last setting varying fastest.

    Each sweep is of the form ``section.key=a,b,c``, or ``section.key=[…]`` with a TOML array whose values may have
    commas. ``path``, ``flags`` and ``settings`` are those of :func:`protoseal.simulation.config.load_simulation`. All
    combinations are loaded before any run begins. Raises ``ConfigError``, also for two combinations that are the same
    configuration.
    """
    keys, choices = _parse_sweeps(sweeps, {key for key, value in flags.items() if value is not None})
    if not keys:
        return [SweepPoint({}, load_simulation(path, flags, settings))]
    points: dict[str, SweepPoint] = {}
    for values in product(*choices):
        named = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
        config = load_simulation(path, flags, [*settings, *named])
        digest = configuration_hash(config)
        if digest in points:
            raise ConfigError("--sweep", [f"{', '.join(named)} is the configuration of another combination"])
        label = re.sub(r"[^\w.=,+-]+", "-", ",".join(named), flags=re.ASCII)[:LABEL_LETTERS]
        config = config.model_copy(update={"out": config.out / f"{label}-{digest[:8]}"})
        points[digest] = SweepPoint(dict(zip(keys, values, strict=True)), config)
    return list(points.values())


def _parse_sweeps(sweeps: Sequence[str], options: set[str]) -> tuple[list[str], list[list[str]]]:
    """Return the settings that vary and the values of each, as text for ``--set``."""
    keys: list[str] = []
    choices: list[list[str]] = []
    for sweep in sweeps:
        key, separator, text = (part.strip() for part in sweep.partition("="))
        values = _split_values(text)
        if not (separator and key and values and all(values)):
            raise ConfigError("--sweep", [f"{sweep!r} is not of the form section.key=a,b,c"])
        if key in keys:
            raise ConfigError("--sweep", [f"{key} is given twice: give all its values at once"])
        if key in FREE:
            raise ConfigError("--sweep", [f"{key} changes no run, or only selects runs: give it one value"])
        if key in options:
            raise ConfigError("--sweep", [f"{key} has an option on this command line as well: leave one out"])
        keys.append(key)
        choices.append(values)
    return keys, choices


def _split_values(text: str) -> list[str]:
    if text.startswith("["):
        try:
            array: list[object] = tomllib.loads(f"values = {text}")["values"]
        except tomllib.TOMLDecodeError as error:
            raise ConfigError("--sweep", [f"{text!r} is not a TOML array: {error}"]) from error
        # JSON's texts, numbers, truth values and arrays of these are TOML's.
        return [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in array]
    return [value.strip() for value in text.split(",")]


class SweepFailed(UserError):
    """Some simulations of a sweep failed; the others are in the table."""


class SweepStopped(UserError):
    """Error that every later simulation of the sweep would meet too."""


def run_sweep(
    points: Sequence[SweepPoint], simulate_point: Callable[[SimulationConfig], RunResult]
) -> SweepResult:
    """Simulate every point, writing the table of the points so far beside their folders after each.

    The table of an earlier start stays until then, as one of a sweep that is not complete. Raises :class:`SweepFailed`,
    after all points, if any failed by an error of the data, a site or the coordinator, :class:`SweepStopped` at once,
    and :class:`protoseal.simulation.run_folder.OtherSimulation` if another process has the sweep's folder.
    """
    out = points[0].config.out.parent
    out.mkdir(parents=True, exist_ok=True)
    with lock_folder(out, ".sweep.lock"):
        return _run_points(out, points, simulate_point)


def _run_points(
    out: Path, points: Sequence[SweepPoint], simulate_point: Callable[[SimulationConfig], RunResult]
) -> SweepResult:
    if (out / JSON).exists():
        earlier = read_json(out / JSON, SweepResult, "delete it")
        write_sweep(out, earlier.model_copy(update={"complete": False}))
    rows: list[SweepRow] = []
    failures: list[str] = []
    for number, point in enumerate(points, start=1):
        try:
            result = simulate_point(point.config)
        except SweepStopped:
            raise
        except RUN_ERRORS as error:
            failures.append(f"{point.config.out.name}: {error}")
            continue
        rows += sweep_rows(point.config.out.name, point.values, result)
        sweep = SweepResult(rows=tuple(rows), complete=number == len(points) and not failures)
        write_sweep(out, sweep)
    if failures:
        raise SweepFailed(
            "\n".join(
                (f"{len(failures)} of {len(points)} simulations failed; {out} has the others", *failures)
            )
        )
    return sweep
