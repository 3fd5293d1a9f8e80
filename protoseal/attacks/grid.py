"""Attacks on a configuration under several protections and ε: undefended first, then each setting, then the verdicts.

Each run of a setting and seed is recorded once and attacked by every case. Its measurements are stored, so that an
interrupted grid resumes with the runs that are missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from agreement.errors import UserError
from agreement.sections.privacy import Extractor
from agreement.storage.run_files import Record, read_json, write_json
from protoseal.attacks.cases import Case, Measured, Verdict, auxiliary, verdict_of
from protoseal.attacks.image_gallery import to_png
from protoseal.attacks.opened_sums import coordinator_means, groups_of, solved_means
from protoseal.attacks.prototype_inversion import decoder_of, reconstructions
from protoseal.attacks.readings import Adversary, readings
from protoseal.attacks.recorded_run import RecordedRun, record_run
from protoseal.attacks.records import (
    ATTACKS,
    REPORT,
    AttackReport,
    CaseRecord,
    CurveLine,
    PictureFile,
    notices_of,
    without_pictures,
    write_attacks,
)
from protoseal.attacks.rotated_rows import rotated_readings
from protoseal.attacks.solved_combinations import class_solutions
from protoseal.audit.accuracy_records import EXACT
from protoseal.audit.budget_curve import LOCAL, Asked, BudgetCurve, changed
from protoseal.simulation.config import SPLITTING, SimulationConfig
from protoseal.simulation.experiment import scene_of
from secure_client.data.sources import is_public
from secure_client.privacy.cost import SIMULATED_DELTA

ENOUGH = 20
"""Training samples of the classes of a thinned run that no case asks for: enough to train on."""
RUNS, PICTURED_RUNS = "runs", "runs-with-pictures"
"""Folders of the runs' outcomes; those with pictures of records are apart, so that their folder can be deleted."""
REFERENCE = "undefended"


@dataclass(frozen=True)
class Setting:
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


UNDEFENDED = Setting("plain", math.inf)


class Outcome(Record):
    """Result of one case by one adversary with one reading, in one run."""

    attack: str
    adversary: str
    value: float
    low: float
    high: float
    trials: int
    reading: str
    details: dict[str, float]
    curves: dict[str, CurveLine]
    pictures: tuple[PictureFile, ...]


class RunOutcomes(Record):
    """Content of a run's file: all outcomes, and the configuration that they belong to."""

    config: dict[str, Any]
    data_sha256: str
    epsilon: float | None
    attacks: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    seconds: float = Field(ge=0)


