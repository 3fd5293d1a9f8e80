"""Checks that every answer of a site follows from its noisy draws alone, and that its ledger charged every draw.

Presence, means, bounds and weights are computed again from the noisy sums and counts of a draw, and compared with what
the protection got, in the clear. A row is zero where its class is not present or was not asked for, and nowhere else: a
zero that follows from an exact count would leak.

Limits. The models that some methods average are not examined, nor the substitutes for the directions of zero
prototypes. Which classes and prototypes the round asked for is taken from the site's record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats  # type: ignore[import-untyped]  # it ships no types

from agreement import Agreement
from agreement.registry.round_plan import PayloadKind
from agreement.sections.privacy import Extractor
from privacy.accounting.accounting_rules import pld_cost
from privacy.accounting.events import GaussianRelease
from privacy.ledger.lines import GUARANTEE, Entry
from protoseal.audit.exact_sums import Claim, Float, Ints
from protoseal.audit.run_checks import NO_LEDGER, PAID, SENT, Check, leave_open, refute, uphold
from protoseal.audit.site_evidence import SiteEvidence
from protoseal_wire.messages import Phase
from secure_client.privacy.kept_releases import Drawn, Sent

PRESENCE = "classes present by exact counts"
"""Weakness that shows only in a run whose noisy counts give other classes than exact ones."""
_CLOSE = 1e-9
_CLOSE_SUMS = 1e-6
"""Tolerances, relative to the longest row, of rows and of sums of clusters' rows."""


@dataclass(frozen=True)
class Prototypes:
    """Prototypes ``rows`` (M, d) of classes ``labels`` (M,) with whole ``counts`` (M,), as a site may send them."""

    rows: Float
    labels: Ints
    counts: Float


class _Differs(Exception):
    """Values that were sent do not follow from the draw."""


class _Unclear(Exception):
    """Values of which the record does not say enough."""


def prototypes_to_send(agreement: Agreement, draws: Sequence[Drawn]) -> Prototypes:
    """Return what a site may send of ``draws``: noisy sums divided by noisy counts, within the agreed bounds.

    Several draws are of the same features, and their sums and counts are averaged.
    """
    # In the mean of n draws the noise is smaller by √n, and with it the least count of a present class.
    claim, classes = Claim.of(agreement, len(draws)), len(agreement.classes)
    draw = replace(
        draws[-1],
        sums=np.mean([draw.sums for draw in draws], axis=0),
        counts=np.mean([draw.counts for draw in draws], axis=0),
    )
    parts = np.arange(classes) if draw.cells is None else draw.cells.classes
    rows, labels, counts = [], [], []
    for k in range(classes):
        sums, numbers = draw.sums[parts == k], draw.counts[parts == k]
        is_present = numbers >= claim.min_count
        if draw.cells is not None and not is_present.any():
            # A class without a present cell is tried as a whole; the sum of n counts has √n times their noise.
            least = claim.min_count * math.sqrt(len(numbers))
            sums, numbers = sums.sum(axis=0, keepdims=True), numbers.sum(keepdims=True)
            is_present = numbers >= least
        rows.append(sums[is_present] / numbers[is_present, None])
        labels += [k] * int(is_present.sum())
        counts.append(np.maximum(np.rint(numbers[is_present]), 1.0))
    means = np.concatenate(rows)
    if agreement.method.is_grouped:
        means = np.maximum(means, 0.0)
    norms = np.linalg.norm(means, axis=1, keepdims=True)
    means = means * np.minimum(1.0, agreement.norm_bound / np.maximum(norms, 1e-300))
    return Prototypes(means, np.array(labels, dtype=np.int64), np.concatenate(counts))


def check_sent(evidence: SiteEvidence) -> Iterator[Check]:
    """Check that every answer follows from the draw that it is said to come from."""
    if not evidence.answers:
        yield leave_open(SENT, "no values were kept that left the site")
        return
    checked, unclear = list[Sent](), set[str]()
    for answer in evidence.answers:
        try:
            _compare_with_draws(evidence, answer)
            checked.append(answer)
        except _Differs as error:
            yield refute(SENT, f"{answer.phase.name} of round {answer.round}: {error}")
            return
        except _Unclear as error:
            unclear.add(f"{answer.phase.name} of round {answer.round}: {error}")
    # Not SENT: rows that stay unclear are left open below, and the rest are judged without them.
    for reason in sorted(unclear):
        yield leave_open("values that were sent", reason)
    # By the site's own statements and draws: rows of a round of which nothing was kept are not known.
    rounds = {answer.round for answer in evidence.answers} | {draw.release.round for draw in evidence.draws}
    rounds_with_rows = {number for number in rounds if evidence.agreement.sends_rows(number)}
    uncovered = sorted(
        rounds_with_rows - {answer.round for answer in checked if answer.phase is Phase.VALUES}
    )
    if uncovered:
        yield leave_open(SENT, f"no rows of round {uncovered[0]} were kept that follow from a draw")
    elif checked:
        yield uphold(SENT, f"{len(checked)} answers follow from the noisy sums and counts")
        if not _exact_presence_would_differ(evidence):
            yield leave_open(PRESENCE, "exact counts would have given the classes that the noisy counts gave")


