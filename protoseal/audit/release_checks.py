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
from protoseal.audit.run_checks import NOISE, POWER, Check, CheckOutcome, judge, leave_open
from protoseal.audit.site_evidence import SiteEvidence
from protoseal.audit.statistical_tests import (
    alike_p,
    copies_p,
    dependence_p,
    fourth_p,
    largest_cosine,
    least_factor_refuted,
    least_p,
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
        reason = "no release was kept: set keep_releases in the site's file, or simulate with --keep-releases"
        last = None if evidence.saved_noise is None else check_deviation([evidence.saved_noise], level)
        if evidence.agreement.distributed_noise:
            yield leave_open(NOISE, "sites share the noise of sums, and a site's term is not kept")
        elif last is None:
            yield leave_open(NOISE, reason)
        elif last.outcome is CheckOutcome.FOUND:
            yield last
        else:
            yield leave_open(NOISE, f"{reason}; of the prototypes that the site saved: {last.reason}")
        return
    deviation = check_deviation(evidence.noise, level)
    if evidence.agreement.distributed_noise and deviation.outcome is CheckOutcome.STANDS:
        yield leave_open(NOISE, f"sites share the noise of sums; of the clustering alone: {deviation.reason}")
    else:
        yield deviation
    yield check_counts(evidence.noise, level)
    yield check_shape(evidence.noise, level)
    yield check_dependence(evidence.noise, level)
    yield _check_clipping(evidence, level)
    yield _check_means(evidence, level)
    yield _check_single_record(evidence, level)
    yield check_repeats(REPEATED, [evidence.noise], level)


def check_deviation(parts: Sequence[Float], level: float) -> Check:
    """Test the mean square of the noise (M, d + 1) of draws: of all values, and of each class, coordinate and draw."""
    values, rows = np.concatenate([part.ravel() for part in parts]), np.square(np.concatenate(parts))
    numbers, measured = len(values), float(np.sqrt(np.square(values).mean()))
    overall = _square_p(float(np.square(values).sum()), numbers)
    # Sums of squares, each with the number of squares in it: a fault of one part is diluted in the mean of all.
    sums = {
        "draw": [(float(np.square(part).sum()), part.size) for part in parts],
        "class or cell of a draw": [(float(total), rows.shape[1]) for total in rows.sum(axis=1)],
        "coordinate": [(float(total), rows.shape[0]) for total in rows.sum(axis=0)],
    }
    chances = {"": overall} | {
        f", and on one {name} it differs most": min(
            _square_p(total, size) * len(totals) for total, size in totals
        )
        for name, totals in sums.items()
    }
    where, p = least_p(chances)
    observed = f"deviation {measured:.4g} of the claimed one over {numbers} values"
    test_level = level / len(chances)
    missed = [
        f"too few values: {part} of the noise might pass ({observed})"
        for part, factor in (("half", 1 / 2), ("two thirds", 2 / 3))
        if _passing_chance(factor, numbers, test_level) > 1 - POWER
    ]
    return judge(
        NOISE,
        p,
        level,
        f"{observed}; {least_factor_refuted(numbers, test_level / 2, POWER):.2g} of it would have been found",
        fault=observed + (where if overall * len(chances) >= level else ""),
        unclear=missed[0] if missed else None,
    )


def _square_p(total: float, numbers: float) -> float:
    return square_tails(total, numbers).both


def _passing_chance(factor: float, numbers: int, level: float) -> float:
    """Return the probability with which noise of ``factor`` times the claimed deviation passes."""
    law = stats.chi2(numbers)
    low, high = law.ppf(level / 2), law.isf(level / 2)
    return float(law.cdf(high / factor**2) - law.cdf(low / factor**2))


def check_counts(parts: Sequence[Float], level: float) -> Check:
    """Test the mean square of the noise on counts alone, which are few beside the sums."""
    # Of d + 1 columns one has counts: noise missing from it alone hardly changes the mean over all.
    counts = np.concatenate([part[:, -1] for part in parts])
    p = _square_p(float(np.square(counts).sum()), len(counts))
    observed = (
        f"deviation {np.sqrt(np.square(counts).mean()):.3g} of the claimed one over {len(counts)} counts"
    )
    is_weak = _passing_chance(1 / 2, len(counts), level) > 1 - POWER
    unclear = f"too few counts: half of the noise might pass ({observed})" if is_weak else None
    return judge(COUNTS, p, level, observed, unclear=unclear)


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
        "classes have equal noise": _equal_rows_p(list(rows)),
        "neighbouring values have noise in common": products_p(
            float((values[1:] * values[:-1]).sum()), len(values)
        ),
    }
    fault, p = least_p(tests)
    observed, unclear = f"mean {values.mean():.2g} over {len(values)} values", None
    if missed := shapes_missed(len(values), level / len(tests), POWER):
        unclear = f"{len(values)} values are too few to tell {' or '.join(missed)} noise from normal noise"
    return judge(SHAPE, p, level, observed, fault=fault, unclear=unclear)


