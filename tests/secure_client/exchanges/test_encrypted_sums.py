"""A site in an encrypted sum: what it makes of results that cannot be right, and that nobody sees what it made of them.

A sum that decrypts to nonsense is acknowledged in the same bytes as a good one. The site goes on with what it has, and
states the hash of what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from agreement import Agreement, Method, Protection
from agreement.derived import encrypted_sums
from agreement.derived.encrypted_sums import EncryptedSum
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import dump, read_payload
from crypto.ckks.sums import SumLayout
from crypto.errors import ImplausibleError
from crypto.fixed_point import Segment
from crypto.protection import Payload
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.checkpoints.received_results import ReceivedResults
from secure_client.errors import Violation
from secure_client.exchanges.sums import SumExchange
from tests.secure_client.conftest import OpenSites
from tests.support.grouped import EVERYONE
from tests.support.scripted_coordinator import Cast
from tests.support.scripted_sums import (
    EncryptedAttempt,
    ScriptedSums,
    Vector,
    forged,
    hash_of,
    key_of,
    play_quickly,
)
from tests.support.small import DIM
from tests.support.summed import method_agreement

A, B, C, D = EVERYONE
BOTH, MODELS = Method.FEDPROTO_AVERAGED, Method.FEDAVG
"""Prototypes and models over sites; models over samples."""
ACKNOWLEDGED = b"\x08\x01R\x00"
Change = Callable[[Vector, Agreement], Vector]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    play_quickly(monkeypatch)


@dataclass
class Course:
    """A run of which each test takes the next rounds."""

    play: ScriptedSums
    number: int = 0

    def begin(self) -> tuple[EncryptedAttempt, Payload]:
        """Begin a round of everyone, up to its sum."""
        self.number += 1
        begun = EncryptedAttempt(self.play, *EVERYONE, round_number=self.number)
        return begun, begun.summed(*EVERYONE)


Open = Callable[[Method], Course]


def begun_run(play: ScriptedSums) -> Course:
    play.set_up(*EVERYONE)
    return Course(play)


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory, cast: Cast) -> Iterator[Open]:
    """Play one run for each method."""

    @cache
    def opened(method: Method) -> Course:
        agreement = method_agreement(method, Protection.CKKS, rounds=60)
        return begun_run(stack.enter_context(ScriptedSums(tmp_path_factory.mktemp("run"), agreement, cast)))

    with ExitStack() as stack:
        yield opened


@pytest.fixture
def fresh(open_sites: OpenSites) -> Open:
    """Copy a run that a test may spoil."""
    return lambda method: begun_run(open_sites(method_agreement(method, Protection.CKKS, rounds=60)))


def kept(course: Course, name: str) -> tuple[bytes, ...]:
    """Return the values that a site trains from, without their hash."""
    learner = course.play.site(name).learner
    base = learner.received.base
    assert base is not None
    return base.rows.tobytes(), base.present.tobytes(), base.averaged.tobytes()


def check_kept(course: Course, spoil: Callable[[EncryptedAttempt, Payload], Payload]) -> None:
    """Check a round with a good result, a spoilt one, and the next; raise ``AssertionError`` if anything shows."""
    first, total = course.begin()
    assert [first.give(name, total) for name in EVERYONE] == [ACKNOWLEDGED] * 4
    before = {name: kept(course, name) for name in EVERYONE}
    begun, total = course.begin()
    bad = spoil(begun, total)
    assert [begun.give(name, bad) for name in EVERYONE] == [ACKNOWLEDGED] * 4
    course.play.restart(A)
    after, total = course.begin()  # a site that had stopped would not be there, nor in a sum with the others
    assert {statement.base for statement in after.active.statements} == {hash_of(bad)}
    assert {name: kept(course, name) for name in EVERYONE} == before
    after.give(A, total)
    assert kept(course, A) != before[A]
    for name in EVERYONE[1:]:
        after.give(name, total)


# Results that only their decryption shows to be wrong


def values_of(change: Change) -> Callable[[EncryptedAttempt, Payload], Payload]:
    """Return a step that encrypts a sum of other values, derived from the true ones."""

    def spoil(begun: EncryptedAttempt, total: Payload) -> Payload:
        values = change(begun.read(total), begun.play.agreement)
        return forged(key_of(begun.play), begun.sums.form, values)

    return spoil


def counts(**changes: float) -> Callable[[EncryptedAttempt, Payload], Payload]:
    """Return a step that changes counts of ``sites``, ``samples`` or holders of class ``k0``, ``k1`` or ``k2``."""

    def changed(values: Vector, agreement: Agreement) -> Vector:
        found, length = values.copy(), agreement.layout.length
        at = {"sites": -1, "samples": length - 1, "k0": length, "k1": length + 1, "k2": length + 2}
        for name, count in changes.items():
            found[at[name]] = count
        return found

    return values_of(changed)


def long_row(values: Vector, agreement: Agreement) -> Vector:
    found = values.copy()
    found[:DIM] = 4 * 1.01 * agreement.norm_bound / DIM**0.5
    return found


def large_model(values: Vector, agreement: Agreement) -> Vector:
    """Return values with one parameter that a sum may have and no mean of so many sites has."""
    found, layout = values.copy(), agreement.layout
    weight = found[layout.length - 1] if layout.weighted else found[-1]
    found[layout.prototypes] = 1.01 * agreement.averaging.parameter_bound * weight
    return found


def another_key(begun: EncryptedAttempt, _: Payload) -> Payload:
    """Encrypt under another key: as good as random to holders of the sites' key."""
    return forged(CkksSecret.generate()[0], begun.sums.form, np.zeros(begun.sums.form.length))


