"""Checks of the noisy releases that a site kept of a run, against sums computed again from its records.

The noise of a draw is what the site drew less the exact sums. It has to be Gaussian of the claimed deviation, on every
class and coordinate, independent of every other draw; and it must not be explained by records that were not clipped.

Limits. Noise from a generator with a known seed looks like drawn noise unless it comes twice. A site that keeps other
values than it drew, or audits itself with other records, is not found out by what it kept. Statistical tests miss what
is too small for the number of values: a check that stands says what it would have found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

from protoseal.audit.exact_sums import Float, added_parts
from protoseal.audit.run_checks import NOISE, POWER, Check, CheckOutcome, leave_open, refute, uphold
from protoseal.audit.site_evidence import SiteEvidence
from protoseal.audit.statistical_tests import (
    alike_p,
    copies_p,
    dependence_p,
    fourth_p,
    largest_cosine,
    least_factor_refuted,
    normal_p,
    products_p,
    ratio_p,
    shapes_missed,
    shifts_p,
    square_tails,
)

REPEATED, SHARED, SHAPE, COUNTS, DEPENDENT, CLIPPING, MEANS, SINGLE = (
    "noise that repeats",
    "noise that sites share",
    "noise that is not Gaussian, or not independent",
    "noise on counts that is too small",
    "noise that depends linearly on other noise",
    "records or units that are not clipped",
    "means that are clipped in place of records",
    "a single record that is counted twice, or not clipped",
)
TESTS = 8
"""Number of statistical tests of a site, and of all sites together, for a level of each."""
_ALIKE = 0.99
"""Correlation of draws at which they count as the same, but for rounding."""
_FARTHEST = 5.0
"""Least length of a difference, in deviations of the noise, at which it would be told from none."""


def check_noise(evidence: SiteEvidence, level: float) -> Iterator[Check]:
    """Check the noise of one site's draws; each test has a false alarm with the probability ``level``."""
    if not evidence.draws:
        kept = "no release was kept: set keep_releases in the site's file, or simulate with --keep-releases"
        last = None if evidence.saved_noise is None else check_deviation([evidence.saved_noise], level)
        if evidence.agreement.distributed_noise:
            yield leave_open(NOISE, "sites share the noise of sums, and a site's term is not kept")
        elif last is None:
            yield leave_open(NOISE, kept)
        elif last.outcome is CheckOutcome.FOUND:
            yield last
        else:
            yield leave_open(NOISE, f"{kept}; of the prototypes that the site saved: {last.reason}")
        return
    deviation = check_deviation(evidence.noise, level)
    if evidence.agreement.distributed_noise and deviation.outcome is CheckOutcome.STANDS:
        yield leave_open(NOISE, f"sites share the noise of sums; of the clustering alone: {deviation.reason}")
    else:
        yield deviation
    yield check_counts(evidence.noise, level)
    yield check_shape(evidence.noise, level)
    yield check_dependence(evidence.noise, level)
    yield from _check_clipping(evidence, level)
    yield _check_means(evidence, level)
    yield _check_single_record(evidence, level)
    yield check_repeats(REPEATED, [evidence.noise], level)


def check_deviation(parts: Sequence[Float], level: float) -> Check:
    """Test the mean square of the noise (M, d + 1) of draws: of all values, and of each class, coordinate and draw."""
    values = np.concatenate([part.ravel() for part in parts])
    numbers, measured = len(values), float(np.sqrt(np.square(values).mean()))
    overall = _square_p(float(np.square(values).sum()), numbers)
    groups = {"draw": [np.square(part).sum() for part in parts]}
    sizes = {"draw": [part.size for part in parts]}
    rows = np.concatenate(parts)
    groups["class or cell of a draw"], sizes["class or cell of a draw"] = (
        np.square(rows).sum(axis=1),
        [rows.shape[1]],
    )
    groups["coordinate"], sizes["coordinate"] = np.square(rows).sum(axis=0), [rows.shape[0]]
    chances = {"": overall} | {
        f", and on one {name} it differs most": min(
            _square_p(total, number) * len(groups[name])
            for total, number in zip(groups[name], np.resize(sizes[name], len(groups[name])), strict=True)
        )
        for name in groups
    }
    where, p = min(chances.items(), key=lambda item: item[1])
    p = min(1.0, p * len(chances))
    observed = f"deviation {measured:.4g} of the claimed one over {numbers} values"
    if p < level:
        return refute(NOISE, observed + (where if overall * len(chances) >= level else ""), p)
    level /= len(chances)
    for part, factor in (("half", 1 / 2), ("two thirds", 2 / 3)):
        if _missed(factor, numbers, level) > 1 - POWER:
            return leave_open(NOISE, f"too few values: {part} of the noise might pass ({observed})", p)
    least = least_factor_refuted(numbers, level / 2, POWER)
    return uphold(NOISE, f"{observed}; {least:.2g} of it would have been found", p)


