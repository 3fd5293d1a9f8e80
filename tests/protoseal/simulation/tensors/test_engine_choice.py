"""Which engine runs a configuration, what the tensor engine refuses, and sizes of payloads that it never makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from agreement import ConfigError
from crypto.plain import SCHEME
from crypto.protection import Payload
from protoseal.simulation.config import load_simulation
from protoseal.simulation.experiment import simulate
from protoseal.simulation.tensors.message_sizes import payload_bytes
from protoseal.simulation.tensors.models import float64_device
from protoseal_wire import codec
from tests.support.simulations import DIGITS, config_in

PRIVATE = ("privacy.noise_multiplier=1.0", "privacy.clip=1.0", "training.norm=group")


@pytest.mark.parametrize(
    ("settings", "uses_tensors"),
    [
        ((), True),
        (("engine=tensors", "method=fedplcc"), True),
        (("engine=sessions",), False),
        (("protection=masked",), False),
        (PRIVATE, False),
    ],
)
def test_uses_tensors_without_protection_and_noise(settings: tuple[str, ...], uses_tensors: bool) -> None:
    assert load_simulation(None, {}, settings).uses_tensors is uses_tensors


@pytest.mark.parametrize(
    ("settings", "named"), [(("protection=ckks",), "ckks"), (PRIVATE, "privacy")], ids=["protection", "noise"]
)
def test_load_simulation_tensors_that_cannot_serve_are_refused(settings: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"tensors.*{named}.*sessions"):
        load_simulation(None, {}, ("engine=tensors", *settings))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("", {}),
        ('engine = "tensors"\n', {"engine": "tensors"}),
        ('engine = "sessions"\nprecision = "tf32"\n', {"engine": "sessions", "precision": "tf32"}),
    ],
    ids=["default", "tensors", "sessions"],
)
def test_simulate_result_names_engine_and_precision_unless_default(
    tmp_path: Path, settings: str, named: dict[str, str]
) -> None:
    result = simulate(config_in(f'method = "fedavg"\nrounds = 1\n{settings}{DIGITS}', tmp_path / "run"))
    assert {name: result.config[name] for name in ("engine", "precision") if name in result.config} == named


@pytest.mark.parametrize(("device", "expected"), [("cpu", "cpu"), ("cuda:1", "cuda:1"), ("mps", "cpu")])
def test_float64_device_is_the_cpu_where_a_device_has_no_float64(device: str, expected: str) -> None:
    assert float64_device(torch.device(device)) == torch.device(expected)


@pytest.mark.parametrize(
    "shapes",
    [((3, 8),), ((0, 8), (0,), (0,), (5,)), ((1, 1),), ((16384,), (10,)), ((200, 3000),), ((1 << 21,),)],
)
def test_payload_bytes_equal_encoded_payload(shapes: tuple[tuple[int, ...], ...]) -> None:
    payload = Payload(SCHEME, arrays=tuple(np.ones(shape) for shape in shapes))
    assert payload_bytes(shapes) == len(codec.encode_payload(payload))
