"""Diagnoses of a run whose settings are clearly wrong: the symptom, its figures and a remedy.

A diagnosis follows from the figures that sites record of each round. Thresholds are for clear cases: a run without a
diagnosis may still have poor settings. The run's figures do not tell a setting that is wrong from data that cannot be
learned, so a remedy is the first thing to try.

Under ``[privacy]`` no diagnosis uses losses, which are exact, and lengths of prototypes, which noise changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple

from agreement import Agreement, Method
from agreement.storage.run_files import Record
from secure_client.diagnosis import remedies
from secure_client.output.site_log import SiteRound

DROWNING = 2.0
"""Least loss of a drowned run in one of its rounds, in multiples of that round's cross entropy."""
FALL_A_ROUND, FALL = 0.05, 0.2
"""Least fall of the cross entropy, as a share of round 1's, that excludes drowning: per later round, and at most."""
FLAT = 0.95
"""Least cross entropy in the last round, as a share of round 1's, of a loss that does not fall."""
FLAT_ROUNDS = 3
"""Least rounds after which a loss should have fallen."""
HIGH = 0.5
"""Least cross entropy that counts as high, as a share of that of a constant answer."""
LOW = 0.1
"""Cross entropy, in nats, that is never high, since single classes have constant answers without error."""
WORSE = 1.05
"""Least cross entropy of diverged training in the last round, in multiples of round 1's."""
DIVERGED = 1.1
"""Least cross entropy of diverged training, in multiples of that of equal probabilities for all classes."""
CHANCE_ROUNDS = 2
"""Least rounds after which a model should beat a constant answer: with sound settings one round may be too few."""
STANDARD_ERRORS = 2.0
"""Margin of an accuracy above the constant answer's, in the standard errors of the latter."""
SHORTENED = 0.1
"""Least share of shortened prototypes that counts."""


class Symptom(StrEnum):
    """Symptoms of wrong settings."""

    UNREADABLE = "records-unreadable"
    FAILED = "training-failed"
    DROWNED = "alignment-drowns-classification"
    NOT_FALLING = "loss-does-not-fall"
    CHANCE = "accuracy-at-chance"
    NORM_BOUND = "norm-bound-hit"


class Diagnosis(Record):
    """One symptom of one method's run, with the figures that show it and the remedy."""

    method: str
    symptom: Symptom
    figures: str
    remedy: str
    seeds: tuple[int, ...] = ()
    """Seeds that have the symptom, where there were several; ``figures`` are of the first."""

    @property
    def text(self) -> str:
        """The diagnosis in words, with the remedy at the end."""
        return f"{self.method}: {_NAMES[self.symptom]}{self._seeds}: {self.figures}. Remedy: {self.remedy}."

    @property
    def _seeds(self) -> str:
        named = ", ".join(map(str, self.seeds))
        if len(self.seeds) > 1:
            return f" (seeds {named}; figures of the first)"
        return f" (seed {named})" if named else ""


_NAMES = {
    Symptom.UNREADABLE: "training records could not be read",
    Symptom.FAILED: "training failed",
    Symptom.DROWNED: "alignment drowns classification",
    Symptom.NOT_FALLING: "the loss does not fall",
    Symptom.CHANCE: "accuracy is no better than always answering each site's most frequent class",
    Symptom.NORM_BOUND: "prototypes hit the norm bound",
}
_UNALIGNED = (Method.LOCAL, Method.AVERAGE)


