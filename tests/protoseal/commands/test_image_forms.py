"""Forms of image files through ``client check``, ``simulate`` and ``predict``: read as their arrays are, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from agreement import PreprocessingSection
from protoseal.cli import main
from scripts.image_forms import READ, REFUSED, ImageForm, exif, tiff
from secure_client.app import load_data
from secure_client.config import SiteConfig, load_site
from secure_client.data.preprocess import fit_images, to_tensor
from secure_client.data.samples import scale_to_floats
from secure_client.site_check import CheckFinding, check_site
from tests.e2e.federations import small_agreement, small_sites
from tests.support.processes import Federation

SIDE = 8
GREY = [form for form in READ if form.pixels is not None and form.pixels.shape[2] == 1]
RGB = [form for form in READ if form.pixels is not None and form.pixels.shape[2] == 3]
AGREED = ("image_size=8", "channels=1", "mean=[0.5]", "std=[0.5]")
DIGITS = load_digits()
SCANS: NDArray[np.uint8] = (15 * DIGITS.images).astype(np.uint8)
FEW = slice(1000, 1040)
"""Scans to predict, of which the model has trained on none."""


def agreed(channels: int) -> PreprocessingSection:
    return PreprocessingSection(
        image_size=SIDE, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels
    )


def written(forms: Sequence[ImageForm], folder: Path, classes: int = 1) -> list[NDArray[Any]]:
    """Write a file of each form, in turn into each class, and return the pixels in the order of the files' names."""
    names = [(str(number % classes), f"{number:03d}.{form.file}") for number, form in enumerate(forms)]
    for (label, name), form in zip(names, forms, strict=True):
        (folder / label).mkdir(parents=True, exist_ok=True)
        form.write(folder / label / name)
    ordered = sorted(zip(names, forms, strict=True), key=lambda pair: pair[0])
    return [form.pixels for _, form in ordered if form.pixels is not None]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def refusal(*arguments: object) -> str:
    """Return the one line that a failing command prints."""
    result = invoke(*arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    return result.stderr.splitlines()[-1]


def result_of(*arguments: object) -> Any:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def simulate(
    dataset: str, out: Path, *options: object, model: str = "tests.support.tiny_models:build_tanh"
) -> Path:
    """Simulate three sites for a round and return the folder of the first."""
    settings = [f"--set=preprocessing.{setting}" for setting in AGREED] + [f"--set=training.model={model}"]
    run = ("--sites", 3, "--split", "iid", "--rounds", 1, "--method", "pfpl", "--out", out)
    result = invoke("simulate", "--dataset", dataset, *run, *settings, *options)
    assert result.exit_code == 0, result.output
    return out / "sites" / "site-1"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteConfig]:
    """A site that ``client check`` can check up to its data."""
    root = tmp_path_factory.mktemp("federation") / "net"
    with Federation(root, small_agreement(rounds=1), small_sites(1), gated=False) as federation:
        yield load_site(federation.folder("site-1") / "site.toml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a site that was trained on scans."""
    root = tmp_path_factory.mktemp("trained")
    np.savez(root / "scans.npz", x_train=SCANS[:900], y_train=DIGITS.target[:900])
    learning = ("--set=training.local_epochs=10", "--set=training.lr=0.01")
    return simulate(f"npz:{root / 'scans.npz'}", root / "run", *learning)


def checked(site: SiteConfig, channels: int, data: Path) -> tuple[SiteConfig, CheckFinding]:
    """Return the site with other data, and what ``client check`` finds in them."""
    agreement = site.agreement.model_copy(update={"preprocessing": agreed(channels)})
    config = site.model_copy(update={"agreement": agreement, "data": f"folder:{data}"})
    findings = {finding.what: finding for finding in _up_to_data(config)}
    return config, findings["data and model"]


def _up_to_data(config: SiteConfig) -> Iterator[CheckFinding]:
    for finding in check_site(config, lambda: b""):
        yield finding
        if finding.what == "data and model":
            return


@pytest.mark.parametrize(("forms", "channels"), [(GREY, 1), (RGB, 3)], ids=["grey", "RGB"])
def test_check_reads_forms_as_their_arrays(
    forms: Sequence[ImageForm], channels: int, site: SiteConfig, tmp_path: Path
) -> None:
    arrays = written(forms, tmp_path)
    config, finding = checked(site, channels, tmp_path)
    assert finding.ok, finding.detail
    assert all(sides in finding.detail for sides in ("16×24", "24×16", "8×8"))
    train = load_data(config).train
    for index, pixels in enumerate(arrays):
        floats = scale_to_floats(fit_images(pixels[np.newaxis], agreed(channels), where=""))
        torch.testing.assert_close(
            train[index][0], to_tensor(floats, agreed(channels), where="")[0], rtol=0, atol=0
        )


def test_check_names_the_file_of_every_form_that_is_refused(site: SiteConfig, tmp_path: Path) -> None:
    for number, form in enumerate(REFUSED):
        folder = tmp_path / str(number)
        written([form], folder)
        _, finding = checked(site, 1, folder)
        assert not finding.ok, form.name
        assert f"{folder}/0/000.{form.file}" in finding.detail


def test_simulation_trains_on_forms_as_on_their_arrays(tmp_path: Path) -> None:
    arrays = written(GREY, tmp_path / "images", classes=2)
    fitted = [scale_to_floats(fit_images(pixels[np.newaxis], agreed(1), where=""))[0] for pixels in arrays]
    labels = np.arange(len(GREY)) >= (len(GREY) + 1) // 2
    np.savez(tmp_path / "arrays.npz", x_train=np.stack(fitted), y_train=labels.astype(int))
    of_files = simulate(f"folder:{tmp_path / 'images'}", tmp_path / "files")
    of_arrays = simulate(f"npz:{tmp_path / 'arrays.npz'}", tmp_path / "arrays")
    for name in ("model.safetensors", "prototypes.safetensors"):
        assert (of_files / name).read_bytes() == (of_arrays / name).read_bytes()


@pytest.mark.parametrize("form", REFUSED[::8], ids=lambda form: form.name)
def test_simulation_names_the_file_of_a_form_that_is_refused(form: ImageForm, tmp_path: Path) -> None:
    written([form], tmp_path / "images")
    options = ("--sites", 3, "--rounds", 1, "--method", "pfpl", "--out", tmp_path / "run")
    assert f"0/000.{form.file}" in refusal("simulate", "--dataset", f"folder:{tmp_path / 'images'}", *options)


def test_prediction_reads_forms_as_their_arrays(trained: Path, tmp_path: Path) -> None:
    arrays = written(GREY, tmp_path)
    fitted = [scale_to_floats(fit_images(pixels[np.newaxis], agreed(1), where=""))[0] for pixels in arrays]
    np.savez(tmp_path / "arrays.npz", x_train=np.stack(fitted), y_train=np.zeros(len(GREY), int))
    images = [option for path in sorted((tmp_path / "0").iterdir()) for option in ("--image", path)]
    of_files = result_of("predict", "--run", trained, *images, "--json")
    of_arrays = result_of("predict", "--run", trained, "--data", f"npz:{tmp_path / 'arrays.npz'}", "--json")
    assert of_files["channels"] == of_arrays["channels"]
    assert classes(of_files) == classes(of_arrays)


def test_prediction_names_the_file_of_every_form_that_is_refused(trained: Path, tmp_path: Path) -> None:
    for form in REFUSED:
        path = form.path(tmp_path)
        assert str(path) in refusal("predict", "--run", trained, "--image", path)


def classes(result: Any) -> list[str]:
    return [prediction["class"] for prediction in result["predictions"]]


def write_digit(kind: str, scan: NDArray[np.uint8], path: Path) -> None:
    """Write the scan so that its file shows the same picture."""
    match kind:
        case "floats":
            path.write_bytes(tiff(scan.astype(np.float32) / np.float32(255), sides=scan.shape))
        case "white as 0":
            deep = 65535 - 257 * scan.astype(np.uint16)
            path.write_bytes(tiff(deep, {262: (0,)}, sides=scan.shape))
        case "turned":
            Image.fromarray(np.rot90(scan)).save(path, "PNG", exif=exif(6))
        case "palette":
            image = Image.fromarray(255 - scan)
            image.putpalette(np.repeat(255 - np.arange(256, dtype=np.uint8), 3).tobytes())
            image.save(path, "PNG")
        case _:
            Image.fromarray(257 * scan.astype(np.uint16)).save(path, "PNG")


@pytest.mark.parametrize("kind", ["floats", "white as 0", "turned", "palette", "16 bits"])
def test_prediction_model_is_the_same_for_every_form(kind: str, trained: Path, tmp_path: Path) -> None:
    """Floats in [0, 1] became zeros, and turned or inverted images were read as stored."""
    np.savez(tmp_path / "scans.npz", x_train=SCANS[FEW], y_train=DIGITS.target[FEW])
    for number, (scan, label) in enumerate(zip(SCANS[FEW], DIGITS.target[FEW], strict=True)):
        (tmp_path / "images").mkdir(exist_ok=True)
        write_digit(kind, scan, tmp_path / "images" / f"{number:03d}-{label}.png")
    images = [option for path in sorted((tmp_path / "images").iterdir()) for option in ("--image", path)]
    of_files = result_of("predict", "--run", trained, *images, "--json")
    of_arrays = result_of("predict", "--run", trained, "--data", f"npz:{tmp_path / 'scans.npz'}", "--json")
    assert classes(of_files) == classes(of_arrays)
    assert of_arrays["accuracy"] > 0.6
