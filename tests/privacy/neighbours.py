"""Records and subjects of every size and mixture, and what the query says of them, in Python's own integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from privacy.mechanisms import joint_clipping
from privacy.mechanisms.prototype_query import PrototypeQuery, Sums

CLASSES = 3


class TooSensitiveError(AssertionError):
    """One record changes the query by more than is said."""


@dataclass(frozen=True)
class Records:
    """Features (N, d) and labels (N,)."""

    features: NDArray[np.float64]
    labels: NDArray[np.int64]

    def without(self, record: int) -> Records:
        return Records(np.delete(self.features, record, axis=0), np.delete(self.labels, record))

    def asked(self, query: PrototypeQuery) -> Sums:
        return query.sum_exact(self.features, self.labels, CLASSES)


def settings() -> st.SearchStrategy[PrototypeQuery]:
    """Draw queries of clips, weights and noise multipliers from very small to very large."""
    clips = st.sampled_from([1.0, 3.0, 0.1, 1e-9, 1e12]) | st.floats(0.01, 100.0)
    return st.builds(
        lambda clip, ratio, noise: PrototypeQuery(clip, clip * ratio, noise, 1.0),
        clips,
        st.sampled_from([1.0, 4 / 3, 0.01, 100.0]) | st.floats(0.01, 100.0),
        st.sampled_from([1.0, 5.0, 2.0**-9, 1000.0]) | st.floats(0.002, 1000.0),
    )


@st.composite
def records(draw: st.DrawFn, clip: float) -> Records:
    """Draw rows that are huge, tiny, zero, at the clip or beside it, and rows that stand there twice."""
    dim = draw(st.integers(1, 5))
    at_clip = [
        clip,
        clip / dim**0.5,
        np.nextafter(clip, np.inf),
        np.nextafter(clip, 0.0),
        0.6 * clip,
        0.8 * clip,
    ]
    values = (
        st.sampled_from([0.0, *at_clip, *(-each for each in at_clip), 5e-324, 1.7e308, -1.7e308])
        | st.floats(-2 * clip, 2 * clip)
        | st.floats(allow_nan=False, allow_infinity=False)
    )
    rows = draw(st.lists(st.lists(values, min_size=dim, max_size=dim), min_size=1, max_size=5))
    rows += draw(st.lists(st.sampled_from(rows), max_size=2))
    labels = draw(st.lists(st.integers(0, CLASSES - 1), min_size=len(rows), max_size=len(rows)))
    return Records(np.array(rows, dtype=np.float64), np.array(labels, dtype=np.int64))


def check_neighbours(query: PrototypeQuery, given: Records) -> None:
    """Check that without any one record one class changes, by no more than the stated norm, and its count by W."""
    whole = given.asked(query)
    for record, label in enumerate(given.labels.tolist()):
        rest = given.without(record).asked(query)
        for each in range(CLASSES):
            moved = [
                a - b for a, b in zip(whole.vectors[each].tolist(), rest.vectors[each].tolist(), strict=True)
            ]
            counted = int(whole.weights[each]) - int(rest.weights[each])
            if each != label and (any(moved) or counted):
                raise TooSensitiveError(f"a record of class {label} changes class {each}")
            if each == label and counted != query.grid.weight:
                raise TooSensitiveError(f"a record counts {counted}, not {query.grid.weight}")
            if sum(value * value for value in moved) + counted**2 > query.grid.sensitivity_squared:
                raise TooSensitiveError(f"{moved} and {counted} are more than {query.grid}")


@dataclass(frozen=True)
class Owned:
    """Features (N, d), labels (N,) and whose they are (N,), ascending."""

    features: NDArray[np.float64]
    labels: NDArray[np.int64]
    owners: NDArray[np.int64]

    def of(self, kept: NDArray[np.bool_]) -> Owned:
        return Owned(self.features[kept], self.labels[kept], self.owners[kept])

    def asked(self, query: PrototypeQuery) -> Sums:
        """Ask in three batches, which divides a subject wherever possible."""
        third = -(-len(self.labels) // 3) or 1
        cuts = [slice(first, first + third) for first in range(0, len(self.labels), third)]
        sums = query.start(CLASSES, self.features.shape[1])
        return joint_clipping.joint_sums(
            sums, ((self.features[cut], self.labels[cut]) for cut in cuts), self.owners
        )


@st.composite
def owned(draw: st.DrawFn, clip: float) -> Owned:
    """Draw records of every size, some of them many times, of one to four subjects."""
    drawn = draw(records(clip))
    times = draw(st.lists(st.sampled_from([1, 2, 7]), min_size=1, max_size=len(drawn.labels)))
    repeated = np.repeat(np.arange(len(times)), times)
    owners = draw(st.lists(st.integers(0, 3), min_size=len(repeated), max_size=len(repeated)))
    return Owned(drawn.features[repeated], drawn.labels[repeated], np.array(sorted(owners), dtype=np.int64))


def change(query: PrototypeQuery, given: Owned, owner: int) -> int:
    """Return the squared norm by which the query moves without one subject's records, over all classes."""
    whole, rest = given.asked(query), given.of(given.owners != owner).asked(query)
    pairs = ((whole.vectors, rest.vectors), (whole.weights, rest.weights))
    moved = [a - b for x, y in pairs for a, b in zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)]
    return sum(value * value for value in moved)


def check_subjects(query: PrototypeQuery, given: Owned) -> None:
    """Check that without all records of any one subject the query changes no more than by one record."""
    for owner in np.unique(given.owners).tolist():
        moved = change(query, given, owner)
        if moved > query.grid.sensitivity_squared:
            raise TooSensitiveError(f"subject {owner} moves the query by √{moved}, more than {query.grid}")
