"""A prototype of zeros hides no other in a sum: no site sends one, nor says that it holds a class for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from agreement import Protection
from agreement.payload_forms import directions_form, limits_of, values_form
from algorithms.fedplcc import LocalClusters
from crypto.errors import MalformedError
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.messages import AssignedRows, Assignment, Phase
from secure_client.training.feature_pass import Embedded
from secure_client.training.learner import Learner
from tests.adversary.cluster_attacks import assert_is, begun
from tests.adversary.cluster_play import ClusterPlay, clustered_agreement
from tests.adversary.hostile_coordinator import Cast
from tests.adversary.victim import stopped_at
from tests.support.grouped import EVERYONE

A, B, C, _ = EVERYONE
Change = Callable[[LocalClusters], LocalClusters]


@pytest.fixture
def play(tmp_path: Path, cast: Cast) -> Iterator[ClusterPlay]:
    with ExitStack() as stack:
        yield stack.enter_context(ClusterPlay(tmp_path, clustered_agreement(), cast))


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

    def local_clusters(learner: Learner, embedded: Iterable[Embedded]) -> LocalClusters | None:
        local = real(learner, embedded)
        return change(local) if local is not None and learner.site in names else local

    monkeypatch.setattr(Learner, "local_clusters", local_clusters)


def in_zero_company(play: ClusterPlay) -> None:
    """Site A's first prototype with zeros of two others, which makes three sites; the other rows by class."""
    attempt, found = begun(play), []
    for name, payload in sorted(attempt.directions.items()):
        rows, classes = payload.arrays
        labels = classes.astype(np.int64)
        clusters = np.where(rows.any(axis=1), labels + 1, 0)
        clusters[0] = 0 if name == A else clusters[0]
        found.append(AssignedRows(name, labels, clusters))
    attempt.tell(Assignment(tuple(found)), *EVERYONE)
    assert_is(attempt.summed(EVERYONE)[0], play.local(A).rows[0])


def test_prototypes_among_zeros_would_be_opened(play: ClusterPlay, monkeypatch: pytest.MonkeyPatch) -> None:
    """The power of what follows: sites that send zeros, as zeros."""
    have(monkeypatch, with_zero, B, C)
    monkeypatch.setattr(LocalClusters, "without_zeros", lambda local: local)
    monkeypatch.setattr("secure_client.methods.rotated_clusters._with_directions", lambda rows: rows)
    in_zero_company(play)


def test_a_site_does_not_send_a_zero_prototype(play: ClusterPlay, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, with_zero, B, C)
    attempt = begun(play)
    for name in EVERYONE:
        rows = attempt.directions[name].arrays[0]
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-9)
        assert len(rows) == len(play.local(name).rows)
    attempt.tell(attempt.honest, *EVERYONE)
    expected = np.sum([attempt.put(name) for name in EVERYONE], axis=0)
    np.testing.assert_allclose(attempt.summed(EVERYONE), expected, rtol=0.0, atol=1e-9)


def test_a_class_of_zeros_is_not_held(play: ClusterPlay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its site would make up the number of a class whose prototypes are two others'."""
    have(monkeypatch, dead, B, C)
    attempt = begun(play)
    stated = {each.site: each.holds for each in attempt.active.statements}
    assert [bool(stated[name][0]) for name in EVERYONE] == [True, False, False, True]
    assert not any((attempt.directions[name].arrays[1] == 0.0).any() for name in EVERYONE)  # two are too few
    play.restart(B)
    assert not play.site(B).trainee.held_classes()[0]
    attempt.tell(attempt.honest, *EVERYONE)


@pytest.mark.parametrize("length", [0.0, 1e-200])
def test_the_coordinator_refuses_a_zero_prototype(length: float) -> None:
    cases = (
        (Protection.PLAIN, Phase.VALUES, "plain/1", "a local prototype is zero"),
        (Protection.MASKED, Phase.DIRECTIONS, "rotation/1", "a direction does not have length 1"),
    )
    for protection, phase, scheme, refusal in cases:
        agreement = clustered_agreement(protection=protection)
        form = values_form(agreement, 1) if phase is Phase.VALUES else directions_form(agreement)
        with stopped_at(agreement, B, phase) as scene:
            arrays = [
                each.copy() for each in codec.decode_payload(scene.honest, limits_of(agreement), form).arrays
            ]
            arrays[0][0] *= length
            with pytest.raises(MalformedError, match=refusal):
                scene.send(scene.upload(codec.encode_payload(Payload(scheme, tuple(arrays)))))
