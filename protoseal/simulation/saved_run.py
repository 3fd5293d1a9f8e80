"""Run of one method in a simulation, and the record of it that a resumed simulation reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from agreement import Agreement, Method, method_named
from protoseal.reports.result_files import RunRecord, read_record
from protoseal.simulation.local_federation import Outcome
from secure_client.diagnosis.diagnoses import Diagnosis, diagnose
from secure_server.round_log import CoordinatorRound


@dataclass(frozen=True)
class SavedRun:
    """Run of one method on one seed's data, finished or so far; ``data_sha256`` is the data's hash."""

    method: Method
    agreement: Agreement
    outcome: Outcome
    data_sha256: str

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Signs of wrong settings in all rounds, those after the best round included."""
        return diagnose(self.agreement, self.method, self.outcome.site_rounds.values())

    def record(self) -> RunRecord:
        """Return the record of the finished run, which :meth:`of` reads."""
        return RunRecord(
            method=self.method.value,
            agreement=self.agreement.model_dump(mode="json", by_alias=True),
            sites=tuple(self.outcome.sites.values()),
            rounds=tuple(asdict(each) for each in self.outcome.rounds),
            best_round=self.outcome.best_round,
            data_sha256=self.data_sha256,
        )

    @classmethod
    def of(cls, path: Path) -> SavedRun:
        """Return the run that ended with this record; raise ``FileError`` for another file."""
        record = read_record(path)
        agreement = Agreement.from_json(json.dumps(record.agreement), source=str(path))
        rounds = TypeAdapter(list[CoordinatorRound]).validate_python(record.rounds)
        sites = {log.name: log for log in record.sites}
        return cls(
            method_named(record.method),
            agreement,
            Outcome(sites, rounds, [], record.best_round),
            record.data_sha256,
        )
