"""Hidden presence attacked by the coordinator: from statements, from uploads, by questions that only holders answer.

Each attack succeeds against a double weakened by one line, or on public presence, and fails on the code as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray
from tenseal import sealapi

from algorithms.pfpl import Weighting
from crypto.ckks.hidden import COUNT, hidden_answer_forms
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import context, level_id
from crypto.ckks.serialization import dump, read_payload
from crypto.ckks.server import CkksServer
from crypto.ckks.sums import SummingServer, SummingSite
from crypto.errors import ImplausibleError
from crypto.protection import Combination, Payload
from protoseal.config import Agreement, Method, Protection
from protoseal.encrypted import EncryptedSum
from protoseal.federation import LocalFederation
from protoseal.terms import limits_of, values_form
from protoseal_wire import codec
from protoseal_wire.messages import ActiveList, Phase
from secure_client.errors import Violation
from secure_client.group_secret import ckks_key
from secure_server.errors import BadPayload
from secure_server.store import Received
from tests.adversary.encrypted_play import MAKES_SECRETS, one_secret, play_quickly
from tests.adversary.hostile import Cast, Hostile
from tests.conformance.grouped_runs import grouped_agreement
from tests.conformance.runs import HIDDEN, Bool, agreement_for, data_for
from tests.support.small import CLASSES, DIM, HOLDINGS, small_agreement

SITES = tuple(HOLDINGS)
TRUTH = {site: [k in held for k in range(len(CLASSES))] for site, held in HOLDINGS.items()}
RARE = 2
"""All sites but clinic-c have it."""


def hidden_agreement(weighting: Weighting = Weighting.DISTANCE) -> Agreement:
    small = small_agreement(Protection.CKKS, weighting)
    return Agreement.model_validate({**dict(small), **HIDDEN})


@pytest.fixture
def play(tmp_path: Path, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    """Four sites, ready for the first round."""
    play_quickly(monkeypatch)
    with ExitStack() as stack:
        opened = stack.enter_context(Hostile(tmp_path, hidden_agreement(), cast))
        opened.set_up(*SITES)
        yield opened


# What sites state


def stated(active: ActiveList) -> dict[str, list[bool]]:
    return {each.site: each.holds.tolist() for each in active.statements}


def test_a_site_that_stated_its_classes_would_tell_them(
    play: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secure_client.session.stated_classes", lambda _, held: held)
    assert stated(play.begin(*SITES)) == TRUTH


def test_statements_are_alike_whatever_a_site_holds(play: Hostile) -> None:
    assert stated(play.begin(*SITES)) == dict.fromkeys(SITES, [False] * len(CLASSES))


def test_an_honest_coordinator_refuses_a_site_that_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secure_client.session.stated_classes", lambda _, held: held)
    agreement = agreement_for(Protection.CKKS, Weighting.DISTANCE, classes=3, dim=DIM, rounds=1, **HIDDEN)
    with (
        pytest.raises(BadPayload, match="states which classes it has, where that is to be hidden"),
        LocalFederation(agreement, data_for(agreement, np.ones((3, 3), dtype=np.bool_))) as federation,
    ):
        federation.run()


# A question that only holders would answer otherwise


def with_count_off(answer: Payload, slots: NDArray[np.float64]) -> Payload:
    """By a vector (4096,): the coordinator needs no key for that."""
    *others, count = read_payload(answer, hidden_answer_forms(Combination.DISTANCE, 1))
    plaintext = sealapi.Plaintext()
    sealapi.CKKSEncoder(context()).encode(slots.tolist(), level_id(COUNT.level), COUNT.scale, plaintext)
    sealapi.Evaluator(context()).add_plain_inplace(count, plaintext)
    return Payload(answer.scheme, blobs=tuple(dump(each) for each in (*others, count)))


def rare_count_off(answer: Payload, by: float) -> Payload:
    """The count of sites that lack the rare class."""
    return with_count_off(
        answer, Packing(len(CLASSES), DIM).replicate(by * (np.arange(len(CLASSES)) == RARE))
    )


def who_minds(play: Hostile) -> set[str]:
    """Which sites take a spoilt count of the rare class otherwise than an honest one."""
    active = play.begin(*SITES)
    answers = play.combine(play.all_values(active), active)
    different = set()
    for site in SITES:
        try:
            acknowledged = play.give_result(site, rare_count_off(answers[site], 0.4))
        except Violation:
            different.add(site)
        else:
            assert acknowledged == b"\x08\x01R\x00"
    return different


def test_a_site_that_refused_implausible_counts_would_tell_what_it_holds(
    play: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site does not look at the count of a class that it has not."""

    @contextmanager
    def refusing(what: str) -> Iterator[None]:
        try:
            yield
        except ImplausibleError as error:
            raise Violation(what) from error

    monkeypatch.setattr("secure_client.methods.pfpl.opening", refusing)
    assert who_minds(play) == {site for site in SITES if TRUTH[site][RARE]}


