"""The check that third parties are given: it passes what is right, and notices what is wrong by one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import PeersHalves, Protection, SumHalves, method_named
from agreement.registry.conformance import NotConforming, check_protection, check_weights
from algorithms.gram_matrix import Bool, Float
from crypto import plain
from crypto.plain import PlainServer, PlainSite
from crypto.protection import Cohort, Payload, PayloadShape
from crypto.rotation import SCHEME, RotationSite
from tests.support.extensions import rotated

Weaken = Callable[[Any, pytest.MonkeyPatch], None]


def _unused(*given: Any) -> Any:
    raise AssertionError("a protection is checked before its halves are made")


def pads() -> Protection:
    """Return the document's protection by pads."""
    from pads import pads as found  # type: ignore[import-not-found]  # noqa: PLC0415  # it lies in the document

    assert isinstance(found, Protection)
    return found


def with_peers(**changes: Any) -> Protection:
    halves = rotated.peers
    assert isinstance(halves, PeersHalves)
    return replace(rotated, peers=replace(halves, **changes))


def test_conforming_protections_pass(example: Path) -> None:
    check_protection(pads())
    check_protection(rotated)


@pytest.mark.parametrize(
    ("halves", "said"),
    [
        ({"sums": Protection.PLAIN.sums}, "plan of rounds"),
        ({"groups": Protection.CKKS.groups}, "plan of rounds"),
        ({"sums": rotated.peers}, "must be SumHalves"),
        ({"peers": SumHalves(site=_unused, server=_unused, form=_unused)}, "must be PeersHalves"),
    ],
)
def test_halves_that_no_agreement_loads_are_refused(halves: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_protection(Protection(name="mine", secret_bytes=0, **halves))


def _no_last_pad(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the last pad away without having added it."""
    original = module.add_streams

    def add_streams(words: Any, plus: Any, minus: Any) -> Any:
        return original(words, plus[:1], minus)

    monkeypatch.setattr(module, "add_streams", add_streams)


def _no_context(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.PadsSite.protect
    monkeypatch.setattr(
        module.PadsSite,
        "protect",
        lambda self, values, site, cohort, context: original(self, values, site, cohort, b""),
    )


def _no_pads(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return words without pads beside a fresh nonce."""
    monkeypatch.setattr(module, "add_streams", lambda words, plus, minus: words)


def _coarse(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.PadsSite.unprotect
    monkeypatch.setattr(
        module.PadsSite,
        "unprotect",
        lambda self, answer: original(self, answer).astype(np.float32).astype(np.float64),
    )


def _clips(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.PadsSite.protect

    def protect(self: Any, values: Any, site: Any, cohort: Any, context: Any) -> Any:
        return original(self, np.clip(values, -1e3, 1e3) * (np.abs(values) <= 1e4), site, cohort, context)

    monkeypatch.setattr(module.PadsSite, "protect", protect)


def _clips_all_but_the_first(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a value beyond its bound, or one that is no number, by something else and send it."""
    original, bounds = module.PadsSite.protect, np.repeat([10.0, 1e4, 1.0], [20, 5, 4])

    def protect(self: Any, values: Any, *rest: Any) -> Any:
        clipped = np.clip(np.nan_to_num(values), -bounds, bounds)
        return original(self, np.concatenate([values[:1], clipped[1:]]), *rest)

    monkeypatch.setattr(module.PadsSite, "protect", protect)


def _of_another_shape(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.PadsSite.unprotect
    monkeypatch.setattr(module.PadsSite, "unprotect", lambda self, answer: original(self, answer)[None])


def _of_another_type(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.PadsSite.unprotect
    monkeypatch.setattr(
        module.PadsSite, "unprotect", lambda self, answer: original(self, answer).astype(np.longdouble)
    )


def _promises_nothing(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.PadsSite.error
    monkeypatch.setattr(module.PadsSite, "error", lambda self: original(self) + np.inf)


def _remembers_the_cohort(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep at protect what unprotect needs, so that a session that missed the round cannot read its result."""
    protect, unprotect = module.PadsSite.protect, module.PadsSite.unprotect

    def remember(self: Any, values: Any, site: Any, cohort: Any, context: Any) -> Any:
        self.cohort = cohort
        return protect(self, values, site, cohort, context)

    monkeypatch.setattr(module.PadsSite, "protect", remember)
    monkeypatch.setattr(
        module.PadsSite, "unprotect", lambda self, answer: self.cohort and unprotect(self, answer)
    )


def _misreads_a_sum_that_it_took_part_in(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep at protect what unprotect takes away again, which a session that missed the round does not have."""
    protect, unprotect = module.PadsSite.protect, module.PadsSite.unprotect

    def remember(self: Any, values: Any, *rest: Any) -> Any:
        self.own = values
        return protect(self, values, *rest)

    monkeypatch.setattr(module.PadsSite, "protect", remember)
    monkeypatch.setattr(
        module.PadsSite, "unprotect", lambda self, answer: unprotect(self, answer) - getattr(self, "own", 0.0)
    )


def _in_the_clear(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    protect = module.PadsSite.protect
    monkeypatch.setattr(
        module.PadsSite, "protect", lambda self, *given: replace(protect(self, *given), scheme=plain.SCHEME)
    )


def _another_form(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "form", lambda facts: PayloadShape(words=((64, facts.length), (64, 5))))


@pytest.mark.parametrize(
    ("weaken", "said"),
    [
        (_no_last_pad, "a sum"),
        (_no_context, "site 'b' protects two attempts alike"),
        (_no_pads, "site 'a' protects two attempts alike"),
        (_coarse, "a sum is off by"),
        (_clips, "a sum is off by"),
        (_clips_all_but_the_first, "values beyond their bound must raise"),
        (_of_another_shape, "a sum is not finite float64"),
        (_of_another_type, "a sum is not finite float64"),
        (_promises_nothing, "the stated error is not finite"),
        (_another_form, "does not have the declared form"),
        (_remembers_the_cohort, "a half that protected nothing"),
        (_misreads_a_sum_that_it_took_part_in, "a sum is off by"),
        (_in_the_clear, "in the clear"),
    ],
)
def test_pads_that_are_weakened_are_noticed(
    weaken: Weaken, said: str, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pads as module  # noqa: PLC0415  # it lies in the document

    weaken(module, monkeypatch)
    with pytest.raises(NotConforming, match=said):
        check_protection(pads())


class FreshAtFirst(RotationSite):
    """Only the first site's rotation is this attempt's."""

    def __init__(self, secret: bytes, context: bytes) -> None:
        super().__init__(secret, context)
        self._others = RotationSite(secret, b"one")

    def protect(self, rows: Float, site: str, cohort: Cohort) -> Payload:
        return (
            super().protect(rows, site, cohort) if site == "a" else self._others.protect(rows, site, cohort)
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"site": lambda settings, secret, context: PlainSite()},
            "in the clear",
        ),
        (
            {
                "site": lambda settings, secret, context: PlainSite(),
                "server": lambda settings, weights: PlainServer(weights),
            },
            "in the clear",
        ),
        (
            {
                "server": lambda settings, weights: PlainServer(
                    lambda gram, holds: 0.5 * weights(gram, holds), SCHEME
                )
            },
            "an answer is off by",
        ),
        (
            {"site": lambda settings, secret, context: RotationSite(secret, b"same")},
            "protects two attempts alike",
        ),
        (
            {"site": lambda settings, secret, context: FreshAtFirst(secret, context)},
            "site 'b' protects two attempts alike",
        ),
        (
            {"form": lambda settings, classes, dim: PayloadShape(arrays=((classes, dim + 1),))},
            "declared form",
        ),
    ],
)
def test_peers_that_are_weakened_are_noticed(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(NotConforming, match=said):
        check_protection(with_peers(**changes))


@pytest.mark.parametrize(
    "weights",
    [
        lambda gram, holds: np.ones_like(gram),
        lambda gram, holds: np.zeros_like(gram),
        lambda gram, holds: gram / gram.sum(axis=-1, keepdims=True),
        lambda gram, holds: gram[0],
    ],
)
def test_weights_that_are_not_convex_are_noticed(
    weights: Callable[[Float, Bool], Float], example: Path
) -> None:
    right = method_named("cosine-peers")
    check_weights(right)
    with np.errstate(all="ignore"), pytest.raises(NotConforming, match="cosine-peers: "):
        check_weights(replace(right, weights=lambda settings: weights))
    with pytest.raises(ValueError, match="defines no weights"):
        check_weights(replace(right, weights=None))
