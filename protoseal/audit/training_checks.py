"""Checks of the DP-SGD of a run, from the records that a site kept of its steps.

The records are those of :mod:`secure_client.training.step_records`. The audit compares what steps sampled, clipped and
added as noise with the agreement and with the ledger's entries. Each check finds one kind of weakness, or stands, or is
not covered: a check stands only if it would have found the weakness that it names. Statistical checks raise a false
alarm with the probability ``level`` each, at most.

Limits. The records are the site's own: a program that writes false records passes. Gradients of single records are not
computed again, so a gradient that depends on other records is not found. Noise from a generator with a fixed seed looks
like drawn noise unless it comes twice. What an optimiser makes of a noisy gradient is not recorded,
nor what a result changes in the averaged part of a model.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor

from privacy.accounting.events import DpSgd
from privacy.mechanisms.grid import SIGMA
from protoseal.audit.run_checks import POWER, Check, judge, leave_open, refute, uphold
from protoseal.audit.statistical_tests import (
    BinomialSpread,
    alike_p,
    coincidences_p,
    common_tails,
    fourth_p,
    largest_cosine,
    least_factor_refuted,
    least_p,
    normal_p,
    overlap_tails,
    repeats_would_show,
    square_tails,
    successive_p,
)
from secure_client.models.prototype_model import hash_weights
from secure_client.training.step_records import COINCIDENT, PEAKS, TrainingRecord, hash_tensors

PAID, RATE, NOISE = (
    "training that the ledger does not charge",
    "a sampling rate above the agreed one",
    "training's noise that is too small",
)
SUCCESSION = "training beside the recorded one"
"""Weakness of a model that changed before, between or after the recorded trainings."""
ESSENTIAL = frozenset({PAID, RATE, NOISE, SUCCESSION})
"""Weaknesses without whose checks no claim of a run with DP-SGD stands."""
STATISTICAL = 11
"""Number of statistical tests of a site, for a level of each."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class TrainingClaim:
    """Claim of a site's training: the ``agreed`` event of a round, and the events ``paid`` for each round."""

    agreed: DpSgd
    paid: Mapping[int, Sequence[DpSgd]]


def check_training(records: Sequence[TrainingRecord], claim: TrainingClaim, level: float) -> list[Check]:
    """Check one site's records against its claim; ``level`` is the false alarm's probability of one test."""
    if not records:
        return [
            leave_open(
                "training by DP-SGD",
                "no steps were recorded: set keep_releases in the site's file, or simulate with --keep-releases",
            )
        ]
    return [
        *_check_payments(records, claim),
        *_check_samples(records, claim.agreed, level),
        *_check_gradients(records, claim.agreed),
        *_check_noise(records, level),
    ]


def _check_payments(records: Sequence[TrainingRecord], claim: TrainingClaim) -> Iterator[Check]:
    executions = Counter(record.round for record in records)
    unpaid = [number for number, count in executions.items() if count > len(claim.paid.get(number, ()))]
    cheaper = sorted(
        number
        for number, events in claim.paid.items()
        if any(
            event.noise_multiplier > claim.agreed.noise_multiplier
            or event.sampling_rate < claim.agreed.sampling_rate
            or event.steps < claim.agreed.steps
            for event in events
        )
    )
    longer = sorted({record.round for record in records if record.steps > claim.agreed.steps})
    if unpaid:
        yield refute(PAID, f"round {unpaid[0]} trained more often than the ledger has entries for it")
    elif cheaper:
        yield refute(
            PAID, f"the ledger's entry of round {cheaper[0]} costs less than the agreement's training"
        )
    elif longer:
        yield refute(
            PAID, f"training of round {longer[0]} took more steps than the {claim.agreed.steps} agreed"
        )
    else:
        yield uphold(PAID, f"{len(records)} trainings of {claim.agreed.steps} steps, each with an entry")
    missing = sum(len(events) for events in claim.paid.values()) - len(records)
    cut = sum(max(record.steps, claim.agreed.steps) - len(record.sampled) for record in records)
    if missing > 0 or cut > 0:
        words = f"{missing} paid trainings and {cut} steps of others have no record"
        yield from (leave_open(weakness, words) for weakness in sorted(ESSENTIAL))


