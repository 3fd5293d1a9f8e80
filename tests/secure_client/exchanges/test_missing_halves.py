"""A site whose exchange loses its protection sends no values: its half is replaced by one in the clear, or its step.

Each case is one federation. Where a site is about to answer a phase with values, its exchange is damaged in every way
of a table, and asked; nothing of what it does then is kept. The undamaged exchange answers afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, Method, PfplSection, Protection
from agreement.derived.cohorts import first_round, steps_of
from algorithms.pfpl import Weighting
from crypto.errors import UnknownSchemeError
from crypto.plain import SCHEME as PLAIN
from crypto.plain import PlainSite, PlainValues
from crypto.protection import Cohort, Payload, ProtectedPayload
from protoseal.simulation.local_federation import DirectTransport, LocalFederation, LocalSite
from protoseal_wire import codec
from protoseal_wire.messages import DownloadRequest, Phase, PhaseKey
from protoseal_wire.v1 import protoseal_pb2 as pb
from secure_client.errors import Unprotected
from secure_client.exchanges import sums
from secure_client.exchanges.clusters import ClusterExchange, PlainClusterHalf
from secure_client.exchanges.peers import PeerExchange
from secure_client.exchanges.sum_halves import CkksSumHalf, PlainSumHalf, SumHalf
from secure_client.exchanges.sums import SumExchange
from secure_client.protocol.sent_values import SignedValues
from secure_server.exchanges.peers import DeclaredPeerHalf
from secure_server.exchanges.sums import DeclaredSumHalf
from tests.adversary.stopped_run import play_up_to
from tests.support.extensions import PROTECTIONS, install, install_documented, installed
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.marks import full_but
from tests.support.scripted_clusters import clustered_agreement
from tests.support.scripted_sums import play_quickly
from tests.support.small import small_agreement, small_data
from tests.support.summed import method_agreement

SITE = EVERYONE[0]
"""Site that is asked; it also leads its group."""
SPARSE = {"complete_up_to": 3, "max_colluding": 0.0, "max_dropped": 0.0}
MASKED, CKKS = Protection.MASKED, Protection.CKKS
BY_DISTANCE = PfplSection(weighting=Weighting.DISTANCE)
BY_COMPLEMENT = PfplSection(weighting=Weighting.COMPLEMENT)
VALUES = (Phase.DIRECTIONS, Phase.VALUES, Phase.MEANS)


def _extension(method: str, protection: str) -> Agreement:
    changed = {"method": method, "protection": protection, "distributions": {}}
    return Agreement.model_validate({**dict(small_agreement()), **changed})


AGREEMENTS: Mapping[str, Callable[[], Agreement]] = {
    "pfpl rotated": lambda: method_agreement(Method.PFPL, MASKED, pfpl=BY_DISTANCE),
    "pfpl masked": lambda: method_agreement(Method.PFPL, MASKED),
    "pfpl ckks": lambda: method_agreement(Method.PFPL, CKKS),
    "pfpl extension": lambda: _extension("pfpl", "rotated"),
    "feddbp masked": lambda: method_agreement(Method.FEDDBP, MASKED),
    "feddbp masked sparse": lambda: method_agreement(Method.FEDDBP, MASKED, masking=SPARSE),
    "feddbp ckks": lambda: method_agreement(Method.FEDDBP, CKKS),
    "sums extension": lambda: _extension("cosine-proto", "pads"),
    "fedpc masked": lambda: grouped_agreement(MASKED),
    "fedpc masked sparse": lambda: grouped_agreement(MASKED, masking=SPARSE),
    "fedpc ckks": lambda: grouped_agreement(CKKS),
    "fedplcc masked": lambda: clustered_agreement(protection=MASKED),
    "fedplcc masked sparse": lambda: clustered_agreement(protection=MASKED, masking=SPARSE),
    "fedplcc ckks": lambda: clustered_agreement(protection=CKKS),
}


@pytest.fixture
def extensions(tmp_path: Path) -> Iterator[None]:
    """Make the documented distribution importable, and one with a protection of peers."""
    documented, rotated = tmp_path / "documented", tmp_path / "rotated"
    documented.mkdir()
    install_documented(documented)
    install(rotated, {PROTECTIONS: {"rotated": "tests.support.extensions:rotated"}}, name="rotated")
    with installed(documented, rotated):
        yield


class _NotKept(BaseException):
    """End of a transaction whose answer was to be stored and sent."""


def about_to_send(site: LocalSite, key: PhaseKey, request: bytes) -> bytes | None:
    """Return what the site would send, without any effect of it, or None if the site raises first."""
    sent: list[bytes] = []

    def keep_back(_key: PhaseKey, _request: bytes, answer: bytes) -> None:
        sent.append(answer)
        raise _NotKept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.journal, "record", keep_back)
        try:
            site.session.answer(key, request)
        except _NotKept:
            return sent[0]
        except Exception:
            return None
    raise AssertionError("the site sent an answer that it had not stored")


def scheme_of(content: bytes) -> str:
    message = pb.Content.FromString(content)
    return message.payload.scheme or message.masked_values.payload.scheme


def damages(exchange: Any) -> Iterator[tuple[str, object, str, object]]:
    """Yield (description, owner, attribute, replacement) for a half in the clear, and for steps without a half."""
    if isinstance(exchange, SumExchange):
        yield "a plain half of sums", exchange, "_half", in_clear(PlainSumHalf, exchange)
    if isinstance(exchange, ClusterExchange):
        yield "a plain half of clusters", exchange, "_half", in_clear(PlainClusterHalf, exchange)
    if isinstance(exchange, PeerExchange):
        yield "a plain half of rows", exchange._half, "for_attempt", lambda *_: PlainSite()
    yield "plain rows in the grouping", sums, "row_protection", lambda *_: PlainSite()
    yield from ((name, type(exchange), "step", step) for name, step in CLEARTEXT.items())


def in_clear(kind: type, source: Any) -> object:
    """Return a half in the clear, as if its check at the run's start were forgotten."""
    half: Any = object.__new__(kind)
    if kind is PlainSumHalf:
        half._agreement = source._agreement
    else:
        half._parts, half._members = parts_of(source), source._members
    return half


