"""Exact sums of an audit equal the mechanism's sums before noise, though no code of theirs is shared."""

from __future__ import annotations

import numpy as np
import pytest

from privacy.mechanisms.grid import Ints
from privacy.mechanisms.joint_clipping import joint_sums
from privacy.mechanisms.prototype_query import PrototypeQuery
from protoseal.audit.exact_sums import Claim, Records, exact_sums

CLASSES, DIM, RECORDS = 4, 3, 60
QUERY = PrototypeQuery(clip=1.0, count_weight=0.5, noise_multiplier=2.0, min_count=1.0)
CLAIM = Claim(clip=1.0, weight=0.5, multiplier=2.0, deviation=2.0 * float(np.hypot(1.0, 0.5)), min_count=1.0)


@pytest.mark.parametrize("subjects", [None, 8], ids=["records", "subjects of several classes"])
def test_exact_sums_equal_mechanism_without_noise(subjects: int | None) -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(RECORDS, DIM))
    labels: Ints = generator.integers(0, CLASSES, RECORDS)
    owners = None if subjects is None else np.sort(np.arange(RECORDS, dtype=np.int64) % subjects)
    sums = QUERY.start(CLASSES, DIM)
    if owners is None:
        sums.add(features, labels)
    else:
        sums = joint_sums(sums, [(features, labels)], owners)
    exact = exact_sums(Records(features, labels, owners), CLAIM, CLASSES, None)
    step = QUERY.grid.step
    np.testing.assert_allclose(exact.sums, sums.vectors * step, rtol=0.0, atol=2 * RECORDS * step)
    np.testing.assert_allclose(exact.counts, sums.weights * step / QUERY.count_weight, rtol=0.0, atol=1e-3)