def _equal_rows_p(vectors: Sequence[Float]) -> float:
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
    observed, unclear = f"{number} rows in {dim} coordinates", None
    if number <= dim // 2 + 1:  # so few rows of noise in half of the dimensions are independent too
        unclear = f"{observed} do not show noise in half of the dimensions; no row is a combination of others"
    fault = f"the noise of {number} classes of draws in {dim} coordinates is dependent"
    return judge(DEPENDENT, p, level, observed, fault=fault, unclear=unclear)


def check_repeats(weakness: str, sites: Sequence[Sequence[Float]], level: float) -> Check:
    """Look for noise that occurs again, in whatever order and sign: of one site, or of any two of ``sites``."""
    draws = [draw.ravel() for site in sites for draw in site]
    if not draws or (weakness == SHARED and len(sites) < 2):
        return leave_open(weakness, "no release was kept" if not draws else "there is one site")
    # Draws of different numbers of cells are compared over the part that all have.
    values, length = np.concatenate(draws), min(len(draw) for draw in draws)
    pairs = math.comb(len(draws), 2)
    tests = {
        "two draws have equal or opposite noise, or a part of it": _equal_rows_p(
            [draw[:length] for draw in draws]
        ),
        "more magnitudes are equal than by chance, in whatever order": copies_p(values),
        "noise follows other noise at a distance, or in reverse": shifts_p(values),
    }
    fault, p = least_p(tests)
    observed, unclear = f"{len(values)} values", None
    if pairs:
        chance = level / len(tests) / pairs
        # The squared cosine of two independent directions in n dimensions has the law Beta(1/2, (n − 1)/2).
        least = math.sqrt(float(stats.beta.isf(chance, 0.5, (length - 1) / 2)))
        observed += f" of {len(draws)} draws; a correlation of {least:.2g} would have been found"
        unclear = f"too few values ({length}) to tell draws apart" if least > _ALIKE else None
    return judge(weakness, p, level, observed, fault=fault, unclear=unclear)


def _check_clipping(evidence: SiteEvidence, level: float) -> Check:
    """Test whether the noise is explained by sums that were not clipped, or not unit by unit."""
    differences: Mapping[str, list[NDArray[np.float64]]] = {
        "records are not clipped": [exact.unclipped - exact.sums for exact in evidence.exact],
        "units are not bounded as a whole": [exact.one_by_one - exact.sums for exact in evidence.exact],
        "the sums are scaled": [exact.sums for exact in evidence.exact],
    }
    chances, silent = dict.fromkeys(differences, 1.0), []
    # Under the claim the noise is independent of the records: its part along a difference of sums is normal.
    for reason, parts in differences.items():
        direction = np.concatenate([part.ravel() for part in parts]) / evidence.claim.deviation
        length = float(np.linalg.norm(direction))
        noise = np.concatenate([noise[:, :-1].ravel() for noise in evidence.noise])
        if length > 0:
            chances[reason] = normal_p(float(noise @ direction), length)
        if length < _FARTHEST + float(stats.norm.isf(level / 2)):
            silent.append(reason)
    fault, p = least_p(chances)
    unit = evidence.agreement.privacy.unit if evidence.agreement.privacy else "record"
    is_silent = "records are not clipped" in silent and (
        unit == "record" or "units are not bounded as a whole" in silent
    )
    return judge(
        CLIPPING,
        p,
        level,
        "the noise does not follow what clipping removes",
        fault=fault,
        unclear="hardly a record is longer than the clip, so that a missing clip would not show"
        if is_silent
        else None,
    )


def _check_means(evidence: SiteEvidence, level: float) -> Check:
    """Test whether the noise is explained by means that were clipped after records had been added up unclipped."""
    direction = np.concatenate([(exact.of_means - exact.sums).ravel() for exact in evidence.exact])
    noise = np.concatenate([noise[:, :-1].ravel() for noise in evidence.noise])
    length = float(np.linalg.norm(direction)) / evidence.claim.deviation
    p = 1.0 if length == 0 else normal_p(float(noise @ direction) / evidence.claim.deviation, length)
    is_short = length < _FARTHEST + float(stats.norm.isf(level / 2))
    return judge(
        MEANS,
        p,
        level,
        "the noise does not follow the difference of clipped means",
        fault="the noise follows the difference of clipped means",
        unclear=f"the difference is {length:.2g} deviations of the noise, too few to show"
        if is_short
        else None,
    )


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
    clear = lengths > 1e-6  # a record within the clip has no difference, whose direction would be rounding
    tried = max(1, int(clear.sum()))
    largest = float(np.max(np.abs(np.sum(dots, axis=0))[clear] / lengths[clear], initial=0.0))
    p = min(1.0, tried * normal_p(largest, 1.0))
    reach = float(stats.norm.isf(level / tried / 2)) + float(stats.norm.ppf(POWER))
    counted_twice, not_clipped = (lengths > reach).sum(axis=1)
    total = lengths.shape[1]
    unclear = (
        f"counted twice, {counted_twice} of {total} records would show; not clipped, {not_clipped} would"
    )
    return judge(
        SINGLE,
        p,
        level,
        f"none of {total} records",
        fault="the noise follows one record more than chance allows",
        unclear=None if counted_twice == total else unclear,
    )
