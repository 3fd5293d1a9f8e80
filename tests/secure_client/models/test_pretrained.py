"""Pretrained weights from a file: what is loaded, what is refused, and runs that begin with them."""

import hashlib
import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torchvision.models.googlenet import GoogLeNet
from torchvision.models.mobilenetv2 import MobileNetV2
from torchvision.models.resnet import BasicBlock, ResNet

from agreement import Agreement, FeddbpSection, Method, Norm, TrainingSection
from protoseal.simulation.config import load_simulation
from protoseal.simulation.site_pool import SiteTraining
from protoseal.simulation.tensors.federation import run_control
from secure_client.checkpoints.learner_factory import build_agreed_model, build_initial_model, build_learner
from secure_client.errors import ModelError
from secure_client.models.pretrained import load_pretrained
from secure_client.models.prototype_model import PrototypeModel, build_model
from tests.support.refusals import refuses
from tests.support.simulations import run_federation
from tests.support.small import DIM, short_training, small_agreement, small_data

State = Mapping[str, Tensor]


def build(spec: str = "small-cnn", **changes: Any) -> PrototypeModel:
    settings: dict[str, Any] = {"classes": 5, "dim": 16, "channels": 3, "image_size": 8, "seed": 3}
    return build_model(spec, **(settings | changes))


def saved(path: Path, state: State, *, by_torch: bool = False) -> tuple[Path, str]:
    """Save the state, and return the file and its SHA-256."""
    if by_torch:
        torch.save(dict(state), path)
    else:
        safetensors.torch.save_file({name: each.contiguous() for name, each in state.items()}, path)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def trained(network: nn.Module) -> dict[str, Tensor]:
    """Return a state without two equal tensors: parameters as drawn, all statistics drawn too."""
    generator = torch.Generator().manual_seed(11)
    return {
        name: torch.rand(each.shape, generator=generator) + 0.5 if each.is_floating_point() else each + 9
        for name, each in network.state_dict().items()
    }


def resnet10() -> nn.Module:
    """Return torchvision's network for photographs of 1000 classes."""
    return ResNet(BasicBlock, [1, 1, 1, 1])  # type: ignore[no-any-return]


def photographs() -> dict[str, Tensor]:
    return trained(resnet10())


def small() -> dict[str, Tensor]:
    """Return the state that a run of this program saved of the built-in model of :func:`build`."""
    return trained(build())


@pytest.mark.parametrize("by_torch", [False, True])
def test_load_pretrained_saved_model_gives_its_extractor_alone(tmp_path: Path, by_torch: bool) -> None:
    model, state = build(classes=7), small()
    before = model.state_dict()["classifier.weight"].clone()
    loaded = load_pretrained(model, *saved(tmp_path / "weights", state, by_torch=by_torch))
    after = model.state_dict()
    backbone = {name for name in after if name.startswith("backbone.")}
    assert loaded == backbone
    assert len(backbone) == 6
    assert all(torch.equal(after[name], state[name]) for name in backbone)
    assert torch.equal(after["classifier.weight"], before)


def test_load_pretrained_names_of_the_backbone_are_read(tmp_path: Path) -> None:
    model, state = build(), small()
    bare = {name.removeprefix("backbone."): each for name, each in state.items() if "backbone" in name}
    load_pretrained(model, *saved(tmp_path / "weights", bare))
    assert torch.equal(model.state_dict()["backbone.7.weight"], state["backbone.7.weight"])


