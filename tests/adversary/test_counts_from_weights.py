"""Numbers of samples that the other holders of a class read from FedPLCC's weights, in whole runs under masks.

The weight of a cluster is its share of the class's samples. Sites that pool their numbers know the total of the class
from a cluster without the victim, and so the victim's number in all the others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agreement import Method, Protection
from agreement.derived.payload_shapes import limits_of
from protoseal_wire import codec
from tests.conformance.federations import data_for, grouped_agreement
from tests.conformance.transcripts import record_cluster_run


def read_exactly(folder: Path, *, weighted: bool) -> tuple[int, int]:
    """Return how many pairs of class and site have all their numbers read in two rounds, and how many there are."""
    holds = np.ones((7, 3), bool)
    holds[:2, 0] = False
    agreement = grouped_agreement(
        Protection.MASKED,
        method=Method.FEDPLCC,
        classes=3,
        dim=12,
        rounds=2,
        norm_bound=40.0,
        fedplcc={"weighted": weighted},
    )
    run = record_cluster_run(agreement, data_for(agreement, holds), folder)
    read = pairs = 0
    for number in (1, 2):
        (told,) = run.told[number, 1]
        assigned = {each.site: each for each in codec.decode_assignment(told, limits_of(agreement)).sites}
        _, labels, weights, _ = run.results[number, "site-7"]
        for k in range(3):
            clusters = np.flatnonzero(labels == k)
            samples = {}
            for site, rows in assigned.items():
                at = rows.clusters[rows.classes == k]
                counts = run.local[number, 1, site].counts[rows.classes == k]
                if len(at):
                    samples[site] = np.array([counts[at == cluster].sum() for cluster in clusters])
            for victim, true in samples.items():
                others = np.sum([each for site, each in samples.items() if site != victim], axis=0)
                without = np.flatnonzero(true == 0)
                pairs += 1
                if len(without):
                    total = others[without[0]] / weights[clusters][without[0]]
                    read += np.array_equal(np.rint(weights[clusters] * total - others), true)
    return int(read), pairs


@pytest.mark.full
def test_the_stated_limit_holders_of_a_class_read_a_sites_numbers_of_samples(tmp_path: Path) -> None:
    assert read_exactly(tmp_path, weighted=True) == (14, 38)


@pytest.mark.full
def test_equal_weights_tell_no_number_of_samples(tmp_path: Path) -> None:
    assert read_exactly(tmp_path, weighted=False) == (0, 38)