def of_one_site(begun: EncryptedAttempt, _: Payload) -> Payload:
    return begun.sum_over([B])


SPOILT: dict[str, tuple[Method, Callable[[EncryptedAttempt, Payload], Payload]]] = {
    "under another key": (BOTH, another_key),
    "of one site alone": (BOTH, of_one_site),
    "of nothing at all": (BOTH, values_of(lambda values, _: np.zeros_like(values))),
    "over no sites": (BOTH, counts(sites=0.0, k0=0.0, k1=0.0, k2=0.0)),
    "over 3.5 sites": (BOTH, counts(sites=3.5)),
    "over minus four sites": (MODELS, counts(sites=-4.0)),
    "over fewer sites than are agreed": (BOTH, counts(sites=2.0, k0=2.0, k1=2.0, k2=2.0)),
    "with more holders than sites": (BOTH, counts(k0=5.0)),
    "with half a holder": (BOTH, counts(k1=3.5)),
    "with a long prototype": (BOTH, values_of(long_row)),
    "with a large parameter": (BOTH, values_of(large_model)),
    "with a large parameter, by samples": (MODELS, values_of(large_model)),
    "with a weight of nobody": (MODELS, counts(samples=0.0)),
    "with fewer samples than sites": (MODELS, counts(samples=3.0)),
    "with half a sample": (MODELS, counts(samples=66.5)),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_result_that_cannot_be_right_is_acknowledged_and_not_used(course: Open, case: str) -> None:
    method, spoil = SPOILT[case]
    check_kept(course(method), spoil)


def nothing(*_: object) -> None:
    """Keep the earlier base, so that the site states it again."""


def emptied(received: ReceivedResults, number: int, base: bytes) -> None:
    """Take a base with the right hash and without the values to train from."""
    old = received.base
    assert old is not None
    received.take_base(number, base, 0.0 * old.rows, old.present, old.averaged)


def raising(exchange: SumExchange, number: int, base: bytes, payload: Payload) -> object:
    """Take a result, but let an implausible decryption end the session."""
    means = exchange._half.read_means(payload)
    rows = means.rows if len(means.rows) else np.zeros((len(means.has), exchange._agreement.dim))
    exchange._learner.received.take_base(number, base, *exchange._targets(rows, means.has), means.model)
    return means.has


@pytest.mark.parametrize(
    ("owner", "name", "double", "shows"),
    [
        (SumExchange, "_take", raising, ImplausibleError),
        (ReceivedResults, "keep_base", nothing, AssertionError),
        (ReceivedResults, "keep_base", emptied, AssertionError),
        (encrypted_sums, "check_total", nothing, AssertionError),
    ],
    ids=["raising", "stating the old base", "losing what it has", "using it"],
)
def test_a_site_that_lets_it_show_is_noticed(
    fresh: Open,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    double: object,
    shows: type[Exception],
) -> None:
    monkeypatch.setattr(owner, name, double)
    with pytest.raises(shows):
        check_kept(fresh(BOTH), values_of(long_row))


def test_comparison_detects_a_site_that_trains_from_a_model_beyond_the_bounds(
    fresh: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that uses an impossible result then trains beyond the bounds, which shows to nobody."""
    monkeypatch.setattr(encrypted_sums, "_check_model", nothing)
    with pytest.raises(AssertionError):
        check_kept(fresh(MODELS), values_of(large_model))


@pytest.mark.parametrize("method", [BOTH, MODELS])
def test_before_any_result_a_site_keeps_its_own_model(fresh: Open, method: Method) -> None:
    course = fresh(method)
    begun, total = course.begin()
    bad = counts(sites=3.5)(begun, total)
    own = course.play.site(A).learner.values.averaged_part()
    assert begun.give(A, bad) == ACKNOWLEDGED
    base = course.play.site(A).learner.received.base
    assert base is not None
    np.testing.assert_array_equal(base.averaged, own)
    assert base.guide() is None
    for name in EVERYONE[1:]:
        begun.give(name, bad)
    after, total = course.begin()
    assert [after.give(name, total) for name in EVERYONE] == [ACKNOWLEDGED] * 4


def test_a_site_that_missed_a_spoilt_result_keeps_its_state(fresh: Open) -> None:
    """The start of the next round tells the site, which goes on with the others."""
    course = fresh(BOTH)
    first, total = course.begin()
    for name in EVERYONE:
        first.give(name, total)
    before = kept(course, D)
    begun, total = course.begin()
    bad = another_key(begun, total)
    for name in (A, B, C):
        begun.give(name, bad)
    start = {D: (hash_of(bad), bad)}
    next_ = course.play.attempt(*EVERYONE, round_number=3, start=start)
    assert {statement.base for statement in next_.active.statements} == {hash_of(bad)}
    assert kept(course, D) == before


@pytest.mark.parametrize("method", [BOTH, Method.FEDDBP])
def test_a_site_that_joins_after_a_spoilt_result_keeps_its_state(fresh: Open, method: Method) -> None:
    """The site is told before its first training."""
    play = fresh(method).play
    begun = EncryptedAttempt(play, A, B, C)
    total = begun.summed(A, B, C)
    bad = another_key(begun, total)
    assert [begun.give(name, bad) for name in (A, B, C)] == [ACKNOWLEDGED] * 3
    start = {D: (hash_of(bad), bad)}
    after = play.attempt(*EVERYONE, round_number=2, start=start)
    assert {statement.base for statement in after.active.statements} == {hash_of(bad)}


# Results of another form, which the coordinator can see as well


def rescaled(total: Payload, factor: float) -> Payload:
    scale = EncryptedSum(method_agreement(BOTH, Protection.CKKS)).form.scale
    form = SumLayout([Segment(1, 1.0)], terms=4).answers[0]
    (part,) = read_payload(total, (replace(form, scale=scale),))
    part.scale = scale * factor
    return replace(total, blobs=(dump(part),))


FORMS: dict[str, Callable[[EncryptedAttempt, Payload], Payload]] = {
    "no ciphertext": lambda _, total: replace(total, blobs=()),
    "a ciphertext more": lambda _, total: replace(total, blobs=total.blobs * 2),
    "another scale": lambda _, total: rescaled(total, 2.0),
    "another level": lambda begun, _: higher(begun),
    "an array": lambda _, total: replace(total, arrays=(np.zeros(3),)),
    "another scheme": lambda _, total: replace(total, scheme="plain/1"),
    "half of it": lambda _, total: replace(total, blobs=(total.blobs[0][: len(total.blobs[0]) // 2],)),
}


def higher(begun: EncryptedAttempt) -> Payload:
    """Encrypt at the level at which ciphertexts are multiplied."""
    (form,) = begun.sums.form.uploads
    level = type(form.level).UPLOAD
    return Payload("ckks/1", blobs=(key_of(begun.play).encrypt(np.zeros(4096), replace(form, level=level)),))


@pytest.mark.parametrize("case", FORMS)
def test_a_result_of_another_form_is_refused_and_nothing_follows(course: Open, case: str) -> None:
    run = course(BOTH)
    begun, total = run.begin()
    site = run.play.site(A)
    before = site.learner.received.base_hash
    with pytest.raises(Violation, match=r"refused|decode"):
        begun.give(A, FORMS[case](begun, total))
    key = PhaseKey("run-1", run.number, 1, Phase.RESULT)
    assert site.journal.stored_answer(key) is None
    assert site.learner.received.base_hash == before
    assert [begun.give(name, total) for name in EVERYONE] == [ACKNOWLEDGED] * 4


def test_a_site_that_restarts_answers_the_same_bytes(fresh: Open) -> None:
    """Encryptions are drawn afresh for each attempt, and never for the same one."""
    course = fresh(BOTH)
    begun, total = course.begin()
    given = begun.uploads[A]
    course.play.restart(A)
    begun.values(A)
    assert begun.uploads[A] == given
    begun.give(A, total)
    course.play.restart(A)
    assert begun.give(A, total) == ACKNOWLEDGED
    with pytest.raises(Violation, match="content"):
        begun.give(A, begun.sum_over(EVERYONE[:3]))
    for name in EVERYONE[1:]:
        begun.give(name, total)
    again, _ = course.begin()
    assert again.uploads[A] != given
