"""Callers that a run is not for: refused with their status, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from grpc import StatusCode

from crypto.roster import sign_statement
from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    DownloadRequest,
    JoinRequest,
    LeaveRequest,
    Phase,
    PhaseKey,
    TaskRequest,
)
from secure_server import errors
from secure_server.coordinator import Coordinator
from secure_server.service.servicer import find_status
from tests.support.small import RUN, small_agreement, small_data

A, B = "clinic-a", "clinic-b"
DENIED, PRECONDITION = StatusCode.PERMISSION_DENIED, StatusCode.FAILED_PRECONDITION


@pytest.fixture(scope="module")
def federation() -> Iterator[LocalFederation]:
    """All but clinic-b have joined."""
    agreement = small_agreement()
    with LocalFederation(agreement, small_data(agreement)) as federation:
        for site in federation.sites:
            if site.name != B:
                site.join()
        yield federation


def _request(federation: LocalFederation, name: str) -> JoinRequest:
    return next(site.session.join_request() for site in federation.sites if site.name == name)


def _forged(federation: LocalFederation) -> JoinRequest:
    request = _request(federation, B)
    return replace(request, statement=replace(request.statement, channel_key=b"k" * 32))


def _signed_for_another_run(federation: LocalFederation) -> JoinRequest:
    party = next(party for party in federation.parties if party.name == B)
    request = _request(federation, B)
    statement = sign_statement(
        party.credentials, "run-2", request.agreement_hash, request.statement.channel_key
    )
    return replace(request, statement=statement)


JOINS: dict[str, tuple[type[Exception], StatusCode, str, Callable[[LocalFederation], JoinRequest]]] = {
    "not on the roster": (errors.NotOnRoster, DENIED, "clinic-z", lambda f: _request(f, B)),
    "with another site's statement": (errors.WrongIdentity, DENIED, B, lambda f: _request(f, A)),
    "under another agreement": (
        errors.WrongAgreement,
        PRECONDITION,
        B,
        lambda f: replace(_request(f, B), agreement_hash=small_agreement(rounds=3).hash()),
    ),
    "for another run": (
        errors.WrongAgreement,
        PRECONDITION,
        B,
        lambda f: replace(_request(f, B), run="run-2"),
    ),
    "in another protocol": (
        errors.WrongProtocol,
        StatusCode.UNIMPLEMENTED,
        B,
        lambda f: replace(_request(f, B), protocol=PROTOCOL_VERSION + 1),
    ),
    "with another channel key than signed": (
        errors.BadPayload,
        StatusCode.INVALID_ARGUMENT,
        B,
        _forged,
    ),
    "with a statement for another run": (
        errors.BadPayload,
        StatusCode.INVALID_ARGUMENT,
        B,
        _signed_for_another_run,
    ),
}


@pytest.mark.parametrize("name", JOINS)
def test_join_wrong_is_refused(name: str, federation: LocalFederation) -> None:
    error, status, caller, make = JOINS[name]
    before = federation.coordinator.state, federation.store.statements()
    with pytest.raises(error) as refused:
        federation.coordinator.join(caller, make(federation))
    assert find_status(refused.value) is status
    assert (federation.coordinator.state, federation.store.statements()) == before


def _task(run: str = RUN, protocol: int = PROTOCOL_VERSION) -> TaskRequest:
    return TaskRequest(protocol, run)


_KEY = PhaseKey(RUN, 0, 1, Phase.ROSTER)
CALLS: dict[str, tuple[type[Exception], StatusCode, Callable[[Coordinator], object]]] = {
    "a task before joining": (errors.NotJoined, PRECONDITION, lambda c: c.next_task(B, _task())),
    "a task off the roster": (errors.NotOnRoster, DENIED, lambda c: c.next_task("clinic-z", _task())),
    "a task of another run": (
        errors.WrongAgreement,
        PRECONDITION,
        lambda c: c.next_task(B, _task(run="run-2")),
    ),
    "a task in another protocol": (
        errors.WrongProtocol,
        StatusCode.UNIMPLEMENTED,
        lambda c: c.next_task(B, _task(protocol=0)),
    ),
    "a download before joining": (
        errors.NotJoined,
        PRECONDITION,
        lambda c: c.download(B, DownloadRequest(_KEY)),
    ),
    "a download that is not its task": (
        errors.WrongPhase,
        StatusCode.ABORTED,
        lambda c: c.download(A, DownloadRequest(_KEY)),
    ),
    "leaving off the roster": (
        errors.NotOnRoster,
        DENIED,
        lambda c: c.leave("clinic-z", LeaveRequest(1)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_call_out_of_turn_is_refused(name: str, federation: LocalFederation) -> None:
    error, status, call = CALLS[name]
    before = federation.coordinator.state
    with pytest.raises(error) as refused:
        call(federation.coordinator)
    assert find_status(refused.value) is status
    assert federation.coordinator.state == before


def test_join_with_a_second_statement_is_refused() -> None:
    agreement = small_agreement()
    with LocalFederation(agreement, small_data(agreement)) as federation:
        site = federation.sites[1]
        site.join()
        party = federation.parties[1]
        request = site.session.join_request()
        key = federation.sites[0].session.join_request().statement.channel_key
        other = sign_statement(party.credentials, agreement.run, agreement.hash(), key)
        before = federation.coordinator.state, federation.store.statements()
        with pytest.raises(errors.Conflict) as refused:
            federation.coordinator.join(site.name, replace(request, statement=other))
        assert find_status(refused.value) is StatusCode.ALREADY_EXISTS
        assert (federation.coordinator.state, federation.store.statements()) == before
        federation.run()
        assert all(each.learner.values.require_last().round == agreement.rounds for each in federation.sites)
