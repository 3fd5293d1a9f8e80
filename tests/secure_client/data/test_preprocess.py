import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agreement import PreprocessingSection
from secure_client.data import preprocess
from secure_client.data.preprocess import describe_resizing, fit_images, to_tensor
from secure_client.errors import DataError


def agreed(size: int, channels: int, mean: float = 0.5, std: float = 0.25) -> PreprocessingSection:
    return PreprocessingSection(
        image_size=size, channels=channels, mean=(mean,) * channels, std=(std,) * channels
    )


def random_images(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(1).integers(0, 256, size=shape, dtype=np.uint8)


def test_normalises_and_moves_the_channels_first() -> None:
    images = random_images(2, 3, 3, 3)
    section = PreprocessingSection(image_size=3, channels=3, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    tensor = to_tensor(images, section, where="x")
    assert tensor.dtype == torch.float32
    for n, row, column, channel in np.ndindex(2, 3, 3, 3):
        expected = (images[n, row, column, channel] / 255 - section.mean[channel]) / section.std[channel]
        assert float(tensor[n, channel, row, column]) == pytest.approx(expected, abs=1e-5)


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


def test_enlarges_bilinearly_and_makes_square() -> None:
    image = random_images(1, 3, 5, 1)
    fitted = fit_images(image, agreed(8, 1), where="x")
    assert fitted.dtype == np.uint8
    np.testing.assert_allclose(fitted[0, ..., 0], bilinear(image[0, ..., 0].astype(np.float64), 8), atol=0.51)


def test_shrinking_averages_instead_of_skipping_pixels() -> None:
    stripes = np.zeros((1, 16, 16, 1), dtype=np.uint8)
    stripes[:, :, ::2] = 200
    assert np.ptp(fit_images(stripes, agreed(4, 1), where="x").astype(int)) < 30


def test_grey_repeats_and_colour_becomes_luma() -> None:
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
def test_fitting_twice_is_fitting_once_and_stays_in_range(
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


def test_an_image_depends_on_no_other() -> None:
    """The budget is counted for features that depend on their record alone, to the last bit."""
    dim = 0.9 * np.random.default_rng(0).random((200, 24, 24, 1), dtype=np.float32)
    dim[:, :12] = 0.9
    bright = np.ones((1, 24, 24, 1), np.float32)
    alone = fit_images(dim, agreed(20, 1), where="x")
    assert np.array_equal(fit_images(np.concatenate([dim, bright]), agreed(20, 1), where="x")[:200], alone)


def test_sides_that_differ_from_the_agreed_are_told() -> None:
    assert describe_resizing({(8, 8)}, agreed(8, 1)) == describe_resizing({(3, 5)}, None) == ""
    assert describe_resizing({(16, 16)}, agreed(8, 1)).count("WARNING") == 0
    assert describe_resizing({(16, 20), (12, 12)}, agreed(8, 1)).count("WARNING") == 1
    both = describe_resizing({(3, 5), (20, 10)}, agreed(8, 1))
    assert both.count("WARNING") == 2
    assert all(sides in both for sides in ("3×5", "20×10", "8×8"))


def test_other_channels_are_refused() -> None:
    with pytest.raises(DataError, match=r"scan\.npz"):
        fit_images(random_images(1, 4, 4, 4), agreed(4, 3), where="scan.npz")


@pytest.mark.parametrize("value", [-0.01, 1.01, 255.0])
def test_float_images_outside_the_unit_range_are_refused(value: float) -> None:
    images = np.full((1, 4, 4, 1), 0.5, dtype=np.float32)
    to_tensor(images, agreed(4, 1), where="x")
    images[0, 1, 2] = value
    with pytest.raises(DataError, match="x: "):
        to_tensor(images, agreed(4, 1), where="x")


@pytest.mark.parametrize(
    ("lowest", "may_be_black"), [(-1.0, True), (-0.9, True), (-0.02, False), (-1e-9, False)]
)
def test_minus_one_is_called_black_only_where_values_come_near_it(lowest: float, may_be_black: bool) -> None:
    images = np.full((1, 4, 4, 1), 0.5, dtype=np.float32)
    images[0, 1, 2] = lowest
    with pytest.raises(DataError) as refused:
        to_tensor(images, agreed(4, 1), where="x")
    assert ("(x + 1)" in str(refused.value)) == may_be_black


def test_features_pass_only_without_agreed_images() -> None:
    rows = np.array([[1.5, -20.0]], dtype=np.float32)
    assert to_tensor(rows, None, where="x").tolist() == [[1.5, -20.0]]
    with pytest.raises(DataError, match="x: "):
        to_tensor(rows, agreed(4, 1), where="x")


def test_without_agreement_images_are_only_scaled() -> None:
    images = random_images(2, 4, 5, 3)
    expected = torch.from_numpy(images.astype(np.float32) / 255).permute(0, 3, 1, 2)
    torch.testing.assert_close(to_tensor(images, None, where="x"), expected)


def test_more_images_than_are_resized_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_images(8, 5, 5, 3)
    whole = fit_images(images, agreed(4, 1), where="x")
    monkeypatch.setattr(preprocess, "CHUNK", 3)
    assert (fit_images(images, agreed(4, 1), where="x") == whole).all()