class _Losses(NamedTuple):
    """Cross entropies of the first and the last round, and the losses in the round of the largest excess.

    ``constant`` is the cross entropy of a constant answer, ``equal`` that of equal probabilities for all classes. The
    excess is the loss less ``DROWNING`` cross entropies.
    """

    first: float
    last: float
    constant: float
    equal: float
    rounds: int
    peak_round: int
    peak_loss: float
    peak_classification: float

    @property
    def has_drowned(self) -> bool:
        """True if alignment once outweighed classification, which has learned little since round 1."""
        fall = min(FALL, FALL_A_ROUND * (self.rounds - 1))
        outweighed = self.peak_loss >= DROWNING * self.peak_classification
        return self.rounds > 1 and outweighed and self.is_high and self.last >= (1.0 - fall) * self.first

    @property
    def is_flat(self) -> bool:
        """True if the loss did not fall, although there is much to learn."""
        return self.rounds >= FLAT_ROUNDS and self.is_high and self.last >= FLAT * self.first

    @property
    def has_diverged(self) -> bool:
        """True if training made the cross entropy clearly worse, or ended worse than equal probabilities."""
        return self.last > WORSE * self.first or self.last > DIVERGED * self.equal

    @property
    def is_high(self) -> bool:
        """True if there is much left to learn."""
        return self.last >= max(HIGH * self.constant, LOW)

    def __str__(self) -> str:
        return (
            f"cross entropy {self.first:.2f} in round 1 and {self.last:.2f} in round {self.rounds} (class frequencies "
            f"alone: {self.constant:.2f})"
        )


class _Accuracy(NamedTuple):
    """Accuracies over all test samples: the model's, and that of answering each site's most frequent class."""

    accuracy: float
    constant: float
    samples: int
    error: float
    """Standard error of ``constant``, from a binomial at each site."""

    @property
    def is_at_chance(self) -> bool:
        """True if the model is not significantly better than the constant answer, although a model could be."""
        threshold = self.constant + STANDARD_ERRORS * self.error
        return self.accuracy <= threshold < 1.0

    def __str__(self) -> str:
        return (
            f"accuracy {100 * self.accuracy:.1f} % of {self.samples} test samples (each site's most frequent class: "
            f"{100 * self.constant:.1f} %)"
        )


def diagnose(
    agreement: Agreement, method: Method, sites: Iterable[Sequence[SiteRound]]
) -> tuple[Diagnosis, ...]:
    """Return the diagnoses of a finished run from the rounds of its sites, oldest first; empty for a sound run.

    ``method`` is the agreement's, or a control that trains under this agreement. A loss is judged by its cross entropy,
    since the loss as a whole rises when alignment begins. An accuracy must exceed that of always answering each site's
    most frequent class by two standard errors, over all sites' test samples, where any accuracy could.
    """
    logs = [log for log in sites if log]
    diagnoses = (_diagnose_training(agreement, method, logs), _diagnose_norms(agreement, method, logs))
    return tuple(diagnosis for diagnosis in diagnoses if diagnosis is not None)


def _diagnose_training(
    agreement: Agreement, method: Method, logs: Sequence[Sequence[SiteRound]]
) -> Diagnosis | None:
    """Return the most specific diagnosis of training, since each explains the next."""
    aligned = agreement.method if method is Method.SELF else method
    unreadable = sum(log[-1].unreadable for log in logs)
    if unreadable:
        figures = (
            f"in the last round at {unreadable} of {len(logs)} sites, whose prototypes count them as zeros"
        )
        return _diagnosis(method, Symptom.UNREADABLE, figures, remedies.READABLE)
    failed = sum(not log[-1].trained for log in logs)
    if failed:
        figures = f"in the last round at {failed} of {len(logs)} sites, whose models stayed unchanged"
        return _diagnosis(method, Symptom.FAILED, figures, remedies.stable_training(agreement, aligned))
    losses = None if agreement.privacy is not None else _summarise_losses(logs, agreement, aligned)
    tested = _summarise_accuracy(logs)
    figures = "; ".join(str(figure) for figure in (losses, tested) if figure is not None)
    if losses is not None and losses.has_drowned and not agreement.extractor_is_frozen:
        peak = f"loss {losses.peak_loss:.2f} with cross entropy {losses.peak_classification:.2f} in round"
        weaker = remedies.weaker_alignment(agreement, aligned)
        return _diagnosis(method, Symptom.DROWNED, f"{figures}; {peak} {losses.peak_round}", weaker)
    if losses is not None and losses.is_flat:
        rate = remedies.other_rate(agreement, aligned, diverged=losses.has_diverged)
        return _diagnosis(method, Symptom.NOT_FALLING, figures, rate)
    begun = max((log[-1].round for log in logs), default=0) >= CHANCE_ROUNDS
    if tested is not None and tested.is_at_chance and begun:
        return _diagnosis(method, Symptom.CHANCE, figures, _remedy_for_accuracy(agreement, method, losses))
    return None