def check_succession(
    records: Sequence[TrainingRecord],
    models: Mapping[str, Mapping[str, Tensor]],
    initial: object,
    averaged: AbstractSet[str],
) -> Check:
    """Check that each training starts from a model that a recorded one had, and that each release is of such a model.

    ``models`` are the states of the released models by the name of the release, ``initial`` is the hash of the initial
    model by the ledger. Tensors with ``averaged`` names come from a result when a round starts. A training that failed
    is undone, so that the model before it counts too.
    """
    # The states that recorded trainings began or ended with: whole, and without the tensors that results replace.
    whole, local = set[frozenset[tuple[str, str]]](), set[frozenset[tuple[str, str]]]()
    left = list(records)
    while left:
        # Records are in no order that could be trusted: link those that start from a state reached so far.
        linked = [record.start == initial or _local_tensors(record, averaged) in local for record in left]
        if not any(linked):
            words = f"the training of round {left[0].round} starts from a model of no recorded training"
            # A result may have replaced tensors before the first recorded training, which no record contradicts.
            return leave_open(SUCCESSION, words) if averaged and not local else refute(SUCCESSION, words)
        for record in itertools.compress(left, linked):
            for hashes in (record.began, record.ended):
                state = frozenset(zip(record.names.tolist(), hashes.tolist(), strict=True))
                whole.add(state)
                local.add(frozenset(pair for pair in state if pair[0] not in averaged))
        left = [record for record, is_linked in zip(left, linked, strict=True) if not is_linked]
    for name, model in models.items():
        if hash_weights(model) != initial and frozenset(hash_tensors(model).items()) not in whole:
            return refute(SUCCESSION, f"the {name} is of a model that no recorded training had")
    return uphold(SUCCESSION, f"{len(records)} trainings and {len(models)} releases follow from each other")


def _local_tensors(record: TrainingRecord, averaged: AbstractSet[str]) -> frozenset[tuple[str, str]]:
    pairs = zip(record.names.tolist(), record.began.tolist(), strict=True)
    return frozenset(pair for pair in pairs if pair[0] not in averaged)


# Samples


def _check_samples(records: Sequence[TrainingRecord], agreed: DpSgd, level: float) -> Iterator[Check]:
    rate = agreed.sampling_rate
    yield _check_duplicates(records)
    yield _check_rate(records, rate, level)
    if rate >= 1.0:
        yield uphold("samples that are not independent", "the rate is 1, so that each step has every unit")
        return
    yield _check_fixed_sizes(records, rate, level)
    yield from _check_batches(records, rate, level)
    yield from _check_equal_rows(records, rate, level)


def _check_duplicates(records: Sequence[TrainingRecord]) -> Check:
    name = "a unit counted more than once in a step"
    for record in records:
        if (record.sampled != record.distinct).any():
            return refute(name, f"a step of round {record.round} sampled a unit more than once")
        if (record.sampled != record.clipped).any():
            return refute(
                name,
                f"a step of round {record.round} did not add one clipped gradient for each unit of its sample",
            )
    return uphold(name, "each step added one clipped gradient for each unit of its sample")


def _check_rate(records: Sequence[TrainingRecord], rate: float, level: float) -> Check:
    # Under the claim all samples together are one binomial number of so many trials.
    trials = sum(record.units * len(record.sampled) for record in records)
    sampled = sum(int(record.sampled.sum()) for record in records)
    p = float(stats.binom.sf(sampled - 1, trials, min(1.0, rate)))
    observed = f"{sampled / trials:.4g} sampled, {rate:g} agreed"
    # A rate raised in one round alone is diluted by the others, so each round is tested too.
    alone = [
        stats.binom.sf(record.sampled.sum() - 1, record.units * len(record.sampled), min(1.0, rate))
        for record in records
    ]
    in_one = min(1.0, len(records) * float(min(alone)))
    if 2 * in_one < level <= 2 * p:
        observed = f"more than {rate:g} sampled in round {records[int(np.argmin(alone))].round}"
    p = min(1.0, 2 * min(p, in_one))
    margin = float(stats.norm.isf(level / 2) + stats.norm.ppf(POWER))
    least = rate + margin * sqrt(rate * (1 - rate) / trials)
    upheld = f"{observed}; a rate of {least:.3g} would have been found"
    return judge(RATE, p, level, upheld, fault=observed)