class Own(PrototypeModel):
    """A site's model with names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classifier = nn.Linear(4, 3), nn.Linear(3, 2)

    def features(self, inputs: Tensor) -> Tensor:
        return self.body(inputs).relu()  # type: ignore[no-any-return]


def test_load_pretrained_names_of_a_sites_own_model_are_read(tmp_path: Path) -> None:
    model, state = Own(), trained(Own())
    assert load_pretrained(model, *saved(tmp_path / "weights", state)) == {"body.weight", "body.bias"}
    assert torch.equal(model.body.weight, state["body.weight"])


def test_load_pretrained_small_images_resnet_keeps_its_stem_and_last_layer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, fresh, state = build("resnet10"), build("resnet10").state_dict(), photographs()
    with caplog.at_level(logging.WARNING, logger="protoseal.site"):
        loaded = load_pretrained(model, *saved(tmp_path / "weights", state, by_torch=True))
    after = model.state_dict()
    assert after.keys() - loaded == {
        *("backbone.conv1.weight", "backbone.fc.0.bias", "backbone.fc.0.weight"),
        *("classifier.bias", "classifier.weight"),
    }
    assert "backbone.conv1.weight" in caplog.text
    assert len(loaded) == len(state) - 3
    for name, value in after.items():
        source = state[name.removeprefix("backbone.")] if name in loaded else fresh[name]
        assert torch.equal(value, source), name


def test_load_pretrained_large_images_resnet_computes_as_torchvisions(tmp_path: Path) -> None:
    torch.manual_seed(5)
    network = resnet10().eval()
    model = build("resnet10", dim=512, image_size=96).eval()
    loaded = load_pretrained(model, *saved(tmp_path / "weights", network.state_dict()))
    assert "backbone.conv1.weight" in loaded
    network.fc = nn.Identity()
    inputs = torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        assert torch.equal(model.features(inputs), network(inputs))


def with_auxiliary_classifiers() -> nn.Module:
    return GoogLeNet(init_weights=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("spec", "network", "stem", "dropped"),
    [
        ("googlenet", with_auxiliary_classifiers, "backbone.conv1.conv.weight", ("fc.", "aux1.", "aux2.")),
        ("mobilenet-v2", MobileNetV2, "backbone.features.0.0.weight", ("classifier.",)),
    ],
)
def test_load_pretrained_other_networks_of_torchvision_are_read(
    tmp_path: Path, spec: str, network: Callable[[], nn.Module], stem: str, dropped: tuple[str, ...]
) -> None:
    model, state = build(spec, channels=1), trained(network())
    loaded = load_pretrained(model, *saved(tmp_path / "weights", state))
    after = model.state_dict()
    assert stem in after.keys() - loaded
    assert len(loaded) == len([name for name in state if not name.startswith(dropped)]) - 1
    for name in loaded:
        assert torch.equal(after[name], state[name.removeprefix("backbone.")]), name


def test_load_pretrained_half_precision_and_old_files_are_read(tmp_path: Path) -> None:
    state = {name: each.half() for name, each in photographs().items() if "num_batches" not in name}
    model = build("resnet10")
    load_pretrained(model, *saved(tmp_path / "weights", state))
    given = model.state_dict()["backbone.layer4.0.conv2.weight"]
    assert given.dtype == torch.float32
    assert torch.equal(given, state["layer4.0.conv2.weight"].float())


def test_load_pretrained_sites_begin_alike(tmp_path: Path) -> None:
    """Parts of the model that the file does not give follow from the seed."""
    path, sha256 = saved(tmp_path / "weights", photographs())
    first, second, other = build("resnet10"), build("resnet10"), build("resnet10", seed=4)
    for model in (first, second, other):
        load_pretrained(model, path, sha256)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def refused(model: PrototypeModel, path: Path, sha256: str, *named: str) -> None:
    """Check that the file is not loaded, and that nothing of the model changed."""
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with refuses(path, *named, error=ModelError):
        load_pretrained(model, path, sha256)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_load_pretrained_other_hash_is_refused(tmp_path: Path) -> None:
    path, sha256 = saved(tmp_path / "weights", small())
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    changed = hashlib.sha256(content).hexdigest()
    refused(build(), path, sha256, changed, sha256)
    load_pretrained(build(), path, changed)


def test_load_pretrained_missing_file_is_refused(tmp_path: Path) -> None:
    refused(build(), tmp_path / "none", "0" * 64)


def one(name: str, value: Tensor) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda state: state | {name: value}


def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace("backbone.3", "backbone.4"): value for name, value in state.items()}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (one("backbone.9.weight", torch.ones(2)), "has backbone.9.weight"),
        (lambda state: {k: v for k, v in state.items() if k != "backbone.3.bias"}, "lacks backbone.3.bias;"),
        (renamed, "has backbone.4.bias, backbone.4.weight"),
        (renamed, "lacks backbone.3.bias, backbone.3.weight"),
        (one("backbone.3.bias", torch.ones(63)), "backbone.3.bias is (63,)"),
        (one("backbone.0.weight", torch.ones(32, 1, 3, 3)), "backbone.0.weight is (32, 1, 3, 3)"),
        (one("backbone.3.bias", torch.ones(64, dtype=torch.int64)), "torch.int64"),
        (one("backbone.3.bias", torch.ones(64).index_fill(0, torch.tensor([5]), torch.nan)), "3.bias"),
        (one("backbone.3.bias", torch.full((64,), 1e300, dtype=torch.float64)), "3.bias"),
        (lambda _: {}, "1 more"),
    ],
)
def test_load_pretrained_weights_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], named: str
) -> None:
    refused(build(), *saved(tmp_path / "weights", change(small())), named)


@pytest.mark.parametrize(
    ("norm", "state", "named"),
    [
        (Norm.BATCH, lambda: trained(ResNet(BasicBlock, [2, 1, 1, 1])), "backbone.layer1.1.bn1.bias"),
        (Norm.BATCH, lambda: photographs() | {"layer1.0.conv1.weight": torch.ones(64, 64, 1, 1)}, "conv1"),
        (Norm.GROUP, photographs, "bn1.num_batches_tracked"),
    ],
    ids=["other depth", "other shape", "other norm"],
)
def test_load_pretrained_weights_of_another_resnet_are_refused_by_name(
    tmp_path: Path, norm: Norm, state: Callable[[], dict[str, Tensor]], named: str
) -> None:
    refused(build("resnet10", norm=norm), *saved(tmp_path / "weights", state()), named)


class Trap:
    """Pickle that runs code when it is read without care."""

    def __init__(self, sprung: Path) -> None:
        self._sprung = sprung

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self._sprung,)


def contents(tmp_path: Path) -> dict[str, object]:
    """Return tables that ``torch.save`` writes and that are no plain weights."""
    return {
        "code": {"backbone.0.weight": Trap(tmp_path / "sprung")},
        "module": build(),
        "nested": {"state_dict": small()},
        "list": list(small().values()),
        "numbered": dict(enumerate(small().values())),
        "sparse": small() | {"backbone.3.bias": torch.ones(64).to_sparse()},
    }


@pytest.mark.filterwarnings("ignore:Validating sparse tensor")  # torch's own, on how long it takes
@pytest.mark.parametrize("kind", ["code", "module", "nested", "list", "numbered", "sparse"])
def test_load_pretrained_anything_but_weights_is_refused_unrun(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "weights"
    torch.save(contents(tmp_path)[kind], path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    refused(build(), path, sha256, "state_dict()")
    assert not (tmp_path / "sprung").exists()


def test_load_pretrained_trap_springs_in_an_unsafe_reader(tmp_path: Path) -> None:
    held = io.BytesIO()
    torch.save(Trap(tmp_path / "sprung"), held)
    held.seek(0)
    torch.load(held, weights_only=False)
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("by_torch", [False, True])
@pytest.mark.parametrize("kept", [0, 4, 30, 5000])
def test_load_pretrained_damaged_file_is_refused(tmp_path: Path, by_torch: bool, kept: int) -> None:
    path, _ = saved(tmp_path / "weights", small(), by_torch=by_torch)
    path.write_bytes(path.read_bytes()[:kept])
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    refused(build(), path, sha256, "safetensors")


SMALL = "small-cnn"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Return weights of small-cnn for the small federation's scans, from another seed."""
    model = build_model(SMALL, classes=3, dim=DIM, channels=1, image_size=8, seed=99)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def agreement(weights: Path | None, **changes: Any) -> Agreement:
    sha256 = None if weights is None else hashlib.sha256(weights.read_bytes()).hexdigest()
    training = short_training(SMALL, pretrained_sha256=sha256, **changes.pop("training", {}))
    return Agreement(**(dict(small_agreement()) | {"training": training} | changes))


