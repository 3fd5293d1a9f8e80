"""Sites that drop out in each phase of a round, in every method and protection: one table of what must come of it.

Each case is one run, in which each round loses sites in another phase, and they are back in the next round. The last
round is undisturbed. Whatever a case loses, the same holds: the survivors' result equals the papers' equations, a site
that missed it catches up and trains from the others' base, and everyone takes part again in the last round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, MaskingSection, Method, PfplSection, Protection
from agreement.derived.payload_shapes import limits_of
from algorithms.pfpl import Weighting
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_server.rounds import transitions
from tests.conformance import equations, peer_equations
from tests.conformance.drop_outs import Loss
from tests.conformance.federations import (
    Bool,
    agreement_for,
    data_for,
    grouped_agreement,
    holdings,
    two_kinds,
)
from tests.conformance.transcripts import (
    ClusterTranscript,
    Transcript,
    compare_predictions,
    contributors,
    record_cluster_run,
    record_run,
)

PLAIN, MASKED, CKKS = Protection.PLAIN, Protection.MASKED, Protection.CKKS
PRESENCE, DIRECTIONS, SHARES, VALUES = Phase.PRESENCE, Phase.DIRECTIONS, Phase.SHARES, Phase.VALUES
SURVIVORS, UNMASK, MEANS, RESULT = Phase.SURVIVORS, Phase.UNMASK, Phase.MEANS, Phase.RESULT


def sites(*numbers: int) -> tuple[str, ...]:
    """Return the names of the sites of these numbers."""
    return tuple(f"site-{number}" for number in numbers)


NINE, SEVEN, SIX = sites(*range(1, 10)), sites(*range(1, 8)), sites(*range(1, 7))
FIRST, SECOND = NINE[::2], NINE[1::2]
"""FedPC's two groups of the nine."""


@dataclass(frozen=True)
class Round:
    """One row of the table: ``lost`` sites answer nothing from ``phase`` on, and what comes of the round.

    ``contributors`` are the sites whose values are in the result. ``attempts`` are the attempts in which the round may
    end. A round without ``phase`` loses nobody.
    """

    phase: Phase | None
    lost: tuple[str, ...]
    attempts: tuple[int, ...]
    contributors: tuple[str, ...]
    abandoned: bool = False


def without(everyone: Sequence[str], *lost: str) -> tuple[str, ...]:
    """Return all sites but the lost ones."""
    return tuple(site for site in everyone if site not in lost)


def losing(
    everyone: tuple[str, ...], *rows: tuple[Phase, tuple[str, ...], int | tuple[int, ...], bool]
) -> tuple[Round, ...]:
    """Return rounds that lose sites in a phase, and a last one that loses nobody.

    A row is (phase, lost sites, attempts, whether the values of the lost sites count).
    """
    rounds = [
        Round(
            phase,
            lost,
            attempts if isinstance(attempts, tuple) else (attempts,),
            everyone if count else without(everyone, *lost),
        )
        for phase, lost, attempts, count in rows
    ]
    return (*rounds, Round(None, (), (1,), everyone))


