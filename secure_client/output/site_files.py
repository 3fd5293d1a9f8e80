"""Files of a site's output folder: the agreement, the trained model and the prototypes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError

from agreement import Agreement, ConfigError
from agreement.storage.run_files import AGREEMENT, FileError, first_line, read_text, write_bytes, write_text

MODEL, PROTOTYPES = "model.safetensors", "prototypes.safetensors"


@dataclass(frozen=True)
class SitePrototypes:
    """Prototypes of one site after the last round, in feature units.

    ``local`` and ``personal`` are float64 (K, d); rows of ``personal`` are valid where ``has_personal``, bool (K,), is
    true; ``counts``, int64 (K,), are training samples per class: a row of ``local`` with none is zero. Where a class
    may have several prototypes, ``personal`` has their means; ``clusters``, float64 (G, d), has all prototypes, with
    classes ``cluster_labels``, int64 (G,), and ``cluster_weights``, float64 (G,).
    """

    local: NDArray[np.float64]
    personal: NDArray[np.float64]
    has_personal: NDArray[np.bool_]
    counts: NDArray[np.int64]
    clusters: NDArray[np.float64] | None = None
    cluster_labels: NDArray[np.int64] | None = None
    cluster_weights: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        classes = (len(self.local),)
        _check_array("local", self.local, np.float64, self.local.shape[:1] + self.local.shape[-1:])
        _check_array("personal", self.personal, np.float64, self.local.shape)
        _check_array("has_personal", self.has_personal, np.bool_, classes)
        _check_array("counts", self.counts, np.int64, classes)
        if self.clusters is not None:
            self._check_clusters(self.clusters)

    def _check_clusters(self, clusters: NDArray[np.float64]) -> None:
        if self.cluster_labels is None or self.cluster_weights is None:
            raise ValueError("clusters need both cluster_labels and cluster_weights")
        of_each = clusters.shape[:1]
        _check_array("clusters", clusters, np.float64, of_each + self.local.shape[-1:])
        _check_array("cluster_labels", self.cluster_labels, np.int64, of_each)
        _check_array("cluster_weights", self.cluster_weights, np.float64, of_each)
        if ((self.cluster_labels < 0) | (self.cluster_labels >= len(self.local))).any():
            raise ValueError("cluster_labels has a class that does not exist")

    def with_clusters(
        self, clusters: NDArray[np.float64], labels: NDArray[np.int64], weights: NDArray[np.float64]
    ) -> SitePrototypes:
        """Return a copy with several prototypes for a class, and their weighted means in ``personal``."""
        sums, totals = np.zeros_like(self.local), np.zeros(len(self.local))
        np.add.at(sums, labels, clusters * weights[:, None])
        np.add.at(totals, labels, weights)
        has = totals > 0
        return replace(
            self,
            personal=sums / np.where(has, totals, 1.0)[:, None],
            has_personal=has,
            clusters=clusters,
            cluster_labels=labels,
            cluster_weights=weights,
        )

    def for_inference(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return rows (K, d) and the classes (K,) with a row: personalised, or the site's own for a withheld class."""
        # A class is withheld where too few sites have it; its holders still predict it, by their own prototype.
        rows = np.where(self.has_personal[:, np.newaxis], self.personal, self.local)
        return rows, self.has_personal | (self.counts > 0)

    def clusters_for_inference(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """Return rows (G′, d), classes and weights (G′,): the clusters, and the site's own rows of withheld classes.

        Raises ``ValueError`` without clusters.
        """
        if self.clusters is None or self.cluster_labels is None or self.cluster_weights is None:
            raise ValueError("the site's prototypes have no clusters")
        withheld = np.flatnonzero(~self.has_personal & (self.counts > 0))
        return (
            np.concatenate([self.clusters, self.local[withheld]]),
            np.concatenate([self.cluster_labels, withheld]),
            np.concatenate([self.cluster_weights, np.ones(len(withheld))]),
        )


def _check_array(name: str, array: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{name} is {array.dtype}{array.shape}, not {np.dtype(dtype)}{shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds values that are not finite")


def write_agreement(folder: Path, agreement: Agreement) -> Path:
    """Write ``agreement.json`` into a site's folder and return its path."""
    return write_text(folder / AGREEMENT, agreement.to_json() + "\n")


def read_agreement(folder: Path) -> Agreement:
    """Read the agreement under which a site's folder was written; raise :class:`FileError`."""
    path = folder / AGREEMENT
    text = ""
    try:
        text = read_text(path, "give the folder that a site wrote to (out)")
        return Agreement.from_json(text, source=str(path))
    except (ConfigError, ValueError) as error:
        # An agreement with a third party's method reads only where that method is installed.
        missing = _list_missing_distributions(text)
        if missing:
            raise FileError(
                f"{path} needs distributions that are not installed: install {' and '.join(missing)}"
            ) from error
        raise FileError(f"{path} is not an agreement of this version: {first_line(error)}") from error


def _list_missing_distributions(text: str) -> list[str]:
    """Return names and versions of the agreement's distributions that are not installed."""
    try:
        stated = TypeAdapter(dict[str, str]).validate_python(json.loads(text).get("distributions", {}))
    except (AttributeError, ValueError):
        return []
    installed = {f"{distribution.name} {distribution.version}" for distribution in distributions()}
    return sorted(set(stated.values()) - installed)


def write_prototypes(folder: Path, prototypes: SitePrototypes) -> Path:
    """Write ``prototypes.safetensors`` into a site's folder and return its path."""
    arrays = {
        name: np.ascontiguousarray(array) for name, array in vars(prototypes).items() if array is not None
    }
    return write_bytes(folder / PROTOTYPES, safetensors.numpy.save(arrays))


def read_prototypes(folder: Path) -> SitePrototypes:
    """Read the prototypes in a site's folder; raise :class:`FileError`."""
    path = folder / PROTOTYPES
    try:
        return SitePrototypes(**safetensors.numpy.load_file(path))
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing; give the folder that a site wrote to (out)") from error
    except (OSError, TypeError, ValueError, SafetensorError) as error:
        raise FileError(f"{path} does not hold a site's prototypes: {first_line(error)}") from error
