"""Models of a site's own code that cannot take part: refused at the check and at the start, in one line."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agreement import PrivacySection
from secure_client.checkpoints.learner_factory import build_learner
from secure_client.config import SiteConfig, load_site
from secure_client.data import load_site_data
from secure_client.errors import ModelError, PluginError, SiteError
from secure_client.site_check import check_site
from secure_client.training.learner import Learner
from tests.secure_client.data.test_failing_user_data import BAD, OneBad

FEATURES, DIM, CLASSES = 6, 4, 3
Auxiliary = namedtuple("Auxiliary", ["main", "extra"])
"""Outputs as those of torchvision's Inception."""


def halves() -> tuple[nn.Module, nn.Module]:
    return nn.Linear(FEATURES, DIM), nn.Linear(DIM, CLASSES)


class Backbone(nn.Module):
    """A linear layer, around which a test computes what it wants."""

    def __init__(self, change: Callable[[nn.Module, Tensor, Callable[[Tensor], Tensor]], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, DIM)
        self.change = change

    def forward(self, inputs: Tensor) -> Any:
        return self.change(self, inputs, self.layer)


def changed(change: Callable[[nn.Module, Tensor, Callable[[Tensor], Tensor]], Any]) -> Any:
    return Backbone(change), nn.Linear(DIM, CLASSES)


def with_weight(value: float) -> Any:
    backbone, classifier = halves()
    nn.init.constant_(backbone.weight, value)  # type: ignore[arg-type]  # a linear layer's
    return backbone, classifier


def fixed() -> Any:
    return tuple(each.requires_grad_(False) for each in halves())


def uncopied() -> Any:
    backbone, classifier = halves()
    backbone.lock = threading.Lock()  # type: ignore[assignment]  # an attribute that cannot be copied
    return backbone, classifier


class Whole(nn.Module):
    """A module with ``features`` and ``classifier`` that derives from nothing of this program."""

    def __init__(self, features: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.features, self.classifier = features, classifier


class RaisingConstructor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        raise KeyError("layers")


def without_grad(_: nn.Module, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    with torch.inference_mode():
        return f(x)


def failing(_: nn.Module, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    raise ValueError("two\nlines")


Built = Callable[[], object]
REFUSED: dict[str, tuple[Built, str]] = {
    "float16": (lambda: tuple(each.half() for each in halves()), "float16"),
    "bfloat16": (lambda: tuple(each.bfloat16() for each in halves()), "bfloat16"),
    "float64": (lambda: tuple(each.double() for each in halves()), "float64"),
    "complex": (lambda: (nn.Linear(FEATURES, DIM, dtype=torch.complex64), halves()[1]), "complex64"),
    "a half in half precision": (lambda: (halves()[0], halves()[1].half()), "classifier.weight"),
    "features in half precision": (lambda: changed(lambda m, x, f: f(x).half()), "float16"),
    "features in float64": (lambda: changed(lambda m, x, f: f(x).double()), ""),
    "features in whole numbers": (lambda: changed(lambda m, x, f: f(x).long()), "int64"),
    "a tuple": (lambda: changed(lambda m, x, f: (f(x), f(x))), "features(x)"),
    "a table": (lambda: changed(lambda m, x, f: OrderedDict(pooled=f(x))), "pooled"),
    "an object": (lambda: changed(lambda m, x, f: object()), "object"),
    "nothing": (lambda: changed(lambda m, x, f: None), "None"),
    "auxiliary outputs in training": (
        lambda: changed(lambda m, x, f: Auxiliary(f(x), f(x)) if m.training else f(x)),
        "Auxiliary",
    ),
    "a tuple of a whole module": (
        lambda: Whole(*changed(lambda m, x, f: (f(x),))),
        "features(x)",
    ),
    "a classifier that gives a tuple": (
        lambda: (nn.Linear(FEATURES, DIM), Backbone(lambda m, x, f: (x[:, :CLASSES],))),
        "classifier(z)",
    ),
    "lazy layers": (lambda: (nn.LazyLinear(DIM), nn.Linear(DIM, CLASSES)), "backbone.weight"),
    "no memory": (lambda: tuple(each.to("meta") for each in halves()), "meta"),
    "NaN": (lambda: with_weight(float("nan")), "backbone.weight"),
    "infinite": (lambda: with_weight(float("inf")), "backbone.weight"),
    "nothing that trains": (fixed, "requires_grad"),
    "no gradients": (lambda: changed(without_grad), ""),
    "outputs without gradients": (
        lambda: (nn.Linear(FEATURES, DIM), Backbone(lambda m, x, f: x[:, :CLASSES].detach())),
        "classifier(z)",
    ),
    "inputs changed in place": (lambda: changed(lambda m, x, f: f(x.mul_(2))), "in place"),
    "outputs changed in place": (lambda: changed(lambda m, x, f: torch.sigmoid(f(x)).sub_(1)), "gradients"),
    "other classes": (lambda: (halves()[0], nn.Linear(DIM, CLASSES + 1)), "classifier(z)"),
    "another dimension": (lambda: (nn.Linear(FEATURES, 7), nn.Linear(7, CLASSES)), "features(x)"),
    "one axis too few": (lambda: changed(lambda m, x, f: f(x).squeeze(0)), "features(x)"),
    "one axis too many": (lambda: changed(lambda m, x, f: f(x)[:, :, None]), "features(x)"),
    "another batch": (lambda: changed(lambda m, x, f: f(x.view(1, -1, FEATURES).mean(1))), ""),
    "other inputs": (lambda: (nn.Conv2d(3, DIM, 3), nn.Linear(DIM, CLASSES)), f"(1, {FEATURES})"),
    "an exception": (lambda: changed(failing), "ValueError"),
    "NaN for all records": (lambda: changed(lambda m, x, f: f(x) * float("nan")), "30 training records"),
    "an overflow for all records": (
        lambda: changed(lambda m, x, f: f(x).sign() * 1e38 * 10),
        "30 training records",
    ),
    "a copy that fails": (uncopied, "cop"),
    "a class": (lambda: Whole, ""),
    "one half": (lambda: halves()[0], "Linear"),
    "three parts": (lambda: (*halves(), nn.ReLU()), ""),
    "a state": (lambda: dict(halves()[0].state_dict()), "weight"),
}
RAISED: dict[str, Built] = {
    "a constructor": RaisingConstructor,
    "an import": lambda: __import__("a_module_that_nobody_has"),
    "an end": lambda: (_ for _ in ()).throw(SystemExit(2)),
    "a file": lambda: torch.load("no such weights"),
}
chosen: list[Built] = []


def build(num_classes: int, dim: int) -> object:
    return chosen[-1]()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> SiteConfig:
    """Write a site's file with data and without a certificate. Its extractor is copied, as that of Ditto is."""
    folder = tmp_path_factory.mktemp("site")
    labels = np.arange(30) % CLASSES
    inputs = np.random.default_rng(0).normal(size=(30, FEATURES)).astype(np.float32)
    np.savez(folder / "table.npz", x_train=inputs, y_train=labels)
    (folder / "agreement.toml").write_text(
        f"""
        federation = "f"
        run = "r"
        method = "pfpl"
        protection = "masked"
        rounds = 1
        dim = {DIM}
        classes = {json.dumps([f"class-{number}" for number in range(CLASSES)])}
        [training]
        model = "{__name__}:build"
        """
    )
    (folder / "site.toml").write_text(
        """
        agreement = "agreement.toml"
        name = "north"
        coordinator = "127.0.0.1:9"
        ca = "ca.pem"
        certificate = "certificate.pem"
        key = "key.pem"
        data = "npz:table.npz"
        out = "out"
        state_dir = "state"
        """
    )
    return load_site(folder / "site.toml")


def start(site: SiteConfig) -> Learner:
    agreed = site.agreement
    data = load_site_data(site.data, None, agreed)
    return build_learner(agreed, site.name, data, model=agreed.training.model, device="cpu")


def refused(site: SiteConfig, built: Built) -> tuple[SiteError, str]:
    """Return the error at a run's start, and the detail of ``client check``'s first finding about the model."""
    chosen[:] = [built]
    with pytest.raises(SiteError) as raised:
        start(site)
    findings = {each.what: each for each in check_site(site, lambda: b"")}
    failed = [each for each in findings.values() if each.what in {"model", "data and model"} and not each.ok]
    assert len(failed) == 1
    assert findings["data"].ok, "the data by themselves are checked after a model that fails"
    assert "coordinator" in findings, "the other checks run"
    return raised.value, failed[0].detail


@pytest.mark.parametrize("kind", REFUSED)
def test_model_unsuitable_is_refused_in_one_line_at_check_and_start(kind: str, site: SiteConfig) -> None:
    built, named = REFUSED[kind]
    if kind == "a copy that fails":
        site = copying(site)
    error, detail = refused(site, built)
    assert type(error) is ModelError
    assert named in str(error)
    assert "\n" not in str(error)
    assert detail == str(error)


def copying(site: SiteConfig) -> SiteConfig:
    """Return the site with an agreement whose extractor is frozen, and so copied."""
    training = site.agreement.training.model_copy(update={"frozen_extractor": True})
    return site.model_copy(update={"agreement": site.agreement.model_copy(update={"training": training})})


@pytest.mark.parametrize("kind", RAISED)
def test_model_function_that_raises_is_refused_at_check_and_start(kind: str, site: SiteConfig) -> None:
    error, detail = refused(site, RAISED[kind])
    assert type(error) is PluginError
    assert f"{__name__}:build" in str(error)
    assert "\n" not in str(error)
    assert detail == str(error)


SUITABLE: dict[str, Built] = {
    "halves": halves,
    "a list": lambda: list(halves()),
    "a whole module": lambda: Whole(*halves()),
    "a fixed backbone": lambda: (halves()[0].requires_grad_(False), halves()[1]),
    "batch normalisation": lambda: (nn.Sequential(halves()[0], nn.BatchNorm1d(DIM)), halves()[1]),
    "dropout": lambda: (nn.Sequential(halves()[0], nn.Dropout()), halves()[1]),
    "a module of its own": lambda: changed(lambda m, x, f: f(x)),
}


@pytest.mark.parametrize("kind", SUITABLE)
def test_model_suitable_is_accepted_and_left_as_it_was(kind: str, site: SiteConfig) -> None:
    chosen[:] = [SUITABLE[kind]]
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    learner = start(site)
    assert torch.equal(torch.rand(3), expected)
    counters = [value for name, value in learner.state().items() if name.endswith("num_batches_tracked")]
    assert not any(counters)


def test_model_frozen_extractor_needs_a_classifier_that_trains(site: SiteConfig) -> None:
    chosen[:] = [lambda: (halves()[0], halves()[1].requires_grad_(False))]
    with pytest.raises(ModelError):
        start(copying(site))
    start(site)


def test_model_that_each_call_draws_anew_fails_the_check(site: SiteConfig) -> None:
    calls = iter(range(100))
    chosen[:] = [lambda: with_weight(next(calls))]
    failed = [each for each in check_site(site, lambda: b"") if not each.ok]
    assert failed[0].what == "model"
    assert f"{__name__}:build" in failed[0].detail


def on_large(change: Callable[[Tensor], Tensor]) -> Built:
    """Build a model that treats records beyond 100 differently."""

    def compute(_: nn.Module, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        large = (x.abs() > 100).any(dim=1, keepdim=True)
        return torch.where(large, change(f(x)), f(x)) if bool(large.any()) else f(x)

    return lambda: changed(compute)


def raising(_: Tensor) -> Tensor:
    raise ValueError("two\nlines")


@pytest.mark.parametrize("change", [raising, lambda features: features * float("nan")])
def test_check_site_names_the_records_that_count_as_zeros(
    change: Callable[[Tensor], Tensor], site: SiteConfig, tmp_path: Path
) -> None:
    inputs = np.random.default_rng(0).normal(size=(30, FEATURES)).astype(np.float32)
    inputs[[17, 21]] = 1000.0
    np.savez(tmp_path / "large.npz", x_train=inputs, y_train=np.arange(30) % CLASSES)
    chosen[:] = [on_large(change)]
    large = site.model_copy(update={"data": f"npz:{tmp_path / 'large.npz'}"})
    (finding,) = [each for each in check_site(large, lambda: b"") if each.what == "data and model"]
    assert finding.ok
    assert "sample 17" in finding.detail
    assert "\n" not in finding.detail


def test_model_with_finite_features_of_one_record_starts(site: SiteConfig) -> None:
    calls = iter(range(100))
    chosen[:] = [lambda: changed(lambda m, x, f: f(x) if next(calls) > 1 else f(x) * float("nan"))]
    start(site)  # the model check is the first call, and the first record's features the second


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_model_private_features_never_finite_are_refused(value: float, site: SiteConfig) -> None:
    chosen[:] = [lambda: changed(lambda m, x, f: f(x) * value)]
    with pytest.raises(ModelError):
        start(private(site))


def test_model_private_that_takes_no_negative_number_is_refused(site: SiteConfig, tmp_path: Path) -> None:
    """Refuse a model of which nobody can try that it computes each record by itself."""
    inputs = np.random.default_rng(0).uniform(1.0, 2.0, size=(30, FEATURES)).astype(np.float32)
    np.savez(tmp_path / "positive.npz", x_train=inputs, y_train=np.arange(30) % CLASSES)
    positive = site.model_copy(update={"data": f"npz:{tmp_path / 'positive.npz'}"})
    chosen[:] = [lambda: changed(lambda m, x, f: f(x.log()))]
    start(positive)
    with pytest.raises(ModelError):
        start(positive.model_copy(update={"agreement": private(site).agreement}))


def private(site: SiteConfig) -> SiteConfig:
    privacy = PrivacySection(clip=0.5, noise_multiplier=0.4, min_count=1.0, release_every=1)
    return site.model_copy(update={"agreement": site.agreement.model_copy(update={"privacy": privacy})})


def dataset(data_root: Path | None) -> object:
    return unread[-1]()


def raising_key() -> object:
    raise KeyError("label")


def open_nothing() -> object:
    raise FileNotFoundError(2, "No such file", "scans.h5")


unread: list[Built] = []
DATA: dict[str, Built] = {
    "a function that raises": open_nothing,
    "a sample that raises": lambda: (OneBad(raising_key), None),
    "a sample without a label": lambda: (OneBad(lambda: (torch.zeros(FEATURES), None)), None),
    "a one-hot label": lambda: (OneBad(lambda: (torch.zeros(FEATURES), torch.eye(3)[0])), None),
    "a test sample that raises": lambda: (OneBad(lambda: (torch.ones(3), 0)), OneBad(raising_key)),
}


@pytest.mark.parametrize("kind", DATA)
def test_check_site_continues_after_data_that_fail(kind: str, site: SiteConfig) -> None:
    unread[:], chosen[:] = [DATA[kind]], [lambda: (nn.Linear(3, DIM), nn.Linear(DIM, CLASSES))]
    own = site.model_copy(update={"data": f"{__name__}:dataset"})
    findings = {each.what: each for each in check_site(own, lambda: b"")}
    detail = findings["data and model"].detail
    assert not findings["data and model"].ok
    assert ("scans.h5" if kind == "a function that raises" else f"sample {BAD}: ") in detail
    assert "\n" not in detail
    assert {"model", "privacy", "folders"} <= {each.what for each in findings.values() if each.ok}
    assert {"certificate", "coordinator", "run"} <= findings.keys()