def test_no_site_minds(play: Hostile) -> None:
    assert who_minds(play) == set()
    for site in SITES:  # and none that noticed used it
        used = play.site(site).journal.get("targets") is not None
        assert used == (not TRUTH[site][RARE])


# Stated limits


def taken_of_two_holders(play: Hostile, off: float) -> NDArray[np.float64] | None:
    """What clinic-a takes of the rare class, which clinic-b has too and clinic-c has not; None for nothing."""
    three = SITES[:3]
    active = play.begin(*three)
    answers = play.combine(play.all_values(active), active)
    play.give_result(three[0], rare_count_off(answers[three[0]], off))
    stored = play.site(three[0]).journal.get("targets")
    assert stored is not None
    given = safetensors.numpy.load(stored[1])["present"][RARE]
    return play.peers_received(three[0])[RARE] if given else None


def test_a_class_of_two_holders_is_left_alone(play: Hostile) -> None:
    assert taken_of_two_holders(play, 1e-9) is None


def test_the_limit_how_many_hold_a_class_is_the_coordinators_word(play: Hostile) -> None:
    """It learns nothing by that itself; the site's next target points where its one peer's prototype does."""
    found = taken_of_two_holders(play, -1.0)
    secret = play.rows(SITES[1])[RARE]
    assert found is not None
    assert found @ secret > 0.9999 * np.linalg.norm(found) * np.linalg.norm(secret) > 0.0


# Whole runs


def holdings() -> Bool:
    """Five sites: everything, little, and two classes that too few have."""
    holds = np.ones((5, 5), dtype=np.bool_)
    holds[1:3, 2] = False
    holds[2:, 3] = False
    holds[4, 1:4] = False
    return holds


def agreement_of(kind: str, settings: Mapping[str, Any]) -> Agreement:
    if kind == "fedproto":
        return grouped_agreement(
            Protection.CKKS, method=Method.FEDPROTO, classes=5, dim=DIM, rounds=2, **settings
        )
    weighting = Weighting(kind)
    return agreement_for(Protection.CKKS, weighting, classes=5, dim=DIM, rounds=2, **settings)


KINDS = ("distance", "complement", "uniform", "fedproto")
each_kind = pytest.mark.parametrize("kind", KINDS)


def received(agreement: Agreement) -> list[Received]:
    data = data_for(agreement, holdings())
    with LocalFederation(agreement, data, record=True) as federation:
        federation.run()
        return list(federation.store.received())


@pytest.fixture(scope="module")
def runs() -> Iterator[Callable[[str], list[Received]]]:
    """Each run is made once, with one secret for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MAKES_SECRETS, one_secret)
        yield cache(lambda kind: received(agreement_of(kind, HIDDEN)))


def told(agreement: Agreement, messages: list[Received]) -> dict[tuple[int, Phase, str], Any]:
    """All that a round's messages say beside encryptions and signatures, by round, phase and site."""
    limits = limits_of(agreement)
    found: dict[tuple[int, Phase, str], Any] = {}
    for each in messages:
        if each.key is None or each.key.phase in (Phase.ROSTER, Phase.SECRET):
            continue
        said: Any = each.content
        if each.key.phase is Phase.PRESENCE:
            statement = codec.decode_presence(each.content, limits)
            said = (statement.holds.tolist(), len(statement.base), statement.keys)
        if each.key.phase is Phase.VALUES:
            form = values_form(agreement, each.key.round)
            payload = codec.decode_payload(each.content, limits, form)
            said = (payload.scheme, len(payload.arrays), len(payload.words), len(payload.blobs))
        found[each.key.round, each.key.phase, each.site] = said
    return found


