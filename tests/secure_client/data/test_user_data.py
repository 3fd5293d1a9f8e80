import importlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from agreement import Agreement, PreprocessingSection
from secure_client.data import load_site_data
from secure_client.data.sources import load_sources
from secure_client.errors import DataError, PluginError
from tests.support.refusals import refuses

AGREED = PreprocessingSection(image_size=4, channels=1, mean=(0.5,), std=(0.5,))


def agreement(preprocessing: PreprocessingSection | None = AGREED) -> Agreement:
    training = {} if preprocessing else {"training": {"model": "mine:build"}}
    content = {
        "federation": "f",
        "run": "r",
        "method": "pfpl",
        "protection": "plain",
        "rounds": 1,
        "dim": 8,
        "classes": ["a", "b"],
        "preprocessing": preprocessing and preprocessing.model_dump(mode="json"),
    }
    return Agreement.model_validate_json(json.dumps(content | training))


@pytest.fixture
def own(write_module: Callable[[str], str]) -> str:
    return write_module("""
        from pathlib import Path
        import numpy as np, torch
        from torch.utils.data import Dataset, IterableDataset, TensorDataset

        class Counting(Dataset):
            reads = 0
            def __init__(self, n=3, label=1): self.n, self.label = n, label
            def __len__(self): return self.n
            def __getitem__(self, index):
                Counting.reads += 1
                return torch.full((3, 8, 8), index / 10), self.label

        class Stream(IterableDataset):
            def __iter__(self): return iter(())

        class CountedStream(Stream):
            def __len__(self): return 3

        grey = np.zeros((2, 8, 8), np.uint8)
        def arrays(data_root): return (grey, np.array([0, 1])), (grey[:1], np.array([1]))
        def frozen(data_root):
            array = np.full((2, 3), 0.5, np.float32)
            array.setflags(write=False)
            return (array, [0, 1]), None
        rows = np.full((2, 3), 0.5, np.float32)
        def reused(data_root): return (rows, [0, 1]), None
        def lazy(data_root): return Counting(), Counting(1)
        def bytes_(data_root):
            images = torch.full((2, 1, 4, 4), 255, dtype=torch.uint8)
            return TensorDataset(images, torch.tensor([0, 1])), None
        def rooted(data_root): return (np.full((1, 2), float(len(str(data_root)))), np.array([0])), None
        def outside(data_root): return Counting(label=2), None
        def empty(data_root): return Counting(0), None
        def single(data_root): return Counting()
        def stream(data_root): return Stream(), None
        def counted_stream(data_root): return CountedStream(), None
        def tensors(data_root): return (torch.zeros(2, 1, 4, 4), torch.tensor([0, 1])), None
        def pictures(data_root): return [(None, 0)], None
        class Uneven(Counting):
            def __getitem__(self, index): return torch.zeros(index + 1), 0
        def uneven(data_root): return Uneven(), None
        def nan(data_root): return TensorDataset(torch.tensor([[[[float("nan")]]]]), torch.tensor([0])), None
        def unlabelled(data_root): return TensorDataset(torch.zeros(1, 1, 4, 4)), None
        def flat(data_root): return TensorDataset(torch.zeros(1, 4, 4), torch.tensor([0])), None
        def wide(data_root): return TensorDataset(torch.full((1, 1, 4, 4), 2.0), torch.tensor([0])), None
        def no_arguments(): return None
    """)


def test_user_data_arrays_are_preprocessed(own: str) -> None:
    data = load_site_data(f"{own}:arrays", None, agreement())
    inputs, labels = next(iter(DataLoader(data.train, batch_size=2)))
    assert inputs.shape == (2, 1, 4, 4)
    assert (inputs == -1.0).all()
    assert labels.tolist() == [0, 1]
    assert data.test is not None


