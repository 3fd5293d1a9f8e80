"""Zero prototypes: a site holds a class for them all the same, and no attempt and no missing row shows them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from agreement import Protection
from agreement.derived.payload_shapes import directions_shape, limits_of
from algorithms.fedplcc import LocalClusters
from algorithms.prototypes import Clusters
from crypto.errors import MalformedError
from crypto.protection import Payload
from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.exchanges import cluster_directions
from secure_client.exchanges.cluster_directions import substitute_directions
from secure_client.training.feature_pass import EmbeddedBatch
from secure_client.training.learner import Learner
from tests.adversary.cluster_attacks import assert_is, begun
from tests.adversary.stopped_run import stopped_at
from tests.support.grouped import EVERYONE
from tests.support.scripted_clusters import ClusterAttempt, ScriptedClusters, clustered_agreement
from tests.support.scripted_coordinator import Cast
from tests.support.scripted_sums import Vector
from tests.support.small import small_data

A, B, C, D = EVERYONE
Change = Callable[[LocalClusters], LocalClusters]


@pytest.fixture(params=[Protection.MASKED], ids=str)
def play(request: pytest.FixtureRequest, tmp_path: Path, cast: Cast) -> Iterator[ScriptedClusters]:
    with ExitStack() as stack:
        yield stack.enter_context(
            ScriptedClusters(tmp_path, clustered_agreement(protection=request.param), cast)
        )


def with_zero(local: LocalClusters) -> LocalClusters:
    """Return the site's prototypes with one more of class 0, of dead features."""
    end = int((local.labels == 0).sum())
    return LocalClusters(
        np.insert(local.rows, end, 0.0, axis=0),
        np.insert(local.labels, end, 0),
        np.insert(local.counts, end, 5),
    )


def dead(local: LocalClusters) -> LocalClusters:
    """Leave nothing but zeros of class 0."""
    return LocalClusters(local.rows * (local.labels != 0)[:, None], local.labels, local.counts)


def have(monkeypatch: pytest.MonkeyPatch, change: Change, *names: str) -> None:
    """Make these sites' features come out as ``change`` gives them."""
    real = Learner.local_clusters

    def local_clusters(learner: Learner, embedded: Iterable[EmbeddedBatch]) -> LocalClusters | None:
        local = real(learner, embedded)
        return change(local) if local is not None and learner.site in names else local

    monkeypatch.setattr(Learner, "local_clusters", local_clusters)


def test_a_class_with_other_prototypes_sends_no_zero(
    play: ScriptedClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(monkeypatch, with_zero, B, C)
    attempt = begun(play)
    for name in EVERYONE:
        local = play.local(name)
        assert local.rows.any(axis=1).all()
        assert len(attempt.directions[name].arrays[0]) == len(local.rows)
    attempt.tell(attempt.honest, *EVERYONE)
    expected = np.sum([attempt.put(name) for name in EVERYONE], axis=0)
    np.testing.assert_allclose(attempt.summed(EVERYONE), expected, rtol=0.0, atol=1e-9)


def test_a_class_of_zeros_is_held_and_has_one_direction(
    play: ScriptedClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a coordinator that kills features would be told which classes of which sites they are."""
    have(monkeypatch, dead, B, C)
    attempt = begun(play)
    assert all(statement.holds[0] for statement in attempt.active.statements)
    for name in EVERYONE:
        rows, classes = attempt.directions[name].arrays
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-9)
        assert (classes == 0.0).sum() == (play.local(name).labels == 0).sum()
    assert (attempt.directions[B].arrays[1] == 0.0).sum() == 1
    play.restart(B)
    assert play.site(B).learner.values.held_classes()[0]
    attempt.tell(attempt.honest, *EVERYONE)


def test_the_stated_limit_a_prototype_among_zeros_is_opened(
    play: ScriptedClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three zeros make four sites with one that hides nothing."""
    have(monkeypatch, dead, B, C, D)
    attempt = begun(play)
    attempt.tell(attempt.by_first({}), *EVERYONE)
    local = play.local(A)
    assert_is(attempt.summed(EVERYONE)[0], local.rows[local.labels == 0].sum(axis=0))


def cosines(attempt: ClusterAttempt) -> Vector:
    """Return the cosines between all sites' rows of class 0."""
    rows = [payload.arrays[0][payload.arrays[1] == 0.0] for _, payload in sorted(attempt.directions.items())]
    return np.asarray(np.concatenate(rows) @ np.concatenate(rows).T)


def repeated(play: ScriptedClusters) -> float:
    """Return the largest change of a cosine from one attempt to the next, without site D, after a restart of B."""
    first = cosines(begun(play))
    play.restart(B)
    second = cosines(play.begun(A, B, C, attempt=2))
    return float(np.abs(second - first[: len(second), : len(second)]).max())


@pytest.mark.parametrize("play", [Protection.MASKED, Protection.CKKS], indirect=True, ids=str)
def test_repeated_attempts_show_the_same_cosines_of_zeros(
    play: ScriptedClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(monkeypatch, dead, B, C)
    assert repeated(play) < 1e-9


@pytest.mark.parametrize("play", [Protection.MASKED, Protection.CKKS], indirect=True, ids=str)
def test_comparison_detects_zeros_whose_directions_are_drawn_anew(
    play: ScriptedClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power of the above: a site that does not keep its secret."""
    have(monkeypatch, dead, B, C)
    monkeypatch.setattr(cluster_directions, "derive", lambda *_: secrets.token_bytes(32))
    assert repeated(play) > 1e-2


@pytest.mark.parametrize("negative", [False, True])
def test_substitutes_lie_among_the_site_s_prototypes(negative: bool) -> None:
    rows = np.array([[0.0, 2.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -1.0 if negative else 1.0, 0.0]])
    local = LocalClusters(rows, np.array([0, 1, 2]), np.array([3, 3, 3]))
    drawn = np.array([substitute_directions(bytes([n] * 32), b"round", local, 3) for n in range(20)])
    assert not drawn[:, [0, 2]].any()
    assert not drawn[:, 1, [0, 3]].any()
    assert (drawn[:, 1, [1, 2]] != 0.0).all()
    assert bool((drawn < 0.0).any()) is negative


def test_a_site_of_zeros_alone_draws_from_all_channels() -> None:
    local = LocalClusters(np.zeros((2, 4)), np.array([0, 1]), np.array([3, 3]))
    drawn = substitute_directions(bytes(32), b"round", local, 2)
    assert (drawn > 0.0).all()
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-2


def test_plain_withholds_a_class_whose_prototypes_are_zero_at_too_many_sites(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Zeros are seen under ``plain``, and make no holder."""
    have(monkeypatch, dead, B, C)
    agreement = clustered_agreement(protection=Protection.PLAIN)
    with LocalFederation(agreement, small_data(agreement), state=tmp_path) as federation:
        federation.run()
        for site in federation.sites:
            guide = site.learner.received.guide
            assert isinstance(guide, Clusters)
            assert not (guide.labels == 0).any()
            assert (guide.labels == 1).any()


@pytest.mark.parametrize("length", [0.0, 1e-200])
def test_the_coordinator_refuses_a_direction_of_another_length(length: float) -> None:
    agreement = clustered_agreement()
    with stopped_at(agreement, B, Phase.DIRECTIONS) as scene:
        form = directions_shape(agreement)
        rows, classes = codec.decode_payload(scene.honest, limits_of(agreement), form).arrays
        short = np.concatenate([rows[:1] * length, rows[1:]])
        with pytest.raises(MalformedError, match="direction"):
            scene.send(scene.upload(codec.encode_payload(Payload("rotation/1", (short, classes)))))
