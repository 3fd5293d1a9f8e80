"""Crafted models as questions about single records: what FedPLCC's answers under ``masked`` tell, and what they do not.

Stated classes tell nothing. Directions tell everything, which is the stated limit (docs: threat model, FedPLCC).
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from agreement import Method, Protection
from algorithms.fedplcc import LocalClusters
from secure_client.checkpoints.exchanged_values import TrainedValues
from secure_client.exchanges.cluster_directions import substitute_directions
from tests.adversary.oracles import (
    CLASSES,
    GRID,
    PIXELS,
    SITES,
    Answers,
    Float,
    Question,
    Questioned,
    agreed,
    ask,
    classes_with_a_direction,
    dying,
    largest_pixels,
    question_for_half,
    question_for_one_site,
    turning,
)
from tests.conformance.federations import data_for
from tests.conformance.transcripts import ClusterTranscript, record_cluster_run

_PIXELS = (5, 6, 9, 10, 13)
_EQUAL = 1e-6
"""Largest 1 − cos of two rows of the same direction: training moves crafted models a little."""


def questions() -> dict[int, Question]:
    """Return eight questions, the first of which one site alone answers with yes, for each of the classes."""
    data = data_for(agreed(Protection.MASKED), np.ones((SITES, CLASSES), dtype=np.bool_))
    for_one = [question_for_one_site(data, k) for k in range(CLASSES)]
    return dict(enumerate([*for_one, *(question_for_half(data, pixel) for pixel in _PIXELS)], start=2))


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Questioned:
    with pytest.MonkeyPatch.context() as patch:
        return ask(tmp_path_factory.mktemp("dead"), patch, dying, questions())


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Questioned:
    with pytest.MonkeyPatch.context() as patch:
        return ask(tmp_path_factory.mktemp("turned"), patch, turning, questions())


def share_right(answers: Answers, truth: Answers) -> float:
    """Return the share of right answers."""
    return float(np.mean([answers[at] == truth[at] for at in truth]))


def bits_told(answers: Answers, truth: Answers) -> float:
    """Return the mutual information of an answer and the truth, in bits, by their frequencies."""
    told = np.concatenate([answers[at] for at in truth])
    true = np.concatenate([truth[at] for at in truth])
    joint = np.histogram2d(told.astype(float), true.astype(float), bins=(2, 2), range=((0, 1), (0, 1)))[0]
    joint /= joint.sum()
    apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    there = joint > 0.0
    return float((joint[there] * np.log2(joint[there] / apart[there])).sum())


def test_stated_classes_answer_no_question_about_records(dead: Questioned) -> None:
    truth = dead.truth
    assert len(truth) * CLASSES == 96
    assert 0.3 < np.mean([answer.mean() for answer in truth.values()]) < 0.7
    assert all(answer.all() for answer in dead.stated.values())
    assert bits_told(dead.stated, truth) == 0.0


def test_a_site_that_states_classes_with_a_direction_answers_all_questions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The power of the above."""
    monkeypatch.setattr(TrainedValues, "held_classes", classes_with_a_direction)
    answered = ask(tmp_path, monkeypatch, dying, questions())
    assert share_right(answered.stated, answered.truth) == 1.0
    assert bits_told(answered.stated, answered.truth) > 0.9


def test_directions_of_killed_features_answer_nothing_at_a_site_with_a_class_alive(dead: Questioned) -> None:
    """A class of zeros has one row, as the others have, and the row lies in the one channel that is alive."""
    alive = {at for at, answer in dead.truth.items() if answer.any()}
    assert sum(not dead.truth[at].all() for at in alive) > 10
    for number in dead.questions:
        sent = [dead.directions[at] for at in sorted(alive) if at[0] == number]
        assert all(classes.tolist() == [*range(CLASSES)] for _, classes in sent)
        for k in range(CLASSES):
            rows = np.array([rows[k] for rows, _ in sent])
            assert (rows @ rows.T).min() > 1.0 - 1e-9