def _check_fixed_sizes(records: Sequence[TrainingRecord], rate: float, level: float) -> Check:
    """Compare the spread of sample sizes with the binomial's; sites' numbers of units do not change in a run."""
    name = "samples of a fixed size"
    sizes = np.concatenate([record.sampled for record in records])
    if len({record.units for record in records}) > 1:
        return leave_open(name, "the number of units changed between trainings")
    law = BinomialSpread(len(sizes), records[0].units, rate)
    spread = law.measure(sizes)
    p = law.tails(spread).both
    observed = f"variance of {len(sizes)} sizes {spread / len(sizes):.3g} of the binomial's"
    could_tell = law.tails(law.of_one_size).low < level / 2
    unclear = None if could_tell else f"too few steps ({observed})"
    return judge(name, p, level, observed, unclear=unclear)


def _check_batches(records: Sequence[TrainingRecord], rate: float, level: float) -> Iterator[Check]:
    """Look for batches of shuffled epochs: by how often a unit takes part, and by the overlap of successive steps."""
    for process, records_of_process in _by_process(records).items():
        among = f" of process {process}" if len(_by_process(records)) > 1 else ""
        watched = np.concatenate([record.watched for record in records_of_process])
        steps, units = watched.shape
        law = BinomialSpread(units, steps, rate)
        spread = law.measure(watched.sum(axis=0))
        p = law.tails(spread).both
        name = "batches of epochs, or the same batches again"
        observed = (
            f"variance of {units} units' numbers of steps{among} {spread / units:.3g} of the binomial's"
        )
        could_tell = law.tails(law.of_one_size).low < level / 2
        unclear = None if could_tell else f"too few steps or units ({observed})"
        yield judge(name, p, level, observed, unclear=unclear)
        yield _check_overlap([record.watched for record in records_of_process], among, level)


def _check_overlap(watched: Sequence[NDArray[np.bool_]], among: str, level: float) -> Check:
    name = "successive steps that share too few or too many units"
    rows = np.concatenate(watched)
    sizes = rows.sum(axis=1).astype(np.int64)
    overlap = int((rows[1:] & rows[:-1]).sum())
    expected = float((sizes[1:] * sizes[:-1]).sum() / rows.shape[1])
    observed = f"{overlap} units shared by successive steps{among}, {expected:.3g} expected"
    p = overlap_tails(sizes, rows.shape[1], overlap).both
    # Shuffled epochs share as few units as sizes permit: the test has to tell that from independent samples.
    least = int(np.maximum(sizes[1:] + sizes[:-1] - rows.shape[1], 0).sum())
    could_tell = overlap_tails(sizes, rows.shape[1], least).low < level / 2
    unclear = None if could_tell else f"too few steps or units ({observed})"
    return judge(name, p, level, observed, unclear=unclear)


def _check_equal_rows(records: Sequence[TrainingRecord], rate: float, level: float) -> Iterator[Check]:
    """Look for equal samples in two steps, and for two units that take part in the same steps."""
    steps, units = _EqualRows(), _EqualRows()
    for records_of_process in _by_process(records).values():
        rows = np.concatenate([record.watched for record in records_of_process])
        steps.add(rows, rate)
        units.add(rows.T, rate)
    yield steps.check("the same sample in two steps", level)
    yield units.check("units that are sampled together", level)


class _EqualRows:
    """Counts of equal rows of bits, and of the most that there can be, with the number that chance makes expect."""

    def __init__(self) -> None:
        self._equal = 0
        self._most = 0
        self._expected = 0.0

    def add(self, rows: NDArray[np.bool_], rate: float) -> None:
        """Add rows (M, B) of bits that are true with a probability of ``rate``."""
        count, bits = rows.shape
        self._equal += count - len(np.unique(rows, axis=0))
        self._most += count // 2
        # Two independent bits of rate q are equal with the chance 1 − 2q(1 − q).
        self._expected += comb(count, 2) * (1 - 2 * rate * (1 - rate)) ** bits

    def check(self, name: str, level: float) -> Check:
        """Return the check; the p-value is Markov's bound on so many equal rows."""
        p = min(1.0, self._expected / max(1, self._equal))
        observed = f"{self._equal} equal to another, {self._expected:.2g} expected"
        if self._equal and p < level:
            return refute(name, observed, p)
        if self._expected >= level * self._most:
            return leave_open(name, f"too few steps or units ({observed})", p)
        return uphold(name, observed, p)


