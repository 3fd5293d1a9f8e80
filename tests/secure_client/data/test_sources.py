from pathlib import Path

import numpy as np
import pytest

from agreement import PreprocessingSection
from agreement.toml_loading import data_spec
from secure_client.data.samples import StoredData, make_samples
from secure_client.data.sources import (
    join_sources,
    list_classes,
    load_sources,
    read_sources,
    suggest_preprocessing,
)
from tests.support.refusals import refuses
from tests.support.tables import AGE, CLASSES, save, section, written


def source(
    name: str,
    shape: tuple[int, ...],
    labels: tuple[int, ...] = (0, 1),
    classes: tuple[str, ...] | None = None,
    *,
    test: bool = False,
    floats: bool = False,
) -> StoredData:
    values = np.random.default_rng(len(name)).integers(0, 256, size=(len(labels), *shape))
    inputs = values / 255 if floats or len(shape) == 1 else values.astype(np.uint8)
    part = make_samples(inputs, labels, where=name)
    return StoredData(name, part, part if test else None, classes, (name,))


def test_join_sources_of_several_shapes_have_the_agreed_one() -> None:
    sources = [source("mnist", (28, 28, 1), test=True), source("colour", (32, 30, 3), test=True)]
    agreed = suggest_preprocessing(sources)
    assert agreed is not None
    assert (agreed.image_size, agreed.channels, agreed.mean, agreed.std) == (32, 3, (0.5,) * 3, (0.5,) * 3)
    data = join_sources(sources, agreed, None)
    assert data.train.inputs.shape == (4, 32, 32, 3)
    assert data.train.domains.tolist() == [0, 0, 1, 1]
    assert data.domains == ("mnist", "colour")
    assert data.test is not None
    assert len(data.test) == 4


def test_join_sources_source_of_several_domains_keeps_them() -> None:
    part = make_samples(np.zeros((2, 4, 4), np.uint8), [0, 1], [0, 1], where="x")
    pacs = StoredData("pacs", part, None, None, ("photo", "sketch"))
    data = join_sources([source("mnist", (4, 4, 1)), pacs], None, None)
    assert data.train.domains.tolist() == [0, 0, 1, 2]
    assert data.domains == ("mnist", "photo", "sketch")


def test_join_sources_bytes_and_floats_become_floats() -> None:
    data = join_sources([source("a", (4, 4, 1)), source("bb", (4, 4, 1), floats=True)], None, None)
    assert data.train.inputs.dtype == np.float32
    assert data.train.inputs.max() <= 1.0
    np.testing.assert_allclose(data.train.inputs[:2] * 255, source("a", (4, 4, 1)).train.inputs, atol=1e-4)


def test_join_sources_classes_are_matched_by_name() -> None:
    named = source("named", (2, 2, 1), labels=(0, 1, 1), classes=("dog", "cat"))
    assert join_sources([named], None, ("bird", "cat", "dog")).train.labels.tolist() == [2, 1, 1]
    numbered = source("numbered", (2, 2, 1), labels=(2, 0))
    assert join_sources([numbered], None, ("bird", "cat", "dog")).train.labels.tolist() == [2, 0]
    with refuses("named:", "'cat'", "'cats'"):
        join_sources([named], None, ("dog", "cats"))


def test_list_classes_without_an_agreement_follow_from_the_data() -> None:
    assert list_classes([source("a", (2,), labels=(0, 3))]) == ("0", "1", "2", "3")
    dog = source("a", (2,), labels=(0, 0), classes=("dog",))
    cat = source("b", (2,), labels=(0, 1), classes=("cat", "dog"))
    assert list_classes([dog, cat]) == ("dog", "cat")
    assert join_sources([dog, cat], None, None).train.labels.tolist() == [0, 0, 1, 0]


def test_join_sources_without_a_common_class_need_a_mapping() -> None:
    digits = source("digits", (2,), classes=("0", "1"))
    words = source("words", (2,), classes=("zero", "one"))
    with refuses("digits"):
        join_sources([digits, words], None, None)
    data = join_sources([digits, words], None, None, class_names={"zero": "0", "one": "1"})
    assert (data.classes, data.train.labels.tolist()) == (("0", "1"), [0, 1, 0, 1])
    assert join_sources([digits, words], None, ("one", "zero", "0", "1")).train.labels.tolist() == [
        2,
        3,
        1,
        0,
    ]


