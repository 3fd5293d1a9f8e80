"""Groups mixed on ciphertexts: within the stated error of the exact sums."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.ckks.group_mixing import MixingServer, MixingSite, MixLayout
from crypto.ckks.parameters import SLOTS
from crypto.ckks.secret_key import CkksSecret
from crypto.errors import BoundError, ImplausibleError, KeyStoreError, MalformedError, PrecisionError
from crypto.fixed_point import Segment
from crypto.protection import Payload

Array = NDArray[np.float64]


def _exact(directions: Array, values: Array) -> Array:
    """Loops over groups."""
    mixed = np.zeros_like(values)
    for j in range(len(values)):
        for k in range(len(values)):
            lengths = np.linalg.norm(directions[j]) * np.linalg.norm(directions[k])
            cosine = 0.0 if lengths == 0.0 else float(directions[j] @ directions[k]) / lengths
            mixed[j] += (1.0 if j == k else cosine) * values[k]
    return mixed


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> tuple[CkksSecret, Path]:
    """A group's secret, and the file of its evaluation keys."""
    secret, keys = CkksSecret.generate()
    path = tmp_path_factory.mktemp("mixing") / "keys.bin"
    path.write_bytes(keys.to_bytes())
    return secret, path


def _drawn(groups: int, components: int, form: MixLayout, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    directions = np.abs(rng.normal(size=(groups, components))) * 10.0 ** rng.integers(-6, 6, size=(groups, 1))
    return directions, rng.uniform(-1.0, 1.0, size=(groups, form.vector.length)) * form.vector.bounds


def _mixed(keyed: tuple[CkksSecret, Path], form: MixLayout, directions: Array, values: Array) -> Array:
    secret, path = keyed
    site, server = MixingSite(secret, form), MixingServer(form, path, None)
    payloads = [site.protect(*each) for each in zip(directions, values, strict=True)]
    for payload in payloads:
        server.validate(payload)
    return np.stack([site.unprotect(answer) for answer in server.mix(payloads)])


@pytest.mark.parametrize(
    ("groups", "components", "lengths"),
    [(1, 3, (4,)), (2, 1, (1, 2)), (3, 640, (1300, 2)), (10, SLOTS // 2 + 1, (2 * SLOTS + 1,))],
)
def test_mix_within_stated_error(
    keyed: tuple[CkksSecret, Path], groups: int, components: int, lengths: tuple[int, ...]
) -> None:
    form = MixLayout(components, [Segment(n, 64.0 * 1e4**i) for i, n in enumerate(lengths)], groups=10)
    directions, values = _drawn(groups, components, form, 5)
    wrong = np.abs(_mixed(keyed, form, directions, values) - _exact(directions, values))
    assert (wrong <= form.error(np.abs(values).sum(axis=0))).all()


def test_mix_stated_error_tight(keyed: tuple[CkksSecret, Path]) -> None:
    """Less than 1e-8 of a value's bound, and no more than a thousand times what occurs."""
    form = MixLayout(64, [Segment(4 * SLOTS, 1.0)], groups=10)
    directions, values = _drawn(10, 64, form, 6)
    wrong = np.abs(_mixed(keyed, form, directions, values) - _exact(directions, values))
    stated = form.error(np.abs(values).sum(axis=0))
    assert stated.max() < 1e-8
    assert wrong.max() > stated.max() / 1000


def test_mix_group_without_direction_unmixed(keyed: tuple[CkksSecret, Path]) -> None:
    form = MixLayout(8, [Segment(3, 1.0)], groups=4)
    directions, values = _drawn(3, 8, form, 7)
    directions[1] = 0.0
    mixed = _mixed(keyed, form, directions, values)
    assert np.allclose(mixed[1], values[1], atol=1e-8)
    assert np.allclose(mixed, _exact(directions, values), atol=1e-8)


def test_mix_value_one_gives_divisor(keyed: tuple[CkksSecret, Path]) -> None:
    form = MixLayout(8, [Segment(1, 1.0)], groups=4)
    directions, _ = _drawn(4, 8, form, 8)
    units = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    mixed = _mixed(keyed, form, directions, np.ones((4, 1)))
    assert np.allclose(mixed[:, 0], (units @ units.T).sum(axis=1), atol=1e-8)


def test_mix_in_processes_equals_inline(keyed: tuple[CkksSecret, Path]) -> None:
    """Ciphertexts are computed without randomness: the same bytes."""
    secret, path = keyed
    form = MixLayout(8, [Segment(20 * SLOTS, 1.0)], groups=2)
    directions, values = _drawn(2, 8, form, 9)
    site = MixingSite(secret, form)
    payloads = [site.protect(*each) for each in zip(directions, values, strict=True)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        assert MixingServer(form, path, executor).mix(payloads) == MixingServer(form, path, None).mix(
            payloads
        )


def test_protect_values_that_cannot_be_mixed_refused(keyed: tuple[CkksSecret, Path]) -> None:
    form = MixLayout(3, [Segment(2, 1.0)], groups=2)
    site = MixingSite(keyed[0], form)
    for bad in (-1e-9, np.nan, np.inf):
        with pytest.raises(BoundError, match="direction"):
            site.protect(np.array([1.0, bad, 0.0]), np.zeros(2))
    with pytest.raises(MalformedError, match=r"\(3,\)"):
        site.protect(np.ones(4), np.zeros(2))
    with pytest.raises(BoundError, match="segment 0"):
        site.protect(np.ones(3), np.array([0.0, 1.1]))


def test_mix_other_forms_refused(keyed: tuple[CkksSecret, Path]) -> None:
    secret, path = keyed
    form, other = (MixLayout(3, [Segment(2, 1.0)], groups=groups) for groups in (2, 50))
    site, server = MixingSite(secret, form), MixingServer(form, path, None)
    good = site.protect(np.ones(3), np.zeros(2))
    foreign = MixingSite(secret, other).protect(np.ones(3), np.zeros(2))
    for bad in (
        foreign,
        Payload(good.scheme, blobs=good.blobs[::-1]),
        Payload(good.scheme, blobs=good.blobs[:1]),
    ):
        with pytest.raises(MalformedError):
            server.validate(bad)
        with pytest.raises(MalformedError):
            server.mix([good, bad])
    with pytest.raises(MalformedError):
        site.unprotect(MixingServer(other, path, None).mix([foreign])[0])


def test_unprotect_sum_of_too_many_groups_implausible(keyed: tuple[CkksSecret, Path]) -> None:
    secret, path = keyed
    form = MixLayout(3, [Segment(2, 1.0)], groups=2)
    site = MixingSite(secret, form)
    payloads = [site.protect(np.ones(3), np.ones(2))] * 3
    with pytest.raises(ImplausibleError):
        site.unprotect(MixingServer(form, path, None).mix(payloads)[0])


def test_mix_without_evaluation_keys_refused(keyed: tuple[CkksSecret, Path], tmp_path: Path) -> None:
    form = MixLayout(3, [Segment(2, 1.0)], groups=2)
    payload = MixingSite(keyed[0], form).protect(np.ones(3), np.zeros(2))
    with pytest.raises(KeyStoreError, match=r"none\.bin"):
        MixingServer(form, tmp_path / "none.bin", None).mix([payload])


def test_mix_form_too_many_groups_refused() -> None:
    with pytest.raises(PrecisionError, match=r"mixed"):
        MixLayout(3, [Segment(2, 1.0)], groups=2**30)
    with pytest.raises(ValueError, match="groups"):
        MixLayout(0, [Segment(2, 1.0)], groups=2)
