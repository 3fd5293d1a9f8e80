"""A site's images have the agreed channels, or the site's file says that they may be converted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agreement import PreprocessingSection
from secure_client.data import load_site_data
from secure_client.errors import DataError
from tests.support.small import small_agreement

OWN = """
import numpy as np
import torch
from torch.utils.data import TensorDataset

CHANNELS = {channels}
def arrays(data_root): return (np.zeros((3, 8, 8, CHANNELS), np.uint8), np.arange(3)), None
def lazy(data_root): return TensorDataset(torch.zeros(3, CHANNELS, 8, 8), torch.arange(3)), None
"""

COLOURED = """
import numpy as np
import torch
from torch.utils.data import TensorDataset

images = np.zeros((3, 8, 8, 3), np.uint8)
images[1, ..., 0] = 9
def arrays(data_root): return (images, np.arange(3)), None
def lazy(data_root): return TensorDataset(torch.from_numpy(images).permute(0, 3, 1, 2), torch.arange(3)), None
"""


def spec_of(form: str, channels: int, folder: Path) -> str:
    """Write three images, one of each class, in the named form."""
    match form:
        case "npz":
            images = np.zeros((3, 8, 8, channels), np.uint8)
            np.savez(folder / "data.npz", x_train=images, y_train=np.arange(3))
            return f"npz:{folder / 'data.npz'}"
        case "folder":
            for name in small_agreement().classes:
                (folder / "train" / name).mkdir(parents=True)
                shape = (8, 8) if channels == 1 else (8, 8, 3)
                Image.fromarray(np.zeros(shape, np.uint8)).save(folder / "train" / name / "1.png")
            return f"folder:{folder}"
        case _:
            name = f"images_{form}_{channels}"
            (folder / f"{name}.py").write_text(OWN.format(channels=channels), encoding="utf-8")
            return f"{name}:{form}"


@pytest.mark.parametrize(("given", "agreed"), [(3, 1), (1, 3)])
@pytest.mark.parametrize("form", ["npz", "folder", "arrays", "lazy"])
def test_other_channels_are_refused_unless_they_may_be_converted(
    form: str, given: int, agreed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    some = (0.5,) * agreed
    section = PreprocessingSection(image_size=8, channels=agreed, mean=some, std=some)
    agreement = small_agreement().model_copy(update={"preprocessing": section})
    spec = spec_of(form, given, tmp_path)
    with pytest.raises(DataError, match="convert_channels"):
        load_site_data(spec, None, agreement).train[0]
    converted = load_site_data(spec, None, agreement, convert_channels=True)
    assert converted.train[0][0].shape == (agreed, 8, 8)


def test_colours_of_the_training_part_are_told_beside_a_grey_test_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    section = PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.5,))
    agreement = small_agreement().model_copy(update={"preprocessing": section})
    grey = np.zeros((3, 8, 8, 3), np.uint8)
    coloured = grey.copy()
    coloured[1, ..., 0] = 9
    path, labels = tmp_path / "data.npz", np.arange(3)
    np.savez(path, x_train=coloured, y_train=labels, x_test=grey, y_test=labels)
    with pytest.raises(DataError) as refused:
        load_site_data(f"npz:{path}", None, agreement)
    assert f"{path}: train: 1 of 3 images" in str(refused.value)
    load_site_data(f"npz:{path}", None, agreement, convert_channels=True)
    assert f"{path}: train: 1 of 3 images" in caplog.text


@pytest.mark.parametrize("form", ["folder", "arrays", "lazy"])
def test_lost_colours_are_logged_with_the_part(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    section = PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.5,))
    agreement = small_agreement().model_copy(update={"preprocessing": section})
    if form == "folder":
        spec = spec_of(form, 3, tmp_path)
        image = np.zeros((8, 8, 3), np.uint8)
        image[..., 0] = 9
        Image.fromarray(image).save(tmp_path / "train" / small_agreement().classes[1] / "1.png")
    else:
        name = f"coloured_{form}"
        (tmp_path / f"{name}.py").write_text(COLOURED, encoding="utf-8")
        spec = f"{name}:{form}"
    train = load_site_data(spec, None, agreement, convert_channels=True).train
    for index in range(3):
        train[index]
    told = "train: sample 1" if form == "lazy" else "train: 1 of 3 images"
    assert [record.getMessage() for record in caplog.records if told in record.getMessage()]
