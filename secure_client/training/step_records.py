"""Records of DP-SGD as it ran, for an audit at the site: what a step sampled, clipped and added as noise.

A site that keeps its releases for an audit (``keep_releases``) also keeps a file for each execution of a round's
training. Without that setting nothing is recorded. The recorder looks at training and changes nothing in it: noise is
measured as the gradient that the optimiser gets, less the sum of the clipped gradients that were added.

**The files are sensitive and stay at the site.** They have the exact number of units and of each step's sample, and
numbers that follow from a step's noise. They list no records: a sample is kept as bits of at most 1024 units, which are
drawn at the start, in an order that is never written. So two steps' samples can be compared, and no bit belongs to a
record for whoever has the files alone.

Limits. A file has about 1 KB for a step, of 10,000 steps at most; later steps are only counted. A training that is
killed leaves no file. The measured noise has float32's precision, some 1e-4 of its deviation. What the optimiser makes
of a noisy gradient is not recorded. The bits of two processes cannot be compared, since each draws its own units.
"""

from __future__ import annotations

import hashlib
import io
import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privacy.mechanisms.grid import SIGMA
from protoseal_files import durable_files
from secure_client.models.prototype_model import hash_weights

_log = logging.getLogger("protoseal.site")
WATCHED, PROJECTIONS, PEAKS, MOST_STEPS = 1024, 32, 8, 10_000
"""Largest number of units whose bits a step keeps, of projections and peaks of its noise, and of steps in a file."""
COINCIDENT = 2
"""Largest difference of two equal magnitudes of the noise, in steps of the grid: float32 rounds gradients."""
_SUFFIX = ".npz"
_DIRECTIONS = b"protoseal.step-records.directions"
"""Seed of the projections' signs: public and the same everywhere, so that noise of two sites can be compared."""


@dataclass(frozen=True)
class TrainingRecord:
    """One execution of a round's training: T recorded steps of ``steps``, over ``units`` records or subjects.

    ``process`` names the process that drew the watched units. ``sampled``, ``distinct`` and ``clipped`` (T,) are the
    sample's length, its different units, and the clipped gradients that were added. ``watched`` (T, W) is true for the
    watched units in the sample. ``largest`` (T,) is the largest norm of a clipped gradient. In units of the grid's
    deviation: ``squares`` (T, L) the mean square of the noise on each parameter tensor of ``sizes`` (L,), ``fourths``
    (T,) the mean fourth power, ``neighbours`` (T,) the mean product of neighbouring coordinates, and ``projections``
    (T, R) the noise in R fixed directions, each of deviation 1. ``coincidences`` (T,) is the number of pairs of
    coordinates whose noise has equal magnitudes, up to :data:`COINCIDENT` steps, and ``peaks`` (T, E) are the largest
    magnitudes, in descending order. Norms are in steps of the grid. ``start`` is the hash of the whole model before the
    first step; ``began`` and ``ended`` have the hash of each of its tensors by ``names`` before and after all steps.
    """

    round: int
    process: str
    steps: int
    units: int
    start: str
    names: NDArray[np.str_] = field(repr=False)
    began: NDArray[np.str_] = field(repr=False)
    ended: NDArray[np.str_] = field(repr=False)
    sizes: NDArray[np.int64]
    sampled: NDArray[np.int64]
    distinct: NDArray[np.int64]
    clipped: NDArray[np.int64]
    watched: NDArray[np.bool_] = field(repr=False)
    largest: NDArray[np.float64] = field(repr=False)
    squares: NDArray[np.float64] = field(repr=False)
    fourths: NDArray[np.float64] = field(repr=False)
    neighbours: NDArray[np.float64] = field(repr=False)
    projections: NDArray[np.float64] = field(repr=False)
    coincidences: NDArray[np.int64] = field(repr=False)
    peaks: NDArray[np.float64] = field(repr=False)

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for arrays that do not fit each other."""
        count = len(self.sampled)
        rows = [self.distinct, self.clipped, self.watched, self.largest, self.squares, self.fourths]
        rows += [self.neighbours, self.projections, self.coincidences, self.peaks]
        if any(len(row) != count for row in rows) or self.squares.shape != (count, len(self.sizes)):
            raise ValueError("arrays of a step record have different lengths")
        if not len(self.names) == len(self.began) == len(self.ended):
            raise ValueError("a step record lacks the hash of a tensor")
        if not count <= self.steps or self.watched.shape[1:] != (min(WATCHED, self.units),):
            raise ValueError("a step record has more steps, or other units, than it states")


class StepRecords:
    """Records of all trainings of one run at one site, kept in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.process = secrets.token_hex(8)
        """Random name of this process's records."""
        self._places: dict[int, NDArray[np.int64]] = {}

    def open_recorder(self, round_number: int) -> StepRecorder:
        """Return the recorder of one execution of a round's training."""
        return StepRecorder(self, round_number)

    def places(self, units: int) -> NDArray[np.int64]:
        """Return each unit's place among the watched ones (N,), −1 for the others: secret, drawn once in a process."""
        if units not in self._places:
            # NumPy's generator takes its seed from the operating system here, and is neither kept nor written.
            places = np.full(units, -1, dtype=np.int64)
            chosen = np.random.default_rng().permutation(units)[:WATCHED]
            places[chosen] = np.arange(len(chosen))
            self._places[units] = places
        return self._places[units]

    def write(self, record: TrainingRecord) -> None:
        """Write a record to a file of its own; a failure is logged and changes nothing else."""
        path = self._folder / f"steps-{record.round:05d}-{secrets.token_hex(4)}{_SUFFIX}"
        content = io.BytesIO()
        np.savez_compressed(content, **{**vars(record), "watched": np.packbits(record.watched, axis=1)})
        try:
            durable_files.make_state_folder(self._folder)
            durable_files.write(path, content.getvalue())
        except OSError as error:
            _log.error("the steps of round %d are not recorded for the audit: %s", record.round, error)