def _square_p(total: float, numbers: float) -> float:
    return square_tails(total, numbers).both


def _missed(factor: float, numbers: int, level: float) -> float:
    """Return the probability with which noise of ``factor`` times the claimed deviation passes."""
    law = stats.chi2(numbers)
    low, high = law.ppf(level / 2), law.isf(level / 2)
    return float(law.cdf(high / factor**2) - law.cdf(low / factor**2))


def check_counts(parts: Sequence[Float], level: float) -> Check:
    """Test the mean square of the noise on counts alone, which are few beside the sums."""
    counts = np.concatenate([part[:, -1] for part in parts])
    p = _square_p(float(np.square(counts).sum()), len(counts))
    observed = (
        f"deviation {np.sqrt(np.square(counts).mean()):.3g} of the claimed one over {len(counts)} counts"
    )
    if p < level:
        return refute(COUNTS, observed, p)
    if _missed(1 / 2, len(counts), level) > 1 - POWER:
        return leave_open(COUNTS, f"too few counts: half of the noise might pass ({observed})", p)
    return uphold(COUNTS, observed, p)


def check_shape(parts: Sequence[Float], level: float) -> Check:
    """Test mean, distribution, and what classes, coordinates and neighbours of a draw have in common."""
    values = np.concatenate([part.ravel() for part in parts])
    rows = np.concatenate(parts)
    tests = {
        "the mean is not 0": normal_p(values.mean() * math.sqrt(len(values)), 1.0),
        "the distribution is not normal": float(stats.kstest(values, "norm").pvalue),
        "the fourth powers are not those of normal noise": fourth_p(float((values**4).mean()), len(values)),
        "the mean magnitude is not that of normal noise": ratio_p(values),
        "the coordinates of a class have noise in common": _square_p(
            float(np.square(rows.sum(axis=1)).sum()) / rows.shape[1], rows.shape[0]
        ),
        "classes have noise in common": _square_p(
            sum(float(np.square(part.sum(axis=0)).sum()) / len(part) for part in parts),
            len(parts) * rows.shape[1],
        ),
        "classes have equal noise": _alike_p(list(rows)),
        "neighbouring values have noise in common": products_p(
            float((values[1:] * values[:-1]).sum()), len(values)
        ),
    }
    reason, p = min(tests.items(), key=lambda item: item[1])
    p = min(1.0, p * len(tests))
    if p < level:
        return refute(SHAPE, reason, p)
    missed = shapes_missed(len(values), level / len(tests), POWER)
    if missed:
        words = f"{len(values)} values are too few to tell {' or '.join(missed)} noise from normal noise"
        return leave_open(SHAPE, words, p)
    return uphold(SHAPE, f"mean {values.mean():.2g} over {len(values)} values", p)


def _alike_p(vectors: Sequence[Float]) -> float:
    """Return a bound on the probability that one of all pairs of independent vectors has a cosine so near to ±1."""
    rows = np.stack(vectors)
    return alike_p(largest_cosine(rows), math.comb(len(rows), 2), rows.shape[1]) if len(rows) > 1 else 1.0


def check_dependence(parts: Sequence[Float], level: float) -> Check:
    """Look for noise of classes, draws or coordinates that is a linear combination of other noise of sums.

    Such a combination can be taken off the released sums, and has no noise.
    """
    rows = np.concatenate([part[:, :-1] for part in parts])
    groups = [rows, *(part[:, :-1] for part in parts)] if len(parts) > 1 else [rows]
    p = min(1.0, len(groups) * min(dependence_p(group) for group in groups))
    number, dim = rows.shape
    if p < level:
        return refute(
            DEPENDENT, f"the noise of {number} classes of draws in {dim} coordinates is dependent", p
        )
    if number <= dim // 2 + 1:
        words = f"{number} rows in {dim} coordinates do not show noise in half of the dimensions"
        return leave_open(DEPENDENT, f"{words}; no row is a combination of others", p)
    return uphold(DEPENDENT, f"{number} rows in {dim} coordinates", p)


def check_repeats(weakness: str, sites: Sequence[Sequence[Float]], level: float) -> Check:
    """Look for noise that occurs again, in whatever order and sign: of one site, or of any two of ``sites``."""
    draws = [draw.ravel() for site in sites for draw in site]
    if not draws or (weakness == SHARED and len(sites) < 2):
        return leave_open(weakness, "no release was kept" if not draws else "there is one site")
    values, length = np.concatenate(draws), min(len(draw) for draw in draws)
    pairs = math.comb(len(draws), 2)
    tests = {
        "two draws have equal or opposite noise, or a part of it": _alike_p(
            [draw[:length] for draw in draws]
        ),
        "more magnitudes are equal than by chance, in whatever order": copies_p(values),
        "noise follows other noise at a distance, or in reverse": shifts_p(values),
    }
    reason, p = min(tests.items(), key=lambda item: item[1])
    p = min(1.0, p * len(tests))
    if p < level:
        return refute(weakness, reason, p)
    observed = f"{len(values)} values"
    if pairs:
        chance = level / len(tests) / pairs
        least = math.sqrt(float(stats.beta.isf(chance, 0.5, (length - 1) / 2)))
        if least > _ALIKE:
            return leave_open(weakness, f"too few values ({length}) to tell draws apart", p)
        observed += f" of {len(draws)} draws; a correlation of {least:.2g} would have been found"
    return uphold(weakness, observed, p)


