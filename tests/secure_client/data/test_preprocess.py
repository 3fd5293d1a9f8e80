"""Agreed preprocessing: size and range of images, and channels that are converted only where the site allows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from agreement import PreprocessingSection
from secure_client.data import load_site_data, preprocess
from secure_client.data.preprocess import describe_resizing, fit_images, to_tensor
from secure_client.errors import DataError
from tests.support.refusals import refuses
from tests.support.site_data import preprocessed
from tests.support.small import small_agreement


def agreed(size: int, channels: int, mean: float = 0.5, std: float = 0.25) -> PreprocessingSection:
    return PreprocessingSection(
        image_size=size, channels=channels, mean=(mean,) * channels, std=(std,) * channels
    )


def random_images(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(1).integers(0, 256, size=shape, dtype=np.uint8)


def test_to_tensor_images_are_normalised_with_channels_first() -> None:
    images = random_images(2, 3, 3, 3)
    section = PreprocessingSection(image_size=3, channels=3, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    tensor = to_tensor(images, section, where="x")
    assert tensor.dtype == torch.float32
    for n, row, column, channel in np.ndindex(2, 3, 3, 3):
        expected = (images[n, row, column, channel] / 255 - section.mean[channel]) / section.std[channel]
        assert float(tensor[n, channel, row, column]) == pytest.approx(expected, abs=1e-5)


def test_fit_images_of_one_value_keeps_the_value() -> None:
    """The weights of interpolation add up to 1 but for rounding, which would leave the range of [0, 1] at its end."""
    images = np.full((1, 3, 3, 1), 0.1, np.float32)
    assert (fit_images(images, agreed(2, 1), where="x") == np.float32(0.1)).all()


class Restless(Dataset[Any]):
    """One record, whose label is another one at each read."""

    def __init__(self) -> None:
        self._reads = 0

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> Any:
        self._reads += 1
        return torch.zeros(3), self._reads % 2


def test_preprocessed_dataset_label_that_changes_is_refused_with_its_sample() -> None:
    data = preprocessed(Restless(), None, 2, where="scans:build")
    assert data[0][1] == 1
    with refuses("scans:build: sample 0: "):
        data[0]


def bilinear(image: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Enlarge (H, W) with pixel centres at halves and edges repeated, by loops."""
    height, width = image.shape
    out = np.empty((size, size))
    for row, column in np.ndindex(size, size):
        y = min(max((row + 0.5) * height / size - 0.5, 0.0), height - 1.0)
        x = min(max((column + 0.5) * width / size - 0.5, 0.0), width - 1.0)
        y0, x0 = int(y), int(x)
        y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
        top = image[y0, x0] * (1 - (x - x0)) + image[y0, x1] * (x - x0)
        bottom = image[y1, x0] * (1 - (x - x0)) + image[y1, x1] * (x - x0)
        out[row, column] = top * (1 - (y - y0)) + bottom * (y - y0)
    return out


def test_fit_images_small_image_is_enlarged_bilinearly_to_a_square() -> None:
    image = random_images(1, 3, 5, 1)
    fitted = fit_images(image, agreed(8, 1), where="x")
    assert fitted.dtype == np.uint8
    np.testing.assert_allclose(fitted[0, ..., 0], bilinear(image[0, ..., 0].astype(np.float64), 8), atol=0.51)


def test_fit_images_large_image_is_averaged_without_skipping_pixels() -> None:
    stripes = np.zeros((1, 16, 16, 1), dtype=np.uint8)
    stripes[:, :, ::2] = 200
    assert np.ptp(fit_images(stripes, agreed(4, 1), where="x").astype(int)) < 30


def test_fit_images_grey_repeats_and_colour_becomes_luma() -> None:
    grey = random_images(2, 4, 4, 1)
    assert (fit_images(grey, agreed(4, 3), where="x") == grey).all()
    colour = np.zeros((1, 1, 3, 3), dtype=np.float32)
    colour[0, 0] = np.eye(3)
    np.testing.assert_allclose(
        fit_images(np.repeat(colour, 3, axis=1), agreed(3, 1), where="x")[0, 0, :, 0],
        [0.299, 0.587, 0.114],
        atol=1e-6,
    )


@given(
    st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3]), st.integers(1, 9), st.sampled_from([1, 3])
)
def test_fit_images_twice_is_once_and_stays_in_range(
    height: int, width: int, given_channels: int, size: int, channels: int
) -> None:
    section = agreed(size, channels)
    for images in (
        random_images(2, height, width, given_channels),
        random_images(2, height, width, given_channels).astype(np.float32) / np.float32(255),
    ):
        once = fit_images(images, section, where="x")
        assert once.shape == (2, size, size, channels)
        assert once.dtype == images.dtype
        assert images.min() <= once.min()
        assert once.max() <= images.max()
        assert fit_images(once, section, where="x") is once


def test_fit_images_image_depends_on_no_other() -> None:
    """The budget is counted for features that depend on their record alone, to the last bit."""
    dim = 0.9 * np.random.default_rng(0).random((200, 24, 24, 1), dtype=np.float32)
    dim[:, :12] = 0.9
    bright = np.ones((1, 24, 24, 1), np.float32)
    alone = fit_images(dim, agreed(20, 1), where="x")
    assert np.array_equal(fit_images(np.concatenate([dim, bright]), agreed(20, 1), where="x")[:200], alone)


def test_describe_resizing_names_sides_that_differ() -> None:
    assert describe_resizing({(8, 8)}, agreed(8, 1)) == describe_resizing({(3, 5)}, None) == ""
    assert describe_resizing({(16, 16)}, agreed(8, 1)).count("WARNING") == 0
    assert describe_resizing({(16, 20), (12, 12)}, agreed(8, 1)).count("WARNING") == 1
    both = describe_resizing({(3, 5), (20, 10)}, agreed(8, 1))
    assert both.count("WARNING") == 2
    assert all(sides in both for sides in ("3×5", "20×10", "8×8"))


