"""The tensor engine comes to what sessions come to: in float64 up to 1e-9, in withheld classes and bytes exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agreement import CONTROLS, METHODS, Method
from agreement.sections.methods import Family
from protoseal.simulation import site_pool
from protoseal.simulation.batched import program, training
from protoseal.simulation.batched.feed import Feed
from protoseal.simulation.batched.layers import Draws
from protoseal.simulation.batched.training import Batching, Precision
from protoseal.simulation.site_pool import SiteTraining
from protoseal.simulation.tensors.federation import TensorFederation
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.training import learner
from secure_client.training.job import Job, Losses, training_seed
from secure_client.training.loop import run_job
from tests.protoseal.simulation.tensors.engines import (
    Run,
    check_equal,
    in_float64,
    run_both,
    run_engine,
    scene_of,
    spoil,
)
from tests.support.marks import full_but

CLOSE = 1e-9
"""Of numbers in float64, after three rounds, the order of whose sums differs."""
ONE_STEP = 2.0**-22
"""Of numbers in float32, after one round, that are rounded from float64 sums in another order: a unit in the last
place, and another where it is doubled."""

FEDERATED = sorted(name for name, method in METHODS.items() if method not in CONTROLS)
NORMED = "tests.support.tiny_models:build_normed_images"
"""Model with statistics of batches, which sites compute together, and keep or average."""
SMOOTH = "tests.support.tiny_models:build_tanh"
SPLITS = ("iid:per=30", "shots:n=3,k=8", "dirichlet:0.3,per=30", "domains:per=20", "mixed:n=4,max=20,val=0.2")
GROUPED = {"sites": 6, "min_holders": 2}
"""Sites that FedPC puts into several groups, each with classes of its own that are withheld."""
CLUSTERED = {"sites": 6, "split": "iid:per=60"}
"""Sites whose prototypes of some classes end in several clusters."""
SCENES: dict[Family, dict[str, Any]] = {Family.GROUPS: GROUPED, Family.CLUSTERS: CLUSTERED}


def check_several(run: Run, method: str) -> None:
    """Check that the run has several groups, or classes of several clusters, if its method forms any."""
    family = METHODS[method].traits.family
    if family is Family.GROUPS:
        # FedPC's control has one group by definition.
        assert (len(run.outcome.rounds[-1].groups) > 1) is (METHODS[method] is not Method.AVERAGE)
    if family is Family.CLUSTERS:
        labels = run.tensors["site-1 cluster_labels"].tolist()
        assert len(labels) > len(set(labels))


@pytest.mark.parametrize("method", full_but(FEDERATED, "pfpl", "fedpc", "fedplcc"))
def test_engines_in_float64_are_equal(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, float64: None
) -> None:
    """Three rounds, in which groups and clusters are equal too; the tensor engine stacks sites in every pass."""
    changes = SCENES.get(METHODS[method].traits.family, {})
    scene = scene_of(tmp_path, method=method, double=True, training__model=NORMED, **changes)
    runs = run_both(**scene, batching=Batching.ALWAYS)
    check_equal(*runs, CLOSE)
    check_several(runs[0], method)
    assert "failed, and " not in caplog.text, "no pass fell back to one site after the other"


@pytest.mark.parametrize("split", full_but(SPLITS))
def test_engines_any_split_are_equal(split: str, tmp_path: Path, float64: None) -> None:
    check_equal(*run_both(**scene_of(tmp_path, method="fedpc", rounds=2, split=split, double=True)), CLOSE)


@pytest.mark.parametrize("method", full_but(FEDERATED, "fedavg"))
def test_engines_in_float32_round_alike_in_one_round(method: str, tmp_path: Path) -> None:
    """Sites that train one by one have equal bits before the exchange; those of one program round as one alone does.

    Training alone and in a program are compared with float64's result, in a smooth network: at a tie of a ReLU rounding
    would decide, and the two would part.
    """
    changes: dict[str, Any] = {"method": method, "rounds": 1, "training__model": SMOOTH}
    scene = scene_of(tmp_path, **changes)
    tensors, sessions = run_both(**scene)
    check_equal(tensors, sessions, ONE_STEP)
    together = replace(scene.pop("training"), batching=Batching.ALWAYS)
    with in_float64():
        exact = run_engine(TensorFederation, **scene_of(tmp_path, double=True, **changes))
    stacked = run_engine(TensorFederation, **scene, training=together)
    rounding = largest_difference(sessions, exact)
    assert 0 < rounding < 1e-5
    numbers = {name: value.to(stacked.tensors[name].dtype) for name, value in exact.tensors.items()}
    check_equal(stacked, replace(exact, tensors=numbers), 4 * rounding)


def largest_difference(run: Run, other: Run) -> float:
    """Return the largest difference of any two numbers of the sites' files."""
    differences = [value.double() - other.tensors[name].double() for name, value in run.tensors.items()]
    return float(torch.cat([difference.flatten() for difference in differences]).abs().max())


@pytest.mark.parametrize("method", full_but(["pfpl", "fedpc"], "fedpc"))
def test_engines_frozen_extractor_repeats_the_same_rows(method: str, tmp_path: Path, float64: None) -> None:
    """Rounds after the first send no prototypes, and their results repeat the first round's, group by group."""
    frozen = {"training__model": "tests.support.tiny_models:build_relu", "training__frozen_extractor": True}
    scene = scene_of(tmp_path, method=method, split="shots:n=3,k=8", double=True, **GROUPED, **frozen)
    runs = run_both(**scene)
    check_equal(*runs, CLOSE)
    check_several(runs[0], method)


