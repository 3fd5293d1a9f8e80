"""Data sets of a site's own code that raise, or return something else: one line, which names the sample."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from secure_client.data import load_site_data
from secure_client.data.sources import load_sources as load_source
from secure_client.error_containment import run_or_fallback
from secure_client.errors import DataError, DataLost, PluginError, SiteError
from secure_client.user_code import call_function, load_function
from tests.secure_client.data.test_user_data import agreement
from tests.support.refusals import refuses
from tests.support.site_data import preprocessed

FEATURES = torch.zeros(3)
BAD = 2
"""The sample that is bad."""


class OneBad(Dataset[Any]):
    """Four samples, of which one is what ``make`` returns or raises."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> object:
        return self._make() if index == BAD else (FEATURES, 0)


def raising(error: BaseException) -> Callable[[], object]:
    def make() -> object:
        raise error

    return make


class Speechless(Exception):
    def __str__(self) -> str:
        raise SystemExit


class Ending:
    """A label that ends the program when it is read."""

    def __array__(self, *_: object, **__: object) -> object:
        raise SystemExit(3)


RAISED = [
    *(KeyError("labels"), IndexError(2), ValueError("two\nlines"), OSError(116, "Stale file handle")),
    *(StopIteration(), SystemExit(3), MemoryError(), AssertionError(), Speechless(), DataError("a reader's")),
    DataLost("a reader's"),
]
RETURNED = {
    "nothing": None,
    "a tensor": FEATURES,
    "a tuple of one": (FEATURES,),
    "a tuple of three": (FEATURES, 0, "patient-7"),
    "a table": {"image": FEATURES, "label": 0},
    "text": "ab",
    "no input": (None, 0),
    "a list": ([0.0, 0.0, 0.0], 0),
    "an array": (np.zeros(3, np.float32), 0),
    "a picture": (Image.new("L", (4, 4)), 0),
    "a sample without values": (torch.empty(3, device="meta"), 0),
    "a sparse sample": (FEATURES.to_sparse(), 0),
    "a complex sample": (FEATURES.to(torch.complex64), 0),
    "a number": (torch.tensor(1.0), 0),
    "a batch": (torch.zeros(2, 1, 4, 4), 0),
    "NaN": (torch.tensor([0.0, float("nan"), 0.0]), 0),
    "infinity": (torch.tensor([0.0, float("-inf"), 0.0]), 0),
    "a number beyond float32": (torch.tensor([0.0, 1e300, 0.0], dtype=torch.float64), 0),
    "no label": (FEATURES, None),
    "a label that raises": (FEATURES, Ending()),
    "a label beyond the classes": (FEATURES, 7),
}