def parts_of(exchange: Any) -> Any:
    """Return what a half in the clear reads of an exchange's parts."""
    return SimpleNamespace(
        agreement=exchange._agreement, site=exchange._site, learner=exchange._learner, participants=None
    )


def _values(exchange: Any, key: PhaseKey) -> np.ndarray:
    rows, _ = exchange._learner.train_round(key.round)
    return np.asarray(rows, dtype=np.float64)


def _plain_payload(exchange: Any, key: PhaseKey) -> Payload:
    return Payload(PLAIN, arrays=(_values(exchange, key),))


CLEARTEXT: Mapping[str, Callable[[Any, PhaseKey, bytes], object]] = {
    "bytes": lambda exchange, key, _: codec.encode_payload(_plain_payload(exchange, key)),
    "a payload": lambda exchange, key, _: _plain_payload(exchange, key),
    "a plain half's rows": lambda exchange, key, _: ProtectedPayload(
        PlainSite(), np.zeros((1, 1)), SITE, Cohort((SITE,), np.ones((1, 1), dtype=np.bool_), 1)
    ),
    "a plain half's values": lambda exchange, key, _: ProtectedPayload(PlainValues(), _values(exchange, key)),
    "a plain half's values, signed": lambda exchange, key, _: SignedValues(
        ProtectedPayload(PlainValues(), _values(exchange, key)), bytes(70)
    ),
}
"""Steps that leave the protection out."""


@contextmanager
def damaged(owner: Any, name: str, replacement: object) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, replacement)
        yield


