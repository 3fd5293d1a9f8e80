"""The experiment on four hospitals' tables: its split is FLamby's, and its tables are what the runs gave."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.model_selection import train_test_split

from agreement import TableSection
from protoseal.simulation.config import load_simulation
from protoseal.simulation.site_datasets import DividedData, read_sites

FOLDER = Path(__file__).parents[2] / "experiments" / "heart"
SCRIPT, EXPERIMENT = FOLDER / "fed_heart.py", FOLDER / "fed-heart.toml"
NAMES = ("cleveland", "hungarian", "switzerland", "va")
LABEL = 13


def rows_of(name: str) -> list[list[str]]:
    """Patients of one hospital, some with missing values; only one of Switzerland's is healthy."""
    rng = np.random.default_rng(NAMES.index(name))
    rows = []
    for at in range(60):
        numbers = [rng.integers(30, 80), at % 2, at % 4 + 1, 120, rng.integers(0, 300), at % 2, at % 3]
        row = [
            *map(str, numbers),
            str(rng.integers(90, 180)),
            "0",
            "-.5",
            "?",
            "?",
            "7",
            str(at * (at + 1) % 5),
        ]
        row[LABEL] = "0" if name == "switzerland" and at == 7 else row[LABEL]
        row[LABEL] = "3" if name == "switzerland" and at != 7 else row[LABEL]
        if at % 9 == 0:
            row[4 if at % 2 else 6] = "?"
        rows.append(row)
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the four hospitals' files: three with a header and semicolons, one with neither."""
    folder = tmp_path_factory.mktemp("heart")
    for name in NAMES:
        separator = "," if name == "va" else ";"
        lines = [separator.join(row) for row in rows_of(name)]
        header = [] if name == "va" else [";".join(f"column{at}" for at in range(LABEL + 1))]
        (folder / f"processed.{name}.data").write_text("\n".join([*header, *lines]) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def divided(files: Path) -> DividedData:
    script: dict[str, Any] = runpy.run_path(str(SCRIPT))
    config = load_simulation(EXPERIMENT, {})
    for name in NAMES:
        script["write_site"](files / f"processed.{name}.data", files / "sites", name, config)
    assert isinstance(config.table, TableSection)
    return read_sites(files / "sites", agreed=config.table, classes=config.classes)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_divided_as_scikit_learn_does(divided: DividedData, name: str) -> None:
    complete = [row for row in rows_of(name) if "?" not in row[:10]]
    labels = np.array([row[LABEL] != "0" for row in complete])
    train, test = train_test_split(
        np.arange(len(complete)),
        train_size=0.66,
        test_size=0.34,
        random_state=43,
        stratify=None if name == "switzerland" else labels,
    )
    site = next(site for site in divided.sites if site.name == name)
    for part, chosen in ((site.train, np.sort(train)), (site.test, np.sort(test))):
        assert part.labels.tolist() == labels[chosen].astype(int).tolist()
        assert part.inputs[:, 0].tolist() == [float(complete[at][0]) for at in chosen]
        assert part.inputs[:, 3].tolist() == [float(complete[at][4]) for at in chosen]


def test_features_are_thirteen_and_scaled_by_the_hospital_or_over_all(divided: DividedData) -> None:
    for site in divided.sites:
        data = site.to_data(divided.preprocessing).train
        inputs = np.stack([inputs.numpy() for inputs, _ in data])  # type: ignore[attr-defined]  # iterable
        assert inputs.shape[1] == 13
        np.testing.assert_allclose(inputs.mean(axis=0), 0, atol=1e-5)
    rows = np.concatenate([site.train.inputs for site in divided.sites])
    tests = np.concatenate([site.test.inputs for site in divided.sites])
    deviation = np.where(np.ptp(rows, axis=0) > 0, rows.std(axis=0), 1)
    overall = divided.overall(where="here").tensors[0].numpy()
    np.testing.assert_allclose(overall, (tests - rows.mean(axis=0)) / deviation, atol=1e-4)


@pytest.mark.full
def test_one_command_gives_every_method_under_every_protection(files: Path, tmp_path: Path) -> None:
    options = ["--out", tmp_path, "--seeds", 2, "--set", "rounds=1", "--set", "training.local_epochs=1"]
    done = CliRunner().invoke(runpy.run_path(str(SCRIPT))["main"], list(map(str, (files, *options))))
    assert done.exit_code == 0, done.output
    figures = json.loads((tmp_path / "accuracies.json").read_text(encoding="utf-8"))
    names = {
        f"{method}, {protection}"
        for method in ("pfpl", "fedpc", "feddbp", "fedplcc")
        for protection in ("plain", "masked", "ckks")
    }
    assert figures.keys() == names | {"hospitals", "seeds", "pooled", "local", "self", "fedavg"}
    for name in names:
        assert np.shape(figures[name]) == (2, 4)
        assert f"| {name} | {100 * np.mean(figures[name], axis=0)[0]:.1f} ± " in done.stdout
    for name in ("pfpl", "feddbp"):
        np.testing.assert_allclose(figures[f"{name}, ckks"], figures[f"{name}, plain"], atol=0.05)