def _exact_presence_would_differ(evidence: SiteEvidence) -> bool:
    """Return True if exact counts, above 0 or from ``min_count`` on, would have given other classes than noisy ones."""
    least, draws = evidence.claim.min_count, list(zip(evidence.draws, evidence.exact, strict=True))
    return all(
        any(((draw.counts >= least) != (exact.counts >= bound)).any() for draw, exact in draws)
        for bound in (1e-9, least)
    )


def _compare_with_draws(evidence: SiteEvidence, answer: Sent) -> None:
    """Raise unless the values follow from a draw of the release that they are said to come from.

    Any draw of that round will do: a site that is killed after a draw pays and draws again, and may have kept an answer
    that it never sent. Where all draws ask the same query of the same features, those of earlier rounds count as well,
    but for rounds of which nothing was sent: their draws were lost with a killed process.
    """
    if evidence.agreement.distributed_noise and answer.round:
        raise _Unclear("sites share the noise, and a site's term was not kept")
    if not _is_released(evidence.agreement, answer):
        rows = np.zeros((0, evidence.agreement.dim))
        _compare(evidence, answer, Prototypes(rows, np.zeros(0, dtype=np.int64), np.zeros(0)))
        return
    draws = [draw for draw in evidence.draws if draw.release.round == answer.released]
    if answer.released is None or not draws:
        raise _Unclear(f"the release of round {answer.released} was not kept")
    earlier: dict[int, Drawn] = {}
    if evidence.agreement.has_fixed_query:
        used = {other.released for other in evidence.answers}
        earlier = {
            draw.release.round: draw
            for draw in evidence.draws
            if draw.release.round < answer.released and draw.release.round in used
        }
    differences = []
    for draw in draws:
        try:
            _compare(evidence, answer, prototypes_to_send(evidence.agreement, [*earlier.values(), draw]))
        except _Differs as error:
            differences.append(error)
    if len(differences) == len(draws):
        raise differences[-1]


def _is_released(agreement: Agreement, answer: Sent) -> bool:
    """Return False for values of a site without a release: by its state they are of a round that has none."""
    return answer.released is None or agreement.sends_rows(answer.released)


def _compare(evidence: SiteEvidence, answer: Sent, prototypes: Prototypes) -> None:
    """Raise unless the values follow from the prototypes, which are those of draws."""
    agreement, arrays = evidence.agreement, answer.arrays
    total = float(prototypes.counts.sum())
    sends_rows = agreement.sends_rows(answer.round)
    if answer.phase is Phase.PRESENCE:
        present = np.isin(np.arange(len(agreement.classes)), prototypes.labels)
        # Where sites share the noise, all of them state every class, also before the clustering.
        stated = (present | agreement.distributed_noise) & sends_rows
        if not np.array_equal(arrays[0], stated):
            raise _Differs("the classes stated are not those of the noisy counts")
        return
    prototypes = _select_asked(agreement, answer, prototypes)
    if answer.phase is Phase.DIRECTIONS:
        labels = np.asarray(arrays[1], dtype=np.int64)
        _compare_local(prototypes, _floats(arrays[0]), labels, None, directions=True)
    elif agreement.clusters:
        _compare_clusters(agreement, prototypes, total, [_floats(array) for array in arrays])
    else:
        values = _floats(arrays[0])
        rows = _class_rows(agreement, answer.round, values)
        expected = np.zeros_like(rows)
        expected[prototypes.labels] = prototypes.rows
        # A tiny number where zero is due passes as rounding, and still shows that a class is present.
        if not _is_close(rows, expected, _CLOSE) or (rows.any(axis=1) != expected.any(axis=1)).any():
            raise _Differs("a row is not the noisy sum divided by the noisy count, within its bound")
        if answer.round and evidence.averaged_start is not None:
            _, model = agreement.layout.split(values)
            if not _is_close(model, evidence.averaged_start, _CLOSE):
                raise _Differs("the model is not the initial one, which no record has shaped")


