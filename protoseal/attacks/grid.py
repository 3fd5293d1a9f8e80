"""Suites of attacks by name, and their runs on a configuration under several protections and ε.

The undefended setting comes first, then each setting, then the verdicts. Each run of a setting and seed is recorded
once and attacked by every case. Its measurements are stored, so that an interrupted grid resumes with the runs that
are missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from agreement.errors import UserError
from agreement.sections.privacy import Extractor
from agreement.storage.run_files import read_json, write_json
from protoseal.attacks.cases import Case, Measurement
from protoseal.attacks.dependent_messages import DependentMessages
from protoseal.attacks.echoing_site import EchoingSite
from protoseal.attacks.key_recovery import KeyRecovery
from protoseal.attacks.label_inference import ClassFrequencies, Domains, Presence
from protoseal.attacks.model_membership import ModelMembership
from protoseal.attacks.noise_audit import NoiseAudit
from protoseal.attacks.poisoning import poisoning_cases
from protoseal.attacks.protected_values import KnownRows, PrototypeRecognition, Values
from protoseal.attacks.prototype_inversion import PrototypeInversion
from protoseal.attacks.prototype_membership import PrototypeMembership
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import RecordedRun, record_run
from protoseal.attacks.records import (
    ATTACKS,
    REFERENCE,
    REPORT,
    AttackReport,
    CaseOutcome,
    CaseRecord,
    RunOutcomes,
    combine_seeds,
    holds_no_pictures,
    list_notices,
    make_record,
)
from protoseal.attacks.update_inversion import StandStill, UpdateInversion
from protoseal.audit.accuracy_report import EXACT
from protoseal.audit.budget_curve import LOCAL, BudgetCurve, RequestedRun, change_config
from protoseal.simulation.config import SPLITTING, SimulationConfig
from protoseal.simulation.experiment import load_scene
from secure_client.data.sources import is_public
from secure_client.privacy.cost import SIMULATED_DELTA

SAMPLES_BEHIND = (1, 2, 5, 20, 100)
"""Training samples behind a prototype that is inverted."""
MEMBERS = (1, 2, 5, 20, None)
"""Training samples behind a prototype whose members are inferred; None for as many as the configuration gives."""


SUITES: dict[str, Callable[[], Sequence[Case]]] = {
    "inversion": lambda: [
        PrototypeInversion(samples, decoder=decoder)
        for decoder in (False, True)
        for samples in SAMPLES_BEHIND
    ],
    "membership": lambda: [*map(PrototypeMembership, MEMBERS)],
    "models": lambda: [*map(UpdateInversion, (1, 4, None)), StandStill(), ModelMembership()],
    "labels": lambda: [Presence(), ClassFrequencies(), Domains()],
    "protection": lambda: [
        Values(),
        PrototypeRecognition(),
        KnownRows(),
        KeyRecovery(),
        DependentMessages(),
        EchoingSite(),
    ],
    "audit": lambda: [NoiseAudit()],
    "poisoning": poisoning_cases,
}
"""Makers of each suite's cases."""
QUICK, ALL = "quick", "all"


def list_suites() -> tuple[str, ...]:
    """Return the names that :func:`make_cases` takes."""
    return (QUICK, ALL, *SUITES)


def make_cases(name: str) -> dict[str, Sequence[Case]]:
    """Return the cases of a suite, of all suites, or short attacks of four kinds (``quick``), by suite."""
    if name == QUICK:
        return {
            "inversion": [PrototypeInversion(1, decoder=True)],
            "membership": [PrototypeMembership(1), PrototypeMembership()],
            "protection": [Values()],
            "audit": [NoiseAudit()],
        }
    return {suite: make() for suite, make in SUITES.items() if name in (ALL, suite)}


ENOUGH = 20
"""Training samples of the classes of a thinned run that no case asks for: enough to train on."""
RUNS, PICTURED_RUNS = "runs", "runs-with-pictures"
"""Folders of the runs' outcomes; those with pictures of records are apart, so that their folder can be deleted."""