def test_join_sources_label_outside_the_classes_is_refused() -> None:
    with refuses("a:", "label 3"):
        join_sources([source("a", (2,), labels=(0, 3))], None, ("x", "y"))
    with refuses("a:", "label 3"):
        join_sources([source("a", (2,), labels=(0, 3), classes=("x",))], None, ("x", "y", "z", "w"))


def test_join_sources_other_shape_or_parts_are_refused() -> None:
    with refuses("b: ", "(5, 4, 1)", "(4, 4, 1)"):
        join_sources([source("a", (4, 4, 1)), source("b", (5, 4, 1))], None, None)
    with refuses("b: "):
        join_sources([source("a", (4, 4, 1), test=True), source("b", (4, 4, 1))], None, None)


@pytest.mark.parametrize("images", ["train", "test"])
def test_join_sources_images_beside_rows_are_refused(images: str) -> None:
    both = {"train": source("a", (64,)).train, "test": source("a", (64,)).train}
    both[images] = source("a", (8, 8, 1), floats=True).train
    mixed = StoredData("a", both["train"], both["test"], None, ("a",))
    agreed = suggest_preprocessing([source("a", (8, 8, 1))])
    for inputs in (agreed, None):
        with refuses("a: the test samples", "(64,)", "(8, 8, 1)"):
            join_sources([mixed], inputs, ("x", "y"))


def test_suggest_preprocessing_features_need_none() -> None:
    assert suggest_preprocessing([source("a", (7,))]) is None


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("minst", "'mnist'"),
        ("zzz", "svhn"),
        ("digits+", "''"),
        ("sites:/data", "npz:/data/NAME.npz"),
        ("npz:/nowhere.npz", "/nowhere.npz"),
        ("mnist", "--data-root"),
    ],
)
def test_read_sources_unknown_name_is_refused(spec: str, named: str) -> None:
    with refuses(named):
        read_sources(spec, data_root=None, agreed=None)


def test_load_sources_digits_and_file_are_joined_by_plus(tmp_path: Path) -> None:
    np.savez(tmp_path / "clinic.npz", x_train=np.zeros((2, 12, 12), np.uint8), y_train=[3, 9])
    agreed = PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.5,))
    data = load_sources(
        f"digits+npz:{tmp_path}/clinic.npz", data_root=None, agreed=agreed, classes=None, seed=4
    )
    assert data.train.inputs.shape == (1799, 8, 8, 1)
    assert data.domains[-1] == "clinic"
    assert data.train.domains.max() == 5


def test_read_sources_path_under_the_data_root_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "clinic.npz", x_train=np.zeros((2, 3), np.float32), y_train=[0, 1])
    spec = data_spec("npz:DATA_ROOT/clinic.npz+npz:other.npz", Path("/elsewhere"))
    assert spec == "npz:DATA_ROOT/clinic.npz+npz:/elsewhere/other.npz"
    (here,) = read_sources(spec.split("+", maxsplit=1)[0], data_root=tmp_path, agreed=None)
    assert here.train.inputs.shape == (2, 3)
    with refuses("DATA_ROOT/clinic.npz"):
        read_sources("npz:DATA_ROOT/clinic.npz", data_root=None, agreed=None)


@pytest.mark.parametrize(
    ("second", "test"),
    [("north.csv", None), ("south.csv", "held-out.csv"), ("south.csv", "south.csv")],
)
def test_load_sources_file_that_is_read_twice_is_refused(
    tmp_path: Path, second: str, test: str | None
) -> None:
    for number, name in enumerate(["north.csv", "south.csv", "held-out.csv"]):
        save(tmp_path, f"age,label\n{number},ill\n", name)
    form = written(**({} if test is None else {"test": str(tmp_path / test)}))
    spec = f"table:{tmp_path}/north.csv+table:{tmp_path}/{second}"
    with refuses(str(tmp_path / (test or second))):
        load_sources(spec, data_root=None, agreed=section(AGE), classes=CLASSES, written=form)


def test_load_sources_subject_in_two_parts_is_refused(tmp_path: Path) -> None:
    for name, train, test in [("north", 1, 2), ("south", 3, 1)]:
        save(tmp_path, f"id,age,label\n{train},5,ill\n", f"{name}.csv")
        save(tmp_path, f"id,age,label\n{test},6,ill\n", f"{name}-test.csv")
        save(tmp_path, f'[table]\nsubject = "id"\ntest = "{name}-test.csv"\n', f"{name}.toml")
    spec = f"table:{tmp_path}/north.csv+table:{tmp_path}/south.csv"
    with refuses(tmp_path / "south.csv"):
        load_sources(spec, data_root=None, agreed=section(AGE), classes=CLASSES)