def test_engines_model_with_a_mask_are_equal(tmp_path: Path) -> None:
    """The model's tensors cannot be rows of one tensor."""
    model = "tests.support.tiny_models:build_masked"
    check_equal(*run_both(**scene_of(tmp_path, method="fedavg", rounds=2, training__model=model)), ONE_STEP)


UNDONE = [("pfpl", "never"), ("fedavg", "always"), ("ditto", "always")]


@pytest.mark.parametrize(("method", "batching"), full_but(UNDONE, *UNDONE[:2]))
def test_engines_diverging_site_is_undone_alike(
    method: str, batching: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The site returns to the model of the round's start, which holds the average if the method has one."""
    scene = scene_of(tmp_path, method=method, rounds=2)
    scene["data"] = spoil(scene["data"], "site-2")
    runs = run_both(**scene, batching=Batching(batching))
    check_equal(*runs, ONE_STEP)
    for run in runs:
        assert [done.trained for done in run.outcome.sites["site-2"].rounds] == [False, False]
    assert caplog.text.count("training failed in 2 of 8 rounds") == len(runs)
    programs = 2 if batching == "always" else 0  # of the tensor engine, one in each round
    assert caplog.text.count("as one program failed, and the sites compute one by one: ") == programs


def test_engines_train_one_by_one_in_bf16_after_a_program_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower: list[bool] = []

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no program today")

    def noted(job: Job) -> Losses:
        lower.append(torch.is_autocast_enabled("cpu"))
        return run_job(job)

    monkeypatch.setattr(site_pool, "run_together", fail)
    monkeypatch.setattr(training, "run_job", noted)
    scene = scene_of(tmp_path, method="pfpl", rounds=1)
    scene["training"] = SiteTraining(batching=Batching.ALWAYS, precision=Precision.BF16)
    run_both(**scene, batching=Batching.ALWAYS)
    assert lower == [True] * 8  # four sites of two engines


# Random numbers


def test_initial_weights_are_the_same_bits_at_any_number_of_sites(tmp_path: Path) -> None:
    """Sites of two architectures by turns, whose second branch is drawn too."""
    scene = scene_of(tmp_path, method="feddbp")
    agreement, models = scene["agreement"], (NORMED, SMOOTH)
    training = replace(scene["training"], models=models)
    expected = [build_agreed_model(agreement, model).state_dict() for model in models]
    for count in (1, 3, 4):
        torch.rand(count)  # the process has drawn other numbers before
        data = dict(sorted(scene["data"].items())[:count])
        with TensorFederation(agreement, data, training=training) as federation:
            for position, site in enumerate(federation.sites):
                (model,) = site.learner.models
                weights = expected[position % 2]
                assert model.state_dict().keys() == weights.keys()
                assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def swap_seeds(patch: pytest.MonkeyPatch) -> None:
    """Train two sites with the seeds of each other."""
    other = {"site-1": "site-2", "site-2": "site-1"}

    def swapped(seed: int, site: str, round_number: int, stage: int) -> int:
        return training_seed(seed, other.get(site, site), round_number, stage)

    patch.setattr(learner, "training_seed", swapped)


def reverse_orders(patch: pytest.MonkeyPatch) -> None:
    """Draw the orders of a program's batches from the generators of other sites."""
    epoch = Feed.epoch
    patch.setattr(Feed, "epoch", lambda feed, orders, *others: epoch(feed, orders[::-1], *others))


def reverse_masks(patch: pytest.MonkeyPatch) -> None:
    """Draw the dropout of a program's sites from the generators of other sites."""
    patch.setattr(program, "Draws", lambda generators, *others: Draws(generators[::-1], *others))


def test_engines_that_mix_the_streams_of_two_sites_are_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, float64: None
) -> None:
    dropping = "tests.support.tiny_models:build_dropping"
    scene = scene_of(tmp_path, method="fedavg", rounds=1, double=True, training__model=dropping)
    tensors, sessions = run_both(**scene, batching=Batching.ALWAYS)
    check_equal(tensors, sessions, CLOSE)
    together = replace(scene.pop("training"), batching=Batching.ALWAYS)
    doubles: list[Callable[[pytest.MonkeyPatch], None]] = [swap_seeds, reverse_orders, reverse_masks]
    for mix in doubles:
        with pytest.MonkeyPatch.context() as patch:
            mix(patch)
            mixed = run_engine(TensorFederation, **scene, training=together)
        assert mixed.figures(rounded=False) == sessions.figures(rounded=False)
        with pytest.raises(AssertionError):
            check_equal(mixed, sessions, CLOSE)
    assert "failed, and " not in caplog.text


@pytest.mark.parametrize(
    ("device", "model"),
    [
        ("cpu", "small-cnn"),
        pytest.param("cuda", "small-cnn", marks=pytest.mark.gpu),
        pytest.param("cuda", "resnet10", marks=pytest.mark.gpu),
    ],
)
def test_tensors_twice_on_one_device_have_the_same_bits(
    device: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites of one program, or each one's graphs in streams; cuDNN must not take kernels that add in any order."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    scene = scene_of(tmp_path, method="fedpc", rounds=2, device=device, training__model=model)
    together = replace(scene.pop("training"), batching=Batching.ALWAYS)
    first, second = (run_engine(TensorFederation, **scene, training=together) for _ in range(2))
    assert first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(value, second.tensors[name]) for name, value in first.tensors.items())
    assert first.figures(rounded=True) == second.figures(rounded=True)
