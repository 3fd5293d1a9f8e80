"""``simulate`` and ``predict`` number labels by class names, as a site does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from sklearn.datasets import load_digits
from torch.utils.data import Dataset

from protoseal.cli import main

NAMES = ["nine", "eight", "seven", "five", "four", "three", "two", "one", "zero"]
"""Classes of these data, which lack the digit 6, in the order of their labels."""
DIGITS = {name: str(digit) for digit, name in zip((9, 8, 7, 5, 4, 3, 2, 1, 0), NAMES, strict=True)}


class Scans(Dataset[Any]):
    def __init__(self, part: slice) -> None:
        images, digits = load_digits(return_X_y=True)
        kept = [index for index in range(len(digits))[part] if digits[index] != 6]
        self.images = torch.from_numpy(images[kept].reshape(-1, 1, 8, 8) / 16).float()
        self.digits = [str(digits[index]) for index in kept]
        self.classes = NAMES
        self.targets = [list(DIGITS.values()).index(digit) for digit in self.digits]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.targets[index]


TEST = slice(600, 700)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulate a round on the data, and return the folder of the run."""
    folder = tmp_path_factory.mktemp("labels")
    classes = [str(digit) for digit in range(10)]
    pairs = ", ".join(f'"{name}" = "{digit}"' for name, digit in DIGITS.items())
    settings = f"""
        dataset = "own_digits:build"
        split = "iid"
        sites = 3
        rounds = 1
        classes = {json.dumps(classes)}
        out = "run"
        class_names = {{ {pairs} }}
        [training]
        batch_size = 10
        lr = 0.003
    """
    (folder / "named.toml").write_text(settings, encoding="utf-8")
    (folder / "unnamed.toml").write_text(settings.replace("class_names", "#"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        parts = (Scans(slice(600)), Scans(TEST))
        patch.setitem(sys.modules, "own_digits", SimpleNamespace(build=lambda data_root: parts))
        refused = run("simulate", "--config", folder / "unnamed.toml")
        assert refused.exit_code != 0
        assert "'nine'" in refused.stderr
        completed = run("simulate", "--config", folder / "named.toml")
        assert completed.exit_code == 0, completed.output
        patch.chdir(folder)
        predicted = run(
            "predict", "--run", folder / "run" / "sites" / "site-1", "--data", "own_digits:build", "--json"
        )
        assert predicted.exit_code == 0, predicted.output
        (folder / "predicted.json").write_text(predicted.stdout, encoding="utf-8")
    return folder


def test_simulate_labels_by_name_are_counted_by_class(simulated: Path) -> None:
    split = json.loads((simulated / "run" / "split.json").read_text(encoding="utf-8"))
    trained = Scans(slice(600))
    by_class = dict.fromkeys(split["classes"], 0)
    for row in split["rows"]:
        for name, count in zip(split["classes"], row["counts"], strict=True):
            by_class[name] += count if row["part"] == "train" else 0
    assert by_class["6"] == 0
    assert by_class == {name: trained.digits.count(name) for name in split["classes"]}


def test_predict_labels_by_name_give_the_accuracy(simulated: Path) -> None:
    result = json.loads((simulated / "predicted.json").read_text(encoding="utf-8"))
    true = Scans(TEST).digits
    given = [each["class"] for each in result["predictions"]]
    assert result["accuracy"] == pytest.approx(sum(map(str.__eq__, given, true)) / len(true))
    assert result["accuracy"] > 0.6