def _by_process(records: Sequence[TrainingRecord]) -> dict[str, list[TrainingRecord]]:
    """Return the records by process: only bits of one process are of the same units."""
    parts: dict[str, list[TrainingRecord]] = {}
    for record in records:
        parts.setdefault(record.process, []).append(record)
    return parts


# Gradients


def _check_gradients(records: Sequence[TrainingRecord], agreed: DpSgd) -> Iterator[Check]:
    name = "gradients longer than the clip"
    bound = SIGMA / agreed.noise_multiplier
    largest = max(float(record.largest.max()) for record in records)
    observed = f"the longest added gradient has {largest / bound:.6g} of the clip"
    if largest > bound * (1 + _ROUNDING):
        yield refute(name, observed)
    elif largest < 0.99 * bound:
        yield leave_open(
            name, f"no gradient reached the clip, so that a missing clip would not show ({observed})"
        )
    else:
        yield uphold(name, observed)
    yield leave_open(
        "gradients that depend on other records", "gradients of single records are not computed again"
    )
    yield leave_open("what the optimiser made of the gradient", "a step's new parameters are not recorded")


# Noise


def _check_noise(records: Sequence[TrainingRecord], level: float) -> Iterator[Check]:
    sizes = records[0].sizes
    if any(not np.array_equal(record.sizes, sizes) for record in records):
        yield leave_open(NOISE, "the number of parameters changed between trainings")
        return
    yield _check_deviation(records, level)
    yield _check_shape(records, level)
    yield _check_repeats([record.projections for record in records], level)
    yield _check_copies(records, level)


def _check_deviation(records: Sequence[TrainingRecord], level: float) -> Check:
    """Test the mean square of the noise: over all parameters and steps, of each tensor, and of each in each step."""
    sizes = records[0].sizes
    sums = np.concatenate([record.squares for record in records]) * sizes
    numbers = sums.shape[0] * float(sizes.sum())
    tails = square_tails(float(sums.sum()), numbers)
    # Noise missing from one tensor, or from one step, hardly changes the sum over all.
    of_tensors = stats.chi2.cdf(sums.sum(axis=0), len(sums) * sizes).min() * len(sizes)
    of_steps = stats.chi2.cdf(sums, np.broadcast_to(sizes, sums.shape)).min() * sums.size
    p = min(1.0, 2 * tails.low, 2 * tails.high, 4 * float(of_tensors), 4 * float(of_steps))
    observed = (
        f"deviation {sqrt(float(sums.sum()) / numbers):.4g} of the claimed one over {numbers:.3g} numbers"
    )
    fault = observed
    if p < 2 * min(tails.low, tails.high):
        fault += ", and less on a part of the parameters or in a step"
    elif tails.high < tails.low:
        fault += ": the noisy sum has more than the clipped gradients and the noise"
    factor = least_factor_refuted(numbers, level / 2, POWER)
    unclear = f"too few steps and parameters ({observed})" if factor < 0.5 else None
    upheld = f"{observed}; {factor:.3g} of it would have been found"
    return judge(NOISE, p, level, upheld, fault=fault, unclear=unclear)


def _check_shape(records: Sequence[TrainingRecord], level: float) -> Check:
    name = "training's noise that is not normal, or equal in neighbouring parameters"
    count = int(records[0].sizes.sum())
    fourths = np.concatenate([record.fourths for record in records])
    neighbours = np.concatenate([record.neighbours for record in records])
    by_fourth = fourth_p(float(fourths.mean()), count * len(fourths))
    by_neighbour = normal_p(float(neighbours.mean()), sqrt(1 / (max(1, count - 1) * len(neighbours))))
    p = min(1.0, 2 * by_fourth, 2 * by_neighbour)
    observed = f"mean fourth power {fourths.mean():.4g} (3 claimed), product of neighbours {neighbours.mean():.2g} (0)"
    unclear = f"too few steps and parameters ({observed})" if count * len(fourths) < 1000 else None
    return judge(name, p, level, observed, unclear=unclear)


