"""The models' contract, the common initial model, and a site's own model by module:function."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from secure_client.errors import ModelError, PluginError
from secure_client.models.prototype_model import PrototypeModel, SplitModel, build_model, check_model
from tests.support.refusals import refuses

OWN_MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, dim):
        super().__init__()
        self.body = nn.Linear(6, dim)
        self.classifier = nn.Linear(dim, num_classes)
    def features(self, x):
        return torch.relu(self.body(x))

def whole(num_classes, dim):
    return Net(num_classes, dim)

def halves(*, num_classes, dim):
    return nn.Linear(6, dim), nn.Linear(dim, num_classes)

def headless(num_classes, dim):
    return nn.Linear(6, dim)

def nothing(num_classes, dim):
    return None

def other_arguments(classes):
    return None

def broken(num_classes, dim):
    raise RuntimeError("the weights file is missing")

text = "not a function"
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module into the current working directory, and leave nothing of its import behind."""
    name = "own_models_of_a_site"
    (tmp_path / f"{name}.py").write_text(OWN_MODELS)
    (tmp_path / "own_models_that_fail.py").write_text("import a_module_nobody_has")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def build(spec: str, **changes: Any) -> PrototypeModel:
    settings: dict[str, Any] = {"classes": 5, "dim": 16, "channels": 1, "image_size": 8, "seed": 3}
    return build_model(spec, **(settings | changes))


@pytest.mark.parametrize(
    ("spec", "dim", "channels", "size"),
    [
        ("small-cnn", 16, 1, 8),
        ("small-cnn", 64, 1, 28),
        ("small-cnn", 32, 3, 30),
        ("fedpc-cnn", 192, 3, 32),
        ("fedpc-cnn", 192, 1, 28),
        ("fedpc-cnn", 24, 1, 16),
        ("fedpc-cnn", 24, 2, 19),
        ("tanh-cnn", 32, 1, 28),
        ("tanh-cnn", 24, 3, 16),
        ("tanh-cnn", 24, 2, 19),
        ("scatternet", 32, 1, 28),
        ("scatternet", 24, 3, 11),
    ],
)
def test_build_model_built_in_keeps_the_contract(spec: str, dim: int, channels: int, size: int) -> None:
    model = build(spec, dim=dim, channels=channels, image_size=size).eval()
    inputs = torch.randn(3, channels, size, size)
    check_model(model, inputs, classes=5, dim=dim)
    with torch.no_grad():
        features = model.features(inputs)
        assert features.shape == (3, dim)
        assert (features >= 0).all(), "an embedding is ReLU'd"
        assert features.std() > 0
        torch.testing.assert_close(model(inputs), model.classifier(features))


@pytest.mark.parametrize(
    ("channels", "size", "flat", "extractor"), [(3, 32, 1600, 796_032), (1, 28, 1024, 571_648)]
)
def test_build_model_fedpc_network_is_the_papers(channels: int, size: int, flat: int, extractor: int) -> None:
    """Two convolutions of 5×5 with 64 channels, then flat → 384 → 192 → K, counted by hand."""
    model = build("fedpc-cnn", dim=192, channels=channels, image_size=size, classes=10)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in layers] == [
        (64, channels, 5, 5),
        (64, 64, 5, 5),
        (384, flat),
        (192, 384),
        (10, 192),
    ]
    classifier = sum(value.numel() for value in model.classifier.parameters())
    assert classifier == 1930
    assert sum(value.numel() for value in model.parameters()) - classifier == extractor


def test_build_model_leaves_the_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    build("small-cnn")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("function", ["whole", "halves"])
def test_build_model_sites_own_model_is_adopted(own_models: str, function: str) -> None:
    model = build(f"{own_models}:{function}")
    check_model(model, torch.randn(2, 6), classes=5, dim=16)
    again = build(f"{own_models}:{function}")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(
    ("function", "error", "named"),
    [
        ("headless", ModelError, "Linear"),
        ("nothing", ModelError, "None"),
        ("other_arguments", PluginError, "num_classes=, dim="),
        ("missing", PluginError, "'missing'"),
        ("text", PluginError, "'text'"),
        ("broken", PluginError, "the weights file is missing"),
    ],
)
def test_build_model_bad_model_names_the_function(
    own_models: str, function: str, error: type[Exception], named: str
) -> None:
    with refuses(own_models, named, error=error):
        build(f"{own_models}:{function}")


@pytest.mark.parametrize(
    ("spec", "error", "named"),
    [
        ("resnet19", ModelError, "mobilenet-v2"),
        ("model:", PluginError, "module:function"),
        ("a b:build", PluginError, "module:function"),
        ("no_such_module:build", PluginError, "no_such_module.py"),
        ("own_models_that_fail:build", PluginError, "'a_module_nobody_has'"),
    ],
)
def test_build_model_bad_spec_is_refused(
    own_models: str, spec: str, error: type[Exception], named: str
) -> None:
    with refuses(spec.partition(":")[0], named, error=error):
        build(spec)


def test_load_function_file_here_replaces_no_installed_module(own_models: str, tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("def rgb_to_hsv(num_classes, dim): raise SystemExit")
    with refuses("num_classes=", error=PluginError):
        build("colorsys:rgb_to_hsv")


def test_check_model_other_inputs_are_refused_and_the_mode_stays() -> None:
    model = build("small-cnn").train()
    with refuses("(2, 3, 8, 8)", error=ModelError):
        check_model(model, torch.zeros(2, 3, 8, 8), classes=5, dim=16)
    assert model.training


def test_check_model_does_not_touch_batch_norm() -> None:
    model = SplitModel(nn.BatchNorm1d(4), nn.Linear(4, 5))
    check_model(model, torch.randn(8, 4), classes=5, dim=4)
    assert int(model.state_dict()["backbone.num_batches_tracked"]) == 0
