"""Reader of the labels of a site's own data."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secure_client.data import load_site_data
from secure_client.data.sources import load_sources
from secure_client.errors import DataError
from tests.support.small import small_agreement


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Return the function that reads all labels of own data, at a site and in a simulation, which must agree."""

    def labels(
        train: Any,
        test: Any = None,
        *,
        classes: tuple[str, ...] = ("bird", "cat", "dog"),
        class_names: Mapping[str, str] | None = None,
        part: str = "train",
    ) -> list[int]:
        monkeypatch.setitem(sys.modules, "own_labels", SimpleNamespace(build=lambda data_root: (train, test)))
        agreed = small_agreement().model_copy(update={"classes": classes})
        outcomes: list[list[int] | str] = []
        for read_labels in (_at_a_site, _in_a_simulation):
            try:
                outcomes.append(read_labels(agreed, class_names or {}, part))
            except DataError as error:
                outcomes.append(str(error))
        site, simulation = outcomes
        if isinstance(site, str):
            assert isinstance(simulation, str)
            raise DataError(site)
        assert site == simulation
        return site

    return labels


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return the function that writes a site's own module into its working directory, and returns the module's name."""

    def write(code: str) -> str:
        name = f"own_{tmp_path.name}"  # no other test imports a module of this name
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code), encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        return name

    return write


def _at_a_site(agreed: Any, class_names: Mapping[str, str], part: str) -> list[int]:
    data = load_site_data("own_labels:build", None, agreed, class_names=class_names)
    samples: Any = getattr(data, part)
    return [int(samples[index][1]) for index in range(len(samples))]


def _in_a_simulation(agreed: Any, class_names: Mapping[str, str], part: str) -> list[int]:
    data = load_sources(
        "own_labels:build", data_root=None, agreed=None, classes=agreed.classes, class_names=class_names
    )
    return [int(label) for label in getattr(data, part).labels]