@dataclass(frozen=True)
class AttackSetting:
    """Protection and noise of a run.

    ``epsilon`` is infinite without noise, and None for the noise that the configuration itself has.
    """

    protection: str
    epsilon: float | None

    @property
    def folder(self) -> str:
        """Name of the setting's folder."""
        noise = "configured" if self.epsilon is None else repr(self.epsilon)
        return f"{self.protection}-epsilon-{noise}"


UNDEFENDED = AttackSetting("plain", math.inf)


@dataclass(frozen=True)
class PlannedRun:
    """One run to record and attack; ``samples`` are those of a thinned run, empty for the run as configured."""

    setting: AttackSetting
    seed: int
    samples: tuple[int, ...]

    @property
    def thinned(self) -> bool:
        """True if the sites keep few samples of each class."""
        return bool(self.samples)

    @property
    def description(self) -> str:
        """Name of the run for a progress line."""
        noise = {None: "noise as configured", math.inf: "no noise"}.get(
            self.setting.epsilon, f"ε = {self.setting.epsilon}"
        )
        few = ", few samples of a class" if self.thinned else ""
        return f"{self.setting.protection}, {noise}, seed {self.seed}{few}"

    @property
    def file(self) -> str:
        """Path of its outcomes under the folder of all runs."""
        few = f"-samples-{'-'.join(map(str, self.samples))}" if self.samples else ""
        return f"{self.setting.folder}/seed-{self.seed}{few}.json"


