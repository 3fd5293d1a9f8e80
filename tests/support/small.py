"""A federation small enough to train in milliseconds: four sites, three digits, a model of one layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from agreement import (
    Agreement,
    Method,
    Optimiser,
    PfplSection,
    PreprocessingSection,
    Protection,
    TrainingSection,
)
from algorithms.pfpl import Weighting
from secure_client.data import SiteData
from secure_client.data.preprocess import to_dataset
from secure_client.data.samples import Samples

FEDERATION, RUN, CLASSES, DIM = "clinics.example", "run-1", ("0", "1", "2"), 8
HOLDINGS: Mapping[str, tuple[int, ...]] = {
    "clinic-a": (0, 1, 2),
    "clinic-b": (0, 1, 2),
    "clinic-c": (0, 1),
    "clinic-d": (0, 1, 2),
}
"""Classes of which each site has samples. Without clinic-d, class 2 has fewer than three holders."""

_SAMPLES = 6


def small_agreement(
    protection: Protection = Protection.PLAIN, weighting: Weighting = Weighting.UNIFORM, *, rounds: int = 2
) -> Agreement:
    """PFPL over :data:`HOLDINGS`; at least three sites and three holders."""
    return Agreement(
        federation=FEDERATION,
        run=RUN,
        method=Method.PFPL,
        protection=protection,
        rounds=rounds,
        classes=CLASSES,
        dim=DIM,
        norm_bound=2.0,
        preprocessing=PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.5,)),
        pfpl=PfplSection(weighting=weighting),
        training=short_training("tests.support.tiny_models:build_tanh"),
    )


def short_training(model: str, **changes: Any) -> TrainingSection:
    """Return one epoch of SGD in batches of four, a fraction of the default's work."""
    settings: dict[str, Any] = {"optimiser": Optimiser.SGD, "lr": 0.01, "batch_size": 4, "local_epochs": 1}
    return TrainingSection(**({"model": model} | settings | changes))


def small_data(
    agreement: Agreement, holdings: Mapping[str, tuple[int, ...]] = HOLDINGS
) -> dict[str, SiteData]:
    """Real scans, six of each class a site holds, none at two sites; no test part."""
    scans = load_digits()
    data = {}
    for position, (site, classes) in enumerate(holdings.items()):
        own = slice(position * _SAMPLES, (position + 1) * _SAMPLES)
        chosen = np.concatenate([np.flatnonzero(scans.target == number)[own] for number in classes])
        pixels = (scans.images[chosen] / 16.0).astype(np.float32)[..., np.newaxis]
        labels = scans.target[chosen].astype(np.int64)
        samples = Samples(pixels, labels, np.zeros_like(labels))
        data[site] = SiteData(to_dataset(samples, agreement.preprocessing, where=site), None)
    return data