class StepRecorder:
    """Recorder of one training's steps: :meth:`begin`, then for each step the other methods, in their order."""

    def __init__(self, records: StepRecords, round_number: int) -> None:
        self._records = records
        self._round = round_number
        self._steps = 0
        self._units = 0
        self._rows: dict[str, list[object]] = {}
        self._sizes: list[int] = []

    def begin(self, units: int, sizes: Sequence[int], device: torch.device, model: nn.Module) -> None:
        """Begin a training of a model over so many units, of parameter tensors with ``sizes`` numbers each."""
        self._model = model
        self._start = hash_weights(_on_cpu(model))
        self._began = hash_tensors(_on_cpu(model))
        self._units = units
        self._sizes = list(sizes)
        self._places = self._records.places(units)
        self._signs = _draw_signs(sum(sizes)).to(device)
        self._sum = torch.zeros(sum(sizes), dtype=torch.float64, device=device)

    def sample(self, chosen: Sequence[int]) -> None:
        """Record the units that a step sampled."""
        if self._steps >= MOST_STEPS:
            return
        self._sum.zero_()
        self._clipped = 0
        self._largest = 0.0
        places = self._places[np.asarray(chosen, dtype=np.int64)]
        watched = np.zeros(min(WATCHED, self._units), dtype=np.bool_)
        watched[places[places >= 0]] = True
        self._keep(sampled=len(chosen), distinct=len(set(chosen)), watched=watched)

    def clip(self, rows: Tensor) -> None:
        """Record clipped gradients (B, P), in steps of the grid, that the step adds."""
        if self._steps >= MOST_STEPS or not len(rows):
            return
        self._sum += rows.sum(dim=0)
        self._clipped += len(rows)
        self._largest = max(self._largest, float(torch.linalg.vector_norm(rows, dim=1).max()))

    def noise(self, noisy: Tensor) -> None:
        """Record the noise of a step whose optimiser gets the noisy sum (P,), in steps of the grid."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            return
        # What the optimiser gets, less what was added: a noise that is drawn and then forgotten would not be in it.
        noise = (noisy - self._sum) / SIGMA
        squares = [float(part.square().mean()) for part in torch.split(noise, self._sizes)]
        ordered = noise.abs().sort().values
        parts = torch.tensor_split(noise * self._signs, min(PROJECTIONS, len(noise)))
        # Divided by the root of its length, a sum of independent noise has the noise's own deviation.
        projections = [float(part.sum()) / math.sqrt(len(part)) for part in parts]
        self._keep(
            clipped=self._clipped,
            largest=self._largest,
            squares=np.array(squares),
            fourths=float(noise.pow(4).mean()),
            neighbours=float((noise[1:] * noise[:-1]).mean()) if len(noise) > 1 else 0.0,
            projections=np.array(projections),
            coincidences=_count_coincidences(ordered),
            peaks=ordered[-PEAKS:].flip(0).cpu().numpy(),
        )

    def end(self) -> None:
        """Write the record, if a step was completed."""
        if not self._steps:
            return
        # Training may end between a step's sample and its noise: rows without noise are left out.
        arrays = {name: np.array(self._rows[name][: self._steps]) for name in self._rows}
        ended = hash_tensors(_on_cpu(self._model))
        record = TrainingRecord(
            round=self._round,
            process=self._records.process,
            steps=self._steps,
            units=self._units,
            start=self._start,
            names=np.array(list(self._began)),
            began=np.array(list(self._began.values())),
            ended=np.array(list(ended.values())),
            sizes=np.array(self._sizes, dtype=np.int64),
            **arrays,
        )
        self._records.write(record)

    def _keep(self, **values: object) -> None:
        for name, value in values.items():
            self._rows.setdefault(name, []).append(value)


def read_step_records(folder: Path) -> list[TrainingRecord]:
    """Return the records in a folder by round; none without a folder.

    Raises ``OSError`` for a file that cannot be read and ``ValueError`` for a damaged one; both name the file.
    """
    return sorted(map(_read_record, sorted(folder.glob(f"*{_SUFFIX}"))), key=lambda record: record.round)


def _read_record(path: Path) -> TrainingRecord:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            values = {name: stored[name] for name in stored.files}
        watched = min(WATCHED, int(values["units"]))
        values["watched"] = np.unpackbits(values["watched"], axis=1, count=watched).astype(np.bool_)
        number, steps, units = (int(values.pop(name)) for name in ("round", "steps", "units"))
        process, start = (str(values.pop(name)) for name in ("process", "start"))
        return TrainingRecord(number, process, steps, units, start, **values)
    except (BadZipFile, EOFError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{path} is no record of training: {error}") from error


def hash_tensors(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the hash of each tensor of a model's state on the CPU, by name."""
    return {name: hash_weights({name: state[name]}) for name in sorted(state)}


def _on_cpu(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


def _count_coincidences(ordered: Tensor) -> int:
    """Return the number of pairs of ascending magnitudes (P,) that are equal up to :data:`COINCIDENT` steps."""
    # Copied or reused noise repeats magnitudes; independent noise of deviation 2^20 steps rarely does.
    last = torch.searchsorted(ordered, ordered + (COINCIDENT + 0.5) / SIGMA, right=True)
    return int(last.sum()) - len(ordered) * (len(ordered) + 1) // 2


def _draw_signs(count: int) -> Tensor:
    """Return the signs (P,) of the projections: public, and the same for every model of so many parameters."""
    drawn = np.frombuffer(hashlib.shake_256(_DIRECTIONS).digest(-(-count // 8)), np.uint8)
    return torch.from_numpy(2.0 * np.unpackbits(drawn, count=count).astype(np.float64) - 1.0)
