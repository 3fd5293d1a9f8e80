"""Membership: certificates that end around the set-up, and the reply to a site that asks before it joins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from agreement import Protection
from agreement.schema.differences import agreed_fields, differing_fields
from crypto.errors import VerificationError
from crypto.keys import ChannelKey
from crypto.pki import (
    Credentials,
    Identity,
    Stretching,
    TrustAnchor,
    approve,
    create_authority,
    create_request,
)
from crypto.roster import Statement, sign_statement, verify_roster
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    CheckReply,
    CheckRequest,
    JoinRequest,
    Listing,
    Phase,
    RunStage,
    TaskRequest,
)
from secure_server import membership
from secure_server.aggregator import Aggregator
from secure_server.coordinator import Coordinator
from secure_server.errors import BadPayload, NotJoined, WrongIdentity, WrongProtocol
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import RoundStage
from secure_server.store import Store
from tests.secure_server.conftest import Identities
from tests.secure_server.exchanges.fedpc_play import Play, playing
from tests.secure_server.scripted_sites import Clock, fedpc_agreement
from tests.support.small import FEDERATION, HOLDINGS, RUN, small_agreement

AGREEMENT = small_agreement()
SHORT = "clinic-a"
LEFT = timedelta(minutes=30)
"""Remaining validity of the certificate of :data:`SHORT`. The set-up takes a minute."""
OTHERS = tuple(sorted(set(HOLDINGS) - {SHORT}))


@dataclass
class Scene:
    """A coordinator, the statements of its sites, and both of its clocks."""

    coordinator: Coordinator
    trust: TrustAnchor
    statements: Mapping[str, Statement]
    clock: Clock
    monkeypatch: pytest.MonkeyPatch

    def join(self, *sites: str) -> None:
        for site in sites:
            statement = self.statements[site]
            self.coordinator.join(site, JoinRequest(PROTOCOL_VERSION, RUN, AGREEMENT.hash(), statement))

    def wait(self, time: timedelta) -> None:
        """Advance the wall clock; deadlines follow ``clock``."""

        class Later(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Later:
                return cls.fromtimestamp((datetime.now(tz) + time).timestamp(), tz)

        self.monkeypatch.setattr(membership, "datetime", Later)

    def verify_as_a_site(self, at: datetime) -> None:
        """Verify the roster as every member does."""
        names = self.coordinator.state.members
        verify_roster(
            [self.statements[name] for name in names],
            trust=self.trust,
            run=RUN,
            agreement_hash=AGREEMENT.hash(),
            own=self.statements["clinic-b"],
            minimum=3,
            pins={},
            at=at,
        )


def certificates(folder: Path) -> tuple[TrustAnchor, dict[str, Credentials]]:
    """Issue the certificates of all sites, that of :data:`SHORT` for a day that is nearly over."""
    now, passphrase = datetime.now(UTC), b"of this test"
    create_authority(
        folder / "ca",
        FEDERATION,
        passphrase,
        now=now - timedelta(days=2),
        stretching=Stretching.NONE_FOR_RANDOM_SECRET,
    )
    credentials = {}
    for site in HOLDINGS:
        create_request(
            folder / site,
            Identity.site(FEDERATION, site),
            passphrase,
            stretching=Stretching.NONE_FOR_RANDOM_SECRET,
        )
        request = (folder / site / "request.pem").read_bytes()
        short = site == SHORT
        issued = now - timedelta(days=1) + LEFT if short else now
        certificate = approve(folder / "ca", passphrase, request, 1 if short else 365, now=issued)
        (folder / site / "certificate.pem").write_bytes(certificate)
        credentials[site] = Credentials.load(
            folder / site / "certificate.pem", folder / site / "key.pem", passphrase
        )
    return TrustAnchor.load(folder / "ca" / "ca.pem"), credentials


def rules(setup_seconds: float) -> Rules:
    return Rules(
        run=RUN,
        roster=tuple(HOLDINGS),
        min_sites=3,
        rounds=1,
        max_attempts=1,
        needs_secret=False,
        join_seconds=3600.0,
        phase_seconds=dict.fromkeys(Phase, setup_seconds),
    )


@pytest.fixture
def setup_seconds() -> float:
    return 60.0


@pytest.fixture
def scene(tmp_path: Path, setup_seconds: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    clock, (trust, credentials) = Clock(), certificates(tmp_path)
    statements = {
        site: sign_statement(each, RUN, AGREEMENT.hash(), ChannelKey.generate().public_bytes)
        for site, each in credentials.items()
    }
    with Store.open(tmp_path / "store.sqlite", RUN, AGREEMENT.hash()) as store:
        coordinator = Coordinator(
            agreement=AGREEMENT,
            rules=rules(setup_seconds),
            trust=trust,
            store=store,
            aggregator=Aggregator(AGREEMENT, tmp_path / "keys"),
            clock=clock,
        )
        yield Scene(coordinator, trust, statements, clock, monkeypatch)


def test_close_joining_ended_certificate_leaves_site_out(scene: Scene) -> None:
    scene.join(SHORT, *OTHERS[:-1])
    scene.wait(LEFT)
    scene.join(OTHERS[-1])
    assert scene.coordinator.state.stage is RoundStage.JOINING, "as for any other site that is missing"
    assert scene.coordinator.state.joined == set(OTHERS)
    scene.clock.now += 3600.0
    scene.coordinator.tick()
    assert (scene.coordinator.state.stage, scene.coordinator.state.members) == (RoundStage.SETUP, OTHERS)
    assert tuple(scene.coordinator.roster().members) == OTHERS
    scene.verify_as_a_site(datetime.now(UTC) + LEFT)


def test_close_joining_ended_certificate_may_leave_too_few(scene: Scene) -> None:
    scene.join(SHORT, *OTHERS[:-1])
    scene.wait(LEFT)
    scene.clock.now += 3600.0
    scene.coordinator.tick()
    assert scene.coordinator.state.stage is RoundStage.STOPPED
    assert scene.coordinator.state.reason == (
        f"2 of at least 3 sites joined in time; missing: {SHORT}, {OTHERS[-1]}"
    )


def test_rejoin_ended_certificate_names_the_remedy(scene: Scene) -> None:
    scene.join(SHORT, *OTHERS[:-1])
    scene.wait(LEFT)
    scene.join(OTHERS[-1])
    with pytest.raises(NotJoined):
        scene.coordinator.next_task(SHORT, TaskRequest(PROTOCOL_VERSION, RUN))
    with pytest.raises(BadPayload, match=r"renew"):
        scene.join(SHORT)


@pytest.mark.parametrize("weakened", [False, True])
def test_close_joining_certificate_ending_in_set_up_counts_as_ended(scene: Scene, weakened: bool) -> None:
    scene.join(SHORT, *OTHERS[:-1])
    scene.wait(LEFT - timedelta(seconds=30))
    if weakened:
        scene.monkeypatch.setattr(membership.MembershipChecks, "find_lapsed", lambda *_: frozenset())
    scene.join(OTHERS[-1])
    scene.clock.now += 3600.0
    scene.coordinator.tick()
    assert (SHORT in scene.coordinator.state.members) is weakened
    if weakened:
        with pytest.raises(VerificationError, match=f"CN={SHORT},"):  # and that at every site
            scene.verify_as_a_site(datetime.now(UTC) + LEFT)
    else:
        scene.verify_as_a_site(datetime.now(UTC) + LEFT)


@pytest.mark.parametrize("weakened", [False, True])
def test_repeat_setup_ended_certificate_is_not_taken_back(scene: Scene, weakened: bool) -> None:
    scene.join(SHORT, *OTHERS)
    left_out = replace(scene.coordinator.state, members=OTHERS, absent=frozenset({SHORT}))
    scene.monkeypatch.setattr(scene.coordinator, "_state", left_out)
    rules = replace(scene.coordinator._rules, max_attempts=3)
    scene.monkeypatch.setattr(scene.coordinator, "_rules", rules)
    scene.wait(LEFT - timedelta(seconds=30))
    if weakened:
        scene.monkeypatch.setattr(membership.MembershipChecks, "find_lapsed", lambda *_: frozenset())
    with nullcontext() if weakened else pytest.raises(NotJoined):
        scene.coordinator.next_task(SHORT, TaskRequest(PROTOCOL_VERSION, RUN))
    assert (SHORT in scene.coordinator.state.members) is weakened


def test_join_certificate_ending_after_set_up_is_accepted(scene: Scene) -> None:
    scene.join(SHORT, *OTHERS)
    assert scene.coordinator.state.members == (SHORT, *OTHERS)
    scene.wait(LEFT)
    scene.coordinator._members._roster = None
    assert tuple(scene.coordinator.roster().members) == (SHORT, *OTHERS)


@pytest.mark.parametrize("setup_seconds", [3600.0, 1e9])
def test_join_certificate_ending_in_set_up_is_refused(scene: Scene) -> None:
    with pytest.raises(BadPayload, match=SHORT):
        scene.join(SHORT)
    scene.join(*OTHERS)
    assert scene.coordinator.state.joined == set(OTHERS)


def test_join_statement_of_another_site_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    request = JoinRequest(PROTOCOL_VERSION, RUN, AGREEMENT.hash(), scene.statements["clinic-c"])
    with pytest.raises(WrongIdentity, match=r"clinic-b.*clinic-c"):
        scene.coordinator.join("clinic-b", request)
    monkeypatch.setattr(membership, "check_own_statement", lambda *_: None)
    scene.coordinator.join("clinic-b", request)
    assert scene.coordinator.state.joined == {"clinic-b"}, "under another's key, without the check"


STAGES = {
    RoundStage.JOINING: (RunStage.JOINING, 0, True),
    RoundStage.SETUP: (RunStage.UNDER_WAY, 0, True),
    RoundStage.PRESENCE: (RunStage.UNDER_WAY, 0, False),
    RoundStage.RESULT: (RunStage.UNDER_WAY, 1, False),
    RoundStage.FINISHED: (RunStage.FINISHED, 2, False),
}
"""The stage, the round, and whether a site that has not joined still may."""
LATE = "a"


@pytest.fixture
def play(identities: Identities, tmp_path: Path) -> Iterator[Play]:
    """A run that a listed site has not joined yet."""
    with playing(fedpc_agreement(Protection.PLAIN), *identities, tmp_path) as begun:
        for name, site in begun.sites.items():
            if name != LATE:
                site.join()
        yield begun


def asked(play: Play, site: str) -> CheckReply:
    return play.coordinator.check(site, CheckRequest(PROTOCOL_VERSION))


def listing(play: Play, site: str) -> Listing:
    told = asked(play, site).listing
    assert told is not None
    return told


def test_check_every_stage_changes_neither_run_nor_store(play: Play, tmp_path: Path) -> None:
    for stage, (told, number, may_join) in STAGES.items():
        if stage is not RoundStage.JOINING:
            play.go_to(stage, without=[LATE])
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        state = play.state
        play.clock.now += (
            10 * 3600.0
        )  # a deadline that has passed is for the next tick to notice, not for Check
        for site in play.sites:
            seen = listing(play, site)
            assert (seen.stage, seen.round) == (told, number)
            assert seen.may_join is (may_join or site != LATE)
        asked(play, "stranger")
        play.clock.now -= 10 * 3600.0
        assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert play.state is state


def test_check_unlisted_site_learns_only_the_run(play: Play) -> None:
    assert asked(play, "stranger") == CheckReply(PROTOCOL_VERSION, play.agreement.run, None)


def test_check_other_agreement_names_differing_fields(play: Play) -> None:
    told = listing(play, "b")
    assert told.agreement_hash == play.agreement.hash()
    assert {each.path: each.text for each in told.fields} == agreed_fields(play.agreement.to_json())
    assert differing_fields(play.agreement, told.fields) == []
    training = play.agreement.training.model_copy(update={"lr": 0.125})
    other = play.agreement.model_copy(update={"rounds": 7, "training": training, "classes": ("x", "y", "z")})
    assert [line.partition(":")[0] for line in differing_fields(other, told.fields)] == [
        "classes",
        "rounds",
        "training.lr",
    ]
    assert "rounds: here 7, at the coordinator 2" in differing_fields(other, told.fields)


def test_check_other_protocol_version_is_refused(play: Play) -> None:
    with pytest.raises(WrongProtocol):
        play.coordinator.check("b", CheckRequest(PROTOCOL_VERSION + 1))
