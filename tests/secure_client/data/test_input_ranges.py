"""Ranges of a site's inputs: darkness and plain areas are refused, others are counted, and a switch accepts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from PIL import Image

from agreement import Agreement, PreprocessingSection
from protoseal.cli import main
from secure_client.checkpoints.learner_factory import build_learner
from secure_client.data import SiteData, load_site_data
from secure_client.data.input_ranges import SWITCH, InputRanges
from secure_client.data.preprocess import to_tensor
from secure_client.errors import DataError
from tests.support.refusals import refuses
from tests.support.tables import AGE, PAIN, section

SIDE, NUMBER, CLASSES = 8, 20, 4
GREY = PreprocessingSection(image_size=SIDE, channels=1, mean=(0.4,), std=(0.2,))
COLOUR = PreprocessingSection(image_size=SIDE, channels=3, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
drawn = np.random.default_rng(0)
BYTES = drawn.integers(0, 256, (NUMBER, SIDE, SIDE, 1), dtype=np.uint8)
TWELVE_BITS = drawn.integers(0, 4096, (NUMBER, SIDE, SIDE, 1), dtype=np.uint16)
PLAIN = np.broadcast_to(drawn.integers(0, 256, (NUMBER, 1, 1, 3), dtype=np.uint8), (NUMBER, SIDE, SIDE, 3))
REFUSED: dict[str, NDArray[Any]] = {
    "12 bits in a file of 16": TWELVE_BITS,
    "10 bits in a file of 16": TWELVE_BITS // 4,
    "floats divided by 255 twice": (BYTES / 255 / 255).astype(np.float32),
    "a mask of 0 and 1": BYTES // 128,
    "digits of 16 shades": BYTES // 16,
    "black": np.zeros_like(BYTES),
    "white": np.full_like(BYTES, 255),
    "one colour an image": PLAIN,
    "larger images of one colour": np.repeat(np.repeat(PLAIN, 5, axis=1), 3, axis=2),
    "constant floats": np.full((NUMBER, SIDE, SIDE, 1), 0.3, np.float32),
}
ACCEPTED: dict[str, NDArray[Any]] = {
    "bytes": BYTES,
    "16 bits": TWELVE_BITS * 16,
    "floats": (BYTES / 255).astype(np.float32),
    "14 bits in a file of 16": TWELVE_BITS * 4,
    "one bright image": np.concatenate([BYTES // 16, BYTES[:1]]),
    "one bright pixel in darkness": np.where(
        np.arange(BYTES.size).reshape(BYTES.shape) == 77, np.uint8(255), BYTES // 16
    ),
}


def agreement(images: bool = True, channels: int = 1) -> Agreement:
    content = {
        "federation": "f",
        "run": "r",
        "method": "pfpl",
        "protection": "plain",
        "rounds": 1,
        "dim": 8,
        "classes": [f"class-{number}" for number in range(CLASSES)],
    }
    if images:
        content["preprocessing"] = (GREY if channels == 1 else COLOUR).model_dump(mode="json")
    else:
        content["training"] = {"model": f"{__name__}:mlp"}
    return Agreement.model_validate_json(json.dumps(content))


def mlp(num_classes: int, dim: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    return torch.nn.Linear(5, dim), torch.nn.Linear(dim, num_classes)


def stored(path: Path, inputs: NDArray[Any], test: NDArray[Any] | None = None) -> str:
    """Store the inputs as a site's npz; return its spec."""
    parts = {"train": inputs, **({} if test is None else {"test": test})}
    arrays = {f"x_{name}": part for name, part in parts.items()}
    arrays |= {f"y_{name}": np.arange(len(part)) % CLASSES for name, part in parts.items()}
    np.savez(path, allow_pickle=False, **arrays)
    return f"npz:{path}"


def learner_of(data: SiteData, agreed: Agreement, **options: Any) -> Any:
    return build_learner(agreed, "site-1", data, model=agreed.training.model, device="cpu", **options)


@pytest.mark.parametrize("kind", REFUSED)
def test_ranges_all_images_dark_or_constant_are_refused_without_the_switch(kind: str, tmp_path: Path) -> None:
    images = REFUSED[kind]
    agreed = agreement(channels=images.shape[3])
    data = load_site_data(stored(tmp_path / "scans.npz", images), None, agreed)
    with pytest.raises(DataError) as raised:
        learner_of(data, agreed)
    for named in ("scans.npz: training", "channel 0", SWITCH):
        assert named in str(raised.value)
    assert learner_of(data, agreed, **{SWITCH: True}).ranges[0].warnings


@pytest.mark.parametrize("kind", ACCEPTED)
def test_ranges_other_images_are_accepted(kind: str, tmp_path: Path) -> None:
    agreed = agreement()
    data = load_site_data(stored(tmp_path / "scans.npz", ACCEPTED[kind]), None, agreed)
    (ranges,) = learner_of(data, agreed).ranges
    assert bool(ranges.warnings) == ("one bright" in kind)


def test_ranges_dark_test_images_are_refused(tmp_path: Path) -> None:
    agreed = agreement()
    data = load_site_data(stored(tmp_path / "scans.npz", BYTES, test=TWELVE_BITS), None, agreed)
    with refuses("scans.npz: test"):
        learner_of(data, agreed)


def test_ranges_are_of_each_channel_on_the_agreed_scale() -> None:
    images = drawn.integers(0, 256, (NUMBER, SIDE, SIDE, 3), dtype=np.uint8)
    images[..., 2] = 51
    ranges = InputRanges(COLOUR, "scans")
    tensor = to_tensor(images, COLOUR, where="scans")
    for batch in (tensor[:7], tensor[7:]):
        ranges.add(batch)
    for channel, shown in enumerate(ranges.channels):
        values = images[..., channel] / 255
        expected = {"least": values.min(), "largest": values.max(), "mean": values.mean()}
        assert shown == pytest.approx(expected, abs=2e-6)
    (warning,) = ranges.warnings
    assert "channel 2" in warning


