"""A federation over tables in three dialects: sites' own scales, predictions of rows, and what the folder may hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from protoseal.cli import main
from protoseal.prediction import load_trained, read_rows
from protoseal.simulation.experiment import simulate
from protoseal.simulation.site_datasets import divide, read_sites
from secure_client.data.table_scale import fit_scale, scale_rows, warn_of_units
from secure_client.errors import DataError
from tests.support.simulations import config_in
from tests.support.tables import CLASSES, ROWS, save, section, write_three_dialects

CONFIG = """
dataset = "sites:sites"
method = "fedpc"
classes = ["healthy", "ill"]
rounds = 2
dim = 8
device = "cpu"
batched = "never"
[training]
model = "mlp"
[[table.columns]]
name = "age"
scale = "site"
[[table.columns]]
name = "sex"
categories = ["0", "1"]
drop_first = true
[[table.columns]]
name = "chol"
scale = [220.0, 50.0]
missing = "leave out"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    (folder / "sites").mkdir()
    write_three_dialects(folder / "sites")
    simulate(config_in(CONFIG, folder / "out"))
    return folder


def site_folder(run: Path, name: str) -> Path:
    return run / "out" / "sites" / name


def predict(run: Path, name: str, path: Path, *options: str) -> Result:
    out = site_folder(run, name)
    return CliRunner().invoke(
        main, ["predict", "--run", str(out), "--data", f"table:{path}", "--device", "cpu", *options]
    )


def test_simulate_table_scale_is_each_sites_own(run: Path) -> None:
    config = config_in(CONFIG, run / "again")
    sites = read_sites(run / "sites", agreed=config.table, classes=config.classes)
    assert [site.name for site in sites.sites] == ["site-1", "site-2", "site-3"]
    assert [len(site.train) + len(site.test) for site in sites.sites] == [ROWS - 1, ROWS - 1, ROWS - 1 + 6]
    assert config.table is not None
    for site in sites.sites:
        scale = load_trained(site_folder(run, site.name)).log.scale
        assert scale == fit_scale(config.table, site.train.inputs, where=site.name)
        assert scale.mean[1:] == (0.0, 220.0)
    means = [load_trained(site_folder(run, f"site-{number}")).log.scale for number in (1, 2, 3)]
    assert [round(scale.mean[0], -1) for scale in means if scale is not None] == [40.0, 50.0, 60.0]


def test_divided_data_overall_has_scale_of_all_rows(run: Path) -> None:
    config = config_in(CONFIG, run / "again")
    data = read_sites(run / "sites", agreed=config.table, classes=config.classes)
    rows = np.concatenate([site.train.inputs for site in data.sites])
    tests = np.concatenate([site.test.inputs for site in data.sites])
    assert config.table is not None
    wanted = scale_rows(tests, fit_scale(config.table, rows, where=""), "")
    assert (data.overall(where="").tensors[0].numpy() == wanted).all()


def test_rows_are_predicted_by_the_scale_of_the_site(run: Path, tmp_path: Path) -> None:
    path = save(tmp_path, "chol,sex,age\n240,1,48.5\n?,1,44\n200,0,40\n", "rows.csv")
    done = predict(run, "site-1", path, "--json")
    assert done.exit_code == 0
    shown = json.loads(done.stdout)
    assert [each["sample"] for each in shown["predictions"]] == ["line 2", "line 4"]
    assert "accuracy" not in shown
    assert "lines 3" in done.stderr
    trained = load_trained(site_folder(run, "site-1"))
    assert trained.log.scale is not None
    inputs = scale_rows(np.array([[48.5, 1.0, 240.0], [40.0, 0.0, 200.0]]), trained.log.scale, "")
    assert (read_rows(trained, path).inputs.tensors[0].numpy() == inputs).all()
    with torch.no_grad():
        wanted = trained.model(torch.from_numpy(inputs)).argmax(dim=1).tolist()
    assert shown["by"] == "classifier"
    assert [each["class"] for each in shown["predictions"]] == [CLASSES[label] for label in wanted]


def test_rows_with_labels_have_an_accuracy(run: Path, tmp_path: Path) -> None:
    done = predict(run, "site-3", run / "sites" / "held-out.csv", "--json")
    assert done.exit_code != 0  # labels 0 and 1 are no classes without the site's format
    rows = save(tmp_path, (run / "sites" / "held-out.csv").read_text(), "held-out.csv")
    save(tmp_path, (run / "sites" / "site-3.toml").read_text().replace("test =", "# "), "held-out.toml")
    labelled = predict(run, "site-3", rows, "--json")
    assert 0.5 < json.loads(labelled.stdout)["accuracy"] <= 1.0


def test_rows_that_are_not_as_agreed_are_refused_by_their_line(run: Path, tmp_path: Path) -> None:
    done = predict(run, "site-1", save(tmp_path, "chol,sex,age\n240,1,48.5\n200,7,40\n", "rows.csv"))
    assert done.exit_code == 1
    assert "line 3" in done.stderr
    assert "'sex'" in done.stderr


def test_rows_in_another_unit_are_told_beside_the_agreed_scale(run: Path, tmp_path: Path) -> None:
    trained = load_trained(site_folder(run, "site-1"))
    agreed = section({"name": "sex"}, {"name": "age", "scale": [50.0, 10.0]}, {"name": "chol"})
    months = np.array([[1.0, 580.0, 240.0]])
    assert ["'age'" in warning for warning in warn_of_units(months, agreed)] == [True]
    rows = read_rows(trained, save(tmp_path, "chol,sex,age\n240,1,48.5\n", "rows.csv"))
    assert "age: always 48.5" in rows.facts


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("site-3.toml", 'test = "site-1.csv"'),
        ("site-2.toml", 'test = "held-out.csv"'),
        ("held-out.toml", 'missing_in = {chol = ["0"]}'),
    ],
)
def test_read_sites_shared_test_table_is_refused(tmp_path: Path, name: str, content: str) -> None:
    write_three_dialects(tmp_path)
    save(tmp_path, f"[table]\n{content}\n", name)
    with pytest.raises(DataError) as refused:
        read_sites(tmp_path, agreed=section({"name": "age"}), classes=CLASSES)
    assert str(tmp_path) in str(refused.value)


def test_notes_beside_sites_tables_are_no_sites(tmp_path: Path) -> None:
    write_three_dialects(tmp_path)
    for name in ("README.md", "Thumbs.db"):
        save(tmp_path, "x", name)
    data = read_sites(tmp_path, agreed=section({"name": "age"}), classes=CLASSES)
    assert [site.name for site in data.sites] == ["site-1", "site-2", "site-3"]


def test_divide_table_gives_each_site_rows(tmp_path: Path) -> None:
    text = "age,label\n" + "".join(f"{age},{CLASSES[age % 2]}\n" for age in range(40))
    agreed = section({"name": "age"})
    data = divide(f"table:{save(tmp_path, text)}", "iid", sites=2, seed=0, agreed=agreed, classes=CLASSES)
    ages = np.concatenate([part.inputs for site in data.sites for part in (site.train, site.test)])
    assert sorted(ages.flatten().tolist()) == list(range(40))


def test_read_sites_two_files_of_one_site_are_refused(tmp_path: Path) -> None:
    for name in ("a.csv", "a.tsv"):
        save(tmp_path, "age,label\n1,ill\n", name)
    for agreed in (section({"name": "age"}), None):
        with pytest.raises(DataError) as refused:
            read_sites(tmp_path, agreed=agreed, classes=CLASSES)
        assert str(tmp_path) in str(refused.value)
