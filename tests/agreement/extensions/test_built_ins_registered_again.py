"""Built-in methods and protections registered once more from their parts: each run is the same, bit for bit if not
encrypted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from protoseal.reports.result_files import site_folder
from protoseal.simulation.experiment import simulate
from secure_client.output.site_files import MODEL, PROTOTYPES
from tests.support.extensions import METHODS, install, installed
from tests.support.simulations import DIGITS, config_in

TWINS = '''
from dataclasses import replace
from functools import partial

from agreement import Method, Family, Inference, ModelPart, Predicts, Section, Traits


class Mu(Section):
    """FedProx's."""

    mu: float = 0.01


def cross_entropy(settings):
    from algorithms.method_losses import CrossEntropyLoss

    return CrossEntropyLoss()


def pulled(settings):
    from algorithms.method_losses import FedprotoLoss

    return FedprotoLoss(1.0)


def near_the_average(settings, recipe):
    return replace(recipe, proximal=settings.mu)


def by_distance(settings):
    from algorithms.pfpl import Weighting, peer_weights

    return partial(peer_weights, weighting=Weighting.DISTANCE, tau=1e-4)


averaged = Traits(Family.SUMS, ModelPart.MODEL, weighted=True, predicts=Predicts.AGGREGATED)
prototypes = Traits(Family.SUMS, prototypes=True, inference=Inference.PROTOTYPE)
peers = Traits(Family.PEERS, prototypes=True)
prox = Method(name="prox", traits=averaged, objective=cross_entropy, recipe=near_the_average, settings=Mu)
proto = Method(name="proto", traits=prototypes, objective=pulled)
by_table = Method(name="by-table", traits=peers, objective=pulled)
by_weights = Method(name="by-weights", traits=peers, objective=pulled, weights=by_distance)
'''
NAMES = {"prox": "prox", "proto": "proto", "by-table": "by_table", "by-weights": "by_weights"}
PFPL = '[pfpl]\nweighting = "{weighting}"\nalpha = {alpha}\nlambda = 1.0\n'


@pytest.fixture(scope="module", autouse=True)
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("twins")
    (folder / "twins.py").write_text(TWINS, encoding="utf-8")
    install(folder, {METHODS: {name: f"twins:{value}" for name, value in NAMES.items()}}, name="twins")
    with installed(folder):
        yield


def ran(
    folder: Path,
    method: str,
    protection: str,
    *,
    more: str = "",
    alpha: float = 0.3,
    weighting: str = "distance",
) -> Path:
    out = folder / f"{method}-{protection}"
    folder.mkdir(exist_ok=True)
    # In units of a larger bound these prototypes would be too near each other to be told apart.
    digits = DIGITS.replace("per=40", "per=20").replace("norm_bound = 100.0", "norm_bound = 1.0")
    text = f'method = "{method}"\nprotection = "{protection}"\nrounds = 2\n' + digits
    simulate(config_in(text + PFPL.format(alpha=alpha, weighting=weighting) + more, out))
    return out


def off(one: Path, other: Path) -> float:
    """Return the largest difference between the models and prototypes that any site has after two runs."""
    return max(
        float(np.abs(here[name].astype(np.float64) - there[name]).max(initial=0.0))
        for site in ("site-1", "site-4")
        for file in (MODEL, PROTOTYPES)
        for here, there in [
            [safetensors.numpy.load_file(site_folder(each, site) / file) for each in (one, other)]
        ]
        for name in here
    )


@pytest.mark.parametrize(
    ("added", "built_in", "alpha"),
    [
        ("prox", "fedprox", 0.3),
        ("proto", "fedproto", 0.3),
        ("by-table", "pfpl", 0.3),
        ("by-weights", "pfpl", 0.0),
    ],
)
def test_a_twin_of_a_built_in_method_is_that_method(
    added: str, built_in: str, alpha: float, tmp_path: Path
) -> None:
    assert (
        off(ran(tmp_path, added, "plain", alpha=alpha), ran(tmp_path, built_in, "plain", alpha=alpha)) == 0.0
    )


def test_settings_reach_the_twin(tmp_path: Path) -> None:
    strong = ran(tmp_path / "strong", "prox", "plain", more="[extension.prox]\nmu = 5.0\n")
    assert off(strong, ran(tmp_path, "prox", "plain")) > 1e-4


@pytest.mark.full
def test_alpha_has_no_effect_on_an_extensions_own_weights(tmp_path: Path) -> None:
    """``alpha`` of PFPL means nothing to them."""
    one, other = (ran(tmp_path / str(alpha), "by-weights", "plain", alpha=alpha) for alpha in (0.0, 0.9))
    assert off(one, other) == 0.0
    assert off(*(ran(tmp_path / str(alpha), "by-table", "plain", alpha=alpha) for alpha in (0.0, 0.9))) > 1e-4


@pytest.mark.full
def test_peers_without_weights_of_their_own_run_as_a_masked_sum(tmp_path: Path) -> None:
    """Both add the same numbers, and masks leave no trace in a sum."""
    summed, built_in = (ran(tmp_path, each, "masked", weighting="uniform") for each in ("by-table", "pfpl"))
    assert off(summed, built_in) == 0.0
    assert off(summed, ran(tmp_path, "by-table", "plain", weighting="uniform")) < 1e-3


def test_peers_without_weights_of_their_own_run_on_ciphertexts(tmp_path: Path) -> None:
    encrypted, plain = (ran(tmp_path, "by-table", each) for each in ("ckks", "plain"))
    assert 0.0 < off(encrypted, plain) < 1e-3