def test_fit_images_channels_that_cannot_be_converted_are_refused() -> None:
    with refuses("scan.npz"):
        fit_images(random_images(1, 4, 4, 4), agreed(4, 3), where="scan.npz")


@pytest.mark.parametrize("value", [-0.01, 1.01, 255.0])
def test_to_tensor_floats_outside_the_unit_range_are_refused(value: float) -> None:
    images = np.full((1, 4, 4, 1), 0.5, dtype=np.float32)
    to_tensor(images, agreed(4, 1), where="x")
    images[0, 1, 2] = value
    with refuses("x: "):
        to_tensor(images, agreed(4, 1), where="x")


@pytest.mark.parametrize(
    ("lowest", "may_be_black"), [(-1.0, True), (-0.9, True), (-0.02, False), (-1e-9, False)]
)
def test_to_tensor_minus_one_is_called_black_only_near_it(lowest: float, may_be_black: bool) -> None:
    images = np.full((1, 4, 4, 1), 0.5, dtype=np.float32)
    images[0, 1, 2] = lowest
    with pytest.raises(DataError) as refused:
        to_tensor(images, agreed(4, 1), where="x")
    assert ("(x + 1)" in str(refused.value)) == may_be_black


def test_to_tensor_features_are_refused_where_images_are_agreed() -> None:
    rows = np.array([[1.5, -20.0]], dtype=np.float32)
    assert to_tensor(rows, None, where="x").tolist() == [[1.5, -20.0]]
    with refuses("x: "):
        to_tensor(rows, agreed(4, 1), where="x")


def test_to_tensor_without_agreement_images_are_only_scaled() -> None:
    images = random_images(2, 4, 5, 3)
    expected = torch.from_numpy(images.astype(np.float32) / 255).permute(0, 3, 1, 2)
    torch.testing.assert_close(to_tensor(images, None, where="x"), expected)


def test_fit_images_more_than_one_chunk_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_images(8, 5, 5, 3)
    whole = fit_images(images, agreed(4, 1), where="x")
    monkeypatch.setattr(preprocess, "CHUNK", 3)
    assert (fit_images(images, agreed(4, 1), where="x") == whole).all()


OWN = """
import numpy as np
import torch
from torch.utils.data import TensorDataset

images = np.zeros((3, 8, 8, {channels}), np.uint8)
images[1, ..., 0] = {value}
def arrays(data_root): return (images, np.arange(3)), None
def lazy(data_root): return TensorDataset(torch.from_numpy(images).permute(0, 3, 1, 2), torch.arange(3)), None
"""


@pytest.fixture
def spec_of(tmp_path: Path, write_module: Callable[[str], str]) -> Callable[..., str]:
    """Return the function that writes three images, one of each class, in the named form; the second may be red."""

    def write(form: str, channels: int, value: int = 0) -> str:
        images = np.zeros((3, 8, 8, channels), np.uint8)
        images[1, ..., 0] = value
        if form == "npz":
            np.savez(tmp_path / "data.npz", x_train=images, y_train=np.arange(3))
            return f"npz:{tmp_path / 'data.npz'}"
        if form == "folder":
            for name, image in zip(small_agreement().classes, images, strict=True):
                (tmp_path / "train" / name).mkdir(parents=True)
                pixels = image[..., 0] if channels == 1 else image
                Image.fromarray(pixels).save(tmp_path / "train" / name / "1.png")
            return f"folder:{tmp_path}"
        return f"{write_module(OWN.format(channels=channels, value=value))}:{form}"

    return write


@pytest.mark.parametrize(("given", "agreed"), [(3, 1), (1, 3)])
@pytest.mark.parametrize("form", ["npz", "folder", "arrays", "lazy"])
def test_load_site_data_other_channels_are_refused_unless_convert_channels(
    form: str, given: int, agreed: int, spec_of: Callable[..., str]
) -> None:
    some = (0.5,) * agreed
    section = PreprocessingSection(image_size=8, channels=agreed, mean=some, std=some)
    agreement = small_agreement().model_copy(update={"preprocessing": section})
    spec = spec_of(form, given)
    with refuses("convert_channels"):
        load_site_data(spec, None, agreement).train[0]
    converted = load_site_data(spec, None, agreement, convert_channels=True)
    assert converted.train[0][0].shape == (agreed, 8, 8)


def test_load_site_data_colours_are_counted_in_each_part(tmp_path: Path) -> None:
    section = PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.5,))
    agreement = small_agreement().model_copy(update={"preprocessing": section})
    grey = np.zeros((3, 8, 8, 3), np.uint8)
    coloured = grey.copy()
    coloured[1, ..., 0] = 9
    path, labels = tmp_path / "data.npz", np.arange(3)
    np.savez(path, x_train=coloured, y_train=labels, x_test=grey, y_test=labels)
    with refuses(f"{path}: train: 1 of 3 "):
        load_site_data(f"npz:{path}", None, agreement)


@pytest.mark.parametrize("form", ["npz", "folder", "arrays", "lazy"])
def test_load_site_data_lost_colours_are_logged_with_the_part(
    form: str, spec_of: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    section = PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.5,))
    agreement = small_agreement().model_copy(update={"preprocessing": section})
    train = load_site_data(spec_of(form, 3, value=9), None, agreement, convert_channels=True).train
    for index in range(3):
        train[index]
    assert ("train: sample 1" if form == "lazy" else "train: 1 of 3 ") in caplog.text