@dataclass(frozen=True)
class Part:
    """One run to record and attack; ``samples`` are those of a thinned run, empty for the run as configured."""

    setting: Setting
    seed: int
    samples: tuple[int, ...]

    @property
    def thinned(self) -> bool:
        """True if the sites keep few samples of each class."""
        return bool(self.samples)

    @property
    def words(self) -> str:
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
        self._config, self._cases, self._out, self._command = config, cases, out, command
        self._pictures, self._runs = pictures, out / (PICTURED_RUNS if pictures else RUNS)
        own = math.inf if config.privacy is None else None
        asked = product(protections or (config.protection.value,), tuple(epsilons) or (own,))
        self._settings = tuple(dict.fromkeys([UNDEFENDED, *(Setting(*each) for each in asked)]))
        self._curve = None if config.privacy is None else BudgetCurve(config, out)
        if self._curve is None and any(each.epsilon != math.inf for each in self._settings):
            raise UserError("a finite ε needs noise to scale: add a [privacy] section to the configuration")
        every = [case for each in cases.values() for case in each]
        kinds = sorted({_samples_behind(every) if case.thinned else () for case in every}, reverse=True)
        self._parts = tuple(
            Part(setting, seed, kind) for setting in self._settings for seed in config.seeds for kind in kinds
        )
        self._configs = {part: self._config_of(part) for part in self._parts}
        self._sites = len(scene_of(config, config.seeds[0]).divided.sites)

    @property
    def runs(self) -> int:
        """Number of runs to record and attack."""
        return len(self._parts)

    @property
    def notices(self) -> list[str]:
        """Sentences on whose records the results show, and on pictures of records in the folder."""
        said = list(notices_of(self._config.dataset, pictures=self._pictures))
        left = self._out / PICTURED_RUNS
        if left.exists() and not self._pictures:
            said.append(f"{left} still holds pictures of records from an earlier start: delete that folder.")
        return said

    def remove_pictures(self) -> list[str]:
        """Remove the results of an earlier start with pictures; return a sentence for each file.

        With ``pictures`` nothing is removed. A file that does not say that it is without pictures is removed too.
        """
        if self._pictures or without_pictures(self._out):
            return []
        held = [path for path in (self._out / REPORT, self._out / ATTACKS) if path.exists()]
        for path in held:  # attacks.json last: without it, the other file is removed by the next start
            path.unlink()
        return [
            f"{path} of an earlier start may have held pictures of records, and was removed." for path in held
        ]

    def training_seconds(self) -> float:
        """Return about how long the missing runs take without the attacks, from one timed round."""
        missing = [part for part in self._parts if not (self._runs / part.file).exists()]
        if not missing:
            return 0.0
        start = time.monotonic()
        record_run(changed(self._configs[missing[0]], {"rounds": 1}), missing[0].seed)
        return (time.monotonic() - start) * self._config.rounds * len(missing)

    def run(self, on_part: Callable[[Part, AttackReport], None] = lambda part, report: None) -> AttackReport:
        """Attack every run. After each, write ``attacks.json`` so far and call ``on_part``."""
        begun, found = time.monotonic(), dict[Part, RunOutcomes]()
        for part in self._parts:
            found[part] = self._outcomes(part)
            complete = len(found) == len(self._parts)
            report = self._report(found, time.monotonic() - begun, complete=complete)
            write_attacks(self._out, report)
            on_part(part, report)
        return report

    def _config_of(self, part: Part) -> SimulationConfig:
        setting, base = part.setting, self._config
        if setting.epsilon is not None and self._curve is not None:
            kind = EXACT if math.isinf(setting.epsilon) else str(getattr(base.privacy, "noise", LOCAL))
            base = self._curve.config_of(Asked(setting.epsilon, kind, part.seed))
        changes = {"protection": setting.protection, "seeds": [part.seed], "out": str(self._out)}
        return changed(base, changes)

    def _outcomes(self, part: Part) -> RunOutcomes:
        """Return the outcomes of a run; cases that an earlier start has tried are read, the others tried now."""
        path, config = self._runs / part.file, self._configs[part]
        settings = config.model_dump(mode="json", by_alias=True, exclude={"out"})
        data = scene_of(config, part.seed).divided.sha256
        stored = self._stored(path, settings, data)
        tried = () if stored is None else stored.attacks
        missing = [case for case in self._cases_of(part) if case.attack not in tried]
        if stored is not None and not missing:
            return stored
        start = time.monotonic()
        run = record_run(config, part.seed, samples=part.samples)
        found = tuple(
            _outcome(case, who, each if self._pictures else replace(each, pictures=()))
            for case, who, each in _attacked(run, missing)
        )
        done = RunOutcomes(
            config=settings,
            data_sha256=data,
            epsilon=run.epsilon,
            attacks=(*tried, *(case.attack for case in missing)),
            outcomes=(*(() if stored is None else stored.outcomes), *found),
            seconds=time.monotonic() - start,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, done)
        for cached in (
            *(readings, auxiliary, decoder_of, reconstructions),
            *(groups_of, coordinator_means, solved_means, class_solutions, rotated_readings),
        ):
            cached.cache_clear()  # they hold the run
        return done

    def _cases_of(self, part: Part) -> list[Case]:
        return [case for each in self._cases.values() for case in each if case.thinned == part.thinned]

    def _stored(self, path: Path, settings: dict[str, Any], data: str) -> RunOutcomes | None:
        """Return a run's outcomes of an earlier start; raise ``UserError`` if it had other settings or data."""
        if not path.exists():
            return None
        stored = read_json(path, RunOutcomes, "choose another --out, or delete the folder")
        if (stored.config, stored.data_sha256) != (settings, data):
            raise UserError(
                f"{path} is of another configuration or other data: choose another --out, or delete the folder"
            )
        if not self._pictures and any(
            each.pictures for each in stored.outcomes
        ):  # of a version that always kept them
            raise UserError(f"{path} holds pictures of records: choose another --out, or delete the folder")
        return stored

    def _report(self, found: Mapping[Part, RunOutcomes], seconds: float, *, complete: bool) -> AttackReport:
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
                mode="json", by_alias=True, exclude={"out", *(SPLITTING if config.is_split else ())}
            ),
            seconds=seconds,
            cases=tuple(self._case_records(found)),
            complete=complete,
        )

    def _case_records(self, found: Mapping[Part, RunOutcomes]) -> Iterator[CaseRecord]:
        for suite, cases in self._cases.items():
            for case in cases:
                for setting in self._settings:
                    undefended = self._undefended(found, case, setting)
                    if undefended is not None:
                        yield from self._in_setting(found, suite, case, setting, undefended)

    def _undefended(self, found: Mapping[Part, RunOutcomes], case: Case, setting: Setting) -> Outcome | None:
        """Return the case's own reference in the setting, or the undefended coordinator's strongest reading."""
        own = [each for each in self._of_case(found, case, setting) if each.adversary == REFERENCE]
        if own:
            return _combined(own)
        coordinators = [
            each for each in self._of_case(found, case, UNDEFENDED) if each.adversary == Adversary.COORDINATOR
        ]
        by_reading = [
            _combined([each for each in coordinators if each.reading == reading])
            for reading in dict.fromkeys(each.reading for each in coordinators)
        ]
        return max(by_reading, key=lambda each: each.value, default=None)

    def _of_case(self, found: Mapping[Part, RunOutcomes], case: Case, setting: Setting) -> list[Outcome]:
        return [
            outcome
            for part, outcomes in found.items()
            if part.setting == setting and part.thinned == case.thinned
            for outcome in outcomes.outcomes
            if outcome.attack == case.attack
        ]

    def _in_setting(
        self, found: Mapping[Part, RunOutcomes], suite: str, case: Case, setting: Setting, undefended: Outcome
    ) -> Iterator[CaseRecord]:
        outcomes = [each for each in self._of_case(found, case, setting) if each.adversary != REFERENCE]
        spent = [
            each.epsilon
            for part, each in found.items()
            if part.setting == setting and each.epsilon is not None
        ]
        epsilon = max(spent, default=None) if setting.epsilon is None else _finite(setting.epsilon)
        for adversary, reading in dict.fromkeys((each.adversary, each.reading) for each in outcomes):
            same = [each for each in outcomes if (each.adversary, each.reading) == (adversary, reading)]
            yield _record(
                suite, case, setting, epsilon, _combined(same), undefended, covers=self._covers_values
            )

    @property
    def _covers_values(self) -> bool:
        """True if the configuration's ε covers the values that one site releases: with all noise of its own."""
        privacy = self._config.privacy
        return privacy is not None and not privacy.distributed and privacy.extractor is not Extractor.TRAINED


