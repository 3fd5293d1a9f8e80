"""The document's distribution, installed for tests in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.extensions import install_documented, installed


@pytest.fixture(scope="session")
def example_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the modules and metadata of the document's distribution."""
    folder = tmp_path_factory.mktemp("example")
    install_documented(folder)
    return folder


@pytest.fixture
def example(example_folder: Path) -> Iterator[Path]:
    """Make the document's distribution importable for one test."""
    with installed(example_folder):
        yield example_folder