def first_layer(model: nn.Module) -> Tensor:
    return next(model.parameters()).detach()


def test_site_with_the_agreed_file_begins_from_it(weights: Path) -> None:
    agreed = agreement(weights)
    data = small_data(agreed)["clinic-a"]
    learner = build_learner(agreed, "clinic-a", data, model=SMALL, device="cpu", pretrained=weights)
    given, from_seed = safetensors.torch.load_file(weights), build_agreed_model(agreed, SMALL)
    begun = learner.state()
    assert torch.equal(begun["backbone.0.weight"], given["backbone.0.weight"])
    assert not torch.equal(begun["backbone.0.weight"], first_layer(from_seed))
    assert torch.equal(begun["classifier.weight"], from_seed.state_dict()["classifier.weight"])


def test_site_without_the_agreed_file_does_not_begin(weights: Path, tmp_path: Path) -> None:
    agreed = agreement(weights)
    with refuses(agreed.training.pretrained_sha256, error=ModelError):
        build_initial_model(agreed, SMALL, None)
    another = tmp_path / "another"
    another.write_bytes(weights.read_bytes() + b" ")
    with refuses("SHA-256", error=ModelError):
        build_initial_model(agreed, SMALL, another)


def test_site_with_a_file_that_is_not_agreed_is_refused(weights: Path) -> None:
    with refuses("pretrained", "small-cnn", error=ModelError):
        build_initial_model(agreement(None), SMALL, weights)


