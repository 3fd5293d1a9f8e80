"""What `plain` would have answered to the very prototypes that a run under `ckks` combined, and the written bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from algorithms.holders import active_classes
from algorithms.linear import squared_distances
from algorithms.pfpl import Weighting
from algorithms.pfpl.aggregation import peer_weights, personalise
from crypto.ckks.precision import peer_error
from crypto.plain import PlainServer
from crypto.protection import Cohort, Payload
from protoseal.config import Agreement
from tests.conformance.runs import Record, Taken

Stack = NDArray[np.float64]

_ALL_COMPARED = {Weighting.DISTANCE: 1, Weighting.COMPLEMENT: 2}
"""With more holders than this, weights depend on distances; before it, and for `uniform`, the divisor is a count."""

_FLOAT32 = 2.0**-23
_TIE = 1e-3
"""A lead of less than this is a tie, which noise of 1e-5 in a target may break either way in later rounds."""


@dataclass(frozen=True)
class Inputs:
    """What the sites of one round put in: rows (n, K, d) in units of the norm bound, zeros where not held."""

    cohort: Cohort
    rows: Stack


def inputs_of(agreement: Agreement, record: Record, number: int) -> Inputs:
    """From the prototypes that the sites had in round ``number``."""
    sites = tuple(sorted(site for round_number, site in record if round_number == number))
    prototypes = [record[number, site].prototypes for site in sites]
    presence = np.stack([each.counts > 0 for each in prototypes])
    holds = presence & active_classes(presence, agreement.min_holders)
    rows = np.stack([each.local for each in prototypes]) / agreement.norm_bound
    return Inputs(Cohort(sites, holds, agreement.dim), rows * holds[:, :, None])


def personalised(agreement: Agreement, inputs: Inputs, weighting: Weighting) -> Stack:
    """(n, K, d) in the prototypes' own units, by the server's half of `plain` in float64."""
    server = PlainServer(partial(peer_weights, weighting=weighting, tau=agreement.agreement_threshold))
    payloads = {
        site: Payload("plain/1", arrays=(rows,))
        for site, rows in zip(inputs.cohort.sites, inputs.rows, strict=True)
    }
    answers = server.combine(payloads, inputs.cohort)
    return agreement.norm_bound * np.stack(
        [
            personalise(rows, answers[site].arrays[0], agreement.pfpl.alpha)
            for site, rows in zip(inputs.cohort.sites, inputs.rows, strict=True)
        ]
    )


def bounds(agreement: Agreement, inputs: Inputs) -> Stack:
    """(n, K): the most that each coordinate of a personalised prototype may be off.

    (1 − α)·R times the bound on a combination of peers, and the rounding of targets to float32.
    """
    holds, cohort = inputs.cohort.holds, inputs.cohort
    gram = np.einsum("ikd,mkd->kim", inputs.rows, inputs.rows)
    peers = holds.T[:, :, None] & holds.T[:, None, :]
    totals = np.where(peers, squared_distances(gram), 0.0).sum(axis=2).T
    compared = cohort.counts > _ALL_COMPARED.get(agreement.pfpl.weighting, np.inf)
    divisors = np.where(compared & (totals > agreement.agreement_threshold), totals, 1.0)
    errors = np.stack([peer_error(row, cohort.counts, len(cohort.sites)) for row in divisors])
    return np.asarray(agreement.norm_bound * ((1.0 - agreement.pfpl.alpha) * errors + _FLOAT32))


def excess(agreement: Agreement, record: Record, number: int, weighting: Weighting) -> float:
    """The largest error of a round's personalised prototypes, in units of its bound."""
    inputs = inputs_of(agreement, record, number)
    got = np.stack([record[number, site].prototypes.personal for site in inputs.cohort.sites])
    off = np.abs(got - personalised(agreement, inputs, weighting)).max(axis=2)
    return float((off / bounds(agreement, inputs))[inputs.cohort.holds].max())


def check_predictions(got: Taken, reference: Taken) -> None:
    """``AssertionError`` unless they predict the same wherever the reference has made up its mind, nearly always."""
    decided = reference.margins > _TIE
    assert decided.mean() > 0.95
    np.testing.assert_array_equal(got.predictions[decided], reference.predictions[decided])