# Two of nine: each of FedPC's groups can lose one, and a sum over all takes seven.
TWO, THREE = NINE[:2], NINE[:3]
MASKED_SUM = losing(
    NINE,
    (PRESENCE, TWO, 1, False),
    (SHARES, TWO, 1, False),
    (VALUES, TWO, 1, False),
    (SURVIVORS, TWO, 1, True),
    (UNMASK, TWO, 1, True),
    (RESULT, TWO, 1, True),
)
PLAIN_SUM = losing(
    NINE,
    (PRESENCE, TWO, 1, False),
    *[(VALUES, TWO, 2, False)] * 2,
    *[(RESULT, TWO, 1, True)] * 3,
)
"""Rounds of fewer phases, with the survivors of :data:`MASKED_SUM`."""
ROTATED_PEERS = losing(
    SEVEN,
    (PRESENCE, sites(7), 1, False),
    (VALUES, sites(1), 2, False),  # everyone who takes part must send values
    (RESULT, sites(4), 1, True),
)
LOST_FOR_GOOD = (
    Round(PRESENCE, sites(7), (1,), without(SEVEN, "site-7")),
    Round(VALUES, sites(1), (2,), without(SEVEN, "site-7", "site-1")),
    Round(RESULT, sites(4), (1,), without(SEVEN, "site-7", "site-1")),
    Round(None, (), (1,), sites(2, 3, 5, 6)),
)
ENCRYPTED_SUM = losing(
    NINE,
    (PRESENCE, sites(3, 4), 1, False),
    (VALUES, sites(3, 4), 2, False),
    (RESULT, sites(3, 4), 1, True),
)
ENCRYPTED_GROUPS = (
    Round(PRESENCE, sites(3, 4), (1,), without(NINE, "site-3", "site-4")),
    Round(VALUES, sites(1), (2,), NINE[1:]),
    Round(MEANS, sites(3, 4), (1,), NINE),
    Round(None, (), (1,), NINE),
    # A sum may be open once its leader was asked for means: no second attempt, and another leader afterwards.
    Round(MEANS, sites(1), (1,), NINE, abandoned=True),
    Round(None, (), (1,), NINE[1:]),
    Round(RESULT, sites(1, 4), (1,), NINE),
    Round(None, (), (1,), NINE),
)
MASKED_CLUSTERS = losing(
    SIX,
    (PRESENCE, sites(1), 1, False),
    (DIRECTIONS, sites(1), 1, False),
    (SHARES, sites(1), (1, 2), False),  # a cluster may have needed the site
    (VALUES, sites(1), (1, 2), False),
    (SURVIVORS, sites(1), 1, True),
    (UNMASK, sites(1), 1, True),
    (RESULT, sites(1), 1, True),
)
PLAIN_CLUSTERS = losing(
    SIX, (PRESENCE, sites(1), 1, False), (VALUES, sites(1), 2, False), (RESULT, sites(1), 1, True)
)
ENCRYPTED_CLUSTERS = losing(
    SIX,
    (PRESENCE, sites(1), 1, False),
    (DIRECTIONS, sites(2), 2, False),
    (VALUES, sites(5), 2, False),  # one of three that have the last class
    (RESULT, sites(1), 1, True),
)

# More than can be gone on without: the round is repeated, or abandoned once a sum of it may be open.
TOO_MANY_OF_A_SUM = (
    Round(SHARES, THREE, (2,), without(NINE, *THREE)),
    Round(UNMASK, THREE, (1,), NINE, abandoned=True),
    Round(None, (), (1,), without(NINE, *THREE)),
    Round(None, (), (1,), NINE),
)
TOO_MANY_OF_A_SPARSE_SUM = (
    Round(SHARES, THREE, (2,), without(NINE, *THREE)),
    Round(SURVIVORS, THREE, (1,), NINE, abandoned=True),  # survivors of a sparse graph are signed but once
    Round(None, (), (1,), without(NINE, *THREE)),
    Round(UNMASK, THREE, (1,), NINE, abandoned=True),
    Round(None, (), (1,), without(NINE, *THREE)),
    Round(None, (), (1,), NINE),
)
TOO_MANY_OF_A_GROUP = (
    Round(VALUES, sites(9), (2,), NINE[:-1]),  # the clustering
    Round(
        VALUES, SECOND[:2], (2,), FIRST
    ),  # the two that are left of the second group sit the next attempt out
    Round(
        SHARES, sites(3), (2,), without(NINE, "site-3")
    ),  # one of three of the first group that have class 4
    Round(SURVIVORS, sites(1, 9), (2,), SECOND),  # three that sent values with the two would not again
    Round(UNMASK, SECOND[:2], (1,), NINE, abandoned=True),
    Round(None, (), (1,), FIRST),
    Round(None, (), (1,), NINE),
)
TOO_MANY_OF_AN_ENCRYPTED_GROUP = (
    Round(VALUES, sites(3), (2,), without(NINE, "site-3")),
    Round(VALUES, SECOND[:2], (2,), FIRST),
    Round(None, (), (1,), NINE),
)


