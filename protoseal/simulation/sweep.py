"""Sweep of ``protoseal simulate``: a simulation for each combination of values of some settings.

Each combination has a folder of its own below ``out``, named by its values and by a hash of its configuration. A sweep
that is started again therefore finds the runs that have ended, and resumes the others.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from agreement.errors import UserError
from agreement.storage.run_files import read_json
from agreement.toml_loading import ConfigError
from protoseal.reports.result_files import RunResult
from protoseal.reports.sweep_table import JSON, SweepResult, SweepRow, sweep_rows, write_sweep
from protoseal.simulation.config import SimulationConfig, load_simulation
from protoseal.simulation.run_folder import FREE, RUN_ERRORS, configuration_hash, lock_folder

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
    options = {key for key, value in flags.items() if value is not None}
    options |= {setting.partition("=")[0].strip() for setting in settings}
    keys, choices = _parse_sweeps(sweeps, options)
    if not keys:
        return [SweepPoint({}, load_simulation(path, flags, settings))]
    points: dict[str, SweepPoint] = {}
    for values in product(*choices):
        named = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
        config = load_simulation(path, flags, [*settings, *named])
        digest = configuration_hash(config)
        if digest in points:
            remedy = "sweep settings of the method, not of a compared one alone, and give each value once"
            raise ConfigError("--sweep", [f"{', '.join(named)} changes nothing: {remedy}"])
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
            # JSON's texts, numbers, truth values and arrays of these are TOML's. It has no dates.
            return [item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in array]
        except (tomllib.TOMLDecodeError, TypeError) as error:
            raise ConfigError("--sweep", [f"{text!r} is not an array of settings: {error}"]) from error
    return [value.strip() for value in text.split(",")]


class SweepFailed(UserError):
    """Some simulations of a sweep failed; the others are in the table."""


class SweepStopped(UserError):
    """Error that every later simulation of the sweep would meet too."""


@contextmanager
def open_sweep(out: Path) -> Iterator[None]:
    """Lock a sweep's folder, made if need be, before anything below it is deleted or run.

    The table of an earlier start stays, as one of a sweep that is not complete. Raises ``FileError`` if it is damaged,
    and :class:`protoseal.simulation.run_folder.OtherSimulation` if another process has the folder.
    """
    out.mkdir(parents=True, exist_ok=True)
    with lock_folder(out, ".sweep.lock"):
        if (out / JSON).exists():
            earlier = read_json(out / JSON, SweepResult, "delete it")
            write_sweep(out, earlier.model_copy(update={"complete": False}))
        yield


def run_sweep(
    points: Sequence[SweepPoint], simulate_point: Callable[[SimulationConfig], RunResult]
) -> SweepResult:
    """Simulate every point, writing the table of the points so far after each, in the folder of :func:`open_sweep`.

    Raises :class:`SweepFailed`, after all points, if any failed by an error of the data, a site or the coordinator, and
    :class:`SweepStopped` at once.
    """
    out = points[0].config.out.parent
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
