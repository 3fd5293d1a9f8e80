"""Built-in networks: shapes, features without negative numbers, and gradients of single records by Opacus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from agreement import Norm
from secure_client.errors import ModelError
from secure_client.models.backbones import NETWORKS
from secure_client.models.photo_networks import BUILDERS, make_group_norm
from secure_client.models.prototype_model import (
    BACKBONES,
    SplitModel,
    build_model,
    check_model,
    hash_weights,
)
from secure_client.training.dp_sgd.model_support import check_suitable
from tests.support.marks import full_but
from tests.support.refusals import refuses

CLASSES, DIM = 5, 16
PUBLISHED = {
    "resnet18": (512, 11_689_512),
    "resnet34": (512, 21_797_672),
    "resnet50": (2048, 25_557_032),
    "resnet101": (2048, 44_549_160),
    "resnet152": (2048, 60_192_808),
    "googlenet": (1024, 6_624_904),
    "mobilenet-v2": (1280, 3_504_872),
}
"""Width and parameters, of 1000 classes, as torchvision's documentation gives them."""
NORMALISED = ("resnet10", *PUBLISHED)
BLOCKS = ("resnet10", "resnet50", "googlenet", "mobilenet-v2")
"""A network of each kind of block."""


def build(spec: str, **changes: Any) -> SplitModel:
    settings: dict[str, Any] = {"classes": CLASSES, "dim": DIM, "channels": 1, "image_size": 16, "seed": 3}
    model = build_model(spec, **(settings | changes))
    assert isinstance(model, SplitModel)
    return model


def images(count: int, channels: int = 1, side: int = 16) -> Tensor:
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(7))


def theirs(name: str) -> nn.Module:
    """Return torchvision's own network, with other initial weights and without its last layer."""
    settings = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    network: nn.Module = getattr(torchvision.models, name.replace("-", "_"))(**settings)
    setattr(network, "classifier" if name == "mobilenet-v2" else "fc", nn.Identity())
    return network


def test_backbones_are_all_networks_that_are_built() -> None:
    assert set(BACKBONES) == {*NETWORKS, *BUILDERS}


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("norm", Norm)
def test_backbone_outputs_have_the_agreed_dimension(name: str, norm: Norm) -> None:
    model = build(name, norm=norm)
    inputs = images(2)
    check_model(model, inputs, classes=CLASSES, dim=DIM)
    with torch.no_grad():  # in training mode: without any statistics MobileNet lets an image fade
        features = model.features(inputs)
    assert features.isfinite().all()
    assert (features >= 0).all(), "an embedding is ReLU'd"
    assert features.std() > 0
    assert not torch.allclose(features[0], features[1]), "it depends on the image"


def test_mlp_takes_rows_of_a_table_and_trains_by_dp_sgd() -> None:
    model = build("mlp", inputs=13)
    rows = torch.randn(6, 13, generator=torch.Generator().manual_seed(7))
    check_model(model, rows, classes=CLASSES, dim=DIM)
    check_suitable(model, rows)
    assert (model.features(rows) >= 0).all()
    assert hash_weights(model.state_dict()) == hash_weights(build("mlp", inputs=13).state_dict())
    with pytest.raises(ModelError):
        build("mlp")


@pytest.mark.parametrize("name", full_but((*BLOCKS, "resnet34"), "resnet10"))
@pytest.mark.parametrize(("side", "channels"), [(4, 1), (8, 2), (28, 1), (70, 3)])
def test_backbone_takes_small_and_large_images(name: str, side: int, channels: int) -> None:
    model = build(name, image_size=side, channels=channels)
    check_model(model, images(2, channels, side), classes=CLASSES, dim=DIM)


@pytest.mark.parametrize("name", full_but(PUBLISHED, "resnet18"))
def test_backbone_for_large_images_is_torchvisions(name: str) -> None:
    """All of it but the last layer, of 1000 classes, by the published size; and the same outputs to the last bit."""
    width, parameters = PUBLISHED[name]
    backbone = build(name, image_size=65, channels=3, dim=width).backbone.eval()
    assert sum(each.numel() for each in backbone.parameters()) == parameters - 1000 * (width + 1)
    if name == "resnet152":
        return
    reference = theirs(name).eval()
    reference.load_state_dict(backbone.state_dict())
    inputs = images(2, 3, 65)
    with torch.no_grad():
        assert torch.equal(backbone(inputs), reference(inputs))


@pytest.mark.parametrize(("side", "left"), [(32, 4), (64, 8), (96, 3)])
@pytest.mark.parametrize("name", full_but(BLOCKS, "resnet10"))
def test_backbone_shrinks_small_images_by_8_and_others_by_32(name: str, side: int, left: int) -> None:
    backbone = build(name, image_size=side, channels=3).backbone
    last = {"googlenet": "inception5b", "mobilenet-v2": "features"}.get(name, "layer4")
    seen: list[tuple[int, ...]] = []
    backbone.get_submodule(last).register_forward_hook(lambda _, __, given: seen.append(given.shape[2:]))
    with torch.no_grad():
        backbone.eval()(images(1, 3, side))
    assert seen == [(left, left)]


def test_resnet10_has_a_block_in_each_stage() -> None:
    """Sizes are worked out by hand: stem 576 + 128; blocks 73,984, 230,144, 919,040, 3,673,088; a layer 512 → 16 of
    8,208.
    """
    backbone = build("resnet10").backbone
    by_stage = [73_984, 230_144, 919_040, 3_673_088]
    assert sum(each.numel() for each in backbone.parameters()) == 576 + 128 + sum(by_stage) + 8_208
    for number, expected in enumerate(by_stage, start=1):
        stage = backbone.get_submodule(f"layer{number}")
        assert sum(each.numel() for each in stage.parameters()) == expected


