"""Answers that `plain` gives to the prototypes that a protected run combined, and the written bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from agreement import Agreement, PfplSection, Protection
from agreement.registry.round_plan import PayloadKind
from algorithms.averaging import active_classes
from algorithms.gram_matrix import squared_distances
from algorithms.pfpl import Weighting, peer_weights, personalise
from crypto.ckks.parameters import peer_error
from crypto.plain import PlainServer
from crypto.protection import Cohort, Payload
from tests.conformance.transcripts import Record, Transcript, last_attempt

Stack = NDArray[np.float64]

_ALL_COMPARED = {Weighting.DISTANCE: 1, Weighting.COMPLEMENT: 2}
"""Largest number of holders for which the divisor is a count; with more, weights depend on distances."""

_ROTATED = 1e-10
"""Bound on a combination that was computed on rotated rows, in units of the norm bound.

A product of D reflections moves the inner products of rows within the unit ball by some 1e-15 (D up to thousands), so
a squared distance by less than 1e-14. Weights divide distances by their sum or, ``inverse``, by themselves, and
neither below tau = 1e-4: they are off by 1e-10 / 2 if all distances are as small as that, which they are not, and rows
by less than 1e-14 more. Without protection the same arithmetic is done on the same numbers, in another order of sums
at most.
"""

_SUMMED = 1e-13
"""Rounding in float64 of a sum of some tens of rows, of a subtraction and a division, in units of the norm bound."""


@dataclass(frozen=True)
class Inputs:
    """Inputs of one round's sites: rows (n, K, d) in units of the norm bound, zeros where not held."""

    cohort: Cohort
    rows: Stack


def inputs_of(agreement: Agreement, record: Record, number: int) -> Inputs:
    """Return the inputs from the prototypes that the sites had in round ``number``."""
    taken = {site: each.prototypes for (round_number, site), each in record.items() if round_number == number}
    return inputs_from(agreement, {site: (each.local, each.counts > 0) for site, each in taken.items()})


def inputs_from(agreement: Agreement, put: Mapping[str, tuple[Stack, NDArray[np.bool_]]]) -> Inputs:
    """Return the inputs from each site's prototypes (K, d), in their own units, and the classes that it holds (K,)."""
    sites = tuple(sorted(put))
    presence = np.stack([put[site][1] for site in sites])
    holds = presence & active_classes(presence, agreement.min_holders)
    rows = np.stack([put[site][0] for site in sites]) / agreement.norm_bound
    return Inputs(Cohort(sites, holds, agreement.dim), rows * holds[:, :, None])


def personalised(agreement: Agreement, inputs: Inputs, pfpl: PfplSection) -> Stack:
    """Return answers (n, K, d) in the prototypes' own units, by the server's half of `plain` in float64."""
    server = PlainServer(partial(peer_weights, weighting=pfpl.weighting, tau=agreement.agreement_threshold))
    payloads = {
        site: Payload("plain/1", arrays=(rows,))
        for site, rows in zip(inputs.cohort.sites, inputs.rows, strict=True)
    }
    answers = server.combine(payloads, inputs.cohort)
    return agreement.norm_bound * np.stack(
        [
            personalise(rows, answers[site].arrays[0], pfpl.alpha)
            for site, rows in zip(inputs.cohort.sites, inputs.rows, strict=True)
        ]
    )


def bounds(agreement: Agreement, inputs: Inputs) -> Stack:
    """Return the bound (n, K) on each coordinate of a personalised prototype, before it is rounded to float32.

    (1 − α)·R times the bound on a combination of peers. In a masked sum each peer's row is off by half a step of the
    ring at most, and so is the mean of h − 1 peers; the sums and the subtraction are exact, but for float64's rounding.
    """
    if agreement.plan.result is PayloadKind.PEER_SUMS:
        half = float(agreement.fixed_point().resolution.max()) / 2.0 + agreement.norm_bound * _SUMMED
        return np.full(inputs.cohort.holds.shape, (1.0 - agreement.pfpl.alpha) * half)
    scale = agreement.norm_bound * (1.0 - agreement.pfpl.alpha)
    if agreement.protection is not Protection.CKKS:
        return np.full(inputs.cohort.holds.shape, scale * _ROTATED)
    return np.asarray(scale * _ckks_errors(agreement, inputs))


