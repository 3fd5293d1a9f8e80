"""The coordinator's configuration file, ``coordinator.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from agreement.schema.agreement import Name
from agreement.schema.party_file import Address, PartyFile
from agreement.toml_loading import LocalPath, Section, read_toml

Seconds = Annotated[float, Field(gt=0, le=30 * 86_400)]


class DeadlinesSection(Section):
    """Seconds that the coordinator waits for sites before it continues without them.

    ``empty`` is for a run that every site has left, or in which each has missed a deadline: it stops unless one comes
    back in that time.
    """

    join: Seconds = 3600.0
    """Seconds to wait for sites on the list to join."""
    setup: Seconds = 300.0
    """Seconds for rosters, keys and presence."""
    train: Seconds = 7200.0
    """Seconds for local training."""
    values: Seconds = 900.0
    """Seconds for uploads."""
    result: Seconds = 900.0
    """Seconds for the acknowledgement of a result."""
    empty: Seconds = 900.0
    """Seconds after which a run that every site has left stops."""


class CoordinatorConfig(PartyFile):
    """``coordinator.toml``. Only sites on the list ``sites`` may join; ``workers = 0`` uses every core.

    ``record_view`` keeps every message that the coordinator receives, for audits and tests; it grows with the
    run. ``anchors`` is the file in which the last entries of the sites' privacy ledgers are kept, where the agreement
    has noise: one for all runs, beside ``state_dir`` unless it is given.
    """

    listen: Address
    """Address and port to listen on."""
    sites: tuple[Name, ...]
    """Names of the sites that may join."""
    deadlines: DeadlinesSection = DeadlinesSection()
    """Deadlines of the phases."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Attempts of a round before the run stops."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Processes for ciphertexts; 0 uses every core."""
    record_view: bool = False
    """Record every message that the coordinator receives."""
    anchors: LocalPath | None = None
    """File of the ledgers' anchors, for all runs; beside `state_dir` unless given."""

    @property
    def anchors_file(self) -> Path:
        """Path of the anchors' file. All runs share it, whereas each run has a ``state_dir`` of its own."""
        return self.anchors or self.state_dir.parent / "anchors.sqlite"

    @model_validator(mode="after")
    def _roster_suffices(self) -> Self:
        repeated = sorted({name for name in self.sites if self.sites.count(name) > 1})
        if repeated:
            raise ValueError(f"sites: {repeated[0]!r} is listed more than once")
        if len(self.sites) < self.agreement.min_sites:
            raise ValueError(
                f"sites: {len(self.sites)} listed, but the agreement's min_sites is"
                f" {self.agreement.min_sites}; list every site that may join"
            )
        if len(self.sites) > self.agreement.max_sites:
            raise ValueError(
                f"sites: {len(self.sites)} listed, but the agreement's max_sites is {self.agreement.max_sites}"
            )
        self.agreement.check_sites(self.agreement.method, len(self.sites))
        return self

    @model_validator(mode="after")
    def _deadlines_leave_time_for_delayed_answers(self) -> Self:
        if not self.agreement.delays_answers:
            return self
        timing, deadlines = self.agreement.timing, self.deadlines
        for name, seconds, delay, longest in (
            ("train", deadlines.train, "training_deadline", timing.training_deadline),
            ("values", deadlines.values, "answer_deadline", timing.answer_deadline),
            ("result", deadlines.result, "answer_deadline", timing.answer_deadline),
        ):
            if seconds <= longest:
                raise ValueError(
                    f"deadlines.{name} ({seconds:g} s) must be longer than {delay} of the agreement's [timing] "
                    f"({longest:g} s), until which sites may hold their answers: raise {name}, or agree on a shorter "
                    f"{delay}"
                )
        return self


def load_coordinator(path: Path) -> CoordinatorConfig:
    """Read the coordinator's file; raise ``ConfigError``."""
    return read_toml(path, CoordinatorConfig)