def _check_clipping(evidence: SiteEvidence, level: float) -> Iterator[Check]:
    """Test whether the noise is explained by sums that were not clipped, or not unit by unit."""
    differences: Mapping[str, list[NDArray[np.float64]]] = {
        "records are not clipped": [exact.unclipped - exact.sums for exact in evidence.exact],
        "units are not bounded as a whole": [exact.one_by_one - exact.sums for exact in evidence.exact],
        "the sums are scaled": [exact.sums for exact in evidence.exact],
    }
    chances, silent = {}, []
    for reason, parts in differences.items():
        direction = np.concatenate([part.ravel() for part in parts]) / evidence.claim.deviation
        length = float(np.linalg.norm(direction))
        noise = np.concatenate([noise[:, :-1].ravel() for noise in evidence.noise])
        if length > 0:
            chances[reason] = normal_p(float(noise @ direction), length)
        if length < _FARTHEST + float(stats.norm.isf(level / 2)):
            silent.append(reason)
    reason, p = min(chances.items(), key=lambda item: item[1], default=("", 1.0))
    p = min(1.0, p * len(differences))
    if p < level:
        yield refute(CLIPPING, reason, p)
        return
    unit = evidence.agreement.privacy.unit if evidence.agreement.privacy else "record"
    if "records are not clipped" in silent and (
        unit == "record" or "units are not bounded as a whole" in silent
    ):
        yield leave_open(
            CLIPPING, "hardly a record is longer than the clip, so that a missing clip would not show", p
        )
    else:
        yield uphold(CLIPPING, "the noise does not follow what clipping removes", p)


def _check_means(evidence: SiteEvidence, level: float) -> Check:
    """Test whether the noise is explained by means that were clipped after records had been added up unclipped."""
    direction = np.concatenate([(exact.of_means - exact.sums).ravel() for exact in evidence.exact])
    noise = np.concatenate([noise[:, :-1].ravel() for noise in evidence.noise])
    length = float(np.linalg.norm(direction)) / evidence.claim.deviation
    p = 1.0 if length == 0 else normal_p(float(noise @ direction) / evidence.claim.deviation, length)
    if p < level:
        return refute(MEANS, "the noise follows the difference of clipped means", p)
    if length < _FARTHEST + float(stats.norm.isf(level / 2)):
        return leave_open(
            MEANS, f"the difference is {length:.2g} deviations of the noise, too few to show", p
        )
    return uphold(MEANS, "the noise does not follow the difference of clipped means", p)


def _check_single_record(evidence: SiteEvidence, level: float) -> Check:
    """Look for one record whose part the noise follows: added once more, or added without its clip."""
    dots: list[Float] = []
    squares: list[Float] = []
    for draw, noise in zip(evidence.draws, evidence.noise, strict=True):
        added = added_parts(evidence.records(draw.model), evidence.claim, draw.cells)
        once_more = np.column_stack([added.clipped, evidence.claim.weight * added.shares])
        unclipped = np.column_stack([added.unclipped - added.clipped, np.zeros(len(once_more))])
        directions = np.stack([once_more, unclipped]) / evidence.claim.deviation
        dots.append(np.einsum("kni,ni->kn", directions, noise[added.parts]))
        squares.append(np.einsum("kni,kni->kn", directions, directions))
    if len({dot.shape for dot in dots}) > 1:
        return leave_open(SINGLE, "the number of records changed between releases")
    lengths = np.sqrt(np.sum(squares, axis=0))
    clear = lengths > 1e-6
    tried = max(1, int(clear.sum()))
    largest = float(np.max(np.abs(np.sum(dots, axis=0))[clear] / lengths[clear], initial=0.0))
    p = min(1.0, tried * normal_p(largest, 1.0))
    if p < level:
        return refute(SINGLE, "the noise follows one record more than chance allows", p)
    reach = float(stats.norm.isf(level / tried / 2)) + float(stats.norm.ppf(POWER))
    counted_twice, not_clipped = (lengths > reach).sum(axis=1)
    total = lengths.shape[1]
    if counted_twice == total:
        return uphold(SINGLE, f"none of {total} records", p)
    words = f"counted twice, {counted_twice} of {total} records would show; not clipped, {not_clipped} would"
    return leave_open(SINGLE, words, p)