def _ckks_errors(agreement: Agreement, inputs: Inputs) -> Stack:
    """Return the errors under `ckks` (n, K), in units of the norm bound."""
    holds, cohort = inputs.cohort.holds, inputs.cohort
    gram = np.einsum("ikd,mkd->kim", inputs.rows, inputs.rows)
    peers = holds.T[:, :, None] & holds.T[:, None, :]
    totals = np.where(peers, squared_distances(gram), 0.0).sum(axis=2).T
    compared = cohort.counts > _ALL_COMPARED.get(agreement.pfpl.weighting, np.inf)
    divisors = np.where(compared & (totals > agreement.agreement_threshold), totals, 1.0)
    return np.stack([peer_error(row, cohort.counts, len(cohort.sites)) for row in divisors])


def excess(agreement: Agreement, record: Record, number: int, pfpl: PfplSection | None = None) -> float:
    """Return the largest error of a round's personalised prototypes, in bounds; by other settings if given."""
    inputs = inputs_of(agreement, record, number)
    got = {site: record[number, site].targets for site in inputs.cohort.sites}
    return excess_over(agreement, inputs, got, pfpl)


def round_excess(transcript: Transcript, number: int, *, without: Sequence[str] = ()) -> float:
    """Return :func:`excess_over` of all that have a round's result, over the inputs to the round's last attempt."""
    put = {
        site: (put.rows, put.holds)
        for (*at, site), put in transcript.put.items()
        if at == [number, last_attempt(transcript, number)] and site not in without
    }
    got = {
        site: taken.targets
        for (at_round, site), taken in transcript.taken.items()
        if at_round == number and site not in without
    }
    return excess_over(transcript.agreement, inputs_from(transcript.agreement, put), got)


def excess_over(
    agreement: Agreement, inputs: Inputs, got: Mapping[str, Stack], pfpl: PfplSection | None = None
) -> float:
    """Return :func:`excess` of what the sites ``got`` over the answers that follow from all ``inputs``."""
    given = [inputs.cohort.index(site) for site in got]
    exact = personalised(agreement, inputs, pfpl or agreement.pfpl)[given]
    off = np.abs(np.stack(list(got.values())) - exact).max(axis=2)
    return float((off / bounds(agreement, inputs)[given])[inputs.cohort.holds[given]].max())


def guide_excess(
    transcript: Transcript,
    number: int,
    site: str,
    own: Stack,
    holds: NDArray[np.bool_],
    *,
    subtracts: bool = True,
) -> float:
    """Return how far a site's targets of the *next* round are from equation 4 over a masked sum of peers, in bounds.

    ``own`` (K, d) is what the site had trained, of the classes that it ``holds`` (K,). A target takes the mean of the
    peers whose values came, from whose sum the site subtracts its own row; ``subtracts`` leaves that out.
    """
    agreement, attempt = transcript.agreement, last_attempt(transcript, number)
    put = {name: put for (*at, name), put in transcript.put.items() if at == [number, attempt]}
    targets, given = np.zeros_like(own), np.zeros(len(own), dtype=np.bool_)
    for k in range(len(own)):
        holders = [name for name in put if put[name].holds[k]]
        peers = [put[name].rows[k] for name in holders if name != site or not subtracts]
        if len(holders) >= agreement.min_holders:
            given[k] = True
            targets[k] = agreement.own_share * own[k] + (1.0 - agreement.own_share) * np.mean(peers, axis=0)
    half_step = agreement.fixed_point().resolution.max() / 2.0 + 1e-12
    off = np.abs(transcript.guides[number + 1, 1, site] - targets)[given & holds]
    return float(off.max() / ((1.0 - agreement.own_share) * half_step))