def apart(agreement: Agreement, messages: list[Received]) -> bool:
    """Whether any phase of any round tells one site from another."""
    said: dict[tuple[int, Phase], set[str]] = {}
    for (number, phase, _), each in told(agreement, messages).items():
        said.setdefault((number, phase), set()).add(repr(each))
    return any(len(different) > 1 for different in said.values())


@each_kind
def test_no_message_tells_one_site_from_another(runs: Callable[[str], list[Received]], kind: str) -> None:
    assert not apart(agreement_of(kind, HIDDEN), runs(kind))


@each_kind
def test_ciphertexts_are_as_long_whoever_sent_them(runs: Callable[[str], list[Received]], kind: str) -> None:
    """Up to how well random bits compress."""
    agreement, lengths = agreement_of(kind, HIDDEN), []
    for each in runs(kind):
        if each.key is not None and each.key.phase is Phase.VALUES:
            form = values_form(agreement, each.key.round)
            blobs = codec.decode_payload(each.content, limits_of(agreement), form).blobs
            lengths.append([len(blob) for blob in blobs])
    sizes: NDArray[np.int64] = np.array(lengths)
    assert (np.ptp(sizes, axis=0) < 0.005 * sizes.mean(axis=0)).all()


@pytest.mark.parametrize("kind", ["distance", "fedproto"])
def test_with_public_presence_statements_tell_them_apart(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MAKES_SECRETS, one_secret)
    agreement = agreement_of(kind, {})
    messages = received(agreement)
    assert apart(agreement, messages)
    seen = {
        site: said[0]
        for (_, phase, site), said in told(agreement, messages).items()
        if phase is Phase.PRESENCE
    }
    assert [seen[f"site-{i + 1}"] for i in range(5)] == holdings().tolist()


@pytest.mark.parametrize("off", [0.4, 1.0])
def test_what_sites_decrypt_shows_in_no_message(
    runs: Callable[[str], list[Received]], off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts that are impossible, which sites do not take, and counts that are merely wrong."""
    monkeypatch.setattr(MAKES_SECRETS, one_secret)
    honest, combine = runs("distance"), CkksServer.combine
    moved: list[str] = []

    def tampered(*arguments: Any) -> dict[str, Payload]:
        answers = combine(*arguments)
        moved.extend(answers)
        return {site: with_count_off(answer, np.full(4096, off)) for site, answer in answers.items()}

    monkeypatch.setattr(CkksServer, "combine", tampered)
    agreement = agreement_of("distance", HIDDEN)
    assert told(agreement, received(agreement)) == told(agreement, honest)
    assert len(moved) == 10


# The stated limit of sums


def sum_of_too_few(agreement: Agreement, messages: list[Received]) -> tuple[float, int]:
    """What any site reads of the fourth class in the first round's sum: its length, and of how many sites it is."""
    form, limits, sums = values_form(agreement, 1), limits_of(agreement), EncryptedSum(agreement)
    payloads = [
        codec.decode_payload(each.content, limits, form)
        for each in messages
        if each.key is not None and (each.key.round, each.key.phase) == (1, Phase.VALUES)
    ]
    secret, _ = one_secret(Protection.CKKS)
    total = SummingServer(sums.form).add(payloads)
    values = SummingSite(ckks_key(secret), sums.form).unprotect(total, agreement.max_sites)
    rows, _ = agreement.layout.split(values[: agreement.layout.length])
    return float(np.linalg.norm(rows[3])), int(np.rint(values[agreement.layout.length + 3]))


def test_the_limit_sums_of_classes_that_too_few_have_are_open_to_sites(
    runs: Callable[[str], list[Received]], monkeypatch: pytest.MonkeyPatch
) -> None:
    length, holders = sum_of_too_few(agreement_of("fedproto", HIDDEN), runs("fedproto"))
    assert holders == holdings()[:, 3].sum() == 2
    assert length > 0.1
    monkeypatch.setattr(MAKES_SECRETS, one_secret)
    public = agreement_of("fedproto", {})
    length, holders = sum_of_too_few(public, received(public))
    assert holders == 0
    assert length < 1e-6
