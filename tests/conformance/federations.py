"""Agreements and data for runs in this process, of any number of sites, classes and features."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from agreement import Agreement, AveragingSection, Extractor, FedpcSection, Method, PrivacySection, Protection
from algorithms.pfpl import Weighting
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.data import SiteData
from secure_client.data.preprocess import to_dataset
from secure_client.data.samples import Samples
from secure_client.models.prototype_model import SplitModel
from secure_client.training.averaged_parameters import AveragedPart
from tests.support.small import short_training, small_agreement

Bool = NDArray[np.bool_]

_TRAIN, _TEST = 6, 4


def agreement_for(
    protection: Protection, weighting: Weighting, *, classes: int, dim: int, rounds: int = 2, **settings: Any
) -> Agreement:
    """Return the small federation's agreement with other classes and dimension, and any further ``settings``."""
    names = tuple(str(k) for k in range(classes))
    changed = {"classes": names, "dim": dim, "norm_bound": dim**0.5, **settings}
    return Agreement.model_validate(
        {**dict(small_agreement(protection, weighting, rounds=rounds)), **changed}
    )


def holdings(sites: int, classes: int) -> Bool:
    """Different and missing classes, (n, K): two that all sites hold, and one that is at two sites only."""
    holds = np.random.default_rng(sites * classes).random((sites, classes)) < 0.75
    holds[:, :2] = True
    holds[:, -1] = np.arange(sites) < 2
    return holds


def data_for(agreement: Agreement, holds: Bool) -> dict[str, SiteData]:
    """Real scans of the classes that each site holds, site-1 and so on; no scan is at two sites."""
    return {f"site-{i + 1}": _site_data(agreement, i, np.flatnonzero(row)) for i, row in enumerate(holds)}


@cache
def _scans() -> Any:
    return load_digits()


def _site_data(agreement: Agreement, position: int, classes: NDArray[np.int64]) -> SiteData:
    scans = _scans()
    pile = _TRAIN + _TEST
    of_class = [np.flatnonzero(scans.target == k)[position * pile : (position + 1) * pile] for k in classes]

    def part(chosen: slice) -> Any:
        indices = np.concatenate([each[chosen] for each in of_class])
        labels = scans.target[indices].astype(np.int64)
        pixels = (scans.images[indices] / 16.0).astype(np.float32)[..., np.newaxis]
        return to_dataset(
            Samples(pixels, labels, np.zeros_like(labels)), agreement.preprocessing, where="scans"
        )

    return SiteData(part(slice(0, _TRAIN)), part(slice(_TRAIN, None)))


POOLED_PIXELS = 16


def build_batch_norm(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Build a model with a buffer or two: a layer and batch normalisation, features that end in a ReLU."""
    layers = (nn.AvgPool2d(2), nn.Flatten(), nn.Linear(POOLED_PIXELS, dim), nn.BatchNorm1d(dim), nn.ReLU())
    return nn.Sequential(*layers), nn.Linear(dim, num_classes)


def grouped_agreement(
    protection: Protection,
    *,
    classes: int,
    dim: int,
    rounds: int,
    method: Method = Method.FEDPC,
    fedpc: Mapping[str, Any] = {},
    averaging: Mapping[str, Any] = {},
    **settings: Any,
) -> Agreement:
    """Return an agreement on the method with this module's model, ``fedpc``, ``averaging`` and further ``settings``."""
    parameters, buffers = AveragedPart(
        SplitModel(*build_batch_norm(classes, dim)), method.traits.averaged
    ).sizes
    sizes = {"parameters": parameters, "buffers": buffers}
    changed = {
        "method": method,
        "protection": protection,
        "classes": tuple(str(k) for k in range(classes)),
        "dim": dim,
        "norm_bound": dim**0.5,
        "fedpc": FedpcSection(**fedpc),
        "averaging": AveragingSection(**sizes, **averaging),
        "training": short_training("tests.conformance.federations:build_batch_norm", batch_size=6, lr=0.05),
        **settings,
    }
    return Agreement.model_validate({**dict(small_agreement(rounds=rounds)), **changed})


def two_kinds() -> Bool:
    """Nine sites, six classes, (9, 6): five sites of one kind and four of another, by turns.

    Class 0: all of the first kind, two of the second (too few). 1: the first kind. 2: everyone. 3: the second kind.
    4: the second kind and *three* of the first. 5: two of each, so that four have it and no group may.
    """
    holds = np.zeros((9, 6), dtype=np.bool_)
    first, second = np.arange(0, 9, 2), np.arange(1, 9, 2)
    holds[first[:, None], [0, 1, 2]] = True
    holds[second[:, None], [2, 3, 4]] = True
    holds[second[-2:], 0] = True
    holds[first[1:4], 4] = True
    holds[[*first[-2:], *second[:2]], 5] = True
    return holds


def three_kinds() -> Bool:
    """Ten sites, four classes, (10, 4): of four, three and three sites, each kind without one of the first three."""
    holds = np.ones((10, 4), dtype=np.bool_)
    holds[np.arange(10), np.arange(10) % 3] = False
    holds[:, 3] = np.arange(10) < 6  # two of each kind: withheld everywhere
    return holds


PRIVACY = PrivacySection(
    clip=3.0, noise_multiplier=0.2, min_count=2.0, release_every=2, extractor=Extractor.TRAINED
)
"""Noise for six records a class: a count moves by less than one, and features by some hundredths."""


def build_group_norm(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return a model of one's own without statistics of batches, whose features end in a ReLU."""
    layers = (nn.AvgPool2d(2), nn.Flatten(), nn.Linear(POOLED_PIXELS, dim), nn.GroupNorm(2, dim), nn.ReLU())
    return nn.Sequential(*layers), nn.Linear(dim, num_classes)


def private_agreement(
    protection: Protection,
    method: Method,
    *,
    classes: int,
    dim: int,
    rounds: int,
    privacy: PrivacySection,
    **settings: Any,
) -> Agreement:
    """Return the agreement of :func:`grouped_agreement`, with noise."""
    training = short_training("tests.conformance.federations:build_group_norm", batch_size=6, lr=0.05)
    base = grouped_agreement(
        protection, method=method, classes=classes, dim=dim, rounds=rounds, training=training, **settings
    )
    sizes = AveragedPart(build_agreed_model(base, training.model), method.traits.averaged).sizes
    averaging = AveragingSection(parameters=sizes[0], buffers=sizes[1])
    return Agreement.model_validate({**dict(base), "averaging": averaging, "privacy": privacy})