@pytest.mark.parametrize(("name", "width"), [("resnet10", 512), ("googlenet", 1024), ("mobilenet-v2", 1280)])
def test_backbone_of_the_agreed_width_has_no_further_layer(name: str, width: int) -> None:
    assert not any(isinstance(each, nn.Linear) for each in build(name, dim=width).backbone.modules())
    assert any(isinstance(each, nn.Linear) for each in build(name, dim=width - 1).backbone.modules())


@pytest.mark.parametrize("name", BACKBONES)
def test_backbone_does_nothing_in_place_and_drops_nothing(name: str) -> None:
    backbone = build(name).backbone
    assert not any(getattr(each, "inplace", False) for each in backbone.modules())
    assert not any(isinstance(each, nn.Dropout) and each.p > 0 for each in backbone.modules())


@pytest.mark.parametrize(
    ("name", "least"),
    [("small-cnn", 4), ("fedpc-cnn", 16), ("tanh-cnn", 16), ("scatternet", 8), ("googlenet", 4)],
)
def test_backbone_too_small_an_image_is_refused(name: str, least: int) -> None:
    with refuses(name, f"{least}×{least}", f"{least - 1}×{least - 1}", error=ModelError):
        build(name, image_size=least - 1)
    build(name, image_size=least)


@pytest.mark.parametrize("name", ["small-cnn", "fedpc-cnn", "resnet10", "googlenet", "mobilenet-v2"])
def test_backbone_same_seed_gives_the_same_weights(name: str) -> None:
    first = build(name).state_dict()
    torch.rand(7)
    second, other = build(name).state_dict(), build(name, seed=4).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(
    ("channels", "groups"),
    [
        (16, 4),
        (24, 6),
        (32, 8),
        (48, 12),
        (64, 16),
        (96, 24),
        (128, 32),
        (144, 24),
        (208, 26),
        (512, 32),
        (1280, 32),
    ],
)
def test_group_norm_groups_of_some_widths(channels: int, groups: int) -> None:
    """Groups are worked out by hand: the largest divisor up to 32 that leaves 4 channels or more in a group."""
    assert make_group_norm(channels).num_groups == groups


def test_group_norm_groups_of_any_width() -> None:
    for channels in range(1, 2049):
        layer = make_group_norm(channels)  # torch refuses groups that do not divide
        assert layer.num_channels == channels
        assert 1 <= layer.num_groups <= 32
        assert layer.num_groups == 1 or channels // layer.num_groups >= 4


@pytest.mark.parametrize("name", BACKBONES)
def test_group_norm_keeps_nothing_of_a_batch(name: str) -> None:
    """Opacus's validator looks for the same: no batch normalisation, no statistics that samples share."""
    model = build(name, norm=Norm.GROUP)
    assert not any(isinstance(each, nn.modules.batchnorm._NormBase) for each in model.modules())
    assert model.state_dict().keys() == dict(model.named_parameters()).keys()
    constants = {known: each.clone() for known, each in model.named_buffers()}
    model.train()(images(3))
    assert all(torch.equal(each, constants[known]) for known, each in model.named_buffers())
    normalised = any(isinstance(each, nn.GroupNorm) for each in model.modules())
    assert normalised is (name in (*NORMALISED, "scatternet"))


def alone_and_together(norm: Norm, name: str) -> tuple[Tensor, Tensor]:
    """Return a sample's features in training mode alone and beside another; batch normalisation needs two."""
    model, pair = build(name, norm=norm).double(), images(2).double()
    alone = pair[:1] if norm is Norm.GROUP else pair[:1].repeat(2, 1, 1, 1)
    with torch.no_grad():
        return model.features(alone)[:1], model.features(pair)[:1]


@pytest.mark.parametrize("name", ["resnet10", "resnet50", "googlenet", "mobilenet-v2"])
def test_group_norm_sees_one_sample_at_a_time(name: str) -> None:
    alone, together = alone_and_together(Norm.GROUP, name)
    torch.testing.assert_close(alone, together)
    assert together.std() > 0
    alone, together = alone_and_together(Norm.BATCH, name)
    assert not torch.allclose(alone, together, rtol=0.01), "the check can fail"


@contextmanager
def watched(network: nn.Module) -> Iterator[None]:
    """Put hooks on every layer's gradient, as per-sample gradients need them."""
    handles = [
        each.register_full_backward_hook(lambda *_: None)
        for each in network.modules()
        if isinstance(each, nn.Conv2d | nn.Linear | nn.GroupNorm | nn.BatchNorm2d)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("name", full_but(BLOCKS, "resnet10"))
@pytest.mark.parametrize("norm", Norm)
def test_backbone_allows_hooks_on_gradients(name: str, norm: Norm) -> None:
    model = build(name, norm=norm)
    with watched(model):
        torch.autograd.backward(model(images(2).requires_grad_()).sum())
    assert all(each.grad is not None for each in model.parameters())


@pytest.mark.parametrize("name", ["resnet18", "googlenet"])
def test_torchvisions_own_network_refuses_hooks(name: str) -> None:
    network = theirs(name)
    with watched(network), pytest.raises(RuntimeError, match="inplace"):
        network(images(2, 3, 65).requires_grad_())