def test_site_with_its_own_model_begins_from_the_seed(weights: Path) -> None:
    agreed, own = agreement(weights), "resnet10"
    with refuses("resnet10", error=ModelError):
        build_initial_model(agreed, own, weights)
    begun, from_seed = build_initial_model(agreed, own, None), build_agreed_model(agreement(None), own)
    assert torch.equal(first_layer(begun), first_layer(from_seed))


def test_trained_model_is_read_without_the_pretrained_file(weights: Path) -> None:
    """The ``predict`` command builds the model without the file before it loads the saved state."""
    model = build_agreed_model(agreement(weights), SMALL)
    assert torch.equal(first_layer(model), first_layer(build_agreed_model(agreement(None), SMALL)))


def test_dual_branch_backbone_is_the_pretrained_files(weights: Path) -> None:
    agreed = agreement(weights, method=Method.FEDDBP, feddbp=FeddbpSection())
    given = safetensors.torch.load_file(weights)["backbone.0.weight"]
    states = [build_initial_model(agreed, SMALL, weights).state_dict() for _ in range(2)]
    assert torch.equal(states[0]["body.backbone.0.weight"], given)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_agreed_norm_is_the_models() -> None:
    for norm, kind in ((Norm.BATCH, nn.BatchNorm2d), (Norm.GROUP, nn.GroupNorm)):
        model = build_agreed_model(agreement(None, training={"norm": norm}), "resnet10")
        layers = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d | nn.GroupNorm)]
        assert len(layers) == 12
        assert all(isinstance(each, kind) for each in layers)


def test_group_norm_trains_on_single_samples() -> None:
    agreed = agreement(None, training={"norm": Norm.GROUP, "batch_size": 1, "lr": 1e-4})
    learner = build_learner(agreed, "a", small_data(agreed)["clinic-c"], model="resnet10", device="cpu")
    assert np.isfinite(learner.train(1, None).total)


def test_agreement_hash_depends_on_norm_and_file(weights: Path) -> None:
    agreed = (agreement(None), agreement(weights), agreement(None, training={"norm": Norm.GROUP}))
    assert len({each.hash() for each in agreed}) == 3
    for each in agreed:
        assert Agreement.from_json(each.to_json(), source="test") == each


@pytest.mark.parametrize("sha256", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64])
def test_agreement_bad_sha256_is_refused(sha256: str) -> None:
    with pytest.raises(ValidationError, match="pretrained_sha256"):
        TrainingSection(pretrained_sha256=sha256)


def test_simulation_sites_and_controls_begin_from_the_file(weights: Path, tmp_path: Path) -> None:
    """Each site still has the file's first layer at the end, since the steps are next to nothing."""
    agreed = agreement(weights, rounds=1, training={"lr": 1e-30, "momentum": 0.0})
    data = small_data(agreed)
    training = SiteTraining(pretrained=weights)
    outcome = run_federation(agreed, data, tmp_path / "run", training=training)
    given = safetensors.torch.load_file(weights)["backbone.0.weight"]
    for site in outcome.sites:
        trained = safetensors.torch.load_file(tmp_path / "run" / "sites" / site / "model.safetensors")
        assert torch.equal(trained["backbone.0.weight"], given)
    run_control(agreed, Method.LOCAL, data, training=training)
    with refuses("pretrained", error=ModelError):
        run_control(agreed, Method.LOCAL, data)


def test_simulation_file_is_taken_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('pretrained = "weights.safetensors"\n')
    assert load_simulation(tmp_path / "run.toml", {}).pretrained == tmp_path / "weights.safetensors"
