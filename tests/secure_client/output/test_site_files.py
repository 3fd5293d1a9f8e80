"""A site's prototypes as files: with clusters, without, and of a version that knew none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from agreement.storage.run_files import FileError
from algorithms.inference import by_prototype
from algorithms.losses import Outputs
from algorithms.prototypes import Clusters, Targets
from secure_client.checkpoints.predictor import inference_guide
from secure_client.output.site_files import PROTOTYPES, SitePrototypes, read_prototypes, write_prototypes

LOCAL = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
PLAIN = SitePrototypes(
    LOCAL, np.zeros((3, 2)), np.zeros(3, dtype=np.bool_), np.array([3, 4, 0], dtype=np.int64)
)
CLUSTERS = (
    np.array([[1.0, 1.0], [3.0, 1.0], [0.5, 0.0]]),
    np.array([0, 0, 2], dtype=np.int64),
    np.array([0.25, 0.75, 1.0]),
)
WITH = PLAIN.with_clusters(*CLUSTERS)


def test_site_prototypes_personal_are_weighted_means_of_clusters() -> None:
    np.testing.assert_allclose(WITH.personal, [[2.5, 1.0], [0.0, 0.0], [0.5, 0.0]])
    assert WITH.has_personal.tolist() == [True, False, True]
    np.testing.assert_array_equal(WITH.local, LOCAL)


def test_site_prototypes_class_without_a_cluster_has_the_sites_own() -> None:
    rows, labels, weights = WITH.clusters_for_inference()
    np.testing.assert_array_equal(rows, [*CLUSTERS[0], LOCAL[1]])
    assert (labels.tolist(), weights.tolist()) == ([0, 0, 2, 1], [0.25, 0.75, 1.0, 1.0])
    guide = inference_guide(WITH)
    assert isinstance(guide, Clusters)
    features = torch.tensor([[0.1, 9.0], [3.0, 1.1], [1.0, 0.0]])
    assert by_prototype(Outputs(features, torch.zeros(3, 3)), guide).tolist() == [1, 0, 2]


def test_site_prototypes_without_clusters_have_a_row_for_each_class() -> None:
    assert isinstance(inference_guide(PLAIN), Targets)
    with pytest.raises(ValueError, match="clusters"):
        PLAIN.clusters_for_inference()


@pytest.mark.parametrize("saved", [PLAIN, WITH], ids=["without", "with"])
def test_read_prototypes_returns_what_was_written(saved: SitePrototypes, tmp_path: Path) -> None:
    write_prototypes(tmp_path, saved)
    for name, array in vars(read_prototypes(tmp_path)).items():
        np.testing.assert_array_equal(array, getattr(saved, name))


def test_write_prototypes_without_clusters_writes_the_older_form(tmp_path: Path) -> None:
    write_prototypes(tmp_path, PLAIN)
    names = set(safetensors.numpy.load_file(tmp_path / PROTOTYPES))
    assert names == {"local", "personal", "has_personal", "counts"}


BAD: dict[str, dict[str, Any]] = {
    "clusters without classes": {"cluster_labels": None},
    "clusters without weights": {"cluster_weights": None},
    "of another dimension": {"clusters": np.zeros((3, 4))},
    "fewer classes than clusters": {"cluster_labels": np.zeros(2, dtype=np.int64)},
    "a class that does not exist": {"cluster_labels": np.array([0, 0, 3], dtype=np.int64)},
    "no number": {"clusters": np.full((3, 2), np.nan)},
}


@pytest.mark.parametrize("case", BAD)
def test_site_prototypes_clusters_that_do_not_fit_are_refused(case: str, tmp_path: Path) -> None:
    arrays = {**vars(WITH), **BAD[case]}
    with pytest.raises(ValueError, match=r"cluster"):
        SitePrototypes(**arrays)
    kept = {name: array for name, array in arrays.items() if array is not None}
    safetensors.numpy.save_file(kept, tmp_path / PROTOTYPES)
    with pytest.raises(FileError, match=PROTOTYPES):
        read_prototypes(tmp_path)
