"""Class names that a site maps to agreed classes, and names that are nearly agreed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from secure_client.data import load_site_data
from secure_client.errors import DataError
from tests.support.refusals import refuses
from tests.support.site_data import Named, digit_folders
from tests.support.small import small_agreement

ANIMALS = ("bird", "cat", "dog")


def test_class_names_in_two_unicode_forms_are_shown_in_both(read: Callable[..., list[int]]) -> None:
    with refuses("\\u0301", "\\xe9"):
        read(Named([0, 1], classes=["dog", "e\u0301tat"], targets=[0, 1]), classes=("dog", "\u00e9tat"))


WRITTEN = [f"{number} - {name}" for number, name in enumerate(("zero", "one", "two"))]
"""Names as torchvision's MNIST writes them."""


CONFIRMED = dict(zip(WRITTEN, "012", strict=True))


def test_class_names_of_which_none_matches_wait_for_confirmation(read: Callable[..., list[int]]) -> None:
    mnist = Named([2, 0, 1], classes=WRITTEN, targets=[2, 0, 1])
    with pytest.raises(DataError) as refused:
        read(mnist, classes=tuple("012"))
    for name, agreed in CONFIRMED.items():
        assert f'"{name}" = "{agreed}"' in str(refused.value)
    assert read(mnist, classes=tuple("012"), class_names=CONFIRMED) == [2, 0, 1]
    assert read(mnist, classes=tuple("210"), class_names=CONFIRMED) == [0, 2, 1]
    with refuses("2 - two"):
        read(mnist, classes=tuple("012"), class_names={WRITTEN[0]: "0", WRITTEN[1]: "1"})


def test_class_names_pairs_follow_the_spelling_before_the_order(read: Callable[..., list[int]]) -> None:
    with pytest.raises(DataError) as refused:
        read(Named([0, 1], classes=["Dog", "BIRD", "Katze"]))
    for pair in ('"Dog" = "dog"', '"BIRD" = "bird"'):
        assert pair not in str(refused.value)  # since Katze would be dog, too, nothing is proposed
    with refuses('{ "Dog" = "dog", "Katze" = "cat", "BIRD" = "bird" }'):
        read(Named([0, 1], classes=["Dog", "Katze", "BIRD"]))


def test_class_names_key_near_a_class_of_the_data_is_refused(
    read: Callable[..., list[int]],
) -> None:
    with refuses("'Cat'"):
        read(Named([0, 1], classes=["cat", "bird"]), class_names={"Cat": "dog"})


@pytest.mark.parametrize(
    ("attributes", "class_names", "key"),
    [
        ({"classes": ["cat", "bird"]}, {"fish": "bird"}, "'fish'"),
        ({"classes": ["cat", "bird"]}, {"0": "bird"}, "'0'"),
        ({}, {"Bird": "bird", "Cat": "cat"}, "'Bird'"),
        ({}, {"0": "dog", "one": "cat"}, "'one'"),
        ({}, {"0": "dog", "1 ": "cat"}, "'1 '"),
    ],
    ids=str,
)
def test_class_names_key_of_no_class_is_refused(
    attributes: dict[str, Any], class_names: dict[str, str], key: str, read: Callable[..., list[int]]
) -> None:
    with refuses(key):
        read(Named([0, 1], **attributes), class_names=class_names)


def test_class_names_key_of_a_class_that_the_site_lacks_is_accepted(read: Callable[..., list[int]]) -> None:
    of_all_sites = {"hound": "dog", "parrot": "bird"}
    assert read(Named([0, 0], classes=["hound"]), class_names=of_all_sites) == [2, 2]


def test_class_names_unused_keys_are_accepted_for_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    named = Named([0], classes=["hound"])
    monkeypatch.setitem(sys.modules, "own_labels", SimpleNamespace(build=lambda data_root: (named, None)))
    agreed = small_agreement().model_copy(update={"classes": ANIMALS})
    names = {"hound": "dog", "poodle": "dog"}
    data = load_site_data("own_labels:build", None, agreed, class_names=names, allow_unused_names=True)
    assert data.train[0][1] == 2


@pytest.mark.parametrize(
    ("names", "agreed", "line"),
    [
        (["eight", "five", "nine"], ("5", "8", "9"), None),
        (["benign", "malignant"], ("Malignant tumour", "Benign tumour"), '"benign" = "Benign tumour"'),
        (["benign", "malign"], ("maligne", "benigne"), None),
        (["zero", "one", "two"], ("0", "1", "2"), '"one" = "1"'),
        (["no tumour", "tumour present"], ("Tumour", "Healthy"), None),
    ],
    ids=str,
)
def test_class_names_in_alphabetical_order_are_not_paired_by_number(
    names: list[str], agreed: tuple[str, ...], line: str | None, read: Callable[..., list[int]]
) -> None:
    with pytest.raises(DataError) as refused:
        read(Named([0, 1], classes=names), classes=agreed)
    assert repr(names[0]) in str(refused.value) or line is not None
    assert ("class_names = {" in str(refused.value)) == (line is not None)
    assert (line or "") in str(refused.value)


def test_class_names_rename_and_join_classes(read: Callable[..., list[int]]) -> None:
    pets = Named([0, 1, 2, 3], classes=["hound", "poodle", "cat", "bird"])
    assert read(pets, class_names={"hound": "dog", "poodle": "dog"}) == [2, 2, 1, 0]
    assert read(pets, class_names={"hound": "dog", "poodle": "cat", "cat": "bird"}) == [2, 1, 0, 0]


def test_class_names_map_labels_without_names_by_number(read: Callable[..., list[int]]) -> None:
    from_one = {"1": "bird", "2": "cat", "3": "dog"}
    images = TensorDataset(torch.zeros(3, 1, 8, 8), torch.tensor([3, 1, 2]))
    assert read(images, class_names=from_one) == [2, 0, 1]
    assert read((np.zeros((3, 8, 8), np.uint8), [3, 1, 2]), class_names=from_one) == [2, 0, 1]
    with refuses("label 3"):
        read(images)


def test_class_names_rename_folders_and_files(tmp_path: Path) -> None:
    agreed = small_agreement()
    digit_folders(tmp_path / "images", (1, 2))
    np.savez(
        tmp_path / "a.npz",
        x_train=np.zeros((3, 8, 8), np.uint8),
        y_train=[0, 1, 1],
        class_names=["two", "one"],
    )
    moved = load_site_data(f"folder:{tmp_path / 'images'}", None, agreed, class_names={"1": "0"})
    assert [moved.train[index][1] for index in range(2)] == [0, 2]
    words = {"one": "1", "two": "2"}
    renamed = load_site_data(f"npz:{tmp_path / 'a.npz'}", None, agreed, class_names=words)
    assert [renamed.train[index][1] for index in range(3)] == [2, 1, 1]
    with refuses("'two'"):
        load_site_data(f"npz:{tmp_path / 'a.npz'}", None, agreed)