class AttackGrid:
    """Cases on one configuration under several settings; see the module."""

    def __init__(
        self,
        config: SimulationConfig,
        cases: Mapping[str, Sequence[Case]],
        out: Path,
        *,
        protections: Sequence[str] = (),
        epsilons: Sequence[float] = (),
        pictures: bool = False,
        command: str = "",
    ) -> None:
        """Take the ``cases`` by suite. By default the only setting besides undefended is the configuration's own.

        With ``pictures`` the outcomes keep training images and reconstructions of them. Raises ``UserError`` for finite
        ``epsilons`` without ``[privacy]``, or an ε that no noise gives.
        """
        self._config = config
        self._cases = cases
        self._out = out
        self._command = command
        self._pictures = pictures
        self._folder = out / (PICTURED_RUNS if pictures else RUNS)
        without = math.inf if config.privacy is None else None
        chosen = product(protections or (config.protection.value,), tuple(epsilons) or (without,))
        self._settings = tuple(dict.fromkeys([UNDEFENDED, *(AttackSetting(*pair) for pair in chosen)]))
        self._curve = None if config.privacy is None else BudgetCurve(config, out)
        if self._curve is None and any(setting.epsilon != math.inf for setting in self._settings):
            raise UserError("a finite ε needs noise to scale: add a [privacy] section to the configuration")
        flat = [case for suite in cases.values() for case in suite]
        # One thinned run serves all cases: its sites have each wanted number of samples of some class.
        few = tuple(sorted({ENOUGH, *(case.samples for case in flat if case.thinned and case.samples)}))
        samples = sorted({few if case.thinned else () for case in flat}, reverse=True)
        self._planned = tuple(
            PlannedRun(setting, seed, counts)
            for setting in self._settings
            for seed in config.seeds
            for counts in samples
        )
        self._configs = {planned: self._make_config(planned) for planned in self._planned}
        self._sites = len(load_scene(config, config.seeds[0]).divided.sites)

    @property
    def runs(self) -> int:
        """Number of runs to record and attack."""
        return len(self._planned)

    @property
    def notices(self) -> list[str]:
        """Sentences on whose records the results show, and on pictures of records in the folder."""
        sentences = list(list_notices(self._config.dataset, pictures=self._pictures))
        pictured = self._out / PICTURED_RUNS
        if pictured.exists() and not self._pictures:
            sentences.append(
                f"{pictured} still holds pictures of records from an earlier start: delete that folder."
            )
        return sentences

    def remove_pictures(self) -> list[str]:
        """Remove the results of an earlier start with pictures; return a sentence for each file.

        With ``pictures`` nothing is removed. A file that does not say that it is without pictures is removed too.
        """
        if self._pictures or holds_no_pictures(self._out):
            return []
        files = [path for path in (self._out / REPORT, self._out / ATTACKS) if path.exists()]
        for path in files:  # attacks.json last: without it, the other file is removed by the next start
            path.unlink()
        return [
            f"{path} of an earlier start may have held pictures of records, and was removed."
            for path in files
        ]

    def training_seconds(self) -> float:
        """Return about how long the missing runs take without the attacks, from one timed round."""
        missing = [planned for planned in self._planned if not (self._folder / planned.file).exists()]
        if not missing:
            return 0.0
        start = time.monotonic()
        record_run(change_config(self._configs[missing[0]], {"rounds": 1}), missing[0].seed)
        return (time.monotonic() - start) * self._config.rounds * len(missing)

    def run(
        self, on_run: Callable[[PlannedRun, AttackReport], None] = lambda planned, report: None
    ) -> AttackReport:
        """Attack every run. After each, write ``attacks.json`` so far and call ``on_run``."""
        start = time.monotonic()
        outcomes: dict[PlannedRun, RunOutcomes] = {}
        # The undefended setting comes first: without it no case has a verdict.
        for planned in self._planned:
            outcomes[planned] = self._load_or_attack(planned)
            complete = len(outcomes) == len(self._planned)
            report = self._make_report(outcomes, time.monotonic() - start, complete=complete)
            write_json(self._out / ATTACKS, report)
            on_run(planned, report)
        return report

    def _make_config(self, planned: PlannedRun) -> SimulationConfig:
        setting, base = planned.setting, self._config
        if setting.epsilon is not None and self._curve is not None:
            kind = EXACT if math.isinf(setting.epsilon) else str(getattr(base.privacy, "noise", LOCAL))
            base = self._curve.configure(RequestedRun(setting.epsilon, kind, planned.seed))
        changes = {"protection": setting.protection, "seeds": [planned.seed], "out": str(self._out)}
        return change_config(base, changes)

    def _load_or_attack(self, planned: PlannedRun) -> RunOutcomes:
        """Return the outcomes of a run; cases that an earlier start has tried are read, the others tried now."""
        path, config = self._folder / planned.file, self._configs[planned]
        settings = config.model_dump(mode="json", by_alias=True, exclude={"out"})
        data = load_scene(config, planned.seed).divided.sha256
        stored = self._load(path, settings, data)
        tried = () if stored is None else stored.attacks
        missing = [
            case
            for suite in self._cases.values()
            for case in suite
            if case.thinned == planned.thinned and case.attack not in tried
        ]
        if stored is not None and not missing:
            return stored
        start = time.monotonic()
        run = record_run(config, planned.seed, samples=planned.samples)
        fresh = tuple(
            CaseOutcome(
                **dict(measured) | ({} if self._pictures else {"pictures": ()}),
                attack=case.attack,
                adversary=adversary,
            )
            for case, adversary, measured in _attack_run(run, missing)
        )
        outcomes = RunOutcomes(
            config=settings,
            data_sha256=data,
            epsilon=run.epsilon,
            attacks=(*tried, *(case.attack for case in missing)),
            outcomes=(*(() if stored is None else stored.outcomes), *fresh),
            seconds=time.monotonic() - start,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, outcomes)
        return outcomes

    def _load(self, path: Path, settings: dict[str, Any], data: str) -> RunOutcomes | None:
        """Return a run's outcomes of an earlier start; raise ``UserError`` if it had other settings or data."""
        if not path.exists():
            return None
        stored = read_json(path, RunOutcomes, "choose another --out, or delete the folder")
        if (stored.config, stored.data_sha256) != (settings, data):
            raise UserError(
                f"{path} is of another configuration or other data: choose another --out, or delete the folder"
            )
        # Without --pictures no report may hold any, whatever an earlier start stored here.
        if not self._pictures and any(outcome.pictures for outcome in stored.outcomes):
            raise UserError(f"{path} holds pictures of records: choose another --out, or delete the folder")
        return stored

    def _make_report(
        self, outcomes: Mapping[PlannedRun, RunOutcomes], seconds: float, *, complete: bool
    ) -> AttackReport:
        config = self._config
        return AttackReport(
            method=config.method.value,
            protection=config.protection.value,
            dataset=config.dataset,
            public_records=is_public(config.dataset),
            pictures=self._pictures,
            sites=self._sites,
            seeds=config.seeds,
            delta=SIMULATED_DELTA,
            command=self._command,
            config=config.model_dump(
                mode="json", by_alias=True, exclude={"out", *(SPLITTING if config.has_site_files else ())}
            ),
            seconds=seconds,
            cases=tuple(self._list_records(outcomes)),
            complete=complete,
        )

    def _list_records(self, outcomes: Mapping[PlannedRun, RunOutcomes]) -> Iterator[CaseRecord]:
        privacy = self._config.privacy
        # ε covers what one site releases where all of its noise is its own and no feature was trained on its records.
        covers = (
            privacy is not None and not privacy.distributed and privacy.extractor is not Extractor.TRAINED
        )
        for suite, cases in self._cases.items():
            for case, setting in product(cases, self._settings):
                undefended = _find_undefended(outcomes, case, setting)
                if undefended is None:
                    continue
                epsilon = _find_epsilon(outcomes, setting)
                by_reading: dict[tuple[str, str], list[CaseOutcome]] = {}
                for outcome in _select_outcomes(outcomes, case, setting):
                    if outcome.adversary != REFERENCE:
                        by_reading.setdefault((outcome.adversary, outcome.reading), []).append(outcome)
                for of_seeds in by_reading.values():
                    yield make_record(
                        suite,
                        case,
                        setting.protection,
                        epsilon,
                        combine_seeds(of_seeds),
                        undefended,
                        covers=covers,
                    )


