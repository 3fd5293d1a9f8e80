"""Image files: every form on the list is read pixel by pixel, everything else is refused by the file's name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from scripts.image_forms import GREY, READ, REFUSED, ImageForm, content, image_forms, png
from secure_client.data.image_files import read_image
from secure_client.errors import DataError
from tests.support.refusals import refuses


@pytest.mark.parametrize("form", READ, ids=lambda form: form.name)
def test_read_image_form_on_the_list_is_read_exactly(form: ImageForm, tmp_path: Path) -> None:
    pixels = read_image(form.path(tmp_path))
    assert form.pixels is not None
    assert pixels.dtype == form.pixels.dtype
    np.testing.assert_array_equal(pixels, form.pixels)


@pytest.mark.parametrize("form", REFUSED, ids=lambda form: form.name)
def test_read_image_other_form_is_refused_by_name(form: ImageForm, tmp_path: Path) -> None:
    path = form.path(tmp_path)
    with refuses(path):
        read_image(path)


def test_image_forms_table_has_a_line_for_each_form() -> None:
    lines = [line for line in image_forms().splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + len(READ) + len(REFUSED)


@pytest.mark.parametrize("form", [form for form in READ if form.file != "jpg"], ids=lambda form: form.name)
def test_read_image_file_cut_in_the_middle_is_refused(form: ImageForm, tmp_path: Path) -> None:
    path = form.path(tmp_path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 5])
    with refuses(path):
        read_image(path)


def test_read_image_png_with_an_altered_pixel_is_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "1.png", bytearray(png(GREY, depth=8, colour=0))
    data[60] ^= 1
    content(bytes(data))(path)
    with pytest.raises(DataError):
        read_image(path)


def test_read_image_cut_file_is_refused_with_a_lenient_pillow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    for name in ("1.bmp", "1.jpg", "1.tif"):
        Image.fromarray(noise).save(tmp_path / name)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-900])
        with pytest.raises(DataError):
            read_image(tmp_path / name)


def test_read_image_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop.png").symlink_to("loop.png")
    for name in ("missing.png", "loop.png"):
        with refuses(name):
            read_image(tmp_path / name)


def test_read_image_more_pixels_than_pillow_opens_safely_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(GREY).save(tmp_path / "1.png")
    for most in (GREY.size - 1, GREY.size // 2 - 1):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with refuses("1.png"):
            read_image(tmp_path / "1.png")