@dataclass(frozen=True)
class Case:
    """A method and a protection, and the rounds of their run.

    ``answer_lost``: a lost site answers that phase, and the answer does not arrive. ``back``: it is back for the RESULT
    of the same round, unless it is lost there. ``for_good``: a lost site never comes back. ``plain`` names the case
    under `plain` with the same survivors.
    """

    method: Method
    protection: Protection
    rounds: tuple[Round, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    first: int = 1
    answer_lost: bool = False
    back: bool = False
    for_good: bool = False
    plain: str = ""

    @property
    def everyone(self) -> tuple[str, ...]:
        """All sites of the run."""
        return tuple(f"site-{i + 1}" for i in range(len(self.holds)))

    @property
    def holds(self) -> Bool:
        """Classes of each site (n, K)."""
        if self.method is Method.FEDPLCC:
            holds = np.ones((6, 4), dtype=np.bool_)
            holds[:3, 3] = False
            return holds if self.protection is CKKS else np.ones((6, 3), dtype=np.bool_)
        if self.is_rotated:
            return holdings(len(SEVEN), 3 if self.for_good else 5)
        return two_kinds()

    @property
    def is_rotated(self) -> bool:
        """Whether sites get combinations of their peers, each its own."""
        return self.method is Method.PFPL and "pfpl" not in self.settings

    @property
    def agreement(self) -> Agreement:
        """The run's agreement: more features than a ciphertext holds (256 here), or few."""
        last, classes = self.first + len(self.rounds) - 1, self.holds.shape[1]
        if self.is_rotated:
            weighting, dim = (Weighting.DISTANCE, 300) if self.for_good else (Weighting.COMPLEMENT, 8)
            return agreement_for(self.protection, weighting, classes=classes, dim=dim, rounds=last)
        settings = dict(self.settings)
        if self.method is Method.FEDPLCC or self.protection is CKKS:
            settings["norm_bound"] = 40.0
        return grouped_agreement(
            self.protection, method=self.method, classes=classes, dim=12, rounds=last, **settings
        )

    @property
    def losses(self) -> list[Loss]:
        """Losses in the order of the rounds; a site that is lost for good answers no later PRESENCE either."""
        losses, last = list[Loss](), self.first + len(self.rounds)
        for number, row in enumerate(self.rounds, self.first):
            for site in row.lost if row.phase is not None else ():
                back = self.back and row.phase is not RESULT
                losses.append(Loss(site, number, row.phase, self.answer_lost, back))  # type: ignore[arg-type]
                if self.for_good:
                    losses += [Loss(site, later, PRESENCE) for later in range(number + 1, last)]
        return losses

    def receivers(self, row: Round) -> set[str]:
        """Return the sites that are given a round's result, whether or not the coordinator knows."""
        if row.abandoned:
            return set()
        got = set(row.contributors) - set(row.lost)
        took_part = row.phase is not PRESENCE and self.back
        answered_result = row.phase is RESULT and self.answer_lost
        return got | set(row.lost) if took_part or answered_result else got

    def catches_up(self, row: Round, site: str) -> bool:
        """Return True if the coordinator sends a site, in the next round, the result that it did not acknowledge."""
        return site not in self.receivers(row) or (row.phase is RESULT and site in row.lost)


UNIFORM = PfplSection(weighting=Weighting.UNIFORM, alpha=0.3)
SPARSE = MaskingSection(complete_up_to=3)
"""A sparse graph at nine sites: one colluder and two drop-outs."""
CASES: dict[str, Case] = {
    "pfpl plain": Case(Method.PFPL, PLAIN, ROTATED_PEERS),
    "pfpl plain answer-lost": Case(Method.PFPL, PLAIN, ROTATED_PEERS, answer_lost=True),
    "pfpl plain for-good": Case(Method.PFPL, PLAIN, LOST_FOR_GOOD, for_good=True),
    "pfpl plain answer-lost for-good": Case(
        Method.PFPL, PLAIN, LOST_FOR_GOOD, for_good=True, answer_lost=True
    ),
    "pfpl masked": Case(Method.PFPL, MASKED, ROTATED_PEERS, plain="pfpl plain"),
    "pfpl masked answer-lost": Case(
        Method.PFPL, MASKED, ROTATED_PEERS, answer_lost=True, plain="pfpl plain answer-lost"
    ),
    "pfpl masked for-good": Case(
        Method.PFPL, MASKED, LOST_FOR_GOOD, for_good=True, plain="pfpl plain for-good"
    ),
    "pfpl masked answer-lost for-good": Case(
        Method.PFPL,
        MASKED,
        LOST_FOR_GOOD,
        for_good=True,
        answer_lost=True,
        plain="pfpl plain answer-lost for-good",
    ),
    "pfpl ckks": Case(Method.PFPL, CKKS, ROTATED_PEERS, plain="pfpl plain"),
    "pfpl ckks answer-lost for-good": Case(
        Method.PFPL,
        CKKS,
        LOST_FOR_GOOD,
        for_good=True,
        answer_lost=True,
        plain="pfpl plain answer-lost for-good",
    ),
    "pfpl-sum masked": Case(Method.PFPL, MASKED, MASKED_SUM, {"pfpl": UNIFORM}),
    "pfpl-sum masked sparse": Case(Method.PFPL, MASKED, MASKED_SUM, {"pfpl": UNIFORM, "masking": SPARSE}),
    "fedpc plain": Case(Method.FEDPC, PLAIN, PLAIN_SUM),
    "fedpc masked": Case(Method.FEDPC, MASKED, MASKED_SUM, plain="fedpc plain"),
    "fedpc masked answer-lost": Case(Method.FEDPC, MASKED, MASKED_SUM, answer_lost=True, back=True),
    "fedpc ckks": Case(Method.FEDPC, CKKS, ENCRYPTED_GROUPS),
    "feddbp plain": Case(Method.FEDDBP, PLAIN, PLAIN_SUM),
    "feddbp masked": Case(Method.FEDDBP, MASKED, MASKED_SUM, plain="feddbp plain"),
    "feddbp ckks": Case(Method.FEDDBP, CKKS, ENCRYPTED_SUM),
    "fedavg plain": Case(Method.FEDAVG, PLAIN, PLAIN_SUM),
    "fedavg masked": Case(Method.FEDAVG, MASKED, MASKED_SUM, plain="fedavg plain"),
    "fedavg masked sparse": Case(Method.FEDAVG, MASKED, MASKED_SUM, {"masking": SPARSE}),
    "fedplcc plain": Case(Method.FEDPLCC, PLAIN, PLAIN_CLUSTERS),
    "fedplcc masked": Case(Method.FEDPLCC, MASKED, MASKED_CLUSTERS),
    "fedplcc ckks": Case(Method.FEDPLCC, CKKS, ENCRYPTED_CLUSTERS),
    "pfpl-sum masked too-many": Case(Method.PFPL, MASKED, TOO_MANY_OF_A_SUM, {"pfpl": UNIFORM}),
    "fedpc masked too-many": Case(Method.FEDPC, MASKED, TOO_MANY_OF_A_GROUP, first=0),
    "fedpc ckks too-many": Case(Method.FEDPC, CKKS, TOO_MANY_OF_AN_ENCRYPTED_GROUP),
    "feddbp masked too-many": Case(Method.FEDDBP, MASKED, TOO_MANY_OF_A_SUM),
    "fedavg masked too-many": Case(Method.FEDAVG, MASKED, TOO_MANY_OF_A_SUM),
    "fedavg masked sparse too-many": Case(
        Method.FEDAVG, MASKED, TOO_MANY_OF_A_SPARSE_SUM, {"masking": SPARSE}
    ),
}
FULL = {
    "pfpl plain answer-lost",
    "pfpl plain for-good",
    "pfpl masked answer-lost",
    "pfpl masked for-good",
    "pfpl ckks answer-lost for-good",
    "pfpl-sum masked sparse",
    "fedpc plain",
    "fedavg plain",
    "fedavg masked",
    "fedavg masked too-many",
    "fedplcc plain",
}
"""Cases that ``make test`` leaves to ``make test-all``."""
PLAIN_TWINS = {"pfpl plain", "pfpl plain answer-lost for-good", "feddbp plain"}
"""Cases under `plain` that another one is compared with."""


def parameters(rows: Sequence[tuple[object, ...]], full: set[str] = FULL) -> list[Any]:
    """Return test parameters whose first value names a case; those of ``full`` are marked."""
    return [
        pytest.param(
            *row,
            marks=pytest.mark.full if row[0] in full else (),
            id="-".join(map(str, row)).replace(" ", "-"),
        )
        for row in rows
    ]


each_case = pytest.mark.parametrize("name", parameters([(name,) for name in CASES]))
each_round = pytest.mark.parametrize(
    ("name", "number"),
    parameters(
        [
            (name, number)
            for name, case in CASES.items()
            for number in range(max(1, case.first), case.first + len(case.rounds))
        ]
    ),
)
Played = Callable[[str], Transcript]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Return the transcript of a case, which is played once."""

    @cache
    def transcript(name: str) -> Transcript:
        return play(CASES[name], tmp_path_factory.mktemp("run"))

    return transcript


def play(case: Case, folder: Path, losses: Sequence[Loss] | None = None) -> Transcript:
    """Play a case."""
    agreement = case.agreement
    return record_run(
        agreement, data_for(agreement, case.holds), folder, case.losses if losses is None else losses
    )


@each_round
def test_round_with_drop_outs_ends_as_the_table_says(played: Played, name: str, number: int) -> None:
    case, transcript = CASES[name], played(name)
    row = case.rounds[number - case.first]
    (attempt,) = {attempt for at, attempt, abandoned in transcript.summary() if at == number}
    assert attempt in row.attempts
    assert transcript.summary()[number - 1] == (number, attempt, row.abandoned)
    assert contributors(transcript, number) == row.contributors
    assert {site for at, site in transcript.got if at == number} == case.receivers(row)
    assert {site for at, site in transcript.taken if at == number} == case.receivers(row)


@each_round
def test_survivors_result_equals_the_equations(played: Played, name: str, number: int) -> None:
    case, transcript = CASES[name], played(name)
    row = case.rounds[number - case.first]
    if row.abandoned:
        return
    assert equations.excess(transcript, number) <= 1.0
    if case.protection is MASKED and case.agreement.sums and case.method not in (Method.PFPL, Method.FEDPLCC):
        assert equations.sum_excess(transcript, number, rounded=True) <= 1.0
    survivor = next(site for site in row.contributors if site not in row.lost)
    assert (
        equations.excess(transcript, number, without=(survivor,)) > 20.0
    )  # a missing contribution would show


@each_round
def test_lost_site_catches_up_and_trains_from_the_others_base(played: Played, name: str, number: int) -> None:
    """Members of a group train from one base, the last result that the group had."""
    case, transcript = CASES[name], played(name)
    row = case.rounds[number - case.first]
    started = {site for at, attempt, site in transcript.starts if (at, attempt) == (number + 1, 1)}
    if case.is_rotated or not started:
        return
    for group in transcript.groups or (case.everyone,):
        results = [at for at, site in transcript.got if at <= number and site in group]
        bases = (
            {
                transcript.got[max(results), site].hash
                for site in group
                if (max(results), site) in transcript.got
            }
            if results
            else {b""}
        )
        for site in started & set(group):
            start = transcript.starts[number + 1, 1, site]
            assert {start.base} == bases
            assert start.base == transcript.bases[number + 1, 1, site]
            if results and max(results) == number:
                assert (start.catch_up is not None) == case.catches_up(row, site)
                assert start.catch_up is None or start.catch_up.scheme == scheme_of(case)


def scheme_of(case: Case) -> str:
    """Return the name of the form in which a result is sent again: the very ciphertexts, under `ckks`."""
    return {PLAIN: "plain/1", MASKED: "pairwise/1", CKKS: "ckks/1"}[case.protection]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("feddbp masked", number) for number in (4, 5, 6)),
        ("feddbp ckks", 3),
    ],
)
def test_feddbp_site_that_catches_up_fuses_the_mean_with_its_own_last_prototypes(
    played: Played, name: str, number: int
) -> None:
    """The lost sites had sent their values in these rounds before they were lost."""
    for site in NINE:
        assert equations.fusion_excess(played(name), number, site) <= 1.0


@pytest.mark.parametrize("name", ["fedpc ckks", "fedplcc ckks"])
def test_members_decrypt_the_same_targets_from_ciphertexts_sent_again(played: Played, name: str) -> None:
    transcript = played(name)
    for group in transcript.groups if name == "fedpc ckks" else (CASES[name].everyone,):
        for number in range(2, transcript.agreement.rounds + 1):
            found = [
                transcript.guides[number, 1, site]
                for site in group
                if (number, 1, site) in transcript.guides and transcript.starts[number, 1, site].base
            ]
            for targets in found[1:]:
                np.testing.assert_array_equal(targets, found[0])


@pytest.mark.parametrize(
    ("name", "number"),
    parameters(
        [(name, number) for name in ("pfpl-sum masked", "pfpl-sum masked sparse") for number in range(1, 7)]
    ),
)
def test_peer_sum_lost_site_trains_towards_the_peers_mean(played: Played, name: str, number: int) -> None:
    transcript, row = played(name), CASES[name].rounds[number - 1]
    for position, site in enumerate(NINE):
        if number == 1 and site in row.lost:  # it had not trained yet
            assert not transcript.guides[2, 1, site].any()
            continue
        own, holds = transcript.trained[number, 1, site], two_kinds()[position]
        assert peer_equations.guide_excess(transcript, number, site, own, holds) <= 1.0
        if site not in row.lost:
            assert peer_equations.guide_excess(transcript, number, site, own, holds, subtracts=False) > 1e3
        start = transcript.starts[number + 1, 1, site]
        if start.catch_up is not None:
            members = codec.decode_sum_members(start.catch_up.blobs[0], limits_of(transcript.agreement))
            assert (members.round, members.attempt, members.listed[-1]) == (number, 1, NINE[-1])
            assert members.signed.sites == row.contributors


@pytest.mark.parametrize("name", parameters([(name,) for name, case in CASES.items() if case.plain]))
def test_predictions_equal_those_of_the_same_losses_under_plain(played: Played, name: str) -> None:
    transcript, plain = played(name), played(CASES[name].plain)
    assert sorted(transcript.taken) == sorted(plain.taken)
    for number in range(1, transcript.agreement.rounds + 1):
        compare_predictions(transcript, plain, number)


@pytest.mark.parametrize("answer_lost", [False, True])
def test_failed_attempt_under_plain_leaves_no_trace(
    answer_lost: bool, played: Played, tmp_path: Path
) -> None:
    """A run in which the site that fails an attempt was never there in that round is the same, bit for bit."""
    case = CASES["pfpl plain answer-lost for-good"]
    if not answer_lost:
        case = replace(case, answer_lost=False)
    earlier = [
        replace(loss, phase=PRESENCE, answer_lost=False) if loss.phase is VALUES else loss
        for loss in case.losses
    ]
    undisturbed = play(case, tmp_path, earlier)
    assert [attempt for _, attempt, _ in undisturbed.summary()] == [1] * len(case.rounds)
    got = played("pfpl plain answer-lost for-good") if answer_lost else play(case, tmp_path)
    assert sorted(got.taken) == sorted(undisturbed.taken)
    for key, taken in got.taken.items():
        np.testing.assert_array_equal(taken.targets, undisturbed.taken[key].targets)
        np.testing.assert_array_equal(taken.margins, undisturbed.taken[key].margins)


def test_repeated_attempt_has_keys_of_its_own(played: Played) -> None:
    """Equal vectors under equal masks would show the sites that dropped out in between."""
    transcript = played("fedpc masked too-many")
    assert {attempt for number, attempt, _ in transcript.put if number == 0} == {1, 2}
    assert transcript.groups == (FIRST, SECOND)  # the site lost in the clustering joined the largest group
    keys = [key for stated in transcript.stated_keys().values() for key in (stated.mask, stated.share)]
    assert {(3, 1), (3, 2)} <= {(number, attempt) for number, attempt, _ in transcript.stated_keys()}
    assert len(set(keys)) == len(keys)


# Leaders of encrypted groups, whom the coordinator asks for means


def leaders(transcript: Transcript, number: int) -> set[str]:
    """Return the sites whose means the coordinator took."""
    keys = [(received.key, received.site) for received in transcript.received if received.key is not None]
    return {site for key, site in keys if (key.round, key.phase) == (number, MEANS)}


def test_group_has_another_leader_after_a_lost_one(played: Played) -> None:
    transcript = played("fedpc ckks")
    assert leaders(transcript, 3) == leaders(transcript, 7) == {FIRST[0], SECOND[0]}
    assert leaders(transcript, 6) == {FIRST[1], SECOND[0]}


def test_group_of_too_few_gives_no_means_and_a_class_of_too_few_is_zeroed(played: Played) -> None:
    transcript = played("fedpc ckks too-many")
    assert leaders(transcript, 2) == {FIRST[0]}
    with_class = {at for at, put in transcript.put.items() if at[0] == 1 and put.holds[4]}
    assert {site for _, attempt, site in with_class if attempt == 2 and site in FIRST} == {"site-5", "site-7"}


def test_attempt_after_means_were_asked_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The power of the table: a coordinator that repeats such a round gets means of two sums in it."""
    monkeypatch.setattr(transitions, "_sum_may_be_open", lambda *_: False)
    case = Case(Method.FEDPC, CKKS, (Round(MEANS, sites(1), (2,), NINE[1:]),))
    transcript = play(case, tmp_path)
    assert transcript.summary() == [(1, 2, False)]
    assert leaders(transcript, 1) == {FIRST[1], SECOND[0]}
    assert {attempt for _, attempt, _ in transcript.put} == {1, 2}


# Clusters that need a site


def holders_at_the_minimum(transcript: ClusterTranscript, number: int, attempt: int) -> set[str]:
    """Return the sites without which some cluster of an attempt has too few."""
    needed: set[str] = set()
    for holders in transcript.holders(number, attempt):
        needed |= set(holders) if len(holders) == transcript.agreement.min_holders else set()
    return needed


@pytest.mark.parametrize("spared", [True, False])
def test_masked_clusters_repeat_a_round_only_if_a_cluster_needs_the_lost_site(
    tmp_path: Path, spared: bool
) -> None:
    case = Case(Method.FEDPLCC, MASKED, (Round(None, (), (1,), SIX),))
    data = data_for(case.agreement, case.holds)
    before = record_cluster_run(case.agreement, data, tmp_path)
    needed = holders_at_the_minimum(before, 1, 1)
    lost = min(set(SIX) - needed if spared else needed)
    transcript = play(case, tmp_path, [Loss(lost, 1, VALUES)])
    assert transcript.summary() == [(1, 1 if spared else 2, False)]
    assert contributors(transcript, 1) == without(SIX, lost)
    assert equations.excess(transcript, 1) <= 1.0