def read(make: Callable[[], object]) -> SiteError:
    data = preprocessed(OneBad(make), None, 5, where="scans:build")
    assert data[BAD - 1][1] == 0
    with pytest.raises(SiteError) as raised:
        data[BAD]
    return raised.value


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_dataset_that_raises_is_a_data_error_of_one_line(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        given = read(raising(error))
    assert type(given) is DataError
    assert str(given).startswith(f"scans:build: sample {BAD}: ")
    assert "\n" not in str(given)
    assert given.__cause__ is error
    assert {record.levelno for record in caplog.records if record.exc_info} == {logging.DEBUG}
    if not isinstance(error, SiteError):
        assert type(error).__name__ in str(given)
        assert __file__ in str(given)


def test_dataset_ctrl_c_passes() -> None:
    data = preprocessed(OneBad(raising(KeyboardInterrupt())), None, 5, where="scans:build")
    with pytest.raises(KeyboardInterrupt):
        data[BAD]


@pytest.mark.parametrize("kind", RETURNED)
def test_dataset_that_returns_no_sample_is_a_data_error_of_one_line(kind: str) -> None:
    given = read(lambda: RETURNED[kind])
    assert type(given) is DataError
    assert str(given).startswith(f"scans:build: sample {BAD}: ")
    assert "\n" not in str(given)


def test_dataset_number_that_is_not_finite_is_named() -> None:
    image = torch.zeros(3, 5, 6)
    image[2, 1, 4] = float("nan")
    assert "feature 1" in str(read(lambda: RETURNED["NaN"]))
    assert "1, 4, 2" in str(read(lambda: (image, 0)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int16, torch.bool])
def test_dataset_tensor_of_another_real_type_is_read(dtype: torch.dtype) -> None:
    sample = preprocessed(OneBad(lambda: (torch.ones(3, dtype=dtype), 1)), None, 5, where="scans:build")
    assert sample[BAD][0].tolist() == [1.0, 1.0, 1.0]


MODULES = {
    "raises": "raise RuntimeError('no licence')",
    "ends": "import sys; sys.exit(2)",
    "does_not_parse": "def build(:",
    "lacks_a_module": "import a_module_that_nobody_has",
    "lacks_a_name": "from math import no_such_name",
}


@pytest.mark.parametrize("name", [*MODULES, "is_missing"])
def test_load_function_module_that_cannot_be_imported_is_a_plugin_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"own_code_{name}"
    if name in MODULES:
        (tmp_path / f"{module}.py").write_text(MODULES[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(PluginError) as raised:
        load_function(f"{module}:build", "dataset")
    assert f"{module}" in str(raised.value)
    assert "\n" not in str(raised.value)
    advised = str(tmp_path) in str(raised.value) and f"put {module}.py" in str(raised.value)
    assert advised == (name == "is_missing"), "only a module that is missing is to be put there"


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_call_function_that_raises_is_a_plugin_error_of_one_line(error: BaseException) -> None:
    with refuses("scans:build: ", error=PluginError):
        call_function(raising(error), "scans:build")


class Wrong(OneBad):
    """A data set whose length, or whose subjects, are what ``make`` returns or raises."""

    def __init__(self, length: Callable[[], Any], subjects: Callable[[], Any] = lambda: None) -> None:
        super().__init__(lambda: (FEATURES, 0))
        self._length, self._subjects = length, subjects

    def __len__(self) -> int:
        return self._length()  # type: ignore[no-any-return]  # as a site's own code may

    @property
    def subjects(self) -> Any:
        return self._subjects()


class Wrapping(OneBad):
    """A data set around another."""

    def __init__(self, dataset: object) -> None:
        super().__init__(lambda: (FEATURES, 0))
        self.dataset = dataset


class Named(OneBad):
    """A data set whose class names cannot be iterated."""

    class Names(list[str]):
        def __iter__(self) -> Any:
            raise OSError(5, "Input/output error")

    classes = Names("ab")


def raising_later(error: BaseException) -> Callable[[], Any]:
    """Return a length that is four at first, and raises at the third call."""
    lengths = iter([4, 4])

    def length() -> int:
        for number in lengths:
            return number
        raise error

    return length


LATER: dict[str, Callable[[], object]] = {
    "a length that raises later": lambda: (Wrong(raising_later(KeyError("age"))), None),
    "no memory for the length": lambda: (Wrong(raising_later(MemoryError())), None),
    "an end at a later length": lambda: (Wrong(raising_later(SystemExit(2))), None),
    "a lost length": lambda: (Wrong(raising_later(DataLost("a reader's"))), None),
    "a length inside that raises": lambda: (Wrapping(Wrong(raising(KeyError("age")))), None),
    "class names that raise": lambda: (Named(lambda: (FEATURES, 0)), None),
}
PARTS: dict[str, Callable[[], object]] = {
    **LATER,
    "a length that raises": lambda: (Wrong(raising(RuntimeError("two\nlines"))), None),
    "no length": lambda: (Wrong(lambda: None), None),
    "a negative length": lambda: (Wrong(lambda: -1), None),
    "a longer length": lambda: (Wrong(lambda: 1 << 80), None),
    "subjects that raise": lambda: (Wrong(lambda: 4, raising(KeyError("subjects"))), None),
    "a length of the test part": lambda: (OneBad(lambda: (FEATURES, 0)), Wrong(raising(OSError()))),
    "masked values": lambda: ((np.ma.masked_less(np.arange(12.0).reshape(4, 3), 2), [0, 1, 0, 1]), None),
    "a generator": lambda: (iter(()), None),
    "a class": lambda: (OneBad, None),
    "a table": lambda: {"train": 0, "test": 0},
    "nothing": lambda: None,
}
chosen: list[Callable[[], object]] = []


def load(data_root: Path | None) -> object:
    return chosen[-1]()


@pytest.mark.parametrize("kind", PARTS)
def test_data_function_that_returns_no_data_is_a_data_error_of_one_line(kind: str) -> None:
    chosen[:] = [PARTS[kind]]
    with refuses(f"{__name__}:load"):
        load_site_data(f"{__name__}:load", None, agreement(None))


@pytest.mark.parametrize("kind", LATER)
def test_read_sources_dataset_that_raises_later_is_a_data_error_of_one_line(kind: str) -> None:
    chosen[:] = [LATER[kind]]
    with pytest.raises(DataError) as raised:
        load_source(f"{__name__}:load", data_root=None, agreed=None, classes=("a", "b"))
    assert type(raised.value) is DataError
    assert str(raised.value).startswith(f"{__name__}:load: ")
    assert "\n" not in str(raised.value)


NEAR = {
    "own_scans.py:build": "own_scans:build",
    "own_scanz:build": "'own_scans'",
    "own_scans:biuld": "'build'",
    "inner/own_parts.py:build": "inner.own_parts:build",
    "inner.own_parts.py:build": "inner.own_parts:build",
    "./own_scans.py:build": "own_scans:build",
}


@pytest.mark.parametrize("spec", NEAR)
def test_load_function_near_name_is_suggested(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("own_scans.py", "inner/own_parts.py"):
        (tmp_path / name).write_text("def build(): pass")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(PluginError) as raised:
        load_function(spec, "dataset")
    assert NEAR[spec] in str(raised.value)
    assert ".py.py" not in str(raised.value)


@pytest.mark.parametrize(
    "error",
    [error for error in RAISED if not isinstance(error, DataLost)],
    ids=lambda error: type(error).__name__,
)
def test_run_or_fallback_error_is_logged_in_one_line(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert run_or_fallback(raising(error), lambda: "otherwise", "a computation") == "otherwise"
    (record,) = caplog.records
    assert type(error).__name__ in record.getMessage()
    assert "\n" not in record.getMessage()
    assert not record.exc_info