def _check_repeats(parts: Sequence[NDArray[np.float64]], level: float) -> Check:
    """Look for noise that comes again, with either sign, that steps have in common, or that follows the step before."""
    name = "training's noise that repeats"
    rows = np.concatenate(parts)
    if len(rows) < 2:
        return leave_open(name, "a single step was recorded")
    pairs = comb(len(rows), 2)
    cosine = largest_cosine(rows)
    chances = {
        "noise of two steps is equal or opposite": alike_p(cosine, pairs, rows.shape[1]),
        "steps have noise in common, or noise that cancels": common_tails(rows).both,
        "noise follows that of the step before": successive_p(parts),
    }
    fault, p = least_p(chances)
    observed = f"the noise of {len(rows)} steps has cosines of {cosine:.2g} at most"
    unclear = "too few parameters to tell noise of different steps apart"
    would_show = repeats_would_show(pairs, rows.shape[1], level / len(chances))
    return judge(name, p, level, observed, fault=fault, unclear=None if would_show else unclear)


def _check_copies(records: Sequence[TrainingRecord], level: float) -> Check:
    """Look for equal magnitudes of the noise in one step, or the same ones in two steps, in whatever order and sign."""
    name = "training's noise that occurs again in another order"
    steps = [np.asarray(record.coincidences) for record in records]
    observed, count = int(np.concatenate(steps).sum()), int(records[0].sizes.sum())
    draws = sum(map(len, steps))
    p = coincidences_p(observed, count, COINCIDENT, draws)
    if p < level:
        return refute(name, f"{observed} pairs of parameters in a step have noise of one magnitude", p)
    if _has_same_peaks(records):
        return refute(name, "the largest magnitudes of two steps are the same")
    # A step whose noise is half copied has a coincidence for two parameters.
    if coincidences_p(draws * (count // 2), count, COINCIDENT, draws) >= level or count <= PEAKS:
        return leave_open(name, "too few steps and parameters", p)
    return uphold(name, f"{observed} pairs of equal magnitudes in {draws} steps", p)


def _has_same_peaks(records: Sequence[TrainingRecord]) -> bool:
    """Return True if two steps have the same largest magnitudes; steps with noise of their own never do."""
    # In the order of the largest, equal ones are neighbours, whichever steps they belong to.
    peaks = np.concatenate([record.peaks for record in records])
    ordered = peaks[np.argsort(peaks[:, 0])]
    gaps = np.abs(np.diff(ordered, axis=0)).max(axis=1, initial=0.0)
    return peaks.shape[1] == PEAKS and bool((gaps < 2 * (COINCIDENT + 0.5) / SIGMA).any())


def check_shared(sites: Sequence[Sequence[TrainingRecord]], level: float) -> Check:
    """Look for noise that two sites have in common: only sites with models of one size can be compared."""
    name = "training's noise that sites share"
    projections_by_size: dict[int, list[NDArray[np.float64]]] = {}
    of_size: dict[int, list[TrainingRecord]] = {}
    for records in sites:
        for size in {int(record.sizes.sum()) for record in records}:
            fitting = [record for record in records if int(record.sizes.sum()) == size]
            of_size.setdefault(size, []).extend(fitting)
            projections_by_size.setdefault(size, []).append(
                np.concatenate([record.projections for record in fitting])
            )
    groups = [parts for parts in projections_by_size.values() if len(parts) > 1]
    if not groups:
        return leave_open(name, "no two sites have records of models of one size")
    rows = [np.concatenate(parts) for parts in groups]
    pairs = sum(comb(len(row), 2) for row in rows)
    p = min(alike_p(largest_cosine(row), pairs, row.shape[1]) for row in rows)
    if p < level:
        return refute(name, "two sites added equal or opposite noise", p)
    if any(_has_same_peaks(records) for records in of_size.values()):
        return refute(name, "two sites added noise of the same magnitudes in another order")
    if not all(repeats_would_show(pairs, row.shape[1], level) for row in rows):
        return leave_open(name, "too few parameters to tell noise of different sites apart", p)
    return uphold(name, "no two steps of any sites have equal noise", p)