def _samples_behind(cases: Sequence[Case]) -> tuple[int, ...]:
    asked = (case.samples for case in cases if case.thinned and case.samples is not None)
    return tuple(sorted({ENOUGH, *asked}))


def _attacked(run: RecordedRun, cases: Sequence[Case]) -> Iterator[tuple[Case, str, Measured]]:
    for case in cases:
        reference = case.reference(run)
        if reference is not None:
            yield case, REFERENCE, reference
        for adversary in case.adversaries:
            for measured in case.measure(run, adversary):
                yield case, adversary.value, measured


def _finite(epsilon: float) -> float | None:
    return None if math.isinf(epsilon) else epsilon


def _outcome(case: Case, adversary: str, measured: Measured) -> Outcome:
    return Outcome(
        attack=case.attack,
        adversary=adversary,
        value=measured.value,
        low=measured.low,
        high=measured.high,
        trials=measured.trials,
        reading=measured.basis,
        details=dict(measured.details),
        curves={name: CurveLine(x=x, y=y) for name, (x, y) in measured.curves.items()},
        pictures=tuple(
            PictureFile(title=each.title, images={name: to_png(image) for name, image in each.images.items()})
            for each in measured.pictures
        ),
    )


def _combined(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the mean over seeds, weighted by trials; half widths of the intervals add up as independent errors."""
    weights = np.array([float(max(each.trials, 1)) for each in outcomes])
    weights /= weights.sum()
    values, lows, highs = (
        np.array([getattr(each, name) for each in outcomes]) for name in ("value", "low", "high")
    )
    value = float(weights @ values)
    below, above = (float(np.linalg.norm(weights * width)) for width in (values - lows, highs - values))
    details = {
        name: float(np.mean([each.details[name] for each in outcomes if name in each.details]))
        for name in outcomes[0].details
    }
    update = {
        "value": value,
        "low": value - below,
        "high": value + above,
        "trials": sum(each.trials for each in outcomes),
        "details": details,
    }
    return outcomes[0].model_copy(update=update)


def _record(
    suite: str,
    case: Case,
    setting: Setting,
    epsilon: float | None,
    outcome: Outcome,
    undefended: Outcome,
    *,
    covers: bool,
) -> CaseRecord:
    """Return the record of a case; ``covers`` says whether ε, if there is one, covers the values of one site."""
    verdict = verdict_of(outcome, undefended, chance=case.chance, margin=case.margin)
    if verdict is Verdict.NOT_DEFENDED and case.reads_values and covers and epsilon is not None:
        verdict = Verdict.NOISY_VALUES
    reading = outcome.reading
    return CaseRecord(
        **dict(outcome)
        | {"reading": reading if "round" in reading or not reading else f"{reading}, of one round"},
        family=case.family,
        suite=suite,
        question=case.question,
        ability=case.ability,
        protection=setting.protection,
        epsilon=epsilon,
        by_design=case.by_design,
        samples_behind=case.samples,
        metric=case.metric,
        undefended=undefended.value,
        undefended_low=undefended.low,
        undefended_high=undefended.high,
        own_reference=undefended.adversary == REFERENCE,
        chance=case.chance,
        margin=case.margin,
        defended=None if verdict is Verdict.TOO_WEAK else verdict is Verdict.DEFENDED,
        verdict=verdict,
        not_covered=case.not_covered,
    )