def test_the_stated_limit_directions_of_a_few_channels_tell_zeros(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Features that are equal in three channels make prototypes alike, and substitutes not: 91 of 96 answers."""
    asked = ask(tmp_path, monkeypatch, partial(dying, channels=3), questions())
    found = {}
    for (number, site), (rows, _) in asked.directions.items():
        others = [sent for at, (sent, _) in asked.directions.items() if at[0] == number and at[1] != site]
        found[number, site] = np.max([(rows * other).sum(axis=1) for other in others], axis=0) > 1.0 - _EQUAL
    assert share_right(found, asked.truth) > 0.9


def read(turned: Questioned) -> Answers:
    """Return the answers that a coordinator reads off directions alone.

    Records whose answer is no have one direction, so that prototypes of such records alone are equal.
    """
    found: Answers = {at: np.ones(CLASSES, dtype=np.bool_) for at in turned.truth}
    for number, k in product(turned.questions, range(CLASSES)):
        at_sites = {
            at: rows[classes == k] for at, (rows, classes) in turned.directions.items() if at[0] == number
        }
        rows = np.concatenate(list(at_sites.values()))
        alike = (rows @ rows.T > 1.0 - _EQUAL).sum(axis=1)
        if alike.max() == 1:
            continue  # no two sites have prototypes of "no" alone
        no = rows[alike.argmax()]
        for at, own in at_sites.items():
            found[at][k] = (own @ no < 1.0 - _EQUAL).any()
    return found


def test_the_stated_limit_directions_answer_questions_about_records(turned: Questioned) -> None:
    """95 of 96 answers are right, so that one round gives away almost a bit, or more, for each class of each site."""
    assert share_right(read(turned), turned.truth) > 0.97
    assert bits_told(read(turned), turned.truth) > 0.9


def test_the_stated_limit_a_cluster_of_enough_sites_holds_one_real_prototype(dead: Questioned) -> None:
    """A coordinator that has found the question which one site answers opens that site's prototype, in three of three
    classes.
    """
    assert isinstance(dead.transcript, ClusterTranscript)
    for number, k, site in answered_by_one(dead):
        local = dead.transcript.local[number, 1, site]
        check_opened(dead, number, k, local.rows[local.labels == k])


def test_the_stated_limit_a_class_of_enough_holders_has_one_real_prototype(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """FedPC's groups give the one prototype away as well, in three of three classes."""
    for_one = {number: question for number, question in questions().items() if number < 2 + CLASSES}
    asked = ask(tmp_path, monkeypatch, dying, for_one, Method.FEDPC)
    for number, k, site in answered_by_one(asked):
        check_opened(asked, number, k, asked.transcript.put[number, 1, site].rows[k : k + 1])


def answered_by_one(asked: Questioned) -> list[tuple[int, int, str]]:
    """Return (round, class, site) of the first questions, which one site alone answers with yes for a class."""
    return [
        (number, k, site)
        for number, k in zip(sorted(asked.questions), range(CLASSES), strict=False)
        for site in asked.data
        if asked.truth[number, site][k]
    ]


def check_opened(asked: Questioned, number: int, k: int, own: Float) -> None:
    """Check that the mean of a class, times its sites, is the one prototype ``own`` (1, d) of one site."""
    rows, classes = asked.opened[number]
    assert np.linalg.norm(own) > 1e-3
    np.testing.assert_allclose(SITES * rows[classes == k], own, rtol=0.0, atol=1e-5)


def test_the_stated_limit_one_blind_question_in_ten_leaves_one_real_prototype(
    dead: Questioned,
) -> None:
    """Over all pixels and bounds between grey levels that leave a real prototype, by the records alone."""
    bounds = np.arange(-1.0, 1.0, GRID) + GRID / 2.0
    largest = np.array(
        [[largest_pixels(each, pixel) for each in dead.data.values()] for pixel in range(PIXELS)]
    )
    holders = (largest[..., None] > bounds).sum(axis=1)
    assert 0.05 < (holders == 1).sum() / (holders > 0).sum() < 0.15


# Zero prototypes among those of an honest run


def substituted(local: LocalClusters, k: int, seed: bytes) -> tuple[LocalClusters, Float]:
    """Return a site's prototypes with a zero for class ``k``, and the direction that the site sends for it."""
    rows = local.rows * (local.labels != k)[:, None]
    zeroed = LocalClusters(rows, local.labels, local.counts).without_zeros()
    return zeroed, substitute_directions(seed, b"round 1", zeroed, CLASSES)[k]


def test_the_stated_limit_cosines_tell_zero_prototypes_from_others(tmp_path: Path) -> None:
    agreement = agreed(Protection.MASKED)
    """A bound on the mean cosine with the class's rows at other sites tells 96 % of them; no cosine is negative."""
    transcript = record_cluster_run(
        agreement, data_for(agreement, np.ones((SITES, CLASSES), dtype=np.bool_)), tmp_path
    )
    real, zero = [], []
    for (at, k), draw in product(product(transcript.local, range(CLASSES)), range(4)):
        local = transcript.local[at]
        others = [each for other, each in transcript.local.items() if other[0] == at[0] and other != at]
        rows = np.concatenate([units(each.rows[each.labels == k]) for each in others])
        real += [float((rows @ own).mean()) for own in units(local.rows[local.labels == k])]
        _, drawn = substituted(local, k, bytes([draw] * 32))
        cosines = rows @ units(drawn[None])[0]
        assert cosines.min() >= 0.0
        zero.append(float(cosines.mean()))
    accuracy = max(
        np.mean([np.mean(np.array(real) > bound), np.mean(np.array(zero) <= bound)]) for bound in real
    )
    assert 0.94 < accuracy < 0.98


def units(rows: Float) -> Float:
    """Scale rows to length 1."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