def _select_asked(agreement: Agreement, answer: Sent, prototypes: Prototypes) -> Prototypes:
    """Return the prototypes that an answer has to hold: those that were asked for, none in a round without rows."""
    if not answer.round:
        return prototypes
    by_class = answer.asked is not None and len(answer.asked) == len(agreement.classes)
    sums_clusters = agreement.clusters and agreement.plan.values is not PayloadKind.LOCAL_CLUSTERS
    if sums_clusters and answer.phase is Phase.VALUES:
        by_class = False
    elif not by_class:
        raise _Unclear("the classes that were asked for were not kept")
    asked = np.zeros(0, np.bool_) if answer.asked is None else answer.asked
    chosen = asked[prototypes.labels] if by_class else asked
    if chosen.shape != prototypes.labels.shape:
        raise _Differs("another number of prototypes was asked for than the draw has")
    chosen = chosen & agreement.sends_rows(answer.round)
    return Prototypes(prototypes.rows[chosen], prototypes.labels[chosen], prototypes.counts[chosen])


def _floats(array: NDArray[np.generic]) -> Float:
    return np.asarray(array, dtype=np.float64)


def _class_rows(agreement: Agreement, number: int, values: Float) -> Float:
    """Return the rows (K, d) of what a protection got, in units of a feature."""
    classes, dim = len(agreement.classes), agreement.dim
    if number == 0:
        return values.reshape(classes, dim) * agreement.norm_bound * math.sqrt(classes)
    if agreement.plan.sums:
        return values[: classes * dim].reshape(classes, dim)
    return values * agreement.norm_bound


def _compare_local(
    prototypes: Prototypes, rows: Float, labels: Ints, counts: Float | None, *, directions: bool = False
) -> None:
    expected = prototypes.rows
    if not np.array_equal(labels, prototypes.labels):
        raise _Differs("the numbers of prototypes are not those of the noisy counts")
    if directions:
        lengths = np.linalg.norm(expected, axis=1)
        expected, rows = expected[lengths > 0] / lengths[lengths > 0, None], rows[lengths > 0]
    if not _is_close(rows, expected, _CLOSE):
        raise _Differs("a prototype is not the noisy sum divided by the noisy count, within its bound")
    if counts is not None and not np.array_equal(counts, prototypes.counts):
        raise _Differs("a count of samples is not the noisy one")