def test_user_data_dataset_is_preprocessed_as_it_is_used(own: str) -> None:
    data = load_site_data(f"{own}:lazy", None, agreement(), convert_channels=True)
    counting = importlib.import_module(own).Counting
    assert counting.reads == 0
    assert not set().union(*data.sides)
    inputs, label = data.train[2]
    assert len(set().union(*data.sides)) == 1
    assert counting.reads == 1
    torch.testing.assert_close(inputs, torch.full((1, 4, 4), (0.2 - 0.5) / 0.5))
    assert label == 1
    assert len(DataLoader(data.train, batch_size=2)) == 2


def test_user_data_byte_images_are_scaled(own: str) -> None:
    data = load_site_data(f"{own}:bytes_", None, agreement())
    assert (data.train[0][0] == 1.0).all()
    assert data.test is None


def test_user_data_read_only_arrays_and_features_are_read(own: str) -> None:
    data = load_site_data(f"{own}:frozen", None, agreement(None))
    assert data.train[0][0].tolist() == [0.5, 0.5, 0.5]


def test_user_data_array_changed_later_stays_as_returned(own: str) -> None:
    data = load_site_data(f"{own}:reused", None, agreement(None))
    importlib.import_module(own).rows[:] = 7.0
    assert data.train[0][0].tolist() == [0.5, 0.5, 0.5]


def test_user_data_function_gets_the_data_root(own: str) -> None:
    data = load_site_data(f"{own}:rooted", Path("/abc"), agreement(None))
    assert data.train[0][0].tolist() == [4.0, 4.0]


def test_user_data_dataset_is_read_once_in_a_simulation(own: str) -> None:
    data = load_sources(f"{own}:lazy", data_root=None, agreed=AGREED, classes=("a", "b"))
    assert data.train.inputs.shape == (3, 4, 4, 1)
    np.testing.assert_allclose(data.train.inputs[:, 0, 0, 0], [0.0, 0.1, 0.2], atol=1e-6)
    assert importlib.import_module(own).Counting.reads == 4


def test_user_data_dataset_of_several_shapes_is_refused_in_a_simulation(own: str) -> None:
    with refuses(f"{own}:uneven: sample 1: "):
        load_sources(f"{own}:uneven", data_root=None, agreed=None, classes=None)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        ("empty", "train: "),
        ("single", "Counting"),
        ("stream", "train: is Stream"),
        ("counted_stream", "train: is CountedStream"),
        ("tensors", "train: "),
        ("pictures", "train: is list"),
    ],
)
def test_user_data_invalid_return_value_is_refused(own: str, function: str, named: str) -> None:
    with refuses(f"{own}:{function}", named):
        load_site_data(f"{own}:{function}", None, agreement())


@pytest.mark.parametrize("function", ["outside", "nan", "unlabelled", "flat", "wide"])
def test_user_data_bad_sample_is_named_when_it_is_read(own: str, function: str) -> None:
    data = load_site_data(f"{own}:{function}", None, agreement())
    with refuses(f"{own}:{function}: train: sample 0: "):
        data.train[0]


def test_user_data_function_that_cannot_be_called_is_a_plugin_error(own: str) -> None:
    with refuses("data_root=", error=PluginError):
        load_site_data(f"{own}:no_arguments", None, agreement())
    with refuses("'absent'", error=PluginError):
        load_site_data(f"{own}:absent", None, agreement())


@pytest.mark.parametrize("spec", ["nps:data.npz", "nps:data", "foldr:images", "Folder:x-rays", "csv:a.csv"])
def test_user_data_mistyped_form_of_file_is_refused(spec: str) -> None:
    with pytest.raises(DataError) as refused:
        load_site_data(spec, None, agreement())
    assert repr(spec.partition(":")[0]) in str(refused.value)
    assert "known" in str(refused.value) or repr("npz" if spec[0] == "n" else "folder") in str(refused.value)


def test_user_data_function_in_a_file_of_the_site_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=np.zeros((2, 4, 4), np.uint8), y_train=[0, 1])
    data = load_site_data(f"npz:{tmp_path}/a.npz", None, agreement())
    assert (data.train[1][0] == -1.0).all()
    assert data.test is None
