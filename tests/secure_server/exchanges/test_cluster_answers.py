"""Answers that the coordinator refuses from sites whose prototypes it clusters, and sums over clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agreement import Protection
from agreement.derived.payload_shapes import directions_shape, limits_of, values_shape
from algorithms.fedplcc import WITHHELD
from crypto.errors import MalformedError, UnknownSchemeError
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.codec import Malformed
from protoseal_wire.messages import Phase
from secure_server.exchanges.cluster_assignment import LocalPrototypes, assign_clusters, check_labels
from secure_server.exchanges.clusters import MaskedClusterHalf
from secure_server.exchanges.exchange import Attempt
from secure_server.exchanges.group_results import GroupSum
from tests.adversary.stopped_run import Scene, stopped_at
from tests.support.scripted_clusters import clustered_agreement

B = "clinic-b"
PLAIN = clustered_agreement(protection=Protection.PLAIN)
MASKED = clustered_agreement()
Arrays = list[np.ndarray[Any, np.dtype[np.float64]]]


@pytest.fixture(scope="module")
def values() -> Iterator[Scene]:
    """Yield the scene in which clinic-b is about to send its values under `plain`."""
    with stopped_at(PLAIN, B, Phase.VALUES) as scene:
        yield scene


@pytest.fixture(scope="module")
def directions() -> Iterator[Scene]:
    """Yield the scene in which clinic-b is about to send directions."""
    with stopped_at(MASKED, B, Phase.DIRECTIONS) as scene:
        yield scene


def arrays(scene: Scene) -> Arrays:
    agreement = scene.federation.agreement
    form = values_shape(agreement, 1) if scene.key.phase is Phase.VALUES else directions_shape(agreement)
    return [each.copy() for each in codec.decode_payload(scene.honest, limits_of(agreement), form).arrays]


def refuse(
    scene: Scene, changed: Arrays, error: type[Exception], match: str, *, scheme: str | None = None
) -> None:
    """Check that the upload is refused and that nothing has changed."""
    before = scene.memory()
    honest = "plain/1" if scene.key.phase is Phase.VALUES else "rotation/1"
    content = codec.encode_payload(Payload(scheme or honest, tuple(changed)))
    with pytest.raises(error, match=match):
        scene.send(scene.upload(content))
    assert scene.memory() == before


def longer(found: Arrays) -> None:
    found[0][0] *= 2.0 * PLAIN.norm_bound / np.linalg.norm(found[0][0])


def no_sample(found: Arrays) -> None:
    found[2][0] = 0.0


def half_a_sample(found: Arrays) -> None:
    found[2][0] += 0.5


def too_many_samples(found: Arrays) -> None:
    found[2][:2] = PLAIN.averaging.most_samples


def other_order(found: Arrays) -> None:
    found[1][:] = found[1][::-1]


def no_class(found: Arrays) -> None:
    found[1][-1] = 3.0


def half_a_class(found: Arrays) -> None:
    found[1][0] = 0.5


def a_class_less(found: Arrays) -> None:
    found[1][found[1] == 1.0] = 0.0


def no_weight(found: Arrays) -> None:
    found[3][-1] = 0.0


def a_large_model(found: Arrays) -> None:
    found[3][0] = found[3][-1] * PLAIN.averaging.parameter_bound * 1.01


OF_VALUES: dict[Callable[[Arrays], None], str] = {
    longer: "norm",
    no_sample: "sample",
    half_a_sample: "whole",
    too_many_samples: "samples",
    other_order: "ordered",
    no_class: "0 to 2",
    half_a_class: "whole",
    a_class_less: "classes",
    no_weight: "weight",
    a_large_model: "bound",
}


@pytest.mark.parametrize("change", OF_VALUES)
def test_bad_values_are_refused(values: Scene, change: Callable[[Arrays], None]) -> None:
    found = arrays(values)
    change(found)
    refuse(values, found, MalformedError, OF_VALUES[change])


def test_values_of_another_scheme_or_form_are_refused(values: Scene) -> None:
    found = arrays(values)
    refuse(values, found, UnknownSchemeError, "scheme", scheme="rotation/1")
    refuse(values, found[:3], Malformed, "arrays")
    refuse(values, [found[0][:-1], *found[1:]], Malformed, "length")


def half_as_long(found: Arrays) -> None:
    found[0][0] /= 2.0


OF_DIRECTIONS: dict[Callable[[Arrays], None], str] = {
    half_as_long: "direction",
    other_order: "ordered",
    no_class: "0 to 2",
    a_class_less: "classes",
}


@pytest.mark.parametrize("change", OF_DIRECTIONS)
def test_bad_directions_are_refused(directions: Scene, change: Callable[[Arrays], None]) -> None:
    found = arrays(directions)
    change(found)
    refuse(directions, found, MalformedError, OF_DIRECTIONS[change])


def test_a_direction_of_zeros_is_refused_and_the_honest_ones_are_taken(directions: Scene) -> None:
    found = arrays(directions)
    refuse(directions, found, UnknownSchemeError, "scheme", scheme="plain/1")
    found[0][0] = 0.0
    refuse(directions, found, MalformedError, "direction")
    exchange, attempt = exchange_of(directions)
    exchange.check(attempt, Phase.DIRECTIONS, B, directions.honest)


def exchange_of(scene: Scene) -> tuple[MaskedClusterHalf, Attempt]:
    coordinator = scene.coordinator
    exchange = coordinator._aggregator.exchange(1)
    assert isinstance(exchange, MaskedClusterHalf)
    return exchange, coordinator._requests.attempt(coordinator.state)


def test_more_prototypes_of_a_class_than_are_agreed_are_refused() -> None:
    holds = np.array([True, False])
    check_labels(np.zeros(4), holds, 4)
    with pytest.raises(MalformedError, match=r"^5 "):
        check_labels(np.zeros(5), holds, 4)


def test_more_clusters_than_are_agreed_become_as_many() -> None:
    """Six pairs of equal directions, all orthogonal to each other: six clusters, or as few as sites have to share."""
    agreement = clustered_agreement(
        min_holders=1, min_sites=2, protection=Protection.PLAIN, fedplcc={"most_clusters": 5}
    )
    rows = np.eye(6, agreement.dim)
    local = {name: LocalPrototypes(rows, np.zeros(6, dtype=np.int64)) for name in ("a", "b")}
    assert assign_clusters(agreement, local).labels.tolist() == [0] * 5
    masked = agreement.model_copy(update={"protection": Protection.MASKED})
    assert assign_clusters(masked, local).labels.tolist() == [0] * 4  # 10 inner products of sums, of 12 rows
    withheld = assign_clusters(agreement.model_copy(update={"min_holders": 3}), local)
    assert not len(withheld.labels)
    assert withheld.of_site["a"].tolist() == [WITHHELD] * 6


@pytest.fixture(scope="module")
def survivors() -> Iterator[tuple[MaskedClusterHalf, Attempt]]:
    """Yield the exchange and the attempt in which a masked sum is about to be opened."""
    with stopped_at(MASKED, B, Phase.SURVIVORS) as scene:
        exchange, attempt = exchange_of(scene)
        yield exchange, replace(attempt, survivors=dict(attempt.survivors))


def a_sum(exchange: MaskedClusterHalf, attempt: Attempt) -> GroupSum:
    """Build the sum of four sites with prototypes of length 1 and a sample each, and models of zeros."""
    clusters = exchange._directions.assignment(attempt).clusters
    number = len(clusters.labels)
    members = clusters.members(attempt.sites).astype(np.float64)
    rows = np.zeros((number, MASKED.dim))
    rows[:, 0] = members
    vector = np.concatenate([rows.ravel(), members, np.zeros(MASKED.layout.model), [20.0]])
    (group,) = attempt.groups
    return GroupSum(None, group, vector)  # type: ignore[arg-type]  # nothing here asks who holds what


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        ("counts", 0.0, "fewer samples"),
        ("counts", 1e9, "more samples"),
        ("weight", 3.0, "3 samples"),
        ("weight", 1e9, "together"),
        ("rows", 1e3, "norm"),
    ],
)
def test_a_sum_that_sites_cannot_have_is_noticed(
    survivors: tuple[MaskedClusterHalf, Attempt], place: str, value: float, match: str
) -> None:
    exchange, attempt = survivors
    found = a_sum(exchange, attempt)
    exchange.check_sum(attempt, found)
    number = len(exchange._directions.assignment(attempt).clusters.labels)
    found.total[{"rows": 0, "counts": number * MASKED.dim, "weight": -1}[place]] = value
    with pytest.raises(MalformedError, match=match):
        exchange.check_sum(attempt, found)
