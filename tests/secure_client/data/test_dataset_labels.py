"""Labels of data sets of a site's own, numbered by their class names, at a site and in a simulation alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

from secure_client.errors import DataError
from tests.support.refusals import refuses
from tests.support.site_data import Named, digit_folders

ANIMALS = ("bird", "cat", "dog")
DIGITS = tuple("0123456789")
SOME = (0, 1, 2, 3, 4, 5, 7, 8, 9)
"""Folders of a site that lacks the digit 6."""


class Wrapper(Dataset[Any]):
    """A wrapper that keeps the data set under a name of its own choice."""

    def __init__(
        self, inside: Any, attribute: str = "dataset", relabel: Callable[[int], int] = int, data: Any = None
    ) -> None:
        self.relabel = relabel
        setattr(self, attribute, inside)
        self._read: Callable[[], Any] = lambda: inside if data is None else data

    def __len__(self) -> int:
        return len(self._read())

    def __getitem__(self, index: int) -> Any:
        image, label = self._read()[index]
        return image, self.relabel(label)


class First(Wrapper):
    """A wrapper that has the first samples only, and nothing that says so."""

    def __len__(self) -> int:
        return 2


class Chosen(Wrapper):
    """A wrapper that has some samples, whose indices it keeps under a name of its own choice."""

    def __init__(
        self, inside: Any, places: Sequence[int], attribute: str = "idx", relabel: Callable[[int], int] = int
    ) -> None:
        super().__init__(inside, "base", relabel)
        self._places = list(places)
        setattr(self, attribute, self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(self._places[index])


def folder(root: Path) -> ImageFolder:
    return ImageFolder(str(root), transform=lambda image: ToTensor()(image.convert("L")))


def test_dataset_image_folder_without_a_class_has_the_agreed_numbers(
    tmp_path: Path, read: Callable[..., list[int]]
) -> None:
    whole = folder(digit_folders(tmp_path, SOME))
    assert read(whole, classes=DIGITS) == list(SOME)
    assert read(Subset(whole, [8, 0, 6]), classes=DIGITS) == [9, 0, 7]
    assert read(whole, Subset(whole, [6]), classes=DIGITS, part="test") == [7]
    halves = random_split(whole, [4, 5], generator=torch.Generator().manual_seed(0))
    for half in halves:
        assert read(half, classes=DIGITS) == [SOME[index] for index in half.indices]


@pytest.mark.parametrize("attribute", ["dataset", "subset", "base", "_data"])
def test_wrapper_without_names_follows_the_data_set_inside(
    attribute: str, read: Callable[..., list[int]]
) -> None:
    named = Named([0, 1], classes=["dog", "bird"])
    assert read(Wrapper(named, attribute)) == [2, 0]
    assert read(Wrapper(Wrapper(Subset(named, [1, 0])), attribute)) == [0, 2]
    assert read(Wrapper({"train": named}, attribute, data=named)) == [2, 0]
    assert read(First(Named([1, 0, 1], classes=["bird", "cat"]), attribute)) == [1, 0]
    with refuses("First"):
        read(First(Named([1, 0, 1], classes=["dog", "bird"]), attribute))


@pytest.mark.parametrize("attribute", ["idx", "idxs", "indices", "_indices"])
def test_wrapper_with_indices_follows_them(attribute: str, read: Callable[..., list[int]]) -> None:
    for targets in ({}, {"targets": [0, 1, 1]}):
        inside = Named([0, 1, 1], classes=["dog", "bird"], **targets)
        assert read(Chosen(inside, [2, 0, 2, 1, 0], attribute)) == [0, 2, 0, 0, 2]


AGREED_NUMBERS: list[Callable[[Any], Any]] = [
    lambda inside: Wrapper(inside, "base", lambda label: (2, 0)[label]),
    lambda inside: Wrapper(Wrapper(inside), relabel=lambda label: (2, 0)[label]),
    lambda inside: Subset(Wrapper(inside, "base", lambda label: (2, 0)[label]), [1, 0]),
    lambda inside: Chosen(inside, [1, 0, 1], "idx", lambda label: (2, 0)[label]),
    lambda inside: Chosen(inside, [1], "rows", lambda label: (2, 0)[label]),
    lambda inside: Chosen(inside, [0, 0, 1, 0], "rows", lambda label: (2, 0)[label]),
    lambda inside: Named([2, 0], pretrained_on=inside),
    lambda inside: Named([2, 0, 1], pretrained_on=inside),
    lambda inside: Named([2, 0, 1], by_task={"other": inside}),
]


@pytest.mark.parametrize("targets", [{}, {"targets": [0, 1]}], ids=str)
@pytest.mark.parametrize("wrapped", AGREED_NUMBERS)
def test_wrapper_with_agreed_numbers_is_refused_by_the_names_inside(
    wrapped: Callable[[Any], Any], targets: dict[str, Any], read: Callable[..., list[int]]
) -> None:
    wrapper = wrapped(Named([0, 1], classes=["dog", "bird"], **targets))
    with refuses("`classes`"):
        read(wrapper)
    inner: Any = wrapper.dataset if isinstance(wrapper, Subset) else wrapper
    inner.classes = ANIMALS
    assert set(read(wrapper)) <= {0, 1, 2}


def test_wrapper_in_doubt_is_read_if_names_change_no_number(read: Callable[..., list[int]]) -> None:
    inside = Named([0, 1], classes=["bird", "cat"])
    assert read(Chosen(inside, [1, 0, 1], "rows")) == [1, 0, 1]
    assert read(Chosen(inside, [1, 0, 1], "rows", lambda label: label + 1)) == [2, 1, 2]


@pytest.mark.parametrize(
    "indices",
    [[-1, 0], np.array([1, 0]), torch.tensor([1, 0]), [torch.tensor(1), np.int64(0)], [True, False]],
    ids=str,
)
def test_subset_indices_of_any_type_are_followed(indices: Any, read: Callable[..., list[int]]) -> None:
    joined: ConcatDataset[Any] = ConcatDataset(
        [Named([0], classes=["dog", "bird"]), Named([0], classes=["cat", "dog"])]
    )
    assert read(Subset(joined, indices)) == [1, 2]


def test_wrapper_with_other_attributes_finds_the_data_set_inside(read: Callable[..., list[int]]) -> None:
    class Duck:
        classes = ("dog", "bird")

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return torch.zeros(1, 8, 8), (0, 1)[index]

    assert read(Subset(Duck(), [1, 0])) == [0, 2]  # type: ignore[arg-type]  # torch takes any such object
    inside = Named([0, 1], classes=["dog", "bird"])
    for dataset in ("x-rays", np.zeros(2), [1, 2], {"classes": ["bird"]}, None):
        wrapper = Wrapper(inside, "base")
        wrapper.dataset = dataset  # type: ignore[attr-defined]
        assert read(wrapper) == [2, 0]
    wrapper.parent = wrapper  # type: ignore[attr-defined]
    assert read(wrapper) == [2, 0]


def test_concatenation_part_that_has_one_name_twice_is_refused(read: Callable[..., list[int]]) -> None:
    first, twice = Named([0], classes=["dog"]), Named([0, 1], classes=["dog", "dog"])
    joined: ConcatDataset[Any] = ConcatDataset([first, twice])
    with refuses("'dog'"):
        read(joined)


def test_wrapper_with_names_decides(read: Callable[..., list[int]]) -> None:
    inside = Named([0, 1], classes=["dog", "bird"], targets=[0, 1])
    wrapper = Wrapper(inside, relabel=lambda label: 1 - label)
    wrapper.classes = ["bird", "dog"]  # type: ignore[attr-defined]
    assert read(wrapper) == [2, 0]


def test_concatenation_parts_that_number_differently_are_read_by_their_own_names(
    read: Callable[..., list[int]],
) -> None:
    north, south = Named([0, 1], classes=["dog", "bird"]), Named([0, 1], classes=["cat", "dog"])
    joined: ConcatDataset[Any] = ConcatDataset([north, Subset(south, [1, 0])])
    assert read(joined) == [2, 0, 2, 1]
    assert read(Subset(joined, [3, 0])) == [1, 2]
    assert read(Wrapper(Subset(joined, [3, 0]))) == [1, 2]
    assert read(north, south, part="test") == [1, 2]


class Two(Named):
    """A wrapper with two data sets inside, of which nothing says how they are joined."""


def test_wrapper_of_several_data_sets_follows_them_if_they_number_alike(
    read: Callable[..., list[int]],
) -> None:
    first, other = Named([0, 1], classes=["dog", "bird"]), Named([0, 1], classes=["bird", "dog"])
    alike = Named([1, 0], classes=["bird", "cat"])
    assert read(Two([0, 1, 0], a=alike, b=Named([1], classes=["bird", "cat"]))) == [0, 1, 0]
    assert read(Two([0, 1, 0], parts=[alike, alike])) == [0, 1, 0]
    joined: ConcatDataset[Any] = ConcatDataset([first, Named([1], classes=["dog", "bird"])])
    assert read(Wrapper(joined)) == [2, 0, 0]
    for doubtful in (Two([0, 1, 0], parts=[first, first]), First(joined)):
        with refuses(type(doubtful).__name__):
            read(doubtful)
    for inside in ({"a": first, "b": other}, {"parts": (first, other)}, {"a": first, "b": Named([0])}):
        with refuses("Two"):
            read(Two([0, 1, 0], **inside))
    assert read(Two([0, 1, 0], a=first, b=other, classes=["dog", "bird"])) == [2, 0, 2]


def test_subset_or_concatenation_with_other_names_than_inside_is_refused(
    read: Callable[..., list[int]],
) -> None:
    north, south = Named([0, 1], classes=["dog", "bird"]), Named([0, 1], classes=["bird", "dog"])
    whole: Any
    for whole in (ConcatDataset([north, south]), Subset(south, [1, 0])):
        whole.classes = north.classes  # type: ignore[attr-defined]  # by Named's attributes
        with refuses(type(whole).__name__):
            read(whole)
    whole = Subset(north, [1, 0])
    whole.classes = ["dog", "bird"]
    assert read(whole) == [0, 2]


@pytest.mark.parametrize(
    "attributes",
    [
        {"classes": ["dog", "bird"]},
        {"classes": ("dog", "bird")},
        {"classes": np.array(["dog", "bird"])},
        {"classes": np.array(["dog", "bird"], dtype=object)},
        {"classes": {0: "dog", 1: "bird"}},
        {"classes": {"dog": 0, "bird": 1}},
        {"class_names": ["dog", "bird"]},
        {"idx_to_class": {0: "dog", 1: "bird"}},
        {"class_to_idx": {"bird": 1, "dog": 0}},
        {"class_to_idx": {"bird": np.int64(1), "dog": np.int64(0)}},
        {"classes": ["dog", "bird"], "class_to_idx": {"bird": 1, "dog": 0}},
        {"classes": 2, "class_to_idx": {"bird": 1, "dog": 0}},
        {"classes": [("hound", "dog"), ("bird", "fowl")]},
        {"class_to_idx": {"hound": 0, "dog": 0, "bird": 1, "fowl": 1}},
        {"classes": ["dog", "bird", "cat"]},
        {"classes": ["dog", "bird", "fish"], "targets": [0, 1, 1]},
        {"classes": ["dog", "bird", "fish"], "targets": torch.tensor([0, 1, 1])},
        {"classes": ["dog", "bird", "fish"], "samples": [("a", 0), ("b", 1), ("c", 1)]},
        {"classes": ["dog", "bird", "fish"]},
        {"classes": ["dog", "bird"], "targets": ["dog", "bird", "bird"]},
        {"classes": ["dog", "bird"], "target_transform": None},
        {"categories": ["dog", "bird"]},
        {"label_names": ["dog", "bird"]},
        {"target_names": np.array(["dog", "bird"])},
        {"id2label": {"0": "dog", "1": "bird"}},
        {"label2id": {"dog": 0, "bird": 1}},
        {"features": {"image": None, "label": SimpleNamespace(names=["dog", "bird"])}},
        {"features": {"labels": SimpleNamespace(names=["dog", "bird"])}},
        {"info": {"task": "multi-class", "label": {"0": "dog", "1": "bird"}}},
    ],
    ids=str,
)
def test_dataset_names_in_any_attribute_decide(
    attributes: dict[str, Any], read: Callable[..., list[int]]
) -> None:
    assert read(Named([0, 1, 1], **attributes)) == [2, 0, 0]


@pytest.mark.parametrize(
    "attributes",
    [
        *(
            {},
            {"classes": None},
            {"classes": 3},
            {"classes": []},
            {"classes": ["dog"], "target_transform": int},
        ),
        {"features": torch.zeros(3), "info": "x-rays", "categories": 3},
        {"features": {"label": None}, "info": {"label": None}},
        {"samples": [("/x/bird/1", 0), ("/x/dog/2", 2), ("/x/cat/3", 1)]},
        {"samples": [("/dog/bird/1", 0), ("/dog/dog/2", 2), ("/dog/cat/3", 1)]},
        {"samples": [("/x/dog/1", 0), ("/x/dog/2", 2), ("/x/dog/3", 1)]},
        {"samples": [("/x/dog/1", 0), ("/x/cat/2", 2), ("/x/other/3", 1)]},
        {"samples": [("/x/dog/1", 0), ("/x/cat/2", 2), ("/x/bird/3", 1)], "target_transform": int},
    ],
    ids=str,
)
def test_dataset_without_names_has_the_agreed_numbers(
    attributes: dict[str, Any], read: Callable[..., list[int]]
) -> None:
    assert read(Named([0, 2, 1], **attributes)) == [0, 2, 1]


@pytest.mark.parametrize("images", ["", "images/"])
def test_dataset_file_in_the_folder_of_another_class_is_refused(
    images: str, read: Callable[..., list[int]]
) -> None:
    files = [f"/x/dog/{images}1", f"/x/cat/{images}2", f"/x/bird/{images}3"]
    own = Named([0, 1, 2], samples=list(zip(files, range(3), strict=True)))
    with refuses("'bird'"):
        read(own)
    with pytest.raises(DataError):
        read(Wrapper(own))
    by_number = {"0": "dog", "1": "cat", "2": "bird"}
    assert read(own, class_names=by_number) == [2, 1, 0]
    with pytest.raises(DataError):
        read(own, class_names={"0": "bird", "1": "cat", "2": "dog"})
    own.classes = ["dog", "cat", "bird"]  # type: ignore[attr-defined]  # by Named's attributes
    assert read(own) == [2, 1, 0]


def test_dataset_numbers_as_names_are_names(read: Callable[..., list[int]]) -> None:
    assert read(Named([6, 0, 8], classes=list(SOME)), classes=DIGITS) == [7, 0, 9]
    by_name = {name: label for label, name in enumerate(SOME)}
    assert read(Named([6, 0, 8], class_to_idx=by_name), classes=DIGITS) == [7, 0, 9]


def test_dataset_labels_from_1_are_read_by_class_to_idx(read: Callable[..., list[int]]) -> None:
    assert read(Named([3, 1], class_to_idx={"bird": 1, "cat": 2, "dog": 3})) == [2, 0]
    assert read(Named([3, 1], classes=["none", "bird", "cat", "dog"], targets=[3, 1])) == [2, 0]


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"classes": ["dog", "brid"]}, "'bird'"),
        ({"classes": ["dog", "brid"], "targets": [0, 1, 1]}, "'bird'"),
        ({"classes": ["dog", "Bird"], "targets": [0, 1, 1]}, "'bird'"),
        ({"classes": ["dog", "bird "], "targets": [0, 1, 1]}, "'bird'"),
        ({"classes": ["dog", "fish"], "targets": [0, 1, 1]}, "'fish'"),
        ({"classes": ["fish", "brid"]}, "'brid'"),
        ({"classes": ["dog"]}, "sample 1"),
        ({"classes": ["dog", "bird"], "class_to_idx": {"dog": 1, "bird": 0}}, "class_to_idx"),
        ({"classes": ["dog", "bird"], "class_names": ["bird", "dog"]}, "class_names"),
        ({"classes": ["dog", "dog"]}, "'dog'"),
        ({"classes": [("dog", "cat"), "bird"]}, "'cat'"),
        ({"classes": {"dog"}}, "classes"),
        ({"classes": "dog, bird"}, "classes"),
        ({"classes": Enum("Animals", "dog bird")}, "classes"),
        ({"classes": [0.5, 1.5]}, "classes"),
        ({"classes": [None, "dog"]}, "classes"),
        ({"classes": ["dog", "bird"], "targets": [1, 0, 0]}, "sample 0"),
        (
            {"classes": ["dog", "bird"], "samples": [("/x/dog/1", 0), ("/x/dog/2", 1), ("/x/bird/3", 1)]},
            "/x/dog",
        ),
    ],
    ids=str,
)
def test_dataset_names_that_match_in_part_or_contradict_are_refused(
    attributes: dict[str, Any], named: str, read: Callable[..., list[int]]
) -> None:
    with refuses(named):
        read(Named([0, 1, 1], **attributes))


def test_wrapper_that_changes_labels_is_refused_if_targets_show_it(
    read: Callable[..., list[int]],
) -> None:
    inside = Named([0, 1], classes=["dog", "bird"], targets=[0, 1])
    with refuses("sample 0"):
        read(Wrapper(inside, relabel=lambda label: 1 - label))


def test_dataset_property_that_raises_is_named(read: Callable[..., list[int]]) -> None:
    class Broken(Named):
        @property
        def classes(self) -> list[str]:
            raise ValueError("no file")

    with refuses("classes"):
        read(Broken([0, 1]))


def test_concatenation_parts_without_names_need_the_agreed_numbers(
    read: Callable[..., list[int]],
) -> None:
    plain = TensorDataset(torch.zeros(2, 1, 8, 8), torch.tensor([1, 2]))
    alike, other = Named([0, 1], classes=["bird", "cat"]), Named([0, 1], classes=["dog", "bird"])
    assert read(ConcatDataset([alike, plain])) == [0, 1, 1, 2]
    assert read(alike, (np.zeros((1, 8, 8), np.uint8), [2]), part="test") == [2]
    joined: ConcatDataset[Any] = ConcatDataset([other, plain])
    for train, test in ((joined, None), (other, plain), (plain, other)):
        with refuses("classes"):
            read(train, test)
    both: ConcatDataset[Any] = ConcatDataset([alike, Named([0, 1], classes=["cat", "bird"]), plain])
    with refuses("classes"):
        read(both)


def test_dataset_renumbering_is_logged(
    read: Callable[..., list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="protoseal.site"):
        read(Named([0, 1], classes=["dog", "bird"]))
    assert any("'dog'" in record.getMessage() for record in caplog.records)