def _attack_run(run: RecordedRun, cases: Sequence[Case]) -> Iterator[tuple[Case, str, Measurement]]:
    for case in cases:
        reference = case.reference(run)
        if reference is not None:
            yield case, REFERENCE, reference
        for adversary in case.adversaries:
            for measured in case.measure(run, adversary):
                yield case, adversary.value, measured


# Outcomes of all runs of a setting


def _select_outcomes(
    outcomes: Mapping[PlannedRun, RunOutcomes], case: Case, setting: AttackSetting
) -> list[CaseOutcome]:
    return [
        outcome
        for planned, of_run in outcomes.items()
        if planned.setting == setting and planned.thinned == case.thinned
        for outcome in of_run.outcomes
        if outcome.attack == case.attack
    ]


def _find_undefended(
    outcomes: Mapping[PlannedRun, RunOutcomes], case: Case, setting: AttackSetting
) -> CaseOutcome | None:
    """Return the case's own reference in the setting, or the undefended coordinator's strongest reading."""
    of_setting = _select_outcomes(outcomes, case, setting)
    references = [outcome for outcome in of_setting if outcome.adversary == REFERENCE]
    if references:
        return combine_seeds(references)
    coordinators = [
        outcome
        for outcome in _select_outcomes(outcomes, case, UNDEFENDED)
        if outcome.adversary == Adversary.COORDINATOR
    ]
    by_reading = [
        combine_seeds([outcome for outcome in coordinators if outcome.reading == reading])
        for reading in dict.fromkeys(outcome.reading for outcome in coordinators)
    ]
    return max(by_reading, key=lambda outcome: outcome.value, default=None)


def _find_epsilon(outcomes: Mapping[PlannedRun, RunOutcomes], setting: AttackSetting) -> float | None:
    """Return the setting's ε, or the largest that its runs spent; None without noise."""
    if setting.epsilon is not None:
        return None if math.isinf(setting.epsilon) else setting.epsilon
    spent = [
        of_run.epsilon
        for planned, of_run in outcomes.items()
        if planned.setting == setting and of_run.epsilon is not None
    ]
    return max(spent, default=None)
