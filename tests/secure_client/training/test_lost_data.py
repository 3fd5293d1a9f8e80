"""Data that can no longer be read: retries, what a site checks with noise, and data sets that change their mind."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

from secure_client.errors import DataError, DataLost
from secure_client.training import lost_data
from secure_client.training.batches import Batch
from secure_client.training.lost_data import PrivateSource, RetryingSource
from tests.support.refusals import refuses
from tests.support.site_data import preprocessed


class Time:
    """Clock that a sleep moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(lost_data, "time", clock)
    return clock


class Interrupted:
    """Source that cannot be read for the first ``failures`` reads of each batch."""

    def __init__(self, failures: float) -> None:
        self.failures, self._left = failures, failures

    def __len__(self) -> int:
        return 2

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        for _ in groups:
            if self._left > 0:
                self._left -= 1
                raise DataError("scans:build: sample 1: raised OSError ('/mnt/scans/1.png')")
            self._left = self.failures
            yield torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)


def test_retrying_source_batch_is_read_again_after_an_interruption(
    clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    batches = list(RetryingSource(Interrupted(failures=5), "clinic-a").batches([[0], [1]]))
    assert len(batches) == 2
    assert 0.0 < clock.now < lost_data.RETRY_SECONDS
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2  # one for each interruption, not for each try
    assert "/mnt/scans/1.png" in warnings[0].message


def test_retrying_source_data_are_lost_after_a_minute(clock: Time) -> None:
    with pytest.raises(DataLost) as caught:
        next(RetryingSource(Interrupted(failures=float("inf")), "clinic-a").batches([[0]]))
    assert "/mnt/scans/1.png" in str(caught.value)
    assert lost_data.RETRY_SECONDS <= clock.now <= lost_data.RETRY_SECONDS + 2.0


def private(root: Path) -> PrivateSource:
    return PrivateSource(Interrupted(failures=0), "clinic-a", root)


def test_private_source_unreadable_record_is_noted_at_once(tmp_path: Path, clock: Time) -> None:
    source = PrivateSource(Interrupted(failures=1), "clinic-a", tmp_path)
    with pytest.raises(DataError) as caught:
        next(source.batches([[0]]))
    assert not isinstance(caught.value, DataLost)
    assert source.unreadable
    assert clock.now == 0.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "mount"
    folder.mkdir()
    (folder / "1.png").touch()
    (folder / "2.png").touch()
    return folder


def test_private_source_folder_that_has_lost_records_is_open(root: Path, clock: Time) -> None:
    opened = private(root)
    (root / "1.png").unlink()
    opened.check_root()
    assert clock.now == 0.0


@pytest.mark.parametrize("emptied", [False, True], ids=["removed", "unmounted"])
def test_private_source_folder_that_does_not_open_is_lost(emptied: bool, root: Path, clock: Time) -> None:
    opened = private(root)
    shutil.rmtree(root)
    if emptied:
        root.mkdir()
    with pytest.raises(DataLost) as caught:
        opened.check_root()
    assert str(root) in str(caught.value)
    assert clock.now >= lost_data.RETRY_SECONDS


def test_private_source_archive_that_is_gone_is_lost(tmp_path: Path, clock: Time) -> None:
    archive = tmp_path / "scans.h5"
    archive.write_bytes(b"scans")
    opened = private(archive)
    opened.check_root()
    archive.unlink()
    with pytest.raises(DataLost) as caught:
        opened.check_root()
    assert str(archive) in str(caught.value)


def test_private_source_folder_that_never_opened_is_not_checked(tmp_path: Path) -> None:
    private(tmp_path / "not there").check_root()


class Changing(Dataset[tuple[Tensor, int]]):
    """Two samples of three features, of which each read may return something else."""

    def __init__(self) -> None:
        self.count, self.label, self.width = 2, 0, 3

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index >= self.count:
            raise IndexError(index)
        return torch.zeros(self.width), self.label


@pytest.mark.parametrize(("attribute", "value"), [("label", 1), ("width", 4), ("count", 1)])
def test_preprocessed_dataset_sample_that_changes_is_refused(attribute: str, value: int) -> None:
    changing = Changing()
    dataset = preprocessed(changing, None, 3, where="scans:build: train")
    assert [dataset[index][1] for index in range(len(dataset))] == [0, 0]
    setattr(changing, attribute, value)
    assert len(dataset) == 2
    with refuses("scans:build: train: sample 1:"):
        dataset[1]


def test_preprocessed_dataset_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    for number in range(3):
        Image.new("L", (8, 8)).save(tmp_path / "0" / f"{number}.png")
    folder = ImageFolder(str(tmp_path), transform=ToTensor())
    dataset = preprocessed(Subset(folder, [2, 1]), None, 3, where="scans:build: train")
    damaged = tmp_path / "0" / "1.png"
    damaged.write_bytes(damaged.read_bytes()[:40])
    with refuses("scans:build: train: sample 1 ", damaged):
        dataset[1]


def test_preprocessed_dataset_samples_gained_later_are_not_read() -> None:
    changing = Changing()
    dataset = preprocessed(changing, None, 3, where="scans:build: train")
    changing.count = 5
    assert len(dataset) == 2