@pytest.mark.usefixtures("extensions")
@pytest.mark.parametrize("case", full_but(AGREEMENTS, "feddbp ckks", "fedplcc masked sparse"))
def test_a_damaged_exchange_sends_no_values_that_its_protection_has_not_made(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement, tried = AGREEMENTS[case](), 0
    if agreement.protection is CKKS:
        play_quickly(monkeypatch)
    with LocalFederation(agreement, small_data(agreement)) as federation:
        for each in federation.sites:
            each.join()
        (site,) = (each for each in federation.sites if each.name == SITE)
        exchange: Any = site.session._exchange
        for number in range(first_round(agreement), 2):
            for phase in steps_of(agreement, number):
                if phase not in VALUES:
                    continue
                key = play_up_to(federation, site, phase)
                assert key.round == number
                request = federation.coordinator.download(SITE, DownloadRequest(key))
                honest = about_to_send(site, key, request)
                assert honest is not None
                assert scheme_of(honest) != PLAIN
                for what, owner, name, replacement in damages(exchange):
                    with damaged(owner, name, replacement):
                        sent = about_to_send(site, key, request)
                    assert sent is None or scheme_of(sent) == scheme_of(honest), (phase, what)
                    assert sent is None or what not in CLEARTEXT, (phase, what)
                    tried += 1
                _check_refused(site, key, in_cleartext(honest), unchecked="extension" in case)
                site.step()
                assert site.journal.answer(key, request) is not None
    assert tried >= len(CLEARTEXT)


def in_cleartext(content: bytes) -> bytes:
    """Return the same upload under the scheme of cleartext."""
    message = pb.Content.FromString(content)
    (message.payload if message.payload.scheme else message.masked_values.payload).scheme = PLAIN
    return message.SerializeToString()


def _check_refused(site: LocalSite, key: PhaseKey, content: bytes, *, unchecked: bool) -> None:
    """Check that the coordinator refuses a site's upload, also where a third party's half checks nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for half in (DeclaredPeerHalf, DeclaredSumHalf) if unchecked else ():
            patch.setattr(half, "validate", lambda *_: None)
        with pytest.raises(UnknownSchemeError, match="plain"):
            site.transport.upload(key, content)


def test_a_run_whose_sites_forget_to_encrypt_ends_before_values_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play_quickly(monkeypatch)
    monkeypatch.delattr(CkksSumHalf, "answer")
    agreement = AGREEMENTS["feddbp ckks"]()
    uploaded: list[Phase] = []
    upload = DirectTransport.upload

    def tapped(transport: DirectTransport, key: PhaseKey, content: bytes) -> None:
        uploaded.append(key.phase)
        upload(transport, key, content)

    monkeypatch.setattr(DirectTransport, "upload", tapped)
    with (
        LocalFederation(agreement, small_data(agreement)) as federation,
        pytest.raises(Unprotected, match="VALUES"),
    ):
        federation.run()
    assert Phase.PRESENCE in uploaded
    assert not set(uploaded) & set(VALUES)


@pytest.mark.parametrize("left_out", ["answer", "read_means"])
def test_half_without_a_step_cannot_be_built(left_out: str) -> None:
    steps = {"answer": lambda *_: b"", "read_means": lambda *_: None}
    del steps[left_out]
    with pytest.raises(TypeError, match=left_out):
        type("Forgetful", (SumHalf,), steps)()


OTHER_HALVES = {
    "none": "",
    "forgotten": "secure_client.exchanges.sum_halves:Forgotten",
    "of rows": "secure_client.exchanges.peers:CkksPeerHalf",
    "of sums": "secure_client.exchanges.sum_halves:MaskedSumHalf",
    "of an exchange's step": "secure_server.exchanges.cluster_assignment:DirectionsStep",
}


@pytest.mark.parametrize("half", OTHER_HALVES.values(), ids=OTHER_HALVES)
@pytest.mark.parametrize("party", ["site_half", "server_half"])
@pytest.mark.parametrize("case", ["pfpl rotated", "feddbp ckks", "fedpc masked", "fedplcc masked"])
def test_missing_half_ends_the_run_at_its_start(
    case: str, party: str, half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = AGREEMENTS[case]()
    if party == "site_half" and half == OTHER_HALVES["of sums" if agreement.sums else "of rows"]:
        return  # a half of the exchange itself
    changes: Any = {party: half}
    slot = agreement.method.traits.family.value
    monkeypatch.setitem(vars(agreement.protection), slot, replace(agreement.plan, **changes))
    with (
        pytest.raises(ValueError, match="protection names"),
        LocalFederation(agreement, small_data(agreement)) as federation,
    ):
        assert not federation.sites


CLEARTEXT_HALVES = {
    Method.PFPL: "peers:RowHalf",
    Method.FEDDBP: "sum_halves:PlainSumHalf",
    Method.FEDPLCC: "clusters:PlainClusterHalf",
}


@pytest.mark.parametrize("protection", [MASKED, CKKS])
@pytest.mark.parametrize("method", CLEARTEXT_HALVES)
def test_plain_half_named_by_another_protection_ends_the_run_at_its_start(
    method: Method, protection: Protection, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = method_agreement(
        method, protection, **({} if method is not Method.PFPL else {"pfpl": BY_COMPLEMENT})
    )
    half = f"secure_client.exchanges.{CLEARTEXT_HALVES[method]}"
    plan = replace(agreement.plan, site_half=half, row_scheme=PLAIN)
    monkeypatch.setitem(vars(protection), method.traits.family.value, plan)
    with (
        pytest.raises(Unprotected, match=protection.value),
        LocalFederation(agreement, small_data(agreement)) as federation,
    ):
        assert not federation.sites
