"""Independence of a session's transcript from the site's records and from the results that it trains from.

The coordinator plays whole runs towards a site's own loop, in every method and protection, with models that diverge,
come back with negative variances, or raise. Two sites that differ in one record, an extreme one, say the same: the same
phases in the same order, the same public fields, sizes alike. Doubles without one line of what sees to it are noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, DpSgdSection, Extractor, Method, PrivacySection, Protection
from agreement.registry.methods import CONTROLS, SIMULATED
from algorithms.pfpl import Weighting
from crypto.errors import CryptoError
from protoseal_wire.messages import Finished
from secure_client.checkpoints import exchanged_values
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.predictor import Predictor
from secure_client.errors import Violation
from secure_client.exchanges import clusters, peers, sum_halves
from secure_client.training.feature_pass import FeaturePass
from secure_client.training.job import Losses
from secure_client.training.loop import run_job
from tests.adversary.watched_runs import HUGE, ROUNDS, Seen, Watch, leaving_agreement, watched
from tests.support.marks import full_but

PLAIN, MASKED, CKKS = Protection.PLAIN, Protection.MASKED, Protection.CKKS
_NOISE = PrivacySection(clip=1.0, noise_multiplier=0.2, min_count=0.5)
"""Noise so low that every class is in every release, but for a probability below 1e-9."""
FROZEN = _NOISE.model_copy(update={"extractor": Extractor.FROZEN})
PRIVATE = _NOISE.model_copy(
    update={
        "extractor": Extractor.PRIVATE,
        "dp_sgd": DpSgdSection(noise_multiplier=0.5, clip=1.0, sampling_rate=0.5),
    }
)
_SLACK_BYTES, _SLACK = 16, 0.01
"""Signatures and ciphertexts vary a little in length, by their own chance."""


@dataclass(frozen=True)
class Case:
    """One agreement."""

    method: Method
    protection: Protection
    model: str
    changes: dict[str, Any] = field(default_factory=dict)
    named: str = ""

    @property
    def agreement(self) -> Agreement:
        """Agreement that all parties hold."""
        return leaving_agreement(self.method, self.protection, self.model, **self.changes)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.method.value, self.protection.value, self.named, self.model)))


_PAIRS = [
    (method, protection)
    for method in (Method.PFPL, Method.FEDPC, Method.FEDDBP, Method.FEDPLCC)
    for protection in (PLAIN, MASKED, CKKS)
]
_SEVERAL = "several"
"""Name of cases in which a class may have several local prototypes."""
CASES = [
    *(Case(method, protection, model) for method, protection in _PAIRS for model in ("deep", "brittle")),
    *(Case(method, MASKED, "normed") for method in (Method.FEDPC, Method.FEDDBP, Method.FEDPLCC)),
    *(Case(Method.PFPL, PLAIN, model, {"privacy": FROZEN}, "frozen") for model in ("deep", "brittle")),
    *(Case(Method.PFPL, PLAIN, model, {"privacy": PRIVATE}, "private") for model in ("deep", "panicking")),
    Case(Method.FEDPC, MASKED, "panicking"),
    Case(Method.FEDDBP, MASKED, "deep", {"privacy": PRIVATE}, "private"),
    Case(Method.FEDPLCC, MASKED, "deep", {"privacy": PRIVATE}, "private"),
    *(
        Case(Method.PFPL, MASKED, model, {"pfpl": {"weighting": Weighting.UNIFORM}}, "uniform")
        for model in ("deep", "brittle")
    ),
    # The baselines are sums like FedDBP's: each under one protection.
    *(
        Case(method, (PLAIN, MASKED, CKKS)[at % 3], "deep")
        for at, method in enumerate(
            sorted(SIMULATED - CONTROLS - {Method.AVERAGE}, key=lambda method: method.name)
        )
    ),
    *(
        Case(
            Method.FEDPLCC,
            protection,
            model,
            {"fedplcc": {"most_prototypes": 8, "most_clusters": 4}},
            _SEVERAL,
        )
        for protection, model in (
            (PLAIN, "brittle"),
            (MASKED, "deep"),
            (CKKS, "brittle"),
            (MASKED, "brittle"),
        )
    ),
]
KEPT = [Case(method, protection, "deep") for method, protection in _PAIRS]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Watch]:
    """Runs that share their identities."""
    root = tmp_path_factory.mktemp("runs")

    def played(
        case: Case, patch: pytest.MonkeyPatch, pixel: float | None, *, restarts: bool = False
    ) -> Watch:
        folder = root / f"run-{len(list(root.iterdir()))}"
        folder.mkdir()
        return watched(case.agreement, folder, patch, pixel=pixel, restarts=restarts)

    return played


def without(seen: list[Seen], phases: tuple[str, ...]) -> list[Seen]:
    """Return the calls of other phases than these."""
    return [call for call in seen if call[0] not in phases]


def sizes_without(watch: Watch, phases: tuple[str, ...]) -> list[int]:
    """Return the sizes of uploads of other phases than these."""
    uploads = without(watch.seen, ("JOIN", "LEAVE"))
    return [size for call, size in zip(uploads, watch.sizes, strict=True) if call[0] not in phases]


def check_alike(case: Case, one: Watch, other: Watch) -> None:
    """``AssertionError`` if anything but ciphertexts, masked words and time tells the two apart.

    The stated limit: where a class may have several prototypes, their number shows, and with it the number of clusters.
    Bits that a coordinator reads by it, and by cosines, are counted in ``test_record_oracle.py``.
    """
    assert one.error is other.error is None
    assert one.outcome == other.outcome == Finished(ROUNDS)
    assert one.gone == other.gone == set()
    hidden = ("DIRECTIONS", "VALUES") if case.named == _SEVERAL else ()
    assert [call[:3] for call in one.seen] == [call[:3] for call in other.seen]
    assert without(one.seen, hidden) == without(other.seen, hidden)
    sizes = np.array([sizes_without(one, hidden), sizes_without(other, hidden)])
    assert (np.ptp(sizes, axis=0) <= np.maximum(_SLACK_BYTES, _SLACK * sizes.max(axis=0))).all()


@pytest.mark.parametrize("case", full_but(CASES, *KEPT), ids=str)
def test_session_transcript_does_not_depend_on_a_record(
    case: Case, play: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_alike(case, play(case, monkeypatch, None), play(case, monkeypatch, HUGE))


@pytest.mark.parametrize(
    "case",
    full_but(
        [Case(Method.FEDPC, MASKED, "brittle"), Case(Method.FEDDBP, CKKS, "deep")],
        Case(Method.FEDPC, MASKED, "brittle"),
    ),
    ids=str,
)
def test_session_transcript_does_not_depend_on_a_record_over_restarts(
    case: Case, play: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (play(case, monkeypatch, pixel, restarts=True) for pixel in (None, HUGE))
    assert [each[0] for each in one.seen].count("JOIN") == ROUNDS + 1
    check_alike(case, one, other)


# Doubles: the code without one line of what sees to it


def _raising_training(patch: pytest.MonkeyPatch) -> None:
    def run_all(learner: CheckpointedLearner, number: int) -> Losses | None:
        return [run_job(job) for job in learner.jobs(number)][-1]

    patch.setattr(CheckpointedLearner, "run", run_all)


def _unbounded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exchanged_values, "saturate", lambda averaged, *_: averaged)


def _kept_as_trained(patch: pytest.MonkeyPatch) -> None:
    """Keep a diverged model, and send it as it is."""
    _unbounded(patch)
    patch.setattr(CheckpointedLearner, "undo", lambda _: None)


def _untested(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Predictor, "evaluate", lambda predictor: predictor._test(predictor._learner.evaluate))


def _by_batches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FeaturePass, "_embed_batch", FeaturePass._compute)


def _refusing(patch: pytest.MonkeyPatch) -> None:
    """Refuse a result that decryption shows to be wrong, as a message of a wrong form is refused."""

    @contextmanager
    def opening(_: str) -> Iterator[None]:
        try:
            yield
        except CryptoError as error:
            raise Violation("refused") from error

    for module in (clusters, peers, sum_halves):
        patch.setattr(module, "hide_decryption_errors", opening)


DOUBLES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Case]] = {
    "training that fails ends the session": (_raising_training, Case(Method.FEDPC, MASKED, "brittle")),
    "frozen features' classifier ends the session": (
        _raising_training,
        Case(Method.PFPL, PLAIN, "deep", {"privacy": FROZEN}, "frozen"),
    ),
    "a model is not brought within its bounds": (_unbounded, Case(Method.FEDPC, MASKED, "normed")),
    "a model that diverged is kept": (_kept_as_trained, Case(Method.FEDPLCC, MASKED, "deep")),
    "a test that fails ends the session": (_untested, Case(Method.PFPL, PLAIN, "brittle")),
    "a record ends the pass over all": (_by_batches, Case(Method.PFPL, MASKED, "brittle")),
    "a decryption is refused": (_refusing, Case(Method.PFPL, CKKS, "deep")),
}


@pytest.mark.parametrize("double", DOUBLES)
def test_comparison_detects_a_site_whose_transcript_depends_on_a_record(
    double: str, play: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken, case = DOUBLES[double]
    weaken(monkeypatch)
    with pytest.raises(AssertionError):
        check_alike(case, play(case, monkeypatch, None), play(case, monkeypatch, HUGE))