def test_ranges_image_that_is_dark_in_some_channels_alone_is_not_dark() -> None:
    ranges = InputRanges(PreprocessingSection(image_size=2, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3), "x")
    red = torch.zeros(1, 3, 2, 2)
    red[0, 0, 0, 0] = 1.0
    ranges.add(red)
    ranges.check()
    assert ranges.warnings == []


def test_ranges_warning_names_the_first_image_of_the_data() -> None:
    images = BYTES.copy()
    images[[11, 13]] = 200
    images[17] //= 16
    ranges = InputRanges(GREY, "scans")
    for batch in torch.split(to_tensor(images, GREY, where="scans"), 6):
        ranges.add(batch)
    ranges.check()
    constant, dark = ranges.warnings
    assert constant.startswith("2 of 20")
    assert constant.endswith("sample 11")
    assert dark.startswith("1 of 20")
    assert dark.endswith("sample 17")


def vectors(**changes: Any) -> InputRanges:
    """Return the ranges of 20 records of 5 features, of which some are changed: row_feature=value."""
    records = torch.randn(NUMBER, 5, generator=torch.Generator().manual_seed(0))
    for place, value in changes.items():
        row, feature = place.lstrip("r").split("_")
        records[int(row) if row else slice(None), int(feature) if feature else slice(None)] = value
    ranges = InputRanges(None, "table")
    for batch in torch.split(records, 7):
        ranges.add(batch)
    return ranges


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, []),
        ({"r_3": 2.0}, ["feature 3"]),
        ({"r9_": 0.0, "r4_": 0.0}, ["2 of 20", "sample 4"]),
        ({"r8_2": 1e30}, ["sample 8", "feature 2", "1e+30"]),
        ({"r8_2": -1e30, "r3_1": 1e12}, ["sample 8", "feature 2", "-1e+30"]),
    ],
)
def test_ranges_conspicuous_values_of_features_are_named(changes: dict[str, float], named: list[str]) -> None:
    ranges = vectors(**changes)
    ranges.check()
    (shown,) = ranges.channels
    assert shown["least"] <= shown["mean"] <= shown["largest"]
    assert len(ranges.warnings) == bool(named)
    assert all(part in "".join(ranges.warnings) for part in named)


def test_ranges_features_of_a_table_have_their_names() -> None:
    ranges = InputRanges(section(AGE, PAIN), "table")
    ranges.add(torch.tensor([[2e6, 0, 1, 0, 0], [1, 1, 0, 0, 0]]))
    same, extreme = ranges.warnings
    assert "'pain = much'" in same
    assert "'age'" in extreme


def test_ranges_records_that_are_all_equal_are_refused(tmp_path: Path) -> None:
    agreed = agreement(images=False)
    data = load_site_data(stored(tmp_path / "table.npz", np.ones((NUMBER, 5), np.float32)), None, agreed)
    with refuses("table.npz"):
        learner_of(data, agreed)
    learner_of(data, agreed, **{SWITCH: True})


# simulate and predict


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulate one round; return a site's folder."""
    folder = tmp_path_factory.mktemp("simulated")
    done = invoke(*simulation(folder, BYTES))
    assert done.exit_code == 0, done.output
    return folder / "out" / "sites" / "site-1"


def simulation(folder: Path, images: NDArray[Any], *more: object) -> list[object]:
    data = stored(folder / "scans.npz", np.concatenate([images, images]))
    fixed = ["--split", "iid", "--sites", 2, "--rounds", 1, "--set", "min_holders=1", "--set", "dim=8"]
    return ["simulate", "--dataset", data, *fixed, "--out", folder / "out", *more]


def test_simulate_dark_images_are_refused_without_the_setting(tmp_path: Path) -> None:
    refused = invoke(*simulation(tmp_path, TWELVE_BITS))
    assert refused.exit_code == 1
    assert "site-1" in refused.stderr.splitlines()[-1]
    accepted = invoke(*simulation(tmp_path, TWELVE_BITS, "--set", f"{SWITCH}=true"))
    assert accepted.exit_code == 0, accepted.output


def test_predict_dark_images_are_refused_without_the_option(run: Path, tmp_path: Path) -> None:
    Image.fromarray(TWELVE_BITS[0, :, :, 0]).save(tmp_path / "dark.png")
    Image.fromarray(BYTES[0, :, :, 0]).save(tmp_path / "bright.png")
    dark = ["predict", "--run", run, "--image", tmp_path / "dark.png", "--json"]
    refused = invoke(*dark)
    assert refused.exit_code == 1
    assert "channel 0" in refused.stderr.splitlines()[-1]
    accepted = invoke(*dark, "--accept-dark-or-constant-inputs")
    assert accepted.exit_code == 0, accepted.output
    counted = invoke(*dark, "--image", tmp_path / "bright.png")
    assert counted.exit_code == 0, counted.output
    result = json.loads(counted.stdout)
    assert result["channels"][0]["largest"] > 0.9
    assert len(result["warnings"]) == 1
    assert "sample 0" in result["warnings"][0]
    assert "channel 0" in counted.stderr


def test_predict_dark_test_part_is_refused(run: Path, tmp_path: Path) -> None:
    data = stored(tmp_path / "more.npz", BYTES, test=TWELVE_BITS)
    refused = invoke("predict", "--run", run, "--data", data)
    assert refused.exit_code == 1
    assert "more.npz" in refused.stderr.splitlines()[-1]