def _compare_clusters(
    agreement: Agreement, prototypes: Prototypes, total: float, arrays: Sequence[Float]
) -> None:
    """Compare local prototypes and the model's weight, as they are or added up by clusters.

    ``total`` is the noisy number of samples, of which some may be in prototypes that are not sent.
    """
    limit = agreement.averaging.most_samples
    samples = max(1.0, min(total, limit))
    if total > limit:
        prototypes = replace(prototypes, counts=np.maximum(prototypes.counts * limit // total, 1.0))
    if agreement.plan.values is PayloadKind.LOCAL_CLUSTERS:
        rows, labels, counts, model = arrays
        _compare_local(prototypes, rows, labels.astype(np.int64), counts)
        weight = model[-1]
    else:
        # Under ckks numbers of members, and a one, go with the sums.
        extra = 0 if agreement.plan.masked else 1
        vector, ends = arrays[0], agreement.layout.length + extra
        clustering = agreement.clustering
        number, rest = divmod(len(vector) - ends, agreement.dim + clustering.counted + extra)
        if rest:
            raise _Differs("the sums of clusters have another length than agreed")
        sums, counts = clustering.split(
            vector[: clustering.length(number, agreement.dim)], number, agreement.dim
        )
        _compare_cluster_sums(prototypes, sums, counts if clustering.counted else None)
        weight = vector[-1 - extra]
    if agreement.layout.weighted and weight != samples:
        raise _Differs("the model's weight is not the noisy number of samples")


def _compare_cluster_sums(prototypes: Prototypes, sums: Float, counts: Float | None) -> None:
    """Find which prototypes each cluster's sum adds up; noisy prototypes are independent, so that one answer fits."""
    rows = prototypes.rows
    # Only independent rows have one way to add up to a sum.
    if np.linalg.matrix_rank(rows) < len(rows):
        raise _Unclear("prototypes that depend on each other do not tell which of them a cluster has")
    parts = np.linalg.lstsq(rows.T, sums.T, rcond=None)[0].T  # (G, M), zeros and ones
    chosen = np.rint(parts)
    if not _is_close(chosen @ rows, sums, _CLOSE_SUMS) or not np.isin(chosen, (0.0, 1.0)).all():
        raise _Differs("the sum of a cluster is not one of noisy prototypes")
    if (chosen.sum(axis=0) != 1).any():
        raise _Differs("a prototype is in the sums of two clusters, or of none")
    if counts is not None and not np.array_equal(chosen @ prototypes.counts, counts):
        raise _Differs("a cluster's count of samples is not that of its noisy prototypes")


def _is_close(some: Float, others: Float, tolerance: float) -> bool:
    scale = max(1.0, float(np.abs(others).max(initial=0.0)))
    return some.shape == others.shape and bool((np.abs(some - others) <= tolerance * scale).all())


# The ledger


def check_paid(evidence: SiteEvidence) -> Iterator[Check]:
    """Check the ledger against the draws: an entry for each, with the agreed cost, and the ε that follows."""
    account, agreement = evidence.account, evidence.agreement
    if account is None:
        yield leave_open(PAID, NO_LEDGER)
        return
    claim = Claim.of(agreement)
    paid = {
        seq: line
        for seq, line in enumerate(account.lines, 1)
        if isinstance(line, Entry)
        and (line.spending.release.run, line.spending.agreement_hash) == (agreement.run, agreement.hash())
    }
    entries = {seq: line for seq, line in paid.items() if isinstance(line.spending.event, GaussianRelease)}
    faults = [*_find_draw_faults(evidence, entries), *_find_entry_faults(evidence, entries.values())]
    if faults:
        yield refute(PAID, faults[0])
        return
    events = [entry.spending.event for entry in entries.values()]
    if not events:
        yield leave_open(PAID, "the ledger has no release of this run, and none was kept")
        return
    delta, draws = account.limit.delta, len({draw.anchor.seq for draw in evidence.draws})
    # What the ledger charges, by the accountant, against what the draws cost, by a closed form of other code.
    charged = pld_cost(events, delta)
    owed = gaussian_epsilon(claim.multiplier / math.sqrt(draws), delta) if draws else 0.0
    seen = f"ε {charged:.4g} charged for {len(events)} releases at δ = {delta:g}, {owed:.4g} owed for {draws} draws"
    if draws:
        measured = max(1e-3, float(np.sqrt(np.square(np.concatenate(evidence.noise)).mean())))
        lost = gaussian_epsilon(claim.multiplier * measured / math.sqrt(draws), delta)
        seen += f", {lost:.4g} with the noise as measured"
    if owed > charged * (1 + 1e-3):
        yield refute(PAID, seen)
    elif draws:
        yield uphold(PAID, seen)
    else:
        yield leave_open(PAID, "no release was kept")
    if len(entries) > draws and draws:
        yield leave_open(PAID, f"{len(entries) - draws} of {len(entries)} paid releases have no kept draw")
    others = len(account.entries) - len(paid)
    if others:
        yield leave_open("releases of earlier runs", f"the ledger has {others} entries of other runs")


def _find_draw_faults(evidence: SiteEvidence, entries: Mapping[int, Entry]) -> Iterator[str]:
    """Yield in words the draws, and the values sent, that have no entry of their own."""
    seen = set[int]()
    for draw in evidence.draws:
        entry = entries.get(draw.anchor.seq)
        if entry is None or entry.spending.release != draw.release:
            yield f"the {draw.release} has no entry"
        elif draw.anchor.seq in seen:
            yield f"the {draw.release} was drawn twice under one entry"
        seen.add(draw.anchor.seq)
    paid_rounds = {entry.spending.release.round for entry in entries.values()}
    for answer in evidence.answers:
        if answer.released not in paid_rounds and _is_released(evidence.agreement, answer):
            yield f"values of round {answer.round} come from a release without an entry"


def _find_entry_faults(evidence: SiteEvidence, entries: Iterable[Entry]) -> Iterator[str]:
    """Yield in words how the ledger and its entries claim more than was agreed, or charge less."""
    agreement, agreed, claim = evidence.agreement, evidence.agreement.privacy, evidence.claim
    if agreed is None or evidence.account is None or evidence.account.limit.unit is not agreed.unit:
        yield "the ledger is for another unit than the agreed one"
        return
    covers = "none" if agreed.extractor is Extractor.TRAINED else agreed.unit.value
    for entry in entries:
        name, event, facts = entry.spending.release, entry.spending.event, entry.spending.facts
        query = [float(facts.get(fact, 0.0)) for fact in ("clip", "count_weight")]
        if not isinstance(event, GaussianRelease) or event.noise_multiplier > claim.multiplier:
            yield f"the entry of the {name} charges less than the agreed noise costs"
        elif event.coordinates < len(agreement.classes) * (agreement.dim + 1) or not np.allclose(
            query, [claim.clip, claim.weight], rtol=1e-9, atol=0.0
        ):
            yield f"the entry of the {name} is for another query than the agreed one"
        elif facts.get(GUARANTEE) != covers:
            yield f"the entry of the {name} states another guarantee than {covers!r}"


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """Return ε at δ of a Gaussian mechanism of sensitivity 1 and this deviation (Balle and Wang 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        half, shift = 0.5 / multiplier, epsilon * multiplier
        lost = stats.norm.cdf(half - shift) - math.exp(epsilon + stats.norm.logcdf(-half - shift))
        return float(lost - delta)

    if excess(0.0) <= 0.0:
        return 0.0
    high = 1.0
    while excess(high) > 0.0:
        high *= 2.0
    return float(optimize.brentq(excess, 0.0, high))