def _remedy_for_accuracy(agreement: Agreement, method: Method, losses: _Losses | None) -> str:
    """Return the remedy for an accuracy that is no better than the constant answer's."""
    if agreement.privacy is not None:
        return remedies.private_accuracy(agreement, agreement.privacy, method)
    if agreement.extractor_is_frozen:
        return remedies.other_features(agreement)
    aligned = agreement.method if method is Method.SELF else method
    if losses is not None and not losses.is_high:
        return remedies.comparison(aligned)
    return remedies.more_training(agreement, aligned, diverged=losses is not None and losses.has_diverged)


def _diagnose_norms(
    agreement: Agreement, method: Method, logs: Sequence[Sequence[SiteRound]]
) -> Diagnosis | None:
    shares = [log[-1].shortened for log in logs]
    stated = [share for share in shares if share is not None]
    if method in _UNALIGNED or not stated or fmean(stated) < SHORTENED:
        return None
    figures = f"{100 * fmean(stated):.0f} % of the last round's prototypes were shortened to norm_bound"
    return _diagnosis(method, Symptom.NORM_BOUND, figures, remedies.larger_bound(agreement))


def _diagnosis(method: Method, symptom: Symptom, figures: str, remedy: str) -> Diagnosis:
    return Diagnosis(method=method.value, symptom=symptom, figures=figures, remedy=remedy)


# Figures over the sites


def _cross_entropies(agreement: Agreement, aligned: Method) -> float:
    """Return the sum of the weights of a loss's cross entropies: FedDBP has one for each branch."""
    if aligned is not Method.FEDDBP:
        return 1.0
    settings = agreement.feddbp
    return settings.share + settings.decision_weight * settings.decision


def _summarise_losses(
    logs: Sequence[Sequence[SiteRound]], agreement: Agreement, aligned: Method
) -> _Losses | None:
    """Return means over the sites; None unless round 1 and the last round have losses."""
    rounds = [log_round for log in logs for log_round in log]
    numbers = sorted({log_round.round for log_round in rounds})
    means = {
        number: _average_losses(log_round for log_round in rounds if log_round.round == number)
        for number in numbers
    }
    by_round = {number: mean for number, mean in means.items() if mean is not None}
    if not numbers or not {1, numbers[-1]} <= by_round.keys():
        return None
    first, last = by_round[1], by_round[numbers[-1]]
    peak, highest = max(by_round.items(), key=lambda item: item[1].total - DROWNING * item[1].classification)
    terms = _cross_entropies(agreement, aligned)
    return _Losses(
        first=first.classification,
        last=last.classification,
        constant=terms * last.constant,
        equal=terms * math.log(len(agreement.classes)),
        rounds=numbers[-1],
        peak_round=peak,
        peak_loss=highest.total,
        peak_classification=highest.classification,
    )


class _MeanLosses(NamedTuple):
    """Means over the sites in one round."""

    total: float
    classification: float
    constant: float


def _average_losses(rounds: Iterable[SiteRound]) -> _MeanLosses | None:
    """Return the means over the sites that trained in a round; None without any."""
    losses = [
        (log_round.loss, log_round.loss_classification, log_round.loss_constant)
        for log_round in rounds
        if log_round.loss is not None
        and log_round.loss_classification is not None
        and log_round.loss_constant is not None
    ]
    return _MeanLosses(*map(fmean, zip(*losses, strict=True))) if losses else None


def _summarise_accuracy(logs: Sequence[Sequence[SiteRound]]) -> _Accuracy | None:
    """Return the last tested round's accuracies, weighted by test samples; None without any."""
    right = constant = variance = 0.0
    samples = 0
    for log in logs:
        for log_round in reversed(log):
            accuracy, share, number = log_round.accuracy, log_round.accuracy_constant, log_round.test_samples
            if accuracy is not None and share is not None and number is not None:
                right, constant, samples = (
                    right + number * accuracy,
                    constant + number * share,
                    samples + number,
                )
                variance += number * share * (1.0 - share)
                break
    if not samples:
        return None
    return _Accuracy(right / samples, constant / samples, samples, math.sqrt(variance) / samples)
