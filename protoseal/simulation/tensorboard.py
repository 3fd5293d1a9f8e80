"""A simulation's figures as scalars for TensorBoard, a run for each seed and method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from agreement import Method
from agreement.errors import UserError
from protoseal.reports.run_results import mean
from protoseal.simulation.experiment import CompletedRound, EndedRun, Watcher

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Scalars(Watcher):
    """Watcher that writes ``FOLDER/seed-N/METHOD``; a resumed run writes another file beside the first.

    After each round: accuracy by the method's own inference and training loss, of each site and on average, and the
    seconds of the slowest site's training and protection. Raises ``UserError`` without the package.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._make = _writer_class()
        self._writers: dict[tuple[int, Method], SummaryWriter] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def on_completed(self, completed: CompletedRound) -> None:
        """Write one step of each scalar, without values that were not tested."""
        reports, number = completed.reports, completed.round
        key = completed.seed, completed.method
        if key not in self._writers:
            folder = self._folder / f"seed-{completed.seed}" / completed.method.value
            self._writers[key] = self._make(str(folder))
        writer = self._writers[key]
        _add(writer, number, "accuracy", {site: report.accuracy for site, report in reports.items()})
        _add(writer, number, "loss", {site: report.loss for site, report in reports.items()})
        for part in sorted({part for report in reports.values() for part in report.seconds}):
            slowest = max(report.seconds.get(part, 0.0) for report in reports.values())
            writer.add_scalar(f"seconds/{part}", slowest, number)
        writer.flush()

    def on_run(self, ended: EndedRun) -> None:
        """Close the run's file."""
        writer = self._writers.pop((ended.seed, ended.method), None)
        if writer is not None:
            writer.close()


def _add(writer: SummaryWriter, number: int, name: str, values: Mapping[str, float | None]) -> None:
    for tag, value in {"mean": mean(values.values()), **values}.items():
        if value is not None:
            writer.add_scalar(f"{name}/{tag}", value, number)


def _writer_class() -> type[SummaryWriter]:
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (an optional part)
    except ImportError as error:
        raise UserError(
            "--tensorboard needs the tensorboard package: run pip install 'protoseal[tensorboard]', or leave "
            "--tensorboard out"
        ) from error
    return SummaryWriter
